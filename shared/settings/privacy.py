"""The settings of differential privacy."""

from typing import Literal

from samara.shared.privacy.accountant import ROUNDING, epsilon_of, rho_within
from samara.shared.privacy.mechanism import MOST_CLIENT_NOISE, Mechanism, make_mechanism
from samara.shared.privacy.vector import SENSITIVITY, numbers_of
from samara.shared.protocol.secure_aggregation.buckets import LEAST_TRIMMED, fewest_in_a_sum
from samara.shared.protocol.secure_aggregation.graph import LEAST_CLIENTS
from samara.shared.settings.setting import Section, setting, term

_MASKS_NEED_A_MODE = (
    "privacy.secure-aggregation: only the vectors of a privacy.mode can be masked; set "
    "privacy.mode, for example to distributed"
)


class PrivacySettings(Section):
    """The noise that hides a single client's reports, and the privacy budget of a run."""

    mode: Literal["none", "central", "local", "distributed"] = term(
        "privacy.mode",
        "who adds noise to the clients' clipped reports: the server, to the sum (`central`); "
        "every client, to its report (`local`); or every client a share, so that the sum has the "
        "full noise (`distributed`, without protection from the server itself). Needs "
        '`seed-policy = "shared"` and `aggregation.rule = "mean"`',
        before="none",
    )
    clip: float = term(
        "privacy.clip",
        "largest L2 norm of all projected gradients of a client in a round; longer vectors are "
        "scaled down to it",
        before=1.0,
    )
    adaptive_clip: bool = term(
        "privacy.adaptive-clip",
        "whether the clip follows the median of the clients' norms, estimated from noised sums, "
        "beginning with `privacy.clip`. The noise on projected gradients is 4 % larger than "
        "with a fixed clip",
        before=False,
    )
    noise_multiplier: float = term(
        "privacy.noise-multiplier",
        "standard deviation of the noise, in units of the largest norm of a report; 0 means the "
        "smallest value with which all rounds stay within `privacy.epsilon`",
        before=0.0,
    )
    epsilon: float = term(
        "privacy.epsilon",
        "ε of the whole run; a round that would exceed it is refused. 0 means the cost of all "
        "`rounds` with `privacy.noise-multiplier`",
        before=0.0,
    )
    delta: float = term("privacy.delta", "δ of the whole run", before=1e-5, lt=1)
    honest_share: float = term(
        "privacy.honest-share",
        "for `distributed`: share of the `cohort.minimum` clients of a round that add their noise "
        "and reveal it to nobody, such as 0.8. The noise of these clients alone suffices",
        before=0.0,
    )
    secure_aggregation: bool = term(
        "privacy.secure-aggregation",
        "whether clients mask their reports, so that the server sees only the sum of a round. A "
        "round that fewer than two thirds of its clients finish is abandoned. Needs a "
        "`privacy.mode` and a `cohort.minimum` of 3",
        before=False,
    )
    bucket: int = term(
        "privacy.bucket",
        "protection against hostile clients: size of the random buckets of a round's clients, each "
        "with a separate sum and noise. 0 means one sum of all clients; other values are at least "
        "3, and at most `cohort.minimum`",
        before=0,
        page="guides/differential-privacy.md#buckets",
    )
    evaluation: Literal["off", "exact"] = setting(
        "off",
        "evaluations of a run with a `privacy.mode`: `off`; or `exact`, in simulations, not "
        "covered by ε",
        before="off",
    )

    @property
    def is_on(self) -> bool:
        """Return whether the run has a privacy mode: noise hides single clients' reports."""
        return self.mode != "none"

    @property
    def allows_evaluation(self) -> bool:
        """Return whether the server requests evaluations from clients."""
        return not self.is_on or self.evaluation == "exact"

    @property
    def feature(self) -> str:
        """The run's value in the dimension ``privacy`` of the feature matrix."""
        if self.is_on and self.secure_aggregation:
            return "masked"
        return "measured" if self.is_on and self.evaluation == "exact" else self.mode

    def mechanism(self, rounds: int, minimum: int, numbers: int) -> Mechanism:
        """Return the noise mechanism of a run with a privacy mode.

        Args:
            rounds: rounds of the federation.
            minimum: least number of reports in a round.
            numbers: length of a client's vector in a round.
        """
        fewest = fewest_in_a_sum(self.bucket, minimum)
        return make_mechanism(
            self.mode,
            self.noise_multiplier,
            (self.epsilon, self.delta),
            rounds,
            self.honest_share,
            fewest,
            numbers,
        )

    def budget(self, rounds: int, mechanism: Mechanism) -> float:
        """Return the zCDP budget ρ of a client in a run with this number of rounds."""
        if self.epsilon:
            return rho_within(self.epsilon, self.delta)
        return rounds * mechanism.rho

    def mistakes(self, rounds: int, minimum: int, scalars: int, best: object) -> list[str]:
        """Describe the mistakes in a run's privacy settings.

        Args:
            rounds: rounds of the federation.
            minimum: value of ``cohort.minimum``.
            scalars: number of a client's projected gradients in a round.
            best: value of ``evaluate.best``.
        """
        if not self.is_on:
            return [_MASKS_NEED_A_MODE] if self.secure_aggregation else []
        if not self.noise_multiplier and not self.epsilon:
            return [f"privacy.mode: {self.mode} needs privacy.epsilon or privacy.noise-multiplier"]
        mistakes = []
        if self.mode == "distributed" and not self.honest_share:
            mistakes.append(
                "privacy.honest-share: distributed needs the share of a round's clients whose "
                "noise can be relied on, such as 0.8"
            )
        if self.secure_aggregation and minimum < LEAST_CLIENTS:
            mistakes.append(
                f"cohort.minimum: secure aggregation needs {LEAST_CLIENTS} clients in a sum, "
                "because in a sum of two each client knows the other's numbers"
            )
        if self.bucket and not LEAST_CLIENTS <= self.bucket <= minimum:
            mistakes.append(
                f"privacy.bucket: {self.bucket} must be from {LEAST_CLIENTS} to cohort.minimum = "
                f"{minimum}; a trimmed mean needs at least {LEAST_TRIMMED} buckets"
            )
        if self.secure_aggregation and self.evaluation == "exact":
            mistakes.append(
                "privacy.evaluation: exact evaluations show the server single clients, which "
                "secure aggregation hides; set it to off"
            )
        if best:
            mistakes.append(
                "evaluate.best: evaluations without noise would choose a round; set it to "
                "false, or privacy.mode to none"
            )
        if not rounds:
            return mistakes
        mechanism = self.mechanism(rounds, minimum, numbers_of(scalars, self.adaptive_clip))
        spent = rounds * mechanism.rho
        if spent > self.budget(rounds, mechanism) * ROUNDING:
            mistakes.append(
                f"privacy.epsilon: {rounds:,} rounds with noise multiplier "
                f"{self.noise_multiplier:g} cost {epsilon_of(spent, self.delta):.3g}, over "
                f"{self.epsilon:g}; take fewer rounds, or leave privacy.noise-multiplier out"
            )
        if mechanism.client_sigma > MOST_CLIENT_NOISE * SENSITIVITY:
            mistakes.append(
                f"privacy.noise-multiplier: {mechanism.noise_multiplier:.4g} is more noise than "
                "the numbers of a client's report can hold; take fewer rounds, or a larger "
                "privacy.epsilon"
            )
        return mistakes
