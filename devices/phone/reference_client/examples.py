"""A phone's tokenized examples, in a file with one JSON object per line.

An app tokenizes its own texts; the manifest names the label words. A line is ``{"ids": [5, 17, …],
"label": 0, "split": "train"}``, with the ids of the tokens before the label word. For answers of
several tokens, ``"candidates": [[8, 3], [9]]`` lists the tokens of each answer.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samara.devices.phone.manifest import Manifest
from samara.shared.errors import DataError
from samara.shared.protocol.frames.instructions import Split

MAX_TOKEN = 2**31


@dataclass(frozen=True, eq=False)
class TokenizedExamples:
    """The examples of a split, padded to the program's shape.

    Attributes:
        ids: int64 [n, S], or [n, C, S] for candidates, padded with −1.
        positions: int64 [n], position of each example's last token before the answer.
        labels: int64 [n].
    """

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.labels)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The tokens of each example, int64 [n]; with candidates, of its longest sequence."""
        if self.ids.ndim == 2:
            return self.positions + 1
        used = (self.ids >= 0).sum(axis=2).max(axis=1, initial=0)
        return np.asarray(used, np.int64)

    def hash(self) -> str:
        """Return a hash of the examples, 32 hex digits, independent of their order."""
        columns = zip(self.ids, self.positions, self.labels, strict=True)
        rows = sorted([*ids.tolist(), int(end), int(label)] for ids, end, label in columns)
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:32]


def read_examples(file: Path, manifest: Manifest) -> dict[Split, TokenizedExamples]:
    """Read the examples of a file by split.

    Raises:
        DataError: if a line is invalid, or the file has no training example.
    """
    examples: dict[Split, list[_Row]] = {split: [] for split in Split}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: the examples cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            split, row = _row(json.loads(line), manifest)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{file}, line {number}: {error}") from error
        examples[split].append(row)
    if not examples[Split.TRAIN]:
        raise DataError(
            f'{file}: the file has no training example; add lines with "split": "train"'
        )
    return {split: _padded(rows, manifest.row_shape) for split, rows in examples.items()}


class _Row(NamedTuple):
    """A row: the tokens before the answer, the tokens of each candidate (if any), and the label."""

    ids: list[int]
    candidates: list[list[int]]
    label: int


def _row(value: Any, manifest: Manifest) -> tuple[Split, _Row]:
    split = Split[str(value["split"]).upper()]
    ids = value["ids"]
    label = value["label"]
    candidates = []
    longest = 0
    if most := manifest.answer_tokens:
        candidates = value["candidates"]
        if not isinstance(candidates, list) or len(candidates) != len(manifest.words):
            raise ValueError(f"candidates must be {len(manifest.words)} lists of token ids")
        longest = max(map(_token_count, candidates))
        if not 1 <= min(map(len, candidates)) <= longest <= most:
            raise ValueError(
                f"every candidate must have 1 to {most} tokens, but the longest has {longest}, "
                f"and the shortest {min(map(len, candidates))}"
            )
    if not 1 <= _token_count(ids) <= manifest.sequence - longest:
        raise ValueError(
            f"there are {len(ids)} ids, but the program accepts 1 to {manifest.sequence - longest}"
        )
    if type(label) is not int or not 0 <= label < len(manifest.words):
        raise ValueError(f"label {label!r} does not exist; use 0 to {len(manifest.words) - 1}")
    return split, _Row(ids, candidates, label)


def _token_count(ids: Any) -> int:
    """Return the number of token ids in a list; raise an error for anything else."""
    if not (isinstance(ids, list) and all(type(i) is int and 0 <= i < MAX_TOKEN for i in ids)):
        raise ValueError("ids must be a list of token ids")
    return len(ids)


def _padded(rows: list[_Row], shape: tuple[int, ...]) -> TokenizedExamples:
    """Return rows as arrays. Candidates are padded with −1, other examples with any token."""
    has_candidates = len(shape) > 1
    ids = np.full((len(rows), *shape), -1 if has_candidates else 0, np.int64)
    for padded, row in zip(ids, rows, strict=True):
        if not has_candidates:
            padded[: len(row.ids)] = row.ids
        for sequence, candidate in zip(padded, row.candidates, strict=False):
            sequence[: len(row.ids) + len(candidate)] = row.ids + candidate
    positions = np.array([len(row.ids) - 1 for row in rows], np.int64)
    return TokenizedExamples(ids, positions, np.array([row.label for row in rows], np.int64))
