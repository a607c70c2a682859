"""Exact fits of what a client adds to a model's scores: an intercept per label, and a readout.

The loss is convex, so that L-BFGS finds its only minimum from a few examples, without seeds or
learning rates. How strongly the added numbers are penalized is chosen by cross-validation among the
client's own training examples.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import logsumexp

from shared.errors import TrainingError

Floats = NDArray[np.float64]

INTERCEPT_DEVIATIONS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Standard deviations among which that of an intercept is chosen, in log-odds of two labels."""
TRAINING_DEVIATION = 2.0
"""Standard deviation of the intercept that a client has while the readout is trained by all."""
READOUT_DEVIATIONS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Standard deviations among which that of a private readout's part of the log-odds is chosen."""
FOLDS = 5
_GRADIENT_TOLERANCE = 1e-7
_ACCEPTED_GRADIENT = 1e-5
_LOSS_TOLERANCE = 1e-14
_MAX_ITERATIONS = 10_000


class SoftmaxFit(NamedTuple):
    """The numbers of a fit.

    Attributes:
        intercept: number that is added to the score of each label, float64 [labels]; sum zero.
        readout: matrix V, float64 [labels − 1, features]; Hᵀ·V·φ is added to the scores.
    """

    intercept: Floats
    readout: Floats

    def added_scores(self, features: Floats, contrasts: Floats) -> Floats:
        """Return what is added to the scores of examples with features [n, features]."""
        added: Floats = self.intercept + features @ self.readout.T @ contrasts
        return added


class Examples(NamedTuple):
    """Examples that an addition to their scores is fitted to.

    Attributes:
        offsets: scores of the model, float64 [n, labels].
        labels: int64 [n].
        features: φ of the readout, float64 [n, features]; [n, 0] without a readout.
    """

    offsets: Floats
    labels: NDArray[np.int64]
    features: Floats

    def at(self, rows: NDArray[np.int64]) -> "Examples":
        """Return some of the examples."""
        return Examples(self.offsets[rows], self.labels[rows], self.features[rows])


def fit_softmax(
    examples: Examples, contrasts: Floats, intercept_penalty: float, readout_penalty: float
) -> SoftmaxFit:
    """Return the intercept b and the readout V with the least penalized mean cross-entropy.

    The scores are offsets + b + Hᵀ·V·φ; intercept_penalty·|b|² + readout_penalty·|V|² is added to
    the mean loss. Both penalties are positive, so the minimum is unique and finite where a client
    lacks a label.

    Args:
        examples: n examples, at least one.
        contrasts: H, float64 [labels − 1, labels]; its rows are orthonormal and sum to zero.
        intercept_penalty: factor of the intercept's squared norm.
        readout_penalty: factor of the readout's squared norm.

    Raises:
        TrainingError: if a score or a feature is not finite, or the optimizer does not converge.
    """
    offsets, labels, features = examples
    if not (np.all(np.isfinite(offsets)) and np.all(np.isfinite(features))):
        raise TrainingError(
            "private fit: a score or a feature is not finite; check the model's weights"
        )
    count, label_count = offsets.shape
    rows, shape = np.arange(count), (label_count - 1, features.shape[1])
    frequencies = np.bincount(labels, minlength=label_count) / count

    def loss_and_gradient(numbers: Floats) -> tuple[float, Floats]:
        bias, readout = numbers[:label_count], numbers[label_count:].reshape(shape)
        logits = offsets + bias
        if features.shape[1]:
            logits = logits + features @ readout.T @ contrasts
        log_sums = logsumexp(logits, axis=1, keepdims=True)
        loss = np.mean(log_sums[:, 0] - logits[rows, labels]) + intercept_penalty * bias @ bias
        probabilities = np.exp(logits - log_sums)
        gradient = probabilities.mean(axis=0) - frequencies + 2 * intercept_penalty * bias
        if not features.shape[1]:
            return float(loss), gradient
        probabilities[rows, labels] -= 1
        slope = contrasts @ probabilities.T @ features / count + 2 * readout_penalty * readout
        loss = loss + readout_penalty * np.sum(readout * readout)
        return float(loss), np.concatenate([gradient, slope.ravel()])

    result = minimize(
        loss_and_gradient,
        np.zeros(label_count + shape[0] * shape[1]),
        jac=True,
        method="L-BFGS-B",
        options={
            "gtol": _GRADIENT_TOLERANCE,
            "ftol": _LOSS_TOLERANCE,
            "maxiter": _MAX_ITERATIONS,
            "maxfun": _MAX_ITERATIONS,
        },
    )
    if not (result.success or np.abs(result.jac).max() < _ACCEPTED_GRADIENT):
        raise TrainingError(
            f"private fit: L-BFGS did not converge in {result.nit} iterations: {result.message}"
        )
    return SoftmaxFit(result.x[:label_count], result.x[label_count:].reshape(shape))


