"""The generations of a client's examples: those of a split that came together.

What a client sends is about all of its examples, so that examples that came together have been
told about equally often, and later ones less. Scalars are counted by generation: one example more
then neither lifts the limit of those before it, nor begins with their count. The file holds hashes
of single examples, for this machine alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from samara.shared.frames.instructions import Split
from samara.shared.kept_file import KeptFile
from samara.shared.tasks.rows import Example, hash_examples

GENERATIONS_FILE = "generations.json"
MOST_GENERATIONS = 32
"""Most generations of a split that have an example; further examples join the latest one."""
_HASH_DIGITS = 16

_Generations = dict[str, dict[str, list[str]]]
"""Hashes of examples, by the name of their split and the hash of their generation, in hex."""


class Generations(KeptFile[_Generations]):
    """The generations of one client, on disk. Without a folder each split is one generation."""

    name = GENERATIONS_FILE
    damaged = (
        "{file}: which examples came together cannot be read: {problem}; restore the file from a "
        "backup, or delete it if all examples may be counted anew"
    )
    empty = dict
    style: ClassVar = {"indent": 1}  # in the order in which they came

    def __init__(self, folder: Path | None) -> None:
        super().__init__(folder)
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
        if self.path is None:
            return (hash_,) if hash_ else ()
        known_hash, known = self._latest.get(split, ("", ()))
        if known_hash != hash_:
            self._latest[split] = hash_, (known := self._find(split, examples))
        return known

    def _find(self, split: Split, examples: Sequence[Example]) -> tuple[str, ...]:
        if not examples:
            return ()
        content = self.read()
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
            self.write(content)
        return tuple(name for name in generations if name in present)

    def _parse(self, value: Any) -> _Generations:
        return {
            split: {str(name): [str(one) for one in members] for name, members in its.items()}
            for split, its in value.items()
        }
