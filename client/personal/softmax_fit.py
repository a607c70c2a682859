"""Exact fits of numbers added to a model's scores: an intercept per label, and a readout.

The loss is convex, so a solver finds its only minimum from a few examples, without seeds or
learning rates. The solver is L-BFGS (`samara.client.personal.lbfgs`), or Newton's method on phones.
Cross-validation on the client's own training examples chooses the strength of the penalties.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import TrainingError
from samara.shared.protocol.round_delta import INTERCEPT_DEVIATIONS

Floats = NDArray[np.float64]

TRAINING_DEVIATION = 2.0
"""Standard deviation, in log-odds, of a client's intercept while all clients train the readout."""
READOUT_DEVIATIONS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Candidate standard deviations of a private readout's additions to the log-odds of two labels."""
FOLDS = 5


class SoftmaxFit(NamedTuple):
    """A fitted intercept and readout.

    Attributes:
        intercept: addend of each label's score, float64 [labels], with sum zero.
        readout: matrix V, float64 [labels − 1, features]; Hᵀ·V·φ is added to the scores.
    """

    intercept: Floats
    readout: Floats

    def added_scores(self, features: Floats, contrasts: Floats) -> Floats:
        """Return the numbers that the fit adds to the scores of examples, float64 [n, labels].

        Args:
            features: φ of the examples, float64 [n, features].
            contrasts: H, float64 [labels − 1, labels].
        """
        added: Floats = self.intercept + features @ self.readout.T @ contrasts
        return added


class Examples(NamedTuple):
    """Scored examples, to which an intercept and a readout are fitted.

    Attributes:
        offsets: scores of the model, float64 [n, labels].
        labels: int64 [n].
        features: φ of the readout, float64 [n, features]; [n, 0] without a readout.
    """

    offsets: Floats
    labels: NDArray[np.int64]
    features: Floats

    def at(self, rows: NDArray[np.int64]) -> "Examples":
        """Return the examples with the given indices."""
        return Examples(self.offsets[rows], self.labels[rows], self.features[rows])


Personalization = Callable[[Examples], SoftmaxFit]
"""A registered personalization. The function takes a client's training examples, scored by the
federation's model, and returns the private numbers to add to that model.
"""
Solver = Callable[[Examples, Floats, float, float], SoftmaxFit]
"""A solver of private fits. The function takes n examples, contrasts H [labels − 1, labels], and
the factors of |b|² and |V|², both positive. It returns the intercept b and the readout V with the
lowest penalized mean cross-entropy.
"""


def check_finite(examples: Examples) -> None:
    """Check that all scores and features are finite.

    Raises:
        TrainingError: if a score or a feature is not finite.
    """
    if not (np.all(np.isfinite(examples.offsets)) and np.all(np.isfinite(examples.features))):
        raise TrainingError(
            "private fit: a score or a feature is not finite; check the model's weights"
        )


def log_sum_exp(logits: Floats) -> Floats:
    """Return log Σ exp over each example's logits, float64 [n, 1].

    Args:
        logits: [n, labels].
    """
    largest = logits.max(axis=1, keepdims=True)
    sums: Floats = np.log(np.exp(logits - largest).sum(axis=1, keepdims=True)) + largest
    return sums


def fit_intercept(examples: Examples, contrasts: Floats, solve: Solver) -> SoftmaxFit:
    """Return the intercept that a client adds while it trains the common model.

    Raises:
        TrainingError: if a score is not finite, or the solver does not converge.
    """
    return fit_under_prior(solve, examples, contrasts, TRAINING_DEVIATION, 0.0, 1.0)


def intercept_losses(examples: Examples, contrasts: Floats, solve: Solver) -> Floats:
    """Return the mean held-out loss of an intercept under each of `INTERCEPT_DEVIATIONS`, float64.

    A client with one example has no held-out losses; the result is then zeros.
    """
    losses = np.zeros(len(INTERCEPT_DEVIATIONS))
    if len(examples.labels) > 1:
        for index, deviation in enumerate(INTERCEPT_DEVIATIONS):
            held_out = held_out_losses(solve, examples, contrasts, deviation, 0.0, 1.0)
            losses[index] = held_out.mean()
    return losses


