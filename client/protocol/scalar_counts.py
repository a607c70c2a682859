"""A client's counts of the scalars that it has sent, on disk, and the limit that its owner set.

The file outlives sessions and runs: what a client has sent about its examples stays sent. It is
written before an answer leaves, so that a crash can only count one that was not sent.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from samara.shared.errors import ScalarLimitError, TrainerError
from samara.shared.files import make_folder, write_durably
from samara.shared.frames.instructions import Split
from samara.shared.scalar_ratio import ScalarCount, remaining_scalars

SCALAR_COUNTS_FILE = "scalars.json"

_Counts = dict[str, dict[str, ScalarCount]]


class ScalarCounts:
    """The counts in a client's file, by generation of examples and by layout.

    Args:
        folder: folder of the client.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / SCALAR_COUNTS_FILE

    def read(self) -> dict[str, dict[str, ScalarCount]]:
        """Return the counts by hash of a generation and by layout hash, both in hex.

        Raises:
            TrainerError: if the file cannot be read. It is not replaced by an empty one, which
                would lift the limit.
        """
        try:
            return _parse_counts(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise TrainerError(
                f"{self._file}: the counts of sent scalars cannot be read: {error!r}; restore the "
                "file from a backup, or delete it if the counts may begin again at 0"
            ) from error

    def write(self, counts: _Counts) -> None:
        """Replace the counts; they are on the disk when this returns.

        Raises:
            TrainerError: if the file cannot be written.
        """
        content = {
            examples: {
                layout: {"size": count.size, "sent": count.sent, "token": count.token.hex()}
                for layout, count in by_layout.items()
            }
            for examples, by_layout in counts.items()
        }
        try:
            make_folder(self._file.parent)
            write_durably(self._file, json.dumps(content, sort_keys=True, indent=1).encode())
        except OSError as error:
            raise TrainerError(f"{self._file}: cannot be written: {error.strerror}") from error


def _parse_counts(text: str) -> _Counts:
    """Read the text of a counts file.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: if it is no such text.
    """
    counts: _Counts = {}
    for examples, by_layout in json.loads(text).items():
        for layout, entry in by_layout.items():
            size, sent, token = int(entry["size"]), int(entry["sent"]), entry["token"]
            if size < 1 or sent < 0:
                raise ValueError(f"{sent} scalars of {size} trained numbers")
            counts.setdefault(examples, {})[layout] = ScalarCount(size, sent, bytes.fromhex(token))
    return counts


@dataclass(frozen=True)
class ScalarBudget:
    """The counts of a client's present examples under the present layout, and their limit.

    Attributes:
        counts: the client's file.
        generations_of: function that returns the hashes, in hex, under which the client's examples
            of a split are counted. Each is of examples that came together (`Generations`).
        size: number of trained numbers of the layout, d.
        limit: largest scalar ratio, ``data.scalar-limit``; 0 for none.
    """

    counts: ScalarCounts
    generations_of: Callable[[Split], Collection[str]]
    size: int
    limit: float

    def check(self, token: bytes, layout_hash: bytes, scalars: Mapping[Split, int]) -> None:
        """Raise an error if an answer would exceed the limit.

        Args:
            token: token of the instruction that it answers, 8 bytes.
            layout_hash: hash of the present layout, 32 bytes.
            scalars: by split, how many scalars of the answer are about its examples.

        Raises:
            ScalarLimitError: if it would.
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
                        f"{sent} scalars about the {split.name.lower()} examples have been sent "
                        f"for {self.size} trained numbers, and data.scalar-limit = {self.limit:g} "
                        f"leaves {left}; this answer would hold {asked}. Raise the limit if more "
                        "may be sent (docs/guides/privacy.md)",
                        (min(asked, 2**32 - 1), min(left, 2**32 - 1)),
                    )

    def add(self, token: bytes, layout_hash: bytes, scalars: Mapping[Split, int]) -> None:
        """Count an answer, once; the count is on the disk when this returns.

        Args:
            token: token of the instruction that it answers, 8 bytes.
            layout_hash: hash of the present layout, 32 bytes.
            scalars: by split, how many scalars of the answer are about its examples.

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
