"""A client's learning curve: the quality of private parts fitted to subsets of its examples.

The curve shows an owner how much additional examples have helped so far. The federation's model is
the same at every point of the curve. It was trained on all examples of the client.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samara.client.personal.softmax_fit import Examples, SoftmaxFit, Solver, fit_private_part
from samara.shared.tasks.contrasts import contrasts
from samara.shared.tasks.label_scores import exact_cross_entropy

COUNTS = (5, 10, 20, 40, 80)
"""Numbers of training examples at which the quality is measured."""
_DRAWS = 3
_Fit = Callable[[Examples, NDArray[np.float64]], SoftmaxFit]


class QualityByExamples(NamedTuple):
    """The quality of a personal model whose private part is fitted to a subset of the examples.

    Attributes:
        examples: number of training examples in the subset.
        accuracy: share of correct answers to the validation examples.
        loss: mean cross-entropy of the validation examples.
    """

    examples: int
    accuracy: float
    loss: float


def quality_by_examples(
    train: Examples, validation: Examples, solve: Solver, deviation: float | None = None
) -> tuple[QualityByExamples, ...]:
    """Return the quality for several numbers of training examples, up to all examples.

    The quality for a number is the mean over a few random subsets of that size. Larger subsets
    contain the smaller subsets. Without training or validation examples the result is empty.

    Args:
        train: training examples, with the scores of the federation's model.
        validation: validation examples, with the scores of the same model.
        solve: solver of the fits.
        deviation: common deviation of the private intercepts; None without one.

    Raises:
        TrainingError: if a score or a feature is not finite, or the solver does not converge.
    """
    every = len(train.labels)
    if not every or not len(validation.labels):
        return ()
    random = np.random.default_rng(0)
    orders = [random.permutation(every) for _ in range(_DRAWS)]
    counts = (*(count for count in COUNTS if count < every), every)
    fit = partial(fit_private_part, solve=solve, deviation=deviation)
    return tuple(_mean_quality(count, orders, train, validation, fit) for count in counts)


def _mean_quality(
    count: int,
    orders: list[NDArray[np.int64]],
    train: Examples,
    validation: Examples,
    fit: _Fit,
) -> QualityByExamples:
    """Return the mean quality over the subsets of the first `count` examples of each order."""
    subsets = {tuple(np.sort(order[:count])) for order in orders}
    figures = [_quality(train.at(np.array(rows)), validation, fit) for rows in sorted(subsets)]
    accuracy, loss = np.mean(figures, axis=0)
    return QualityByExamples(count, float(accuracy), float(loss))


def _quality(train: Examples, validation: Examples, fit: _Fit) -> tuple[float, float]:
    """Return the validation accuracy and mean loss of a private part fitted to `train`."""
    rows = contrasts(train.offsets.shape[1]).astype(np.float64)
    scores = validation.offsets + fit(train, rows).added_scores(validation.features, rows)
    (loss,) = exact_cross_entropy(scores[None], validation.labels)
    return float((scores.argmax(axis=1) == validation.labels).mean()), float(loss)
