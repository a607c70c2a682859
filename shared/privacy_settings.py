"""The settings of differential privacy."""

from typing import Literal

from shared.privacy.accountant import epsilon_of, noise_multiplier_for, rho_of, rho_within
from shared.settings import Section, setting


class PrivacySettings(Section):
    """The noise that hides what a single client says, and the budget of a run."""

    mode: Literal["none", "central"] = setting(
        "none",
        "`central`: every client clips what it says of a round as a whole, and the server adds "
        'noise to the sum before anything else uses it. Needs `seed-policy = "shared"` and '
        '`aggregation.rule = "mean"`',
        before="none",
    )
    clip: float = setting(
        1.0,
        "largest L2 norm of a client's projected gradients of a round together; longer ones are "
        "scaled down to it",
        before=1.0,
        gt=0,
        le=1e6,
    )
    noise_multiplier: float = setting(
        0.0,
        "standard deviation of the noise in units of the most that one client can change; 0 is "
        "the least with which all rounds stay within `privacy.epsilon`",
        before=0.0,
        ge=0,
        le=1e6,
    )
    epsilon: float = setting(
        0.0,
        "ε of the whole run; a round beyond it is refused. 0 is what `rounds` cost with "
        "`privacy.noise-multiplier`",
        before=0.0,
        ge=0,
        le=1e6,
    )
    delta: float = setting(1e-5, "δ of the whole run", before=1e-5, gt=0, lt=1)
    evaluation: Literal["off", "exact"] = setting(
        "off",
        "evaluations of a run with a `privacy.mode`: `off`; or `exact`, for measurements in a "
        "simulation, as ε does not cover them",
        before="off",
    )

    @property
    def is_on(self) -> bool:
        """Return whether noise hides what a single client says."""
        return self.mode != "none"

    @property
    def allows_evaluation(self) -> bool:
        """Return whether clients are asked to evaluate models."""
        return not self.is_on or self.evaluation == "exact"

    @property
    def feature(self) -> str:
        """The value in the feature matrix (`shared.features`)."""
        return "measured" if self.is_on and self.evaluation == "exact" else self.mode

    def multiplier(self, rounds: int) -> float:
        """Return the noise multiplier of a run of some rounds."""
        return self.noise_multiplier or noise_multiplier_for(self.epsilon, self.delta, rounds)

    def budget(self, rounds: int) -> float:
        """Return the ρ that a run of some rounds may spend."""
        if self.epsilon:
            return rho_within(self.epsilon, self.delta)
        return rho_of(self.noise_multiplier, rounds)

    def mistakes(self, rounds: int, best: object) -> list[str]:
        """Return what is wrong with the settings of a run.

        Args:
            rounds: rounds of the federation.
            best: value of ``evaluate.best``.
        """
        if not self.is_on:
            return []
        if not self.noise_multiplier and not self.epsilon:
            return ["privacy.mode: central needs privacy.epsilon or privacy.noise-multiplier"]
        mistakes = []
        if best:
            mistakes.append(
                "evaluate.best: it chooses a round by evaluations that have no noise; set it to "
                "false, or privacy.mode to none"
            )
        spent = rho_of(self.multiplier(rounds), rounds) if rounds else 0.0
        if rounds and spent > self.budget(rounds):
            mistakes.append(
                f"privacy.epsilon: {rounds:,} rounds with noise multiplier "
                f"{self.noise_multiplier:g} cost {epsilon_of(spent, self.delta):.3g}, over "
                f"{self.epsilon:g}; take fewer rounds, or leave privacy.noise-multiplier out"
            )
        return mistakes
