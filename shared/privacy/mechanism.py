"""The noise mechanism of a private run: the noise of a round, the side that adds it, and its cost.

- ``central``: the server adds noise to the sum of the clients' vectors.
- ``local``: every client adds the full noise to its own vector.
- ``distributed``: every client adds a share of the noise, so that the sum over the least number of
  honest clients has the full noise.
"""

import math
from dataclasses import dataclass
from typing import Literal, cast

from samara.shared.privacy.accountant import noise_multiplier_for, rho_of, rho_of_summed_noise
from samara.shared.privacy.vector import SENSITIVITY

Mode = Literal["central", "local", "distributed"]

TRUST: dict[str, str] = {
    "central": "the server adds the noise: it sees every client's clipped report, and must be "
    "trusted to delete the report",
    "local": "every client adds the noise: no other party must be trusted, not even the server",
    "distributed": "every client adds a share of the noise, and only the sum has enough of it: "
    "without secure aggregation the server sees single reports, and must be trusted to "
    "delete them",
}
"""For each mode, a sentence for users: which side adds the noise, and which must be trusted."""
_SUMS = "the server sees only sums, unless a third of a round's clients collude with it or are fake"
MASKED_TRUST: dict[str, str] = {
    "central": f"secure aggregation: {_SUMS}; it must be trusted to add noise to the sums",
    "local": f"every client adds the noise, and with secure aggregation {_SUMS}",
    "distributed": f"every client adds a share of the noise, and with secure aggregation {_SUMS}",
}
"""The sentences of `TRUST` for runs with secure aggregation, by mode."""
MOST_CLIENT_NOISE = 2.0**15
"""Largest noise multiplier of noise that clients add; stronger noise would not fit a vector."""
_SURE = 9.0
"""Margin s: the norm of d noise numbers exceeds σ·(√d + s) with probability at most 10⁻¹⁷.

Discrete Gaussian noise is subgaussian with parameter σ² (Canonne, Kamath, Steinke, 2020). So the
probability of a norm above σ·(√d + √(2t)) is at most e⁻ᵗ (Hsu, Kakade, Zhang, 2012); here t = 40.5.
"""


@dataclass(frozen=True)
class Mechanism:
    """The noise of a round, the side that adds it, and the privacy cost of the round.

    Attributes:
        mode: side that adds the noise.
        noise_multiplier: z, the standard deviation of a sum's total noise in units of the largest
            norm of a vector.
        honest: least number of honest clients with noise in a sum; 1 if the mode is not
            ``distributed``.
        numbers: length of a vector.
    """

    mode: Mode
    noise_multiplier: float
    honest: int
    numbers: int

    @property
    def client_sigma(self) -> int:
        """The σ of the noise that a client adds to its vector; 0 if the server adds the noise."""
        if self.mode == "central":
            return 0
        return math.ceil(self.noise_multiplier * SENSITIVITY / math.sqrt(self.honest))

    @property
    def rho(self) -> float:
        """The ρ that a round costs a client; the mode decides which two outcomes are compared.

        ``central`` compares a round with the same round without the client. ``distributed``
        compares it with the same round in which the client reports zeros. In both cases the sums
        differ by one vector. ``local`` compares any two reports of the client, which can differ by
        twice the largest norm. See docs/reference/privacy.md.
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
        """The ρ of one report for a server that sees it; infinite if the report has no noise."""
        if not self.client_sigma:
            return math.inf
        return rho_of(self.client_sigma / (2 * SENSITIVITY))

    def noise_of_a_sum(self, clients: float) -> float:
        """Return the standard deviation of a sum's noise, in units of a vector's largest norm.

        Args:
            clients: number of vectors in the sum.
        """
        if self.mode == "central":
            return self.noise_multiplier
        return math.sqrt(clients) * self.client_sigma / SENSITIVITY

    @property
    def longest_report(self) -> float:
        """The integer norm that an honest report exceeds with probability at most 10⁻¹⁷."""
        return self.longest_sum(1, self.client_sigma / SENSITIVITY)

    def longest_sum(self, clients: float, noise_multiplier: float) -> float:
        """Return the integer norm that a noised sum exceeds with probability at most 10⁻¹⁷.

        Args:
            clients: number of vectors in the sum, all by honest clients.
            noise_multiplier: standard deviation of the sum's noise in units of `SENSITIVITY`.
        """
        noise = noise_multiplier * (math.sqrt(self.numbers) + _SURE)
        return SENSITIVITY * (clients + noise)


def honest_clients(minimum: int, share: float) -> int:
    """Return the least number of honest clients in a sum; at least 1.

    Args:
        minimum: least number of reports in a sum, ``cohort.minimum``.
        share: share of honest clients among the reporting ones, ``privacy.honest-share``.
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
        mode: side that adds the noise, a key of `TRUST`.
        noise_multiplier: z; 0 selects the least z that keeps all rounds within the budget.
        budget: ε and δ of the run.
        rounds: rounds of the federation.
        honest_share: share of honest clients in a sum; used if noise is distributed.
        minimum: least number of reports in a sum.
        numbers: length of a vector.
    """
    if not noise_multiplier:
        noise_multiplier = noise_multiplier_for(*budget, rounds)
        noise_multiplier *= 2 if mode == "local" else 1
    honest = honest_clients(minimum, honest_share) if mode == "distributed" else 1
    return Mechanism(cast(Mode, mode), noise_multiplier, honest, numbers)