def fit_private_part(
    examples: Examples, contrasts: Floats, solve: Solver, deviation: float | None = None
) -> SoftmaxFit:
    """Return the fit of an intercept and a readout with penalties chosen by cross-validation.

    The intercept has only one number per label. Its penalty is the candidate with the lowest loss
    on held-out examples. The readout has hundreds of numbers. Its penalty is the strongest
    candidate whose loss exceeds the lowest loss by at most one standard error of the difference. So
    a client with few examples gets a readout only if the readout clearly lowers the loss.

    Args:
        examples: training examples of a client, at least one.
        contrasts: H, float64 [labels − 1, labels]; its rows are orthonormal and sum to zero.
        solve: solver of the fits.
        deviation: standard deviation of the intercept; None to choose it by cross-validation.

    Raises:
        TrainingError: if a score or a feature is not finite, or the solver does not converge.
    """
    squared_norm = mean_squared_norm(examples)
    reduced, basis = reduce_features(examples)

    def losses(intercept: float, readout: float) -> Floats:
        return held_out_losses(solve, reduced, contrasts, intercept, readout, squared_norm)

    intercept = deviation
    if intercept is None:
        best = np.argmin(intercept_losses(reduced, contrasts, solve))
        intercept = INTERCEPT_DEVIATIONS[int(best)]
    readout = 0.0
    if len(reduced.labels) > 1 and examples.features.shape[1]:
        chosen = strongest_within_one_error([losses(intercept, d) for d in READOUT_DEVIATIONS])
        readout = READOUT_DEVIATIONS[chosen]
    fit = fit_under_prior(solve, reduced, contrasts, intercept, readout, squared_norm)
    return fit if basis is None else fit._replace(readout=fit.readout @ basis)


def mean_squared_norm(examples: Examples) -> float:
    """Return the mean squared norm of the features, or 1 if the mean is 0 or not finite."""
    found = float(np.mean(np.sum(examples.features**2, axis=1)))
    return found if found and np.isfinite(found) else 1.0


def held_out_losses(
    solve: Solver,
    examples: Examples,
    contrasts: Floats,
    intercept: float,
    readout: float,
    squared_norm: float,
) -> Floats:
    """Return the loss of every example under a fit to the other folds, float64 [n].

    The arguments are those of `fit_under_prior`, with at least two examples.
    """
    held_out = np.zeros(len(examples.labels))
    for fold in _folds(examples.labels):
        others = examples.at(np.setdiff1d(np.arange(len(held_out)), fold))
        fit = fit_under_prior(solve, others, contrasts, intercept, readout, squared_norm)
        rest = examples.at(fold)
        logits = rest.offsets + fit.added_scores(rest.features, contrasts)
        own = logits[np.arange(len(fold)), rest.labels]
        held_out[fold] = log_sum_exp(logits)[:, 0] - own
    return held_out


def strongest_within_one_error(losses: Sequence[Floats]) -> int:
    """Return the index of the strongest penalty whose loss is not clearly above the lowest loss.

    A loss is clearly above if the mean difference exceeds one standard error.

    Args:
        losses: losses of the same n examples under each penalty, float64 [n]; the strongest penalty
            comes first.
    """
    best = min(losses, key=lambda values: float(values.mean()))

    def is_close(values: Floats) -> bool:
        difference = values - best
        error = difference.std(ddof=1) / np.sqrt(len(difference))
        return bool(difference.mean() <= error)

    return next(index for index, values in enumerate(losses) if is_close(values))


def fit_under_prior(
    solve: Solver,
    examples: Examples,
    contrasts: Floats,
    intercept: float,
    readout: float,
    squared_norm: float,
) -> SoftmaxFit:
    """Return the fit under Gaussian priors on its additions to the log-odds of any two labels.

    An addition to log-odds is the difference of two added scores, so its variance is twice the
    variance of a contrast. A prior adds a penalty to the total loss of the n examples: the sum of
    squared contrasts, divided by twice the variance of a contrast. The penalty of the mean loss is
    1/n of this.

    Args:
        solve: solver.
        examples: n examples.
        contrasts: H, float64 [labels − 1, labels].
        intercept: standard deviation of the intercept's additions to log-odds.
        readout: standard deviation of the readout's additions to log-odds; 0 for no readout.
        squared_norm: mean squared norm of the features.
    """
    count = len(examples.labels)
    intercept_penalty = 1 / (len(examples.labels) * intercept**2)
    if readout:
        penalty = squared_norm / (count * readout**2)
        return solve(examples, contrasts, intercept_penalty, penalty)
    without = examples._replace(features=examples.features[:, :0])
    fit = solve(without, contrasts, intercept_penalty, 1.0)
    return fit._replace(readout=np.zeros((len(contrasts), examples.features.shape[1])))


def reduce_features(examples: Examples) -> tuple[Examples, Floats | None]:
    """Return n examples with at most n features, and an orthonormal basis of the features.

    The optimal V lies in the span of the examples' features, because its squared norm is penalized.
    The basis is [n, features], or None if there are no more features than examples.

    Raises:
        TrainingError: if a feature is not finite.
    """
    if examples.features.shape[1] <= len(examples.labels):
        return examples, None
    if not np.all(np.isfinite(examples.features)):
        raise TrainingError("private fit: a feature is not finite; check the model's weights")
    basis = np.linalg.svd(examples.features, full_matrices=False)[2]
    return examples._replace(features=examples.features @ basis.T), basis


def _folds(labels: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the indices of the examples in up to `FOLDS` folds, with labels spread evenly."""
    order = np.argsort(labels, kind="stable")
    return [np.sort(order[first::FOLDS]) for first in range(min(FOLDS, len(order)))]
