"""The profiled cross-entropy: the cross-entropy after the best shift b of the label scores.

    L* = min over b of mean CE(scores + b) + r·|b|²/2,  r = 1/rows,

where b has one number per label, added to the scores of all rows. Training directions that shift
all predictions towards one label have the largest eigenvalue of a model's Fisher matrix
(docs/concepts/profiled-loss.md). Because b absorbs such a shift, the shift hardly changes L*. So
the curvature and noise of these directions no longer hide the remaining signal. By the envelope
theorem the gradient of L* is the gradient of the cross-entropy of scores + b at the best b.
"""

import numpy as np
from numpy.typing import NDArray

from samara.shared.tasks.label_scores import exact_cross_entropy

PROFILED = "profiled-cross-entropy"
"""Name of the objective."""
SHIFT_STEPS = 16
"""Fixed number of Newton steps for a shift.

A stopping rule would make a perturbation's loss depend on the other perturbations.
"""


def profiled_cross_entropy(
    scores: NDArray[np.float32], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return each perturbation's cross-entropy after its best shift of the label scores.

    Args:
        scores: float32 [P, rows, labels]; at least one row.
        labels: int64 [rows], the true label of each row, the same under all P perturbations.

    Returns:
        float64 [P], in nats, with the shift's penalty; at most the cross-entropy of the scores.
        A perturbation with a score that is not finite has a loss that is not finite.
    """
    shift = fitted_shift(scores, labels)
    shifted = scores.astype(np.float64) + shift[:, None]
    return exact_cross_entropy(shifted, labels) + shift_penalty(shift, len(labels))


def shift_penalty(shift: NDArray[np.float64], rows: int) -> NDArray[np.float64]:
    """Return the penalty r·|b|²/2 of shifts b [..., labels] with r = 1/rows: float64 [...]."""
    penalty: NDArray[np.float64] = np.square(shift).sum(axis=-1) / (2 * rows)
    return penalty


def fitted_shift(scores: NDArray[np.floating], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the best shift b of each perturbation. A shift's numbers sum to 0.

    The function takes Newton steps δ from b = 0, multiplied by log(1 + ρ)/ρ, where ρ is the largest
    element of δ minus the smallest. Along δ a softmax's third derivative is at most ρ times its
    second derivative, so no step raises the loss (Sun and Tran-Dinh, "Generalized self-concordant
    functions", 2019).

    Args:
        scores: float32 or float64 [P, rows, labels].
        labels: int64 [rows].

    Returns:
        float64 [P, labels].
    """
    rows, width = scores.shape[1:]
    ridge = 1 / rows
    wanted = np.bincount(labels, minlength=width) / rows
    exact = scores.astype(np.float64)
    shift = np.zeros((len(scores), width))
    for _ in range(SHIFT_STEPS):
        shifted = exact + shift[:, None]
        with np.errstate(invalid="ignore"):
            shifted -= shifted.max(axis=2, keepdims=True)
        shares = np.exp(shifted, out=shifted)
        shares /= shares.sum(axis=2, keepdims=True)
        mean = shares.mean(axis=1)
        curvature = -(shares.transpose(0, 2, 1) @ shares) / rows
        curvature[:, range(width), range(width)] += mean + ridge
        slope = mean - wanted + ridge * shift
        step = -np.linalg.solve(curvature, slope[..., None])[..., 0]
        reach = np.ptp(step, axis=1)
        damping = np.log1p(reach) / np.maximum(reach, 1e-300)
        shift = shift + np.where(reach > 0, damping, 1.0)[:, None] * step
    return shift


def shifts_of_rows(
    scores: NDArray[np.float32], labels: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return each client's best shift, repeated for each of its rows, and the shift's penalty.

    Args:
        scores: scores of C clients with n rows each, float32 [C·n, labels], client by client.
        labels: int64 [C, n].

    Returns:
        The shifts, float64 [C·n, labels], and the penalties, float64 [C].
    """
    clients, rows = labels.shape
    by_client = scores.reshape(clients, 1, rows, -1)
    shifts = np.concatenate(list(map(fitted_shift, by_client, labels)))
    return np.repeat(shifts, rows, axis=0), shift_penalty(shifts, rows)
