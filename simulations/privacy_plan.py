"""The plan of a run's privacy: what its rounds cost, and what the noise does to their update."""

import math
from dataclasses import dataclass

from rich.table import Table

from shared.errors import ConfigError
from shared.privacy.accountant import epsilon_of, noise_multiplier_for, rho_of
from shared.privacy.vector import GRADIENT_NOISE

USUAL_EPSILONS = (8.0, 2.0, 0.5)
"""The ε that are compared where neither ε nor a noise multiplier is given."""


@dataclass(frozen=True)
class PrivacyPlan:
    """The rounds of a run and their noise.

    Attributes:
        noise_multiplier: standard deviation of the noise in units of a client's largest vector.
        rounds: number of releases, one a round.
        clients: clients whose vectors are in a sum.
        scalars: projected gradients of a client in a round, K · q.
        delta: δ.
    """

    noise_multiplier: float
    rounds: int
    clients: int
    scalars: int
    delta: float

    @property
    def rho(self) -> float:
        """The ρ of all rounds."""
        return rho_of(self.noise_multiplier, self.rounds)

    @property
    def epsilon(self) -> float:
        """The ε of all rounds."""
        return epsilon_of(self.rho, self.delta)

    @property
    def noise_of_a_scalar(self) -> float:
        """The standard deviation of a mean projected gradient's noise, in units of the clip."""
        return GRADIENT_NOISE * self.noise_multiplier / self.clients

    @property
    def noise_of_a_round(self) -> float:
        """The norm of a round's noise in units of the clip; the mean itself has a norm up to 1."""
        return self.noise_of_a_scalar * math.sqrt(self.scalars)


def plan_privacy(
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    rounds: int,
    clients: int,
    scalars: int,
) -> list[PrivacyPlan]:
    """Return the plans to compare: of what is given, or of the usual ε.

    Args:
        epsilon: ε that the rounds must stay within.
        noise_multiplier: noise multiplier; excludes `epsilon`.
        delta: δ.
        rounds: number of rounds.
        clients: clients whose vectors are in a sum.
        scalars: projected gradients of a client in a round.

    Raises:
        ConfigError: if both are given, or a number is out of its range.
    """
    if epsilon is not None and noise_multiplier is not None:
        raise ConfigError("--epsilon and --noise-multiplier: each follows from the other; give one")
    if not 0 < delta < 1:
        raise ConfigError(f"--delta {delta:g}: must be above 0 and below 1, such as 1e-5")
    for name, value in (("--epsilon", epsilon), ("--noise-multiplier", noise_multiplier)):
        if value is not None and not 0.001 <= value <= 1e6:
            raise ConfigError(f"{name} {value:g}: must be from 0.001 to 1,000,000")
    if noise_multiplier is not None:
        multipliers = [noise_multiplier]
    else:
        epsilons = USUAL_EPSILONS if epsilon is None else (epsilon,)
        multipliers = [noise_multiplier_for(one, delta, rounds) for one in epsilons]
    return [PrivacyPlan(one, rounds, clients, scalars, delta) for one in multipliers]


def plan_table(plans: list[PrivacyPlan]) -> Table:
    """Return plans as a table."""
    table = Table()
    heads = ("ε", "ρ", "noise multiplier", "noise of a mean scalar", "noise of a round's mean")
    for head in heads:
        table.add_column(head, justify="right")
    for plan in plans:
        table.add_row(
            f"{plan.epsilon:.3g}",
            f"{plan.rho:.4g}",
            f"{plan.noise_multiplier:.4g}",
            f"{plan.noise_of_a_scalar:.3g} clip",
            f"{plan.noise_of_a_round:.3g} clip",
        )
    return table
