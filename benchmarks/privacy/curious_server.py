"""Attacks of an honest but curious server on one client, by its scalars alone. Pure.

The server knows every direction, and the state at which every scalar was measured: it gave the
start, and it can replay the client's local steps. It also has public texts of the same task, whose
mean gradient it subtracts and whose covariance tells it in which directions texts differ.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_SLACK = 1e-2
"""Share of a client's gradient variance that is taken for error besides that of random batches: the
gradient at the start is compared with scalars that were measured at later states."""


@dataclass(frozen=True, eq=False)
class Observations:
    """Everything that the server has of one client after some steps of q queries.

    Attributes:
        directions: float64 [m, d].
        scalars: float64 [m], the client's projected gradients.
        expected: float64 [m], what a client with the public texts would have sent.
        candidates: float64 [N, m], what a client with one candidate alone would have sent.
        batches: bool [steps, n], which of the client's n examples were in the batch of each step;
            the server derives it, without knowing the examples.
        noise: variance of the noise that was added to every scalar.
    """

    directions: Floats
    scalars: Floats
    expected: Floats
    candidates: Floats
    batches: NDArray[np.bool_]
    noise: float = 0.0

    def first(self, steps: int) -> "Observations":
        """Return the observations of the first steps."""
        m = steps * (len(self.scalars) // len(self.batches))
        return Observations(
            self.directions[:m],
            self.scalars[:m],
            self.expected[:m],
            self.candidates[:, :m],
            self.batches[:steps],
            self.noise,
        )


@dataclass(frozen=True, eq=False)
class Public:
    """Gradients of public texts at the start.

    Attributes:
        mean: float64 [d].
        covariance: float64 [d, d], of the gradients of single texts.
    """

    mean: Floats
    covariance: Floats

    @property
    def variance(self) -> float:
        """The expected squared distance of a text's gradient from the mean."""
        return float(np.trace(self.covariance))


def noise_variance(observations: Observations, public: Public) -> float:
    """Return the variance of a scalar about that of the client's mean gradient."""
    examples, batch = observations.batches.shape[1], int(observations.batches[0].sum())
    own = public.variance * float(1 / batch - 1 / examples + _SLACK / examples)
    return own + observations.noise


def recover_gradient(observations: Observations, noise: float) -> Floats:
    """Return the gradient that explains the scalars best, without public texts, float64 [d].

    Ridge regression; the ridge is the noise over the mean square of a component, which the mean
    square of the scalars estimates.
    """
    z, g = observations.directions, observations.scalars
    m, d = z.shape
    ridge = d * noise / max(float(np.mean(g**2)) - noise, 0.01 * float(np.mean(g**2)))
    if m < d:
        return np.asarray(z.T @ np.linalg.solve(z @ z.T + ridge * np.eye(m), g))
    return np.asarray(np.linalg.solve(z.T @ z + ridge * np.eye(d), z.T @ g))


class InformedServer:
    """The server that expects a client to be like public texts, and looks at what differs.

    The client's mean gradient is the public one plus a difference with the covariance of single
    texts over the client's number of examples n: so scalars less the expected ones have the
    covariance K = Z·C·Zᵀ/n + σ²·1.

    Args:
        observations: observations.
        public: gradients of public texts.
    """

    def __init__(self, observations: Observations, public: Public) -> None:
        self._observations, self._public = observations, public
        self._noise = noise_variance(observations, public)
        z, n = observations.directions, observations.batches.shape[1]
        prior = public.covariance / n
        inside = np.eye(len(prior)) + (z.T @ z) @ prior / self._noise
        self._posterior = np.linalg.solve(inside.T, prior).T
        self._rest = observations.scalars - observations.expected

    def _times_inverse(self, values: Floats, other: Floats) -> Floats:
        """Return valuesᵀ·K⁻¹·other by columns, with Woodbury's identity."""
        z = self._observations.directions
        inner = (z.T @ values * (self._posterior @ (z.T @ other))).sum(0) / self._noise
        return np.asarray(((values * other).sum(0) - inner) / self._noise)

    def recover_gradient(self) -> Floats:
        """Return the expected mean gradient of the client, float64 [d]."""
        difference = self._posterior @ (self._observations.directions.T @ self._rest) / self._noise
        return np.asarray(self._public.mean + difference)

    def score_candidates(self) -> Floats:
        """Return for each candidate the log likelihood ratio of its being an example, [N]."""
        n = self._observations.batches.shape[1]
        shift = (self._observations.candidates - self._observations.expected).T / n
        rest = np.broadcast_to(self._rest[:, None], shift.shape)
        return self._times_inverse(shift, rest) - self._times_inverse(shift, shift) / 2


def score_by_batches(observations: Observations, public: Public) -> Floats:
    """Return scores of candidates by a server that uses who was in which batch, float64 [N].

    For each candidate and each of the client's n places: the log likelihood ratio of the scalars of
    those steps whose batch held that place, summed over places as probabilities.
    """
    steps, batch = len(observations.batches), int(observations.batches[0].sum())
    queries = len(observations.scalars) // steps
    gain, cost = (
        np.zeros((len(observations.candidates), steps)),
        np.zeros((len(observations.candidates), steps)),
    )
    for step in range(steps):
        own = slice(step * queries, (step + 1) * queries)
        z, expected = observations.directions[own], observations.expected[own]
        covariance = z @ public.covariance @ z.T / batch
        covariance += _SLACK * np.trace(covariance) / queries * np.eye(queries)
        shift = (observations.candidates[:, own] - expected) / batch
        white = np.linalg.solve(covariance, shift.T)
        gain[:, step] = (observations.scalars[own] - expected) @ white
        cost[:, step] = (shift.T * white).sum(0) / 2
    ratios = (gain - cost) @ observations.batches
    top = ratios.max(1)
    return np.asarray(top + np.log(np.exp(ratios - top[:, None]).sum(1)))


def cosine(one: Floats, other: Floats) -> float:
    """Return the cosine of two vectors."""
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


def area_under_curve(scores: Floats, members: int) -> float:
    """Return the chance that a member, one of the first, scores higher than another candidate."""
    own, others = scores[:members, None], scores[None, members:]
    return float(np.mean(own > others) + np.mean(own == others) / 2)


def top_precision(scores: Floats, members: int) -> float:
    """Return the share of members among as many candidates with the highest scores."""
    return float(np.mean(np.argsort(-scores)[:members] < members))


def found_first(scores: Floats, members: int) -> float:
    """Return 1 if the candidate with the highest score is a member, one of the first, else 0."""
    return float(np.argmax(scores) < members)


def tell_classes(numbers: Floats, one: Floats, other: Floats) -> NDArray[np.bool_]:
    """Return whether rows of numbers are of the class `one` rather than `other`, bool [n].

    By the side of the middle of the two means on which they are along the difference of the means.

    Args:
        numbers: what the server has of each client, float64 [n, m].
        one, other: the same of clients that the server makes of public texts, float64 [s, m].
    """
    difference = one.mean(axis=0) - other.mean(axis=0)
    middle = (one.mean(axis=0) + other.mean(axis=0)) / 2
    return np.asarray((numbers - middle) @ difference > 0)
