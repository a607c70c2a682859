"""The mechanism of a private run: who adds which noise in a round, and what the round costs.

- ``central``: the server adds noise to the sum of the clients' vectors.
- ``local``: every client adds all of the noise to its own vector.
- ``distributed``: every client adds a share of it, such that the sum over the least number of
  honest clients has all of it.
"""

import math
from dataclasses import dataclass
from typing import Literal, cast

from samara.shared.privacy.accountant import noise_multiplier_for, rho_of, rho_of_summed_noise
from samara.shared.privacy.vector import SENSITIVITY

Mode = Literal["central", "local", "distributed"]

TRUST: dict[str, str] = {
    "central": "the server adds the noise: it sees every client's clipped report, and is trusted "
    "to forget it",
    "local": "every client adds the noise: nobody is trusted, the server neither",
    "distributed": "every client adds a share of the noise, and only the sum has enough of it: "
    "without secure aggregation the server sees single reports, and is trusted to forget them",
}
"""Sentences on who adds noise and who must be trusted, by mode."""
_SUMS = (
    "the server sees sums alone, unless a third of a round's clients are in league with it or made "
    "up by it"
)
MASKED_TRUST: dict[str, str] = {
    "central": f"secure aggregation: {_SUMS}; it is trusted to add noise to them",
    "local": f"every client adds the noise, and with secure aggregation {_SUMS}",
    "distributed": f"every client adds a share of the noise, and with secure aggregation {_SUMS}",
}
"""Sentences on who must be trusted where clients mask their reports, by mode."""
MOST_CLIENT_NOISE = 2.0**15
"""The largest noise multiplier of a client's own noise, which the range of its numbers allows."""
_SURE = 9.0
"""The σ by which the norm of d numbers of noise is above σ·√d with a chance of at most 10⁻¹⁷.

Discrete Gaussian noise is subgaussian with its σ² (Canonne, Kamath, Steinke, 2020), and then the
chance of a norm above σ·(√d + √(2t)) is at most e⁻ᵗ (Hsu, Kakade, Zhang, 2012); here t = 40.5.
"""


@dataclass(frozen=True)
class Mechanism:
    """The noise of a round, who adds it, and what the round costs a client.

    Attributes:
        mode: who adds noise.
        noise_multiplier: z, the standard deviation of all noise in units of the largest norm of a
            vector.
        honest: the least number of honest clients whose noise is in a sum; 1 unless noise is
            distributed.
        numbers: numbers of a vector.
    """

    mode: Mode
    noise_multiplier: float
    honest: int
    numbers: int

    @property
    def client_sigma(self) -> int:
        """The σ of the noise that a client adds to its vector; 0 if the server adds it."""
        if self.mode == "central":
            return 0
        return math.ceil(self.noise_multiplier * SENSITIVITY / math.sqrt(self.honest))

    @property
    def rho(self) -> float:
        """The ρ that a round costs a client, in what the mode protects (docs/reference/privacy.md).

        ``central`` compares a round with the same one without the client, ``distributed`` with the
        same one in which it reports zeros: one vector more. ``local`` compares any two reports of
        the client, which differ by two vectors.
        """
        if self.mode == "local":
            return self.rho_of_a_report
        if self.mode == "distributed":
            return rho_of_summed_noise(
                SENSITIVITY, self.client_sigma, self.honest, numbers=self.numbers
            )
        return rho_of(self.noise_multiplier)

    @property
    def rho_of_a_report(self) -> float:
        """The ρ of a single report, for who sees it, as the server does; infinite without noise."""
        if not self.client_sigma:
            return math.inf
        return rho_of(self.client_sigma / (2 * SENSITIVITY))

    def noise_of_a_sum(self, clients: float) -> float:
        """Return the standard deviation of a sum's noise in units of the largest norm of a vector.

        Args:
            clients: number of vectors in it.
        """
        if self.mode == "central":
            return self.noise_multiplier
        return math.sqrt(clients) * self.client_sigma / SENSITIVITY

    @property
    def longest_report(self) -> float:
        """The norm, in whole numbers, that an honest report exceeds at most once in 10¹⁷."""
        return self.longest_sum(1, self.client_sigma / SENSITIVITY)

    def longest_sum(self, clients: float, noise_multiplier: float) -> float:
        """Return the norm, in whole numbers, that a noised sum exceeds at most once in 10¹⁷.

        Args:
            clients: number of vectors in it, all of them honest.
            noise_multiplier: standard deviation of its noise in units of `SENSITIVITY`.
        """
        noise = noise_multiplier * (math.sqrt(self.numbers) + _SURE)
        return SENSITIVITY * (clients + noise)


def honest_clients(minimum: int, share: float) -> int:
    """Return the least number of honest clients in a sum; at least 1.

    Args:
        minimum: fewest reports that are summed up, ``cohort.minimum``.
        share: share of them that is honest, ``privacy.honest-share``.
    """
    return max(1, math.floor(round(minimum * share, 9)))


def make_mechanism(
    mode: str,
    noise_multiplier: float,
    budget: tuple[float, float],
    rounds: int,
    honest_share: float,
    minimum: int,
    numbers: int,
) -> Mechanism:
    """Return the mechanism of a run.

    Args:
        mode: who adds noise, a key of `TRUST`.
        noise_multiplier: z; 0 for the least with which all rounds stay within the budget.
        budget: ε and δ of the run.
        rounds: rounds of the federation.
        honest_share: share of the clients of a sum that is honest; read if noise is distributed.
        minimum: fewest reports that are summed up.
        numbers: numbers of a vector.
    """
    if not noise_multiplier:
        noise_multiplier = noise_multiplier_for(*budget, rounds)
        noise_multiplier *= 2 if mode == "local" else 1
    honest = honest_clients(minimum, honest_share) if mode == "distributed" else 1
    return Mechanism(cast(Mode, mode), noise_multiplier, honest, numbers)
