"""Newton's method in numpy, the solver of private fits on phones, which lack scipy.

The Hessian is never formed. Conjugate gradients need only products of the Hessian and a vector. A
product costs as much as a gradient.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from samara.client.personal.softmax_fit import (
    Examples,
    Floats,
    SoftmaxFit,
    check_finite,
    log_sum_exp,
)
from samara.shared.errors import TrainingError

_GRADIENT_TOLERANCE = 1e-10
_ACCEPTED_GRADIENT = 1e-5
_MAX_STEPS = 100
_SUFFICIENT_DECREASE = 1e-4
_SMALLEST_STEP = 1e-10


class SoftmaxProblem(ABC):
    """A penalized mean cross-entropy whose variables enter the logits linearly.

    Args:
        examples: n examples.
        penalties: factor of each variable's square, float64 [size], above 0.

    Attributes:
        size: number of variables.
    """

    def __init__(self, examples: Examples, penalties: Floats) -> None:
        self._examples = examples
        self._penalties = penalties
        self.size = len(penalties)

    @abstractmethod
    def added(self, numbers: Floats) -> Floats:
        """Return the logits that the variables add, [n, labels] or [labels]."""

    @abstractmethod
    def gathered(self, slopes: Floats) -> Floats:
        """Return the gradient of the mean cross-entropy with respect to the variables, [size].

        Args:
            slopes: each example's gradient with respect to its logits, [n, labels].
        """

    def loss(self, numbers: Floats) -> float:
        """Return the penalized mean cross-entropy."""
        return self._loss(self._examples.offsets + self.added(numbers), numbers)

    def at(self, numbers: Floats) -> tuple[float, Floats, Callable[[Floats], Floats]]:
        """Return the loss, the gradient, and the function v ↦ H·v with the Hessian H."""
        logits = self._examples.offsets + self.added(numbers)
        probabilities = np.exp(logits - log_sum_exp(logits))
        errors = probabilities.copy()
        errors[np.arange(len(errors)), self._examples.labels] -= 1

        def product(vector: Floats) -> Floats:
            moved = self.added(vector)
            mean = (probabilities * moved).sum(axis=1, keepdims=True)
            slopes: Floats = self.gathered(probabilities * (moved - mean))
            return slopes + 2 * self._penalties * vector

        gradient = self.gathered(errors) + 2 * self._penalties * numbers
        return self._loss(logits, numbers), gradient, product

    def _loss(self, logits: Floats, numbers: Floats) -> float:
        own = logits[np.arange(len(logits)), self._examples.labels]
        return float(np.mean(log_sum_exp(logits)[:, 0] - own) + self._penalties @ numbers**2)


def fit_softmax(
    examples: Examples, contrasts: Floats, intercept_penalty: float, readout_penalty: float
) -> SoftmaxFit:
    """Return the intercept b and the readout V with the lowest penalized mean cross-entropy.

    The loss and the arguments are those of `samara.client.personal.lbfgs.fit_softmax`. The loss has
    only one minimum, which both solvers find. Final gradients are below 10⁻¹⁰ here, and below 10⁻⁷
    with L-BFGS.

    Raises:
        TrainingError: if a score or a feature is not finite, or the method does not converge.
    """
    check_finite(examples)
    problem = _PenalizedFit(examples, contrasts, intercept_penalty, readout_penalty)
    return problem.fit(minimize(problem))


def minimize(problem: SoftmaxProblem) -> Floats:
    """Return the variables with the lowest loss, float64 [size], starting from zero.

    Raises:
        TrainingError: if the method does not converge.
    """
    numbers = np.zeros(problem.size)
    for _ in range(_MAX_STEPS):
        loss, gradient, product = problem.at(numbers)
        largest = float(np.abs(gradient).max())
        if largest < _GRADIENT_TOLERANCE:
            break
        step = _solve(product, gradient)
        share = _share_of_step(problem, numbers, step, loss, float(gradient @ step))
        if not share:  # rounding hides any change of the loss
            break
        numbers = numbers - share * step
    if not largest < _ACCEPTED_GRADIENT:
        raise TrainingError(
            f"private fit: Newton's method did not converge in {_MAX_STEPS} steps; the largest "
            f"component of the gradient is {largest:.2g}"
        )
    return numbers


class _PenalizedFit(SoftmaxProblem):
    """The penalized loss of a private fit; its variables are b and V, in this order."""

    def __init__(
        self,
        examples: Examples,
        contrasts: Floats,
        intercept_penalty: float,
        readout_penalty: float,
    ) -> None:
        self._contrasts = contrasts
        self._labels = examples.offsets.shape[1]
        self._shape = self._labels - 1, examples.features.shape[1]
        penalties = np.full(self._labels + self._shape[0] * self._shape[1], readout_penalty)
        penalties[: self._labels] = intercept_penalty
        super().__init__(examples, penalties)

    def fit(self, numbers: Floats) -> SoftmaxFit:
        """Return the variables as an intercept and a readout."""
        return SoftmaxFit(numbers[: self._labels], numbers[self._labels :].reshape(self._shape))

    def added(self, numbers: Floats) -> Floats:
        """Return the logits that the variables add, [n, labels] or [labels]."""
        if not self._shape[1]:
            return numbers
        return self.fit(numbers).added_scores(self._examples.features, self._contrasts)

    def gathered(self, slopes: Floats) -> Floats:
        """Return the gradient of the mean cross-entropy with respect to the variables, [size].

        Args:
            slopes: each example's gradient with respect to its logits, [n, labels].
        """
        intercept = slopes.mean(axis=0)
        if not self._shape[1]:
            return np.asarray(intercept)
        readout = self._contrasts @ slopes.T @ self._examples.features / len(slopes)
        return np.concatenate([intercept, readout.ravel()])


def _solve(product: Callable[[Floats], Floats], right: Floats) -> Floats:
    """Solve A·x = b approximately for a positive definite A, by conjugate gradients.

    Args:
        product: function that multiplies by A.
        right: b.
    """
    norm = float(np.linalg.norm(right))
    solution = np.zeros_like(right)
    residual = right.copy()
    direction = residual.copy()
    square = norm**2
    for _ in range(2 * len(right)):
        if square**0.5 <= min(1e-2, norm) * norm:  # stricter near the minimum
            break
        moved = product(direction)
        length = square / float(direction @ moved)
        solution = solution + length * direction
        residual = residual - length * moved
        before = square
        square = float(residual @ residual)
        direction = residual + square / before * direction
    return solution


def _share_of_step(
    problem: SoftmaxProblem, numbers: Floats, step: Floats, loss: float, slope: float
) -> float:
    """Return the largest of 1, ½, ¼, … for which that share of the step lowers the loss.

    The result is 0 if no share lowers the loss enough.
    """
    share = 1.0
    while share > _SMALLEST_STEP:
        if problem.loss(numbers - share * step) <= loss - _SUFFICIENT_DECREASE * share * slope:
            return share
        share /= 2
    return 0.0
