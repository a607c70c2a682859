"""Steps and evaluations with a readout: one program call per example, and all else in numpy."""

import numpy as np
from numpy.typing import NDArray

from samara.client.estimators.prge import LossRequest
from samara.devices.phone.reference_client.adapter_calls import Pending, batches
from samara.devices.phone.reference_client.examples import TokenizedExamples
from samara.devices.phone.reference_client.losses import cross_entropies
from samara.devices.phone.reference_client.readout_program import ReadoutProgram
from samara.shared.protocol.frames.instructions import Split
from samara.shared.tasks.profiled_loss import profiled_cross_entropy

KEPT_BYTES = 64 * 2**20
"""Default limit in bytes on a phone's cached representations."""
EXAMPLES_AT_ONCE = 256
"""Number of examples whose scores are in memory at once."""
DIRECTIONS_AT_ONCE = 16
"""Number of directions whose scores are in memory at once."""


class ReadoutCalls:
    """A readout's program together with the phone's examples and their cached outputs.

    An example's features, and its scores under the base model, never change. They are cached, split
    by split, up to a limit in bytes. The outputs of examples beyond the limit are computed at every
    use.

    Args:
        program: program of the model.
        examples: examples by split.
        kept_bytes: limit in bytes on cached outputs.

    Attributes:
        example_passes: number of examples that went through the model so far.
        token_passes: number of tokens that went through the model so far, including padding.
    """

    def __init__(
        self, program: ReadoutProgram, examples: dict[Split, TokenizedExamples], kept_bytes: int
    ) -> None:
        self._program = program
        self._examples = examples
        self.example_passes = self.token_passes = 0
        self._lengths = {split: examples[split].lengths for split in Split}
        self._labels = len(program.manifest.words)
        width = self._labels + program.features
        left = kept_bytes
        self._kept: dict[Split, NDArray[np.float32]] = {}
        self._is_computed: dict[Split, NDArray[np.bool_]] = {}
        for split in Split:
            rows = min(len(examples[split]), left // (4 * width))
            self._kept[split] = np.empty((rows, width), np.float32)
            self._is_computed[split] = np.zeros(rows, np.bool_)
            left -= self._kept[split].nbytes

    def begin_step(
        self, state: NDArray[np.int64], pending: Pending, is_profiled: bool = False
    ) -> "_ReadoutStep":
        """Return a training step.

        Args:
            state: state int64 [d] before the pending update.
            pending: update of the previous step.
            is_profiled: whether losses are profiled.
        """
        replayed = self._program.replay(state, *pending)
        return _ReadoutStep(self, self._program, replayed, is_profiled)

    def scores(self, state: NDArray[np.int64], split: Split) -> NDArray[np.float32]:
        """Return a split's scores under a state, float32 [n, labels]."""
        weights = self._program.perturbed_weights(state, np.zeros((0, len(state)), np.int16), 0.0)
        parts = [
            self._program.perturbed_scores(weights, *self.numbers(split, rows))[0]
            for rows in batches(np.arange(len(self._examples[split])), EXAMPLES_AT_ONCE)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, self._labels), np.float32)

    def features(self) -> NDArray[np.float32]:
        """Return the features of the training examples, float32 [n, features]."""
        return self.numbers(Split.TRAIN, np.arange(len(self._examples[Split.TRAIN])))[1]

    def labels(self, split: Split, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the labels of n examples, int64 [n]."""
        return self._examples[split].labels[rows]

    def numbers(
        self, split: Split, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return base model scores [n, labels] and features [n, features] of n examples.

        Args:
            split: split of the examples.
            rows: indices of the examples, int64 [n].
        """
        kept = self._kept[split]
        is_computed = self._is_computed[split]
        fit = rows < len(kept)
        missing = np.unique(rows[fit][~is_computed[rows[fit]]])
        missing = missing[self._by_length(split, missing)]
        for some in batches(missing, self._program.manifest.batch):
            kept[some] = self._compute(split, some)
            is_computed[some] = True
        numbers = np.empty((len(rows), kept.shape[1]), np.float32)
        numbers[fit] = kept[rows[fit]]
        left = np.flatnonzero(~fit)[self._by_length(split, rows[~fit])]
        for some in batches(left, self._program.manifest.batch):
            numbers[some] = self._compute(split, rows[some])
        return numbers[:, : self._labels], numbers[:, self._labels :]

    def _by_length(self, split: Split, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return rows ordered by length, so that the examples of a call have similar lengths."""
        return np.argsort(self._lengths[split][rows], kind="stable")

    def _compute(self, split: Split, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return scores and features of up to B examples from one call.

        The result is float32 [n, labels + features].
        """
        examples = self._examples[split]
        manifest = self._program.manifest
        filled = np.resize(rows, manifest.batch)
        length = manifest.call_length(int(self._lengths[split][rows].max()))
        self.example_passes += len(rows)
        self.token_passes += len(filled) * length
        ids = examples.ids[filled][..., :length]
        both = self._program.represent(ids, examples.positions[filled])
        return np.concatenate(both, axis=1)[: len(rows)]


class _ReadoutStep:
    """One training step with a readout.

    Attributes:
        state: state int64 [d] of the step.
    """

    def __init__(
        self,
        calls: ReadoutCalls,
        program: ReadoutProgram,
        state: NDArray[np.int64],
        is_profiled: bool,
    ) -> None:
        self._calls = calls
        self._program = program
        self._is_profiled = is_profiled
        self.state = state

    def losses_of(self, request: LossRequest) -> NDArray[np.float64]:
        """Return the losses of a request, float64 [signs · q], or [1] for the center.

        A profiled loss is computed from the scores of all examples of a batch together.
        """
        z = self._program.directions(request.seeds)
        signs = request.signs if len(z) else (1,)
        at_once = len(request.batch) if self._is_profiled else EXAMPLES_AT_ONCE
        sums = np.zeros((len(signs), max(1, len(z))))
        for rows in batches(request.batch, at_once):
            numbers = self._calls.numbers(Split.TRAIN, rows)
            labels = self._calls.labels(Split.TRAIN, rows)
            for start in range(0, max(1, len(z)), DIRECTIONS_AT_ONCE):
                some = slice(start, start + DIRECTIONS_AT_ONCE)
                weights = self._program.perturbed_weights(
                    self.state, z[some], request.epsilon, signs
                )
                scores = self._program.perturbed_scores(weights, *numbers)
                if self._is_profiled:
                    losses = len(labels) * profiled_cross_entropy(scores, labels)
                else:
                    losses = cross_entropies(scores, labels).sum(axis=1)
                sums[:, some] += losses.reshape(len(signs), -1)
        means: NDArray[np.float64] = sums.reshape(-1) / len(request.batch)
        return means
