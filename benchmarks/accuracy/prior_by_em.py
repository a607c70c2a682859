"""A common Gaussian prior of private parts, fitted by EM over the clients (two labels).

A private part adds b + w·z to the log-odds of a user's examples, where z are the features in the
directions with the largest variance. The prior is b ~ N(0, s²) and w ~ N(0, V). EM only needs sums
over clients: the second moments of each client's posterior under the previous prior, by Laplace's
approximation. For each half of the users, the common model is trained on the other half, because a
model explains its own training examples too well.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from benchmarks.accuracy.people_references import STRENGTHS, Person
from samara.client.personal.softmax_fit import FOLDS, Examples

DIRECTIONS = 32
PSEUDO_USERS = 8
"""Weight of an isotropic V: the number of users that it counts for."""
ITERATIONS = 25
NONE = 1e-9
"""Smallest variance, in place of 0."""
Floats = NDArray[np.float64]


class Odds(NamedTuple):
    """A user's examples as log-odds, labels and inputs.

    Attributes:
        offsets: log-odds by the common model, float64 [n].
        labels: 0 or 1, float64 [n].
        inputs: a column of ones and z, float64 [n, 1 + directions].
    """

    offsets: Floats
    labels: Floats
    inputs: Floats


def fitted_by_em(people: Sequence[Person]) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return every user's accuracy under the prior with and without slopes, and the evidence.

    The evidence is the mean over users of the held-out loss without slopes minus the loss with
    slopes, and its standard error. V is fitted on the other half of the users.
    """
    known = [i for i, person in enumerate(people) if len(person.train.labels) > 1]
    directions = _Directions(np.concatenate([people[i].train.features for i in known]))
    halves = [[i for i in known if i % 2 == half] for half in (0, 1)]
    crossed: dict[int, Odds] = {}
    gains = []
    for own, others in (halves, halves[::-1]):
        scores = _common_scores([people[i] for i in others])
        for i in own:
            train = people[i].train
            crossed[i] = _odds(scores(train.features), train, directions)
    for own, others in (halves, halves[::-1]):
        prior = prior_of([crossed[i] for i in others])
        for i in own:
            without = _held_out_loss(crossed[i], without_slopes(prior))
            gains.append(without - _held_out_loss(crossed[i], prior))
    prior = prior_of([crossed[i] for i in known])
    found = {
        "intercept, prior by EM": _accuracies(people, directions, without_slopes(prior)),
        "private part, prior by EM": _accuracies(people, directions, prior),
    }
    error = float(np.std(gains, ddof=1) / np.sqrt(len(gains)))
    return found, {"EM gain": float(np.mean(gains)), "EM error": error}


def prior_of(clients: Sequence[Odds]) -> Floats:
    """Return the covariance of (b, w) by EM, float64 [1 + directions, 1 + directions]."""
    size = clients[0].inputs.shape[1] - 1
    covariance = np.diag([1.0] + size * [1 / size])
    for _ in range(ITERATIONS):
        moments = np.zeros_like(covariance)
        for client in clients:
            mode, spread = posterior(client, covariance)
            moments += np.outer(mode, mode) + spread
        slopes = moments[1:, 1:]
        isotropic = np.trace(slopes) / (size * len(clients)) * np.eye(size)
        covariance = np.zeros_like(covariance)
        covariance[0, 0] = moments[0, 0] / len(clients)
        shrunk = (slopes + PSEUDO_USERS * isotropic) / (len(clients) + PSEUDO_USERS)
        covariance[1:, 1:] = shrunk + NONE * np.eye(size)
    return covariance


def without_slopes(covariance: Floats) -> Floats:
    """Return the prior with the same variance of the intercept, and slopes fixed at 0."""
    alone = NONE * np.eye(len(covariance))
    alone[0, 0] = covariance[0, 0]
    return alone


def posterior(client: Odds, covariance: Floats) -> tuple[Floats, Floats]:
    """Return mode and covariance of a client's (b, w), by Newton's method and Laplace's method."""
    precision = np.linalg.inv(covariance)
    mode = np.zeros(client.inputs.shape[1])
    for _ in range(ITERATIONS):
        chances = 1 / (1 + np.exp(-(client.offsets + client.inputs @ mode)))
        slope = client.inputs.T @ (chances - client.labels) + precision @ mode
        weights = (chances * (1 - chances))[:, None]
        curvature = client.inputs.T @ (weights * client.inputs) + precision
        step = np.linalg.solve(curvature, slope)
        mode = mode - step * min(1.0, 5 / max(float(np.linalg.norm(step)), NONE))
    return mode, np.linalg.inv(curvature)


class _Directions:
    """The directions of largest variance, scaled to a mean variance of 1."""

    def __init__(self, features: Floats) -> None:
        self._mean = features.mean(axis=0)
        *_, rows = np.linalg.svd(features - self._mean, full_matrices=False)
        self._rows = rows[:DIRECTIONS]
        self._scale = np.sqrt(((features - self._mean) @ self._rows.T).var(axis=0).mean())

    def inputs(self, features: Floats) -> Floats:
        """Return a column of ones and z, float64 [n, 1 + directions]."""
        ones = np.ones((len(features), 1))
        return np.hstack([ones, (features - self._mean) @ self._rows.T / self._scale])


def _odds(offsets: Floats, examples: Examples, directions: _Directions) -> Odds:
    inputs = directions.inputs(examples.features)
    return Odds(offsets, examples.labels.astype(np.float64), inputs)


def _common_scores(people: Sequence[Person]) -> Any:
    """Return a function from features to log-odds by a logistic regression on users' examples.

    The strength of the penalty is chosen by accuracy on these users' validation examples.
    """
    features = np.concatenate([person.train.features for person in people])
    labels = np.concatenate([person.train.labels for person in people])
    held_out = np.concatenate([person.validation.features for person in people])
    answers = np.concatenate([person.validation.labels for person in people])
    mean, deviation = features.mean(axis=0), features.std(axis=0) + NONE
    fits = [
        LogisticRegression(C=c, max_iter=500).fit((features - mean) / deviation, labels)
        for c in STRENGTHS
    ]
    best = max(fits, key=lambda fit: float(fit.score((held_out - mean) / deviation, answers)))
    return lambda new: best.decision_function((new - mean) / deviation)


def _held_out_loss(client: Odds, covariance: Floats) -> float:
    """Return the mean loss of a client's examples, each under a fit to the other folds."""
    folds = np.random.default_rng(0).permutation(len(client.labels)) % FOLDS
    losses = np.zeros(len(client.labels))
    for fold in set(folds.tolist()):
        rest = Odds(*(values[folds != fold] for values in client))
        mode, _ = posterior(rest, covariance)
        odds = (client.offsets + client.inputs @ mode)[folds == fold]
        losses[folds == fold] = np.logaddexp(0, odds) - client.labels[folds == fold] * odds
    return float(losses.mean())


def _accuracies(
    people: Sequence[Person], directions: _Directions, covariance: Floats
) -> list[float]:
    """Return every user's accuracy on test examples, on top of the federation's common model."""
    found = []
    for person in people:
        train, test = (
            _odds(_margin(part), part, directions) for part in (person.train, person.test)
        )
        mode, _ = posterior(train, covariance)
        right = (test.offsets + test.inputs @ mode > 0) == (test.labels > 0)
        found.append(float(right.mean()) if len(right) else np.nan)
    return found


def _margin(examples: Examples) -> Floats:
    return examples.offsets[:, 1] - examples.offsets[:, 0]
