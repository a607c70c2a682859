"""A phone's tokenized examples: a file with one JSON object per line.

An app tokenizes its own texts; the manifest names the label words. A line is
``{"ids": [5, 17, …], "label": 0, "split": "train"}``, with the ids up to where the label word
follows.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from devices.phone.manifest import Manifest
from shared.errors import DataError
from shared.frames.instructions import Split

MAX_TOKEN = 2**31


@dataclass(frozen=True, eq=False)
class TokenizedExamples:
    """The examples of a split, padded to the program's shape.

    Attributes:
        ids: int64 [n, S].
        positions: int64 [n], position of each example's last token.
        labels: int64 [n].
    """

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.labels)

    def hash(self) -> str:
        """Return 32 hexadecimal digits that change with any example, and not with their order."""
        columns = zip(self.ids, self.positions, self.labels, strict=True)
        rows = sorted([*ids.tolist(), int(end), int(label)] for ids, end, label in columns)
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:32]


def read_examples(file: Path, manifest: Manifest) -> dict[Split, TokenizedExamples]:
    """Read the examples of a file by split.

    Raises:
        DataError: if a line is invalid, or the file has no training example.
    """
    examples: dict[Split, list[tuple[list[int], int]]] = {split: [] for split in Split}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            split, ids, label = _row(json.loads(line), manifest)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{file}, line {number}: {error}") from error
        examples[split].append((ids, label))
    if not examples[Split.TRAIN]:
        raise DataError(f'{file}: no training example; add lines with "split": "train"')
    return {split: _padded(rows, manifest.sequence) for split, rows in examples.items()}


def _row(value: Any, manifest: Manifest) -> tuple[Split, list[int], int]:
    split, ids, label = Split[str(value["split"]).upper()], value["ids"], value["label"]
    if not (isinstance(ids, list) and all(type(i) is int and 0 <= i < MAX_TOKEN for i in ids)):
        raise ValueError("ids must be a list of token ids")
    if not 1 <= len(ids) <= manifest.sequence:
        raise ValueError(f"{len(ids)} ids; the program takes 1 to {manifest.sequence}")
    if type(label) is not int or not 0 <= label < len(manifest.words):
        raise ValueError(f"label {label!r} does not exist; use 0 to {len(manifest.words) - 1}")
    return split, ids, label


def _padded(rows: list[tuple[list[int], int]], length: int) -> TokenizedExamples:
    ids = np.zeros((len(rows), length), np.int64)
    for row, (tokens, _) in zip(ids, rows, strict=True):
        row[: len(tokens)] = tokens
    positions = np.array([len(tokens) - 1 for tokens, _ in rows], np.int64)
    return TokenizedExamples(ids, positions, np.array([label for _, label in rows], np.int64))
