"""The label bias of a client's private rounds, which its next run begins with.

Another base model, or other settings, make another run, whose private rounds begin anew. How often
the owner uses each label does not depend on the model. So the numbers per label that private rounds
have ended with are kept in a file of the owner's, and a later run with the same labels begins with
them, if they lower the loss there.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from samara.client.personal.learner import Learner, State
from samara.client.personal.methods import composition
from samara.shared.errors import LedgerError
from samara.shared.frames.instructions import Split
from samara.shared.kept_file import KeptFile
from samara.shared.label_scores import cross_entropy
from samara.shared.replay import DenseValues, replay, zero_state
from samara.shared.run_terms import RunTerms, fits_private_part

LABEL_BIAS_FILE = "label_bias.json"
"""Name of the file in a client's folder of a run."""


@dataclass(frozen=True)
class KeptLabelBias:
    """A label bias of a client in a run.

    Attributes:
        labels: labels of the task, in their order.
        values: private part of the bias of each, in units of a state.
        began_with: values that the private rounds began with, from an earlier run; or empty.
    """

    labels: tuple[str, ...]
    values: tuple[int, ...]
    began_with: tuple[int, ...] = ()

    @classmethod
    def parse(cls, content: Any) -> Self:
        """Read a label bias from JSON.

        Raises:
            ValueError, KeyError, TypeError: if it is none.
            ReplayError: if a value is beyond what a private ledger holds.
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
    """The label bias in a client's folder of a run; None without a sound one."""

    name = LABEL_BIAS_FILE
    damaged = "{file}: no label bias: {problem}; it is left out"
    is_needed = False
    error = LedgerError
    style: ClassVar = {}

    def _parse(self, value: Any) -> KeptLabelBias:
        return KeptLabelBias.parse(value)


class LabelBiases:
    """The label biases that a client keeps; of a layout without one there are none.

    Args:
        learner: model and examples of the client.
        terms: terms of the run.
        folder: folder of the client's own files in that of the run.
        runs: folder of all runs of the client; None if it does not begin with that of another run.
    """

    def __init__(self, learner: Learner, terms: RunTerms, folder: Path, runs: Path | None) -> None:
        self._learner, self._terms, self._runs = learner, terms, runs
        self._file = _LabelBiasFile(folder)
        self._numbers = learner.layout.label_bias

    def begin(self, w: State, is_new: bool) -> None:
        """Decide what this run begins with, unless it is decided: that of the latest other run.

        It must have the same labels in the same order, and lower the loss on the validation
        examples; without any, on the training examples. A private part that is fitted needs none:
        the fit depends on the examples and the common model alone.

        Args:
            w: state of the federation, int64 [d].
            is_new: whether the personal ledger is empty; one that is not has begun with nothing.

        Raises:
            LedgerError: if the decision cannot be written.
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
        """The values that the private rounds of this run begin with; usually none."""
        kept = self._file.read()
        return self._dense(kept.began_with) if kept else ()

    def keep(self, private: State) -> None:
        """Keep what is a label bias in a private state, int64 [d].

        Raises:
            LedgerError: if it cannot be written.
        """
        if self._numbers is None or self._runs is None:
            return
        kept, values = self._file.read(), tuple(private[self._numbers].tolist())
        began_with = kept.began_with if kept else ()
        self._file.write(KeptLabelBias(self._learner.labels, values, began_with))

    def _find_earlier(self) -> tuple[int, ...]:
        """Return the values of the run whose private rounds ended last; empty if there are none."""
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
        parts, nothing = composition(self._terms, learner.layout), zero_state(len(w))
        with_bias = replay(nothing, dense, learner.layout.distribution)

        def loss(private: State) -> float:
            scored = learner.score(parts.model(w, private), split)
            return float(cross_entropy(scored.scores[None], scored.labels)[0])

        before, after = loss(nothing), loss(with_bias)
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
