"""The private part of the method `readout`: an intercept and a readout, fitted by a solver.

The loss is convex in these numbers, so a client needs no private rounds. The client runs the model
once per training example, and a solver fits the numbers. The result is recorded in the personal
ledger as dense values and never fitted again.

While the common model is trained, every client adds its private intercept to this model. The model
then does not learn the clients' different base rates. It also lacks the common part of these
intercepts. After the last round, clients therefore report their intercepts. The mean is added to
the common model and subtracted from every private part. With ``personal.prior = "common"`` clients
also report the held-out losses of all candidate deviations. Every private part is then fitted with
the best candidate.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samara.client.personal.learner import Learner, State
from samara.client.personal.softmax_fit import (
    Examples,
    Floats,
    Personalization,
    SoftmaxFit,
    check_finite,
    fit_intercept,
    fit_private_part,
    intercept_losses,
)
from samara.shared.errors import FrameError, TrainingError
from samara.shared.extensions import extension, is_extension
from samara.shared.protocol.frames.instructions import PERSONAL_TRACK, TrainInstruction, token_of
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.layout import LABEL_BIAS_GROUP, READOUT_GROUP, Layout
from samara.shared.protocol.ledger.ledger import Ledger
from samara.shared.protocol.replay import DenseValues, replay, zero_state
from samara.shared.protocol.round_delta import RoundDelta
from samara.shared.tasks.contrasts import contrasts
from samara.shared.tasks.profiled_loss import fitted_shift
from samara.shared.terms.intercept_round import MOST_EXCESS
from samara.shared.terms.run_terms import RunTerms


class CommonPrior(NamedTuple):
    """The parts of the prior of private intercepts that all clients share.

    Attributes:
        intercept: int64 [d], common intercept in the state of the federation; None without one.
        deviation: common deviation of the intercepts; None without one.
    """

    intercept: State | None = None
    deviation: float | None = None

    def fit_without(self, state: State, fit: Callable[[State], State]) -> State:
        """Fit a private state to a federation's state without the common intercept.

        The common intercept is subtracted from the result.
        """
        if self.intercept is None:
            return fit(state)
        return fit(state - self.intercept) - self.intercept


NO_PRIOR = CommonPrior()
"""The value for a run without a common prior."""


def intercept_for_training(learner: Learner, state: State) -> State:
    """Return the private state that a client adds while training the common model, int64 [d].

    This is the intercept that fits the client's training examples best. It depends only on these
    examples and the state, and is not stored.

    Args:
        learner: model and examples of the client.
        state: int64 [d], state of the federation.

    Raises:
        TrainingError: if the intercept cannot be fitted.
    """
    examples = learner.training_examples(state, with_features=False)
    fit = fit_intercept(examples, _contrasts(examples), learner.solve)
    return _state_of(fit, learner.layout)


def report_intercept(
    learner: Learner, terms: RunTerms, instruction: TrainInstruction, state: State
) -> Report:
    """Return the report for the intercept round, which contains the client's intercept.

    The reported numbers are the intercept's products with the rows of the contrasts. The intercept
    is that of a private part without a readout. With a common prior, the excess of each candidate
    deviation follows. It is the candidate's held-out loss minus the client's lowest held-out loss,
    at most `MOST_EXCESS`, which limits the influence of one client.

    A client without a private intercept reports the shift of its profiled loss on all its training
    examples.

    Args:
        learner: model and examples of the client.
        terms: terms of the run.
        instruction: instruction of the round.
        state: int64 [d], state of the federation.

    Raises:
        FrameError: if the run has no intercept round, or the instruction has no room for the
            intercept.
        TrainingError: if the intercept cannot be fitted.
    """
    if not terms.intercept_round:
        raise FrameError(f"a run of the method {terms.method} has no intercept round")
    if terms.reports_shifts:
        intercept, examples = _shift_alone(learner, state)
    else:
        fit, examples = _intercept_alone(learner, state)
        intercept = fit.intercept
    numbers = _contrasts(examples) @ intercept
    if terms.held_out_losses:
        losses = intercept_losses(examples, _contrasts(examples), learner.solve)
        excesses = np.minimum(losses - losses.min(), MOST_EXCESS)
        numbers = np.concatenate([numbers, excesses])
    gradients = np.zeros((instruction.steps, instruction.queries))
    has_room = gradients.size >= len(numbers)
    if not has_room or (terms.privacy is None and gradients.size != len(numbers)):
        raise FrameError(
            f"the intercept round has {gradients.size} numbers, but this client's report has "
            f"{len(numbers)}"
        )
    scale = instruction.queries / instruction.learning_rate if instruction.learning_rate else 0.0
    gradients.flat[: len(numbers)] = -scale * numbers
    return Report(
        token_of(instruction.encode()),
        learner.client,
        len(examples.labels),
        0.0,
        gradients.astype(np.float32),
    )


def record_private_fit(
    learner: Learner,
    terms: RunTerms,
    state: State,
    ledger: Ledger,
    first: int = 1,
    prior: CommonPrior = NO_PRIOR,
) -> State:
    """Return the private state in a client's personal ledger, and fit it first if it is missing.

    A later fit is recorded as its difference from the previous fit.

    Args:
        learner: model and examples of the client.
        terms: terms of the run.
        state: int64 [d], state of the federation.
        ledger: personal ledger of the client.
        first: number of the fit's record.
        prior: common prior of the intercepts.

    Raises:
        TrainingError: if the private part cannot be fitted.
        ReplayError: if a fitted number exceeds the range of dense values.
        LedgerError: if the personal ledger cannot be written.
    """
    if ledger.position.round < first:
        fitted = make_private_fit(learner, terms, state, prior)
        values = _difference(fitted, ledger.state, learner.layout)
        ledger.append(RoundDelta(first, PERSONAL_TRACK, bytes(8), (), values))
        ledger.compact(first)
    return ledger.state


def record_subtraction(common: State, ledger: Ledger, layout: Layout) -> None:
    """Record in a personal ledger that a common intercept is subtracted from the private part.

    Raises:
        ReplayError: if a number exceeds the range of dense values.
        LedgerError: if the personal ledger cannot be written.
    """
    values = _difference(-common, zero_state(layout.size), layout)
    ledger.append(RoundDelta(ledger.position.round + 1, PERSONAL_TRACK, bytes(8), (), values))


def make_private_fit(
    learner: Learner, terms: RunTerms, state: State, prior: CommonPrior = NO_PRIOR
) -> State:
    """Return the private state that a client would have on top of a federation's state, int64 [d].

    The private state consists of an intercept and, where possible, a readout. It is not recorded. A
    common intercept does not change the sum of the federation's state and the private state.

    Raises:
        ConfigError: if this machine lacks the registered method.
        TrainingError: if the private part cannot be fitted.
        ReplayError: if a fitted number exceeds the range of dense values.
    """

    def fit(alone: State) -> State:
        with_features = _has_private_readout(learner.layout)
        examples = learner.training_examples(alone, with_features)
        if is_extension(terms.method):
            private = _registered_fit(terms.method, examples)
        else:
            rows = _contrasts(examples)
            private = fit_private_part(examples, rows, learner.solve, prior.deviation)
        return _state_of(private, learner.layout)

    return prior.fit_without(state, fit)


def _registered_fit(method: str, examples: Examples) -> SoftmaxFit:
    """Return the private part that a registered personalization computes from examples.

    Raises:
        ConfigError: if this machine lacks the personalization.
        TrainingError: if the numbers are not finite, or have the wrong shapes.
    """
    personalize: Personalization = extension("personalization", method)
    intercept, readout = (np.asarray(part, np.float64) for part in personalize(examples))
    labels = examples.offsets.shape[1]
    features = examples.features.shape[1]
    wanted = ((labels,), (labels - 1, features))
    shapes = (intercept.shape, readout.shape)
    if shapes != wanted or not all(np.all(np.isfinite(part)) for part in (intercept, readout)):
        raise TrainingError(
            f"personalization {method!r}: the function must return finite numbers of shapes "
            f"{wanted[0]} and {wanted[1]}; it returned {shapes[0]} and {shapes[1]}"
        )
    return SoftmaxFit(intercept, readout)


def intercept_state(learner: Learner, state: State, prior: CommonPrior = NO_PRIOR) -> State:
    """Return the private state of a client that fits an intercept and no readout, int64 [d].

    Args:
        learner: model and examples of the client.
        state: int64 [d], state of the federation.
        prior: common prior of the intercepts.

    Raises:
        TrainingError: if the intercept cannot be fitted.
    """

    def fit(alone: State) -> State:
        return _state_of(_intercept_alone(learner, alone, prior.deviation)[0], learner.layout)

    return prior.fit_without(state, fit)


def _intercept_alone(
    learner: Learner, state: State, deviation: float | None = None
) -> tuple[SoftmaxFit, Examples]:
    """Return an intercept fitted without a readout, and the client's training examples."""
    examples = learner.training_examples(state, with_features=False)
    rows = _contrasts(examples)
    return fit_private_part(examples, rows, learner.solve, deviation), examples