def fit_intercept(examples: Examples, contrasts: Floats) -> SoftmaxFit:
    """Return the fit that a client trains the common model with: an intercept, and no readout.

    Raises:
        TrainingError: as `fit_softmax`.
    """
    return _fit_prior(examples, contrasts, TRAINING_DEVIATION, 0.0, 1.0)


def fit_private_part(examples: Examples, contrasts: Floats) -> SoftmaxFit:
    """Return the fit of an intercept and a readout with penalties chosen by cross-validation.

    First the penalty of the intercept: the one with the least loss on held-out examples. It has as
    few numbers as there are labels. Then that of the readout, which has hundreds of numbers: the
    strongest of which the loss exceeds the least by no more than one standard error of their
    difference, so that a client with few examples gets a readout only where it is seen to help.

    Args:
        examples: training examples of a client, at least one.
        contrasts: as for `fit_softmax`.

    Raises:
        TrainingError: as `fit_softmax`.
    """
    squared_norm = float(np.mean(np.sum(examples.features**2, axis=1)))
    if squared_norm == 0.0 or not np.isfinite(squared_norm):
        squared_norm = 1.0
    reduced, basis = _reduce(examples)

    def losses(intercept: float, readout: float) -> Floats:
        """Return the loss of every example under the fit to the other folds, float64 [n]."""
        held_out = np.zeros(len(reduced.labels))
        for fold in _folds(reduced.labels):
            others = reduced.at(np.setdiff1d(np.arange(len(held_out)), fold))
            fit = _fit_prior(others, contrasts, intercept, readout, squared_norm)
            rest = reduced.at(fold)
            logits = rest.offsets + fit.added_scores(rest.features, contrasts)
            own = logits[np.arange(len(fold)), rest.labels]
            held_out[fold] = logsumexp(logits, axis=1) - own
        return held_out

    intercept, readout = INTERCEPT_DEVIATIONS[0], 0.0
    if len(reduced.labels) > 1:
        by_intercept = [float(losses(d, 0.0).mean()) for d in INTERCEPT_DEVIATIONS]
        intercept = INTERCEPT_DEVIATIONS[int(np.argmin(by_intercept))]
        if examples.features.shape[1]:
            chosen = strongest_within_one_error([losses(intercept, d) for d in READOUT_DEVIATIONS])
            readout = READOUT_DEVIATIONS[chosen]
    fit = _fit_prior(reduced, contrasts, intercept, readout, squared_norm)
    return fit if basis is None else fit._replace(readout=fit.readout @ basis)


def strongest_within_one_error(losses: Sequence[Floats]) -> int:
    """Return the index of the first losses that are not clearly worse than the least.

    Args:
        losses: losses of the same n examples under each choice, float64 [n]; the strongest
            penalty comes first.
    """
    best = min(losses, key=lambda values: float(values.mean()))

    def is_close(values: Floats) -> bool:
        difference = values - best
        error = difference.std(ddof=1) / np.sqrt(len(difference))
        return bool(difference.mean() <= error)

    return next(index for index, values in enumerate(losses) if is_close(values))


def _fit_prior(
    examples: Examples,
    contrasts: Floats,
    intercept: float,
    readout: float,
    squared_norm: float,
) -> SoftmaxFit:
    """Return the fit under Gaussian priors of what is added to the log-odds of two labels.

    The added log-odds of two labels are differences of two scores, and have a variance of twice
    that of a contrast; a sum of squares over 2·variance of n examples' loss becomes a penalty on
    their mean loss.

    Args:
        examples: n examples.
        contrasts: as for `fit_softmax`.
        intercept: standard deviation of the intercept's log-odds.
        readout: standard deviation of the readout's log-odds; 0 for no readout.
        squared_norm: mean squared norm of the features.
    """
    count, intercept_penalty = len(examples.labels), 1 / (len(examples.labels) * intercept**2)
    if readout:
        penalty = squared_norm / (count * readout**2)
        return fit_softmax(examples, contrasts, intercept_penalty, penalty)
    without = examples._replace(features=examples.features[:, :0])
    fit = fit_softmax(without, contrasts, intercept_penalty, 1.0)
    return fit._replace(readout=np.zeros((len(contrasts), examples.features.shape[1])))


def _reduce(examples: Examples) -> tuple[Examples, Floats | None]:
    """Return examples with at most n features, and the orthonormal basis [n, features] of them.

    The optimal V lies in the span of the examples' features, since its squared norm is penalized.
    The basis is None if there are no more features than examples.
    """
    if examples.features.shape[1] <= len(examples.labels):
        return examples, None
    if not np.all(np.isfinite(examples.features)):
        raise TrainingError("private fit: a feature is not finite; check the model's weights")
    basis = np.linalg.svd(examples.features, full_matrices=False)[2]
    return examples._replace(features=examples.features @ basis.T), basis


def _folds(labels: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the examples in at most `FOLDS` folds, with each label dealt evenly among them."""
    order = np.argsort(labels, kind="stable")
    return [np.sort(order[first::FOLDS]) for first in range(min(FOLDS, len(order)))]
