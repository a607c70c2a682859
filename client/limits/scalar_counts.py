"""A client's stored counts of sent scalars, and the owner's limit on them.

The file outlives sessions and runs, because the server can keep every scalar it receives. The
counts are written before an answer leaves. After a crash they may therefore include an answer that
was not sent, but they never lack a sent answer.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from samara.shared.errors import ScalarLimitError
from samara.shared.privacy.scalar_ratio import ScalarCount, remaining_scalars
from samara.shared.protocol.frames.instructions import Split
from samara.shared.storage.kept_file import KeptFile

SCALAR_COUNTS_FILE = "scalars.json"

_Counts = dict[str, dict[str, ScalarCount]]


class ScalarCounts(KeptFile[_Counts]):
    """The file with a client's counts of scalars.

    The keys are the hash of a generation and the layout hash, both in hex.
    """

    name = SCALAR_COUNTS_FILE
    damaged = (
        "{file}: the counts of sent scalars cannot be read: {problem}; restore the file from a "
        "backup, or delete it if the counts may begin again at 0"
    )
    empty = dict

    def _parse(self, value: Any) -> _Counts:
        counts: _Counts = {}
        for examples, by_layout in value.items():
            for layout, one in by_layout.items():
                size, sent, token = int(one["size"]), int(one["sent"]), bytes.fromhex(one["token"])
                if size < 1 or sent < 0:
                    raise ValueError(f"{sent} scalars of {size} trained numbers")
                counts.setdefault(examples, {})[layout] = ScalarCount(size, sent, token)
        return counts


@dataclass(frozen=True)
class ScalarBudget:
    """The scalar counts of a client's current examples under the current layout, with their limit.

    Attributes:
        counts: the client's file.
        generations_of: function that returns the hashes, in hex, of a split's generations, which
            are counted separately. A generation is a group of examples that were added together
            (`Generations`).
        size: number d of the layout's trained numbers.
        limit: largest scalar ratio, ``data.scalar-limit``; 0 for no limit.
    """

    counts: ScalarCounts
    generations_of: Callable[[Split], Collection[str]]
    size: int
    limit: float

    def check(self, token: bytes, layout_hash: bytes, scalars: Mapping[Split, int]) -> None:
        """Raise an error if an answer would exceed the limit.

        Args:
            token: token of the answered instruction, 8 bytes.
            layout_hash: hash of the current layout, 32 bytes.
            scalars: number of the answer's scalars about the examples of each split.

        Raises:
            ScalarLimitError: if the answer would exceed the limit.
            TrainerError: if the counts cannot be read.
        """
        counts = self.counts.read()
        if not self.limit:
            return
        for split, asked in scalars.items():
            for generation in self.generations_of(split):
                by_layout = counts.get(generation, {})
                count = by_layout.get(layout_hash.hex())
                if count and count.token == token:
                    continue
                left = remaining_scalars(by_layout.values(), self.size, self.limit)
                if asked > left:
                    sent = sum(each.sent for each in by_layout.values())
                    raise ScalarLimitError(
                        f"this client has sent {sent} scalars about its {split.name.lower()} "
                        f"examples for {self.size} trained numbers, and data.scalar-limit = "
                        f"{self.limit:g} allows only {left} more, but this answer has {asked}. "
                        "Raise the limit if the client may send more (docs/guides/privacy.md)",
                        (min(asked, 2**32 - 1), min(left, 2**32 - 1)),
                    )

    def add(self, token: bytes, layout_hash: bytes, scalars: Mapping[Split, int]) -> None:
        """Count an answer durably; an answer that was counted before does not count again.

        Args:
            token: token of the answered instruction, 8 bytes.
            layout_hash: hash of the current layout, 32 bytes.
            scalars: number of the answer's scalars about the examples of each split.

        Raises:
            TrainerError: if the counts cannot be read or written.
        """
        counts, layout = self.counts.read(), layout_hash.hex()
        for split, sent in scalars.items():
            for generation in self.generations_of(split):
                by_layout = counts.setdefault(generation, {})
                count = by_layout.get(layout, ScalarCount(self.size))
                by_layout[layout] = count.after_answer(token, sent)
        self.counts.write(counts)
