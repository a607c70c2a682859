"""Components of a client's own update, along directions that the clients of a round share.

If the adapter is only a readout, the representations of all examples are cached, so computation on
the client is cheap. A client minimizes its loss in the span of the round's q directions, starting
from the round's state:

    c = argmin L(θ + Σ c·z) + s/(2·n·η) · Σ c²·|z|²

L is the mean cross-entropy of the client's n training examples, and s is the mean of |φ|². The
report holds the q numbers c. A client thus sends q scalars for a whole minimization, not for each
local step. Ferret (Shu et al., "Ferret: Federated full-parameter tuning at scale for large language
models", 2024, section 3) reports the components of a local update along random directions, for
whole models. Here the minimum is found in the directions' span, so no projection is needed. The
quadratic term is the proximal term of an implicit gradient step on the sum of losses. This term
keeps |Δ|, the length of the update, below √(2·n·η·L(θ)/s) for any labels of a client.
"""

import numpy as np
from numpy.typing import NDArray

from samara.client.personal.learner import Learner, State
from samara.client.personal.newton import SoftmaxProblem, minimize
from samara.client.personal.softmax_fit import Examples, Floats, check_finite
from samara.shared.errors import DataError, LayoutError
from samara.shared.protocol.directions import DIRECTION_BITS, batch_order
from samara.shared.protocol.frames.instructions import TrainInstruction, token_of
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.layout import LABEL_BIAS_GROUP, READOUT_GROUP, Layout
from samara.shared.tasks.contrasts import contrasts


def train_for_a_round(
    learner: Learner,
    instruction: TrainInstruction,
    state: State,
    mask: NDArray[np.bool_] | None,
) -> Report:
    """Return a report for a round, from local steps or components of the client's own update.

    Args:
        learner: model and examples of the client.
        instruction: instruction of the round.
        state: int64 [d], the state at the start of the round; it is not changed.
        mask: bool [d], true where numbers are trained; None trains all.

    Raises:
        SamaraError: as in `Learner.take_steps`.
        LayoutError: if the instruction is for another layout, or asks for components although the
            adapter is not a readout alone with orthogonal directions.
        DataError: if the client has no training example.
        TrainingError: if a score is not finite, or no minimum is found.
    """
    if not instruction.asks_for_components:
        return learner.take_steps(instruction, state, mask)
    layout = learner.layout
    layout.check_hash(instruction.layout_hash, "give both the same model and adapter settings")
    check_layout(layout)
    examples = learner.training_examples(state, with_features=True)
    count = len(examples.labels)
    if not count:
        raise DataError("this client has no training examples left; add examples")
    if count > instruction.batch:
        order = batch_order(instruction.root, learner.client, 0, count)
        examples = examples.at(np.sort(order[: instruction.batch]))
    seeds = instruction.seeds(learner.client)[0]
    z = learner.backend.directions(seeds, layout.size, layout.distribution).astype(np.float64)
    if mask is not None:
        z *= mask
    found, loss = find_components(
        examples, np.ldexp(z, -DIRECTION_BITS), layout, instruction.learning_rate
    )
    numbers = found.astype(np.float32)[None]
    return Report(token_of(instruction.encode()), learner.client, count, loss, numbers)


def find_components(
    examples: Examples, z: Floats, layout: Layout, rate: float
) -> tuple[Floats, float]:
    """Return the components of a client's own update, float64 [q], and the loss before the update.

    Args:
        examples: n examples, at least one, with scores under the round's state.
        z: directions, float64 [q, d].
        layout: layout of a readout alone.
        rate: η.

    Raises:
        TrainingError: if a score is not finite, or no minimum is found.
    """
    check_finite(examples)
    problem = _Span(examples, z, layout, rate)
    return minimize(problem), problem.loss(np.zeros(problem.size))


def check_layout(layout: Layout) -> None:
    """Check that components can be reported for a layout's tensors.

    Raises:
        LayoutError: if the adapter is not a readout alone, or its directions are not orthogonal.
    """
    groups = {tensor.group for tensor in layout.tensors}
    if READOUT_GROUP not in groups or groups - {READOUT_GROUP, LABEL_BIAS_GROUP}:
        raise LayoutError(
            "the instruction asks for components, but the adapter is not only a readout; set "
            "adapter.layers = readout"
        )
    if layout.distribution != "orthogonal":
        raise LayoutError(
            "the instruction asks for components along orthogonal directions, but the directions "
            f"of the layout are {layout.distribution}; set adapter.distribution = orthogonal"
        )


class _Span(SoftmaxProblem):
    """The penalized loss in the coefficients c of q directions.

    Args:
        examples: n examples, with scores under the round's state.
        z: directions, float64 [q, d].
        layout: layout of a readout alone.
        rate: η.
    """

    def __init__(self, examples: Examples, z: Floats, layout: Layout, rate: float) -> None:
        self._z = z
        labels = examples.offsets.shape[1]
        self._contrasts = contrasts(labels).astype(np.float64)
        self._shape = labels - 1, examples.features.shape[1]
        slices = {part.group: part.numbers for part in layout.parts}
        self._readout = slices[READOUT_GROUP]
        self._bias = slices.get(LABEL_BIAS_GROUP)
        square = float(np.mean(np.sum(examples.features**2, axis=1))) or 1.0
        squares: Floats = np.sum(z * z, axis=1)
        super().__init__(examples, square / (2 * len(examples.labels) * rate) * squares)

    def added(self, numbers: Floats) -> Floats:
        """Return the contribution of Σ c·z to the logits, [n, labels]."""
        update = numbers @ self._z
        readout = update[self._readout].reshape(self._shape)
        added: Floats = self._examples.features @ readout.T @ self._contrasts
        return added if self._bias is None else added + update[self._bias]

    def gathered(self, slopes: Floats) -> Floats:
        """Return the mean gradient with respect to c.

        Args:
            slopes: each example's gradient with respect to its logits, [n, labels].
        """
        gradient = np.zeros(self._z.shape[1])
        readout = self._contrasts @ slopes.T @ self._examples.features / len(slopes)
        gradient[self._readout] = readout.ravel()
        if self._bias is not None:
            gradient[self._bias] = slopes.mean(axis=0)
        gathered: Floats = self._z @ gradient
        return gathered
