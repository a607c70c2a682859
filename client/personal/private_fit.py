"""The private part of the method `readout`: an intercept and a readout, fitted by a solver.

The loss in these numbers is convex, so that a client needs no private rounds: it runs the model
once per training example, and a solver does the rest. The result is recorded in the personal ledger
as dense values and never fitted again. While the common model is trained, every client adds an
intercept of its own to it, so that what all learn is not their different base rates.
"""

import numpy as np
from numpy.typing import NDArray

from client.personal.softmax_fit import Examples, SoftmaxFit, fit_intercept, fit_private_part
from client.training.client_data import ClientData
from client.training.local_steps import prepare_training_examples
from client.training.model_runtime import ModelRuntime
from shared.config import RunConfig
from shared.frames.instructions import PERSONAL_TRACK
from shared.layout import LABEL_BIAS_GROUP, READOUT_GROUP, Layout
from shared.ledger.ledger import Ledger
from shared.model.readout import contrasts
from shared.replay import DenseValues, replay, zero_state
from shared.round_delta import RoundDelta


def intercept_for_training(
    runtime: ModelRuntime, data: ClientData, config: RunConfig, state: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Return the private state that a client adds to the common one while it trains that.

    It is the intercept that fits the client's training examples best, and no more than a function
    of them and of the state: nothing of it is kept.

    Args:
        runtime: model runtime.
        data: examples of the client.
        config: settings of the run.
        state: int64 [d], state of the federation.

    Returns:
        int64 [d]; None for methods other than `readout`.

    Raises:
        TrainingError: if the intercept cannot be fitted.
    """
    if config.method != "readout":
        return None
    examples = _examples(runtime, data, state, with_features=False)
    return _state_of(fit_intercept(examples, _contrasts(examples)), runtime.layout)


def record_private_fit(
    runtime: ModelRuntime,
    data: ClientData,
    config: RunConfig,
    state: NDArray[np.int64],
    ledger: Ledger,
    first: int = 1,
) -> NDArray[np.int64]:
    """Return the private state in a client's personal ledger, which is fitted if it is not there.

    A later fit is recorded as its difference from the one before.

    Args:
        runtime: model runtime.
        data: examples of the client.
        config: settings of the run.
        state: int64 [d], state of the federation.
        ledger: personal ledger of the client.
        first: number of the fit's record.

    Raises:
        TrainingError: if the private part cannot be fitted.
        ReplayError: if a fitted number is beyond the range of dense values.
        LedgerError: if the personal ledger cannot be written.
    """
    if ledger.position.round < first:
        fitted = _state_of(_fit(runtime, data, config, state), runtime.layout)
        values = _difference(fitted, ledger.state, runtime.layout)
        ledger.append(RoundDelta(first, PERSONAL_TRACK, bytes(8), (), values))
        ledger.compact(first)
    return ledger.state


def make_private_fit(
    runtime: ModelRuntime, data: ClientData, config: RunConfig, state: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the private state that a client would have with a state of the federation, int64 [d].

    Nothing of it is recorded.

    Raises:
        TrainingError: if the private part cannot be fitted.
        ReplayError: if a fitted number is beyond the range of dense values.
    """
    return _state_of(_fit(runtime, data, config, state), runtime.layout)


def intercept_state(
    runtime: ModelRuntime, data: ClientData, state: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the private state of a client that fits an intercept and no readout, int64 [d].

    Raises:
        TrainingError: if the intercept cannot be fitted.
    """
    examples = _examples(runtime, data, state, with_features=False)
    return _state_of(fit_private_part(examples, _contrasts(examples)), runtime.layout)


def _fit(
    runtime: ModelRuntime, data: ClientData, config: RunConfig, state: NDArray[np.int64]
) -> SoftmaxFit:
    """Return the private part of a client: an intercept, and a readout where there can be one."""
    examples = _examples(runtime, data, state, with_features=_has_private_readout(config))
    return fit_private_part(examples, _contrasts(examples))


def _has_private_readout(config: RunConfig) -> bool:
    """Return whether features are the same under all states, so that a readout can be fitted."""
    return config.adapter.has_readout and not config.adapter.inner_layers


def _examples(
    runtime: ModelRuntime, data: ClientData, state: NDArray[np.int64], with_features: bool
) -> Examples:
    """Return a client's training examples as scores under a state, labels, and features.

    The forward passes that they take are counted as those of the client's steps are.
    """
    train = prepare_training_examples(runtime, data)
    before = runtime.passes
    features = np.zeros((len(train.labels), 0))
    if with_features:
        features = runtime.features(train.prompts).astype(np.float64)
    scores = runtime.scores(state, train.prompts).astype(np.float64)
    data.passes += runtime.passes - before
    return Examples(scores, train.labels, features)


def _contrasts(examples: Examples) -> NDArray[np.float64]:
    return contrasts(examples.offsets.shape[1]).astype(np.float64)


def _dense_values(fit: SoftmaxFit, layout: Layout) -> tuple[DenseValues, ...]:
    """Return a fit as values of the layout's tensors; a readout of zeros is left out."""
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
    """Return what leads from one private state to another, tensor by tensor, where they differ.

    The label bias is there even if it does not change, so that no record is empty.

    Raises:
        ReplayError: if a difference is beyond the range of dense values.
    """
    parts = []
    for part in layout.parts:
        values = fitted[part.numbers] - before[part.numbers]
        if values.any() or part.group == LABEL_BIAS_GROUP:
            parts.append(DenseValues.of(part.numbers.start, values))
    return tuple(parts)


def _state_of(fit: SoftmaxFit, layout: Layout) -> NDArray[np.int64]:
    return replay(zero_state(layout.size), _dense_values(fit, layout), layout.distribution)
