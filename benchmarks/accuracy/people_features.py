"""Scores and features of texts, computed once for all readers of a text, and kept in a file."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samara.client.forward import readout
from samara.client.forward.resident import ResidentForward
from samara.shared.model.scorers import Prompt

Rows = NDArray[np.float32]


class TextRows:
    """The scores and features of texts under one model and task, one row per text.

    A normal run computes every client's texts separately. The rows here can therefore differ from a
    run's rows in their last bits.

    Args:
        file: file in which the rows are stored.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._rows = file, dict[str, Rows]()
        if file.exists():
            with np.load(file) as kept:
                self._rows = dict(zip(kept["keys"].tolist(), kept["rows"], strict=True))

    def of(self, engine: ResidentForward, prompts: Sequence[Prompt], micro_batch: int) -> Rows:
        """Return the rows of prompts, float32 [n, width]; missing rows are computed."""
        keys = [_key(prompt) for prompt in prompts]
        missing = {k: p for k, p in zip(keys, prompts, strict=True) if k not in self._rows}
        if missing:
            computed = _COMPUTE(engine, list(missing.values()), micro_batch)
            self._rows |= dict(zip(missing, computed, strict=True))
        return np.stack([self._rows[key] for key in keys])

    def write(self) -> None:
        """Write all rows to the file."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        partial = self._file.with_suffix(".partial.npz")
        np.savez(partial, keys=np.array(list(self._rows)), rows=np.stack(list(self._rows.values())))
        partial.replace(self._file)


_COMPUTE = readout.run_base


@contextmanager
def remembered_rows(file: Path) -> Iterator[TextRows]:
    """Provide the rows of a readout's texts from a file, and add missing rows to the file."""
    rows = TextRows(file)
    readout.run_base = rows.of
    try:
        yield rows
    finally:
        readout.run_base = _COMPUTE


def _key(prompt: Prompt) -> str:
    content = repr((prompt.sequences, prompt.supervised, prompt.targets))
    return hashlib.sha256(content.encode()).hexdigest()