def _shift_alone(learner: Learner, state: State) -> tuple[Floats, Examples]:
    """Return the shift of a client's profiled loss, float64 [labels], and the training examples."""
    examples = learner.training_examples(state, with_features=False)
    check_finite(examples)
    (shift,) = fitted_shift(examples.offsets[None], examples.labels)
    return shift, examples


def _has_private_readout(layout: Layout) -> bool:
    """Return whether a private readout can be fitted.

    This requires features that are the same under all states.
    """
    return bool(layout.group(READOUT_GROUP)) and layout.adapter_element_count == 0


def _contrasts(examples: Examples) -> NDArray[np.float64]:
    return contrasts(examples.offsets.shape[1]).astype(np.float64)


def _dense_values(fit: SoftmaxFit, layout: Layout) -> tuple[DenseValues, ...]:
    """Return a fit as dense values of the layout's tensors; a readout of zeros is left out."""
    parts = []
    for part in layout.parts:
        first = part.numbers.start
        if part.group == LABEL_BIAS_GROUP:
            parts.append(DenseValues.from_numbers(first, fit.intercept))
        elif part.group == READOUT_GROUP and fit.readout.any():
            parts.append(DenseValues.from_numbers(first, fit.readout.ravel()))
    return tuple(parts)


def _difference(
    fitted: NDArray[np.int64], before: NDArray[np.int64], layout: Layout
) -> tuple[DenseValues, ...]:
    """Return the dense values that change one private state to another, for tensors that differ.

    The label bias is always included, so that no record is empty.

    Raises:
        ReplayError: if a difference exceeds the range of dense values.
    """
    parts = []
    for part in layout.parts:
        values = fitted[part.numbers] - before[part.numbers]
        if values.any() or part.group == LABEL_BIAS_GROUP:
            parts.append(DenseValues.of(part.numbers.start, values))
    return tuple(parts)


def _state_of(fit: SoftmaxFit, layout: Layout) -> NDArray[np.int64]:
    return replay(zero_state(layout.size), _dense_values(fit, layout), layout.distribution)
