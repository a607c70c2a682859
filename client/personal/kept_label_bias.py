"""The label bias that a client keeps from its private rounds for its next run.

In a new run, with another base model or other settings, a client's private rounds start over. But
the owner's frequency of each label does not depend on the model. So the client keeps the final
label bias of its private rounds. A later run with the same labels starts from this bias, if the
bias lowers the loss in that run.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from samara.client.personal.learner import Learner, State
from samara.client.personal.methods import composition
from samara.shared.errors import LedgerError
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.replay import DenseValues, replay, zero_state
from samara.shared.storage.kept_file import KeptFile
from samara.shared.tasks.label_scores import cross_entropy
from samara.shared.terms.run_terms import RunTerms, fits_private_part

LABEL_BIAS_FILE = "label_bias.json"
"""Name of the file with the label bias, in a client's folder of a run."""


@dataclass(frozen=True)
class KeptLabelBias:
    """The final label bias of a client's private rounds in a run.

    Attributes:
        labels: labels of the task, in order.
        values: private part of each label's bias, in units of a state.
        began_with: initial values of the private rounds, from an earlier run; empty if they began
            at zero.
    """

    labels: tuple[str, ...]
    values: tuple[int, ...]
    began_with: tuple[int, ...] = ()

    @classmethod
    def parse(cls, content: Any) -> Self:
        """Read a label bias from JSON.

        Raises:
            ValueError, KeyError, TypeError: if the content is invalid.
            ReplayError: if a value exceeds the range of a private ledger.
        """
        labels = tuple(map(str, content["labels"]))
        values, began_with = (tuple(content[name]) for name in ("values", "began_with"))
        if not {len(values), len(began_with)} <= {0, len(labels)}:
            raise ValueError(f"it has {len(labels)} labels and {len(values)} values")
        if not all(type(value) is int for value in (*values, *began_with)):
            raise ValueError("its values are not whole numbers")
        DenseValues.of(0, np.array((*values, *began_with), np.int64))
        return cls(labels, values, began_with)


class _LabelBiasFile(KeptFile[KeptLabelBias | None]):
    """The file with the label bias in a client's folder of a run; a missing file reads as None."""

    name = LABEL_BIAS_FILE
    damaged = "{file}: the label bias cannot be read: {problem}; the run does not use it"
    is_needed = False
    error = LedgerError
    style: ClassVar = {}

    def _parse(self, value: Any) -> KeptLabelBias:
        return KeptLabelBias.parse(value)


class LabelBiases:
    """Storage and reuse of a client's label biases; unused if the layout has no label bias.

    Args:
        learner: model and examples of the client.
        terms: terms of the run.
        folder: folder of the client's files in the run's folder.
        runs: folder of all runs of the client; None disables reuse of another run's bias.
    """

    def __init__(self, learner: Learner, terms: RunTerms, folder: Path, runs: Path | None) -> None:
        self._learner = learner
        self._terms = terms
        self._runs = runs
        self._file = _LabelBiasFile(folder)
        self._numbers = learner.layout.label_bias

    def begin(self, w: State, is_new: bool) -> None:
        """Choose the initial label bias of this run: the bias of the latest other run, or zero.

        The other run must have the same labels in the same order. Its bias must lower the loss on
        the validation examples, or on the training examples if there are no validation examples. A
        fitted private part needs no initial bias, because the fit depends only on the examples and
        the common model. A recorded choice is not changed.

        Args:
            w: state of the federation, int64 [d].
            is_new: whether the personal ledger is empty. Otherwise the private rounds have already
                begun, at zero.

        Raises:
            LedgerError: if the choice cannot be written.
        """
        if self._numbers is None or self._runs is None or self._file.read() is not None:
            return
        values: tuple[int, ...] = ()
        if is_new and not fits_private_part(self._terms.method):
            earlier = self._find_earlier()
            values = earlier if self._lowers_loss(w, earlier) else ()
        self._file.write(KeptLabelBias(self._learner.labels, (), values))

    @property
    def began_with(self) -> tuple[DenseValues, ...]:
        """The initial values of this run's private rounds, or () for zeros."""
        kept = self._file.read()
        return self._dense(kept.began_with) if kept else ()

    def keep(self, private: State) -> None:
        """Store the label bias that a private state contains.

        Args:
            private: private state, int64 [d].

        Raises:
            LedgerError: if the file cannot be written.
        """
        if self._numbers is None or self._runs is None:
            return
        kept = self._file.read()
        values = tuple(private[self._numbers].tolist())
        began_with = kept.began_with if kept else ()
        self._file.write(KeptLabelBias(self._learner.labels, values, began_with))

    def _find_earlier(self) -> tuple[int, ...]:
        """Return the latest label bias stored by another run, or () without such a run."""
        assert self._runs is not None
        files = self._runs.glob(f"*/clients/{self._learner.client}/{LABEL_BIAS_FILE}")
        others = [file for file in files if file != self._file.path]
        for file in sorted(others, key=_time_of, reverse=True):
            kept = _LabelBiasFile(file.parent).read()
            if kept and kept.labels == self._learner.labels and any(kept.values):
                return kept.values
        return ()

    def _lowers_loss(self, w: State, values: tuple[int, ...]) -> bool:
        learner = self._learner
        split = next((s for s in (Split.VALIDATION, Split.TRAIN) if learner.data_hash(s)), None)
        if split is None or not (dense := self._dense(values)):
            return False
        parts = composition(self._terms, learner.layout)
        nothing = zero_state(len(w))
        with_bias = replay(nothing, dense, learner.layout.distribution)

        def loss(private: State) -> float:
            scored = learner.score(parts.model(w, private), split)
            return float(cross_entropy(scored.scores[None], scored.labels)[0])

        before = loss(nothing)
        after = loss(with_bias)
        return math.isfinite(after) and after < before

    def _dense(self, values: tuple[int, ...]) -> tuple[DenseValues, ...]:
        numbers = self._numbers
        if numbers is None or len(values) != numbers.stop - numbers.start:
            return ()
        return (DenseValues.of(numbers.start, np.array(values, np.int64)),)


def _time_of(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0
