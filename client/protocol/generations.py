"""The generations of a client's examples: those of a split that came together.

What a client sends is about all of its examples, so that examples that came together have been
told about equally often, and later ones less. Scalars are counted by generation: one example more
then neither lifts the limit of those before it, nor begins with their count. The file holds hashes
of single examples, for this machine alone.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from samara.shared.errors import TrainerError
from samara.shared.files import make_folder, write_durably
from samara.shared.frames.instructions import Split
from samara.shared.tasks.rows import Example, hash_examples

GENERATIONS_FILE = "generations.json"
MOST_GENERATIONS = 32
"""Most generations of a split that have an example; further examples join the latest one."""
_HASH_DIGITS = 16

_Generations = dict[str, list[str]]
"""Hashes of the examples of each generation, by the hash that it is counted under, in hex."""


class Generations:
    """The generations of one client, on disk.

    Args:
        folder: folder of the client.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / GENERATIONS_FILE
        self._latest: dict[Split, tuple[str, tuple[str, ...]]] = {}

    def of_examples(self, split: Split, examples: Sequence[Example], hash_: str) -> tuple[str, ...]:
        """Return the generations that examples belong to; new examples are one of their own.

        It is on the disk when this returns. An example that comes back is in its old generation.

        Args:
            split: split of the examples.
            examples: all examples of the split.
            hash_: hash of the set of them, in hex.

        Raises:
            TrainerError: if the file cannot be read or written.
        """
        known_hash, known = self._latest.get(split, ("", ()))
        if known_hash != hash_:
            self._latest[split] = hash_, (known := self._find(split, examples))
        return known

    def _find(self, split: Split, examples: Sequence[Example]) -> tuple[str, ...]:
        if not examples:
            return ()
        content = self._read()
        generations = content.setdefault(split.name.lower(), {})
        generation_of = {one: name for name, members in generations.items() for one in members}
        hashes = [hash_examples([example])[:_HASH_DIGITS] for example in examples]
        present = {generation_of[one] for one in hashes if one in generation_of}
        new = [(e, h) for e, h in zip(examples, hashes, strict=True) if h not in generation_of]
        if new:
            latest = [name for name in generations if name in present][-1:]
            if len(present) < MOST_GENERATIONS:
                latest = [hash_examples(example for example, _ in new)]
            generations.setdefault(latest[0], []).extend(dict.fromkeys(h for _, h in new))
            present.add(latest[0])
            self._write(content)
        return tuple(name for name in generations if name in present)

    def _read(self) -> dict[str, _Generations]:
        """Return the generations by the name of the split.

        Raises:
            TrainerError: if the file cannot be read. It is not replaced by an empty one, which
                would lift limits.
        """
        try:
            return {
                split: {str(name): [str(one) for one in members] for name, members in its.items()}
                for split, its in json.loads(self._file.read_text(encoding="utf-8")).items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise TrainerError(
                f"{self._file}: which examples came together cannot be read: {error!r}; restore "
                "the file from a backup, or delete it if all examples may be counted anew"
            ) from error

    def _write(self, content: dict[str, _Generations]) -> None:
        try:
            make_folder(self._file.parent)
            write_durably(self._file, json.dumps(content, indent=1).encode())
        except OSError as error:
            raise TrainerError(f"{self._file}: cannot be written: {error.strerror}") from error
