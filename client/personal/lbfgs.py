"""L-BFGS, the solver of private fits on machines with scipy; it needs only gradients."""

import numpy as np
from scipy.optimize import minimize

from samara.client.personal.softmax_fit import Examples, Floats, SoftmaxFit, check_finite
from samara.shared.errors import TrainingError

_GRADIENT_TOLERANCE = 1e-7
_ACCEPTED_GRADIENT = 1e-5
_LOSS_TOLERANCE = 1e-14
_MAX_ITERATIONS = 10_000


def fit_softmax(
    examples: Examples, contrasts: Floats, intercept_penalty: float, readout_penalty: float
) -> SoftmaxFit:
    """Return the intercept b and the readout V with the lowest penalized mean cross-entropy.

    The scores are offsets + b + Hᵀ·V·φ. The penalty intercept_penalty·|b|² + readout_penalty·|V|²
    is added to the mean loss. Both factors are positive, so the minimum is unique and finite even
    if a client lacks a label.

    Args:
        examples: n examples, at least one.
        contrasts: H, float64 [labels − 1, labels]; its rows are orthonormal and sum to zero.
        intercept_penalty: factor of the intercept's squared norm.
        readout_penalty: factor of the readout's squared norm.

    Raises:
        TrainingError: if a score or a feature is not finite, or the optimizer does not converge.
    """
    check_finite(examples)
    offsets, labels, features = examples
    count, label_count = offsets.shape
    rows = np.arange(count)
    shape = (label_count - 1, features.shape[1])
    frequencies = np.bincount(labels, minlength=label_count) / count

    def loss_and_gradient(numbers: Floats) -> tuple[float, Floats]:
        bias = numbers[:label_count]
        readout = numbers[label_count:].reshape(shape)
        logits = offsets + bias
        if features.shape[1]:
            logits = logits + features @ readout.T @ contrasts
        log_sums = np.logaddexp.reduce(logits, axis=1, keepdims=True)
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
