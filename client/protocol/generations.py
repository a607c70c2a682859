"""The generations of a client's examples.

A generation consists of the examples of a split that arrived together. A client's answers concern
all of its present examples. So examples that arrived together have been used equally often, and
later examples less often. Scalars are therefore counted by generation. New examples do not raise
the limit of earlier examples, and their count starts at 0. The file holds hashes of single examples
and never leaves this machine.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from samara.shared.protocol.frames.instructions import Split
from samara.shared.storage.kept_file import KeptFile
from samara.shared.tasks.rows import Example, hash_examples

GENERATIONS_FILE = "generations.json"
MOST_GENERATIONS = 32
"""Maximum number of nonempty generations of a split. Further examples join the latest of them."""
_HASH_DIGITS = 16

_Generations = dict[str, dict[str, list[str]]]
"""Hashes of examples by split name and by hash of their generation; all hashes are in hex."""


class Generations(KeptFile[_Generations]):
    """The stored generations of a client; without a folder, each split is one generation."""

    name = GENERATIONS_FILE
    damaged = (
        "{file}: the generations of the examples cannot be read: {problem}; restore the file from "
        "a backup, or delete it if the counts of all examples may begin again at 0"
    )
    empty = dict
    style: ClassVar = {"indent": 1}  # in order of arrival

    def __init__(self, folder: Path | None) -> None:
        super().__init__(folder)
        self._latest: dict[Split, tuple[str, tuple[str, ...]]] = {}

    def of_examples(self, split: Split, examples: Sequence[Example], hash_: str) -> tuple[str, ...]:
        """Return the hashes of examples' generations; new examples become a new generation.

        The generations are recorded durably. A deleted example that is added again belongs to its
        old generation.

        Args:
            split: split of the examples.
            examples: all examples of the split.
            hash_: hash of the set of examples, in hex.

        Returns:
            Hashes in hex.

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
