"""Steps and evaluations with adapters inside the model, by calls of the program's fixed shape."""

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from samara.client.estimators.prge import LossRequest
from samara.devices.phone.reference_client.examples import TokenizedExamples
from samara.devices.phone.reference_client.runtime import PhoneProgram
from samara.shared.protocol.frames.instructions import Split
from samara.shared.tasks.profiled_loss import profiled_cross_entropy

_Number = TypeVar("_Number", bound=np.generic)
_NO_SEEDS = np.zeros(0, np.uint64)
Pending = tuple[NDArray[np.uint64], NDArray[np.int64]]
"""Seeds and coefficients of an update that the next step applies."""
NOTHING: Pending = (_NO_SEEDS, np.zeros(0, np.int64))


class AdapterCalls:
    """A phone's program with adapters inside the model, together with the phone's examples."""

    def __init__(self, program: PhoneProgram, examples: dict[Split, TokenizedExamples]) -> None:
        self._program = program
        self._examples = examples

    def begin_step(
        self, state: NDArray[np.int64], pending: Pending, is_profiled: bool = False
    ) -> "_StepCalls":
        """Return the calls of a training step.

        Args:
            state: state int64 [d] before the pending update.
            pending: update of the previous step.
            is_profiled: whether losses are profiled.
        """
        return _StepCalls(self._program, self._examples[Split.TRAIN], state, pending, is_profiled)

    def scores(self, state: NDArray[np.int64], split: Split) -> NDArray[np.float32]:
        """Return a split's scores under a state, float32 [n, labels].

        The scores come from ``forward`` with ε = 0.
        """
        examples = self._examples[split]
        calls = _StepCalls(self._program, examples, state, NOTHING)
        parts = [
            calls.run(batch, _NO_SEEDS, 0.0)[0][0, 0]
            for batch in batches(np.arange(len(examples)), self._program.manifest.batch)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, 1), np.float32)

    def features(self) -> NDArray[np.float32]:
        """Return an empty array [n, 0], because there is no readout to read features."""
        return np.zeros((len(self._examples[Split.TRAIN]), 0), np.float32)


class _StepCalls:
    """The calls of ``forward`` in one step; the first call applies the previous step's update.

    Attributes:
        state: state int64 [d] after the latest call.
    """

    def __init__(
        self,
        program: PhoneProgram,
        examples: TokenizedExamples,
        state: NDArray[np.int64],
        pending: Pending,
        is_profiled: bool = False,
    ) -> None:
        self._program = program
        self._examples = examples
        self._is_profiled = is_profiled
        seeds, coefficients = pending
        more = max(0, len(seeds) - program.manifest.queries)
        # A call applies at most q coefficients; `replay` applies the others.
        self.state = program.replay(state, seeds[:more], coefficients[:more])
        self._pending = seeds[more:], coefficients[more:]

    def losses_of(self, request: LossRequest) -> NDArray[np.float64]:
        """Return the losses of a request, float64 [signs · q], or [1] for the center."""
        if not len(request.seeds):
            return np.array([self._mean_losses(request.batch, _NO_SEEDS, 0.0)[0, 0]])
        parts = [
            self._mean_losses(request.batch, some, request.epsilon)
            for some in batches(request.seeds, self._program.manifest.queries)
        ]
        both = np.concatenate(parts, axis=1)
        return np.concatenate([both[0 if sign > 0 else 1] for sign in request.signs])

    def run(
        self, batch: NDArray[np.int64], seeds: NDArray[np.uint64], epsilon: float
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return scores [2, q, n, labels] and losses [2, q, n] of up to B examples."""
        count = len(batch)
        examples = self._examples
        filled = np.resize(batch, self._program.manifest.batch)
        scores, losses, self.state = self._program.step(
            self.state,
            examples.ids[filled],
            examples.positions[filled],
            examples.labels[filled],
            self._pending,
            seeds,
            epsilon,
        )
        self._pending = NOTHING
        return scores[:, :, :count], losses[:, :, :count]

    def _mean_losses(
        self, batch: NDArray[np.int64], seeds: NDArray[np.uint64], epsilon: float
    ) -> NDArray[np.float64]:
        """Return the losses of a batch of any size, float64 [2, q]."""
        parts = [
            self.run(some, seeds, epsilon) for some in batches(batch, self._program.manifest.batch)
        ]
        if self._is_profiled:
            scores = np.concatenate([part for part, _ in parts], axis=2)
            labels = self._examples.labels[batch]
            return np.stack([profiled_cross_entropy(side, labels) for side in scores])
        losses = np.concatenate([part for _, part in parts], axis=2)
        means: NDArray[np.float64] = losses.astype(np.float64).mean(2)
        return means


def batches(values: NDArray[_Number], size: int) -> Iterator[NDArray[_Number]]:
    """Yield an array in parts of a given size."""
    return (values[start : start + size] for start in range(0, len(values), size))
