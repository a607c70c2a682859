"""The terms of a run's differential privacy, as its settings decide them, and in words."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from samara.shared.errors import ScenarioError
from samara.shared.privacy.accountant import epsilon_of
from samara.shared.privacy.mechanism import MASKED_TRUST, TRUST, Mechanism, make_mechanism
from samara.shared.privacy.vector import numbers_of
from samara.shared.secure_aggregation.buckets import fewest_in_a_sum
from samara.shared.secure_aggregation.graph import LEAST_CLIENTS
from samara.shared.setting_values import read_flag, read_number, read_text, read_whole


@dataclass(frozen=True)
class PrivacyTerms:
    """The noise that hides a client's reports in a run, and what they cost it.

    Attributes:
        mechanism: who adds which noise.
        clip: largest L2 norm of a client's projected gradients of a round together; where it is
            adaptive, that of the first round.
        is_adaptive: whether later rounds have a clip of their own in their instruction.
        rounds: rounds of the federation.
        delta: δ of the whole run.
        is_masked: whether clients mask their reports, so that the server sees sums alone.
        bucket: fewest clients of a bucket when it is drawn; 0 if a round has one sum.
        minimum: fewest clients of a round, where their number counts; otherwise 1.
    """

    mechanism: Mechanism
    clip: float
    is_adaptive: bool
    rounds: int
    delta: float
    is_masked: bool = False
    bucket: int = 0
    minimum: int = 1

    @classmethod
    def of(cls, settings: Mapping[str, Any], rounds: int, scalars: int) -> Self | None:
        """Read the terms from a run's settings by dotted key; None without differential privacy.

        Args:
            settings: the settings; those of privacy may be missing.
            rounds: rounds of the federation.
            scalars: projected gradients of a client in a round.

        Raises:
            ScenarioError: if a setting is of another type or out of range.
        """
        mode = read_text(settings, "privacy.mode")
        if mode == "none" or not rounds:
            return None
        delta = read_number(settings, "privacy.delta")
        multiplier, epsilon = (
            read_number(settings, key) for key in ("privacy.noise-multiplier", "privacy.epsilon")
        )
        share = read_number(settings, "privacy.honest-share")
        if mode == "distributed" and not share:
            raise ScenarioError("privacy.honest-share: without honest clients a sum has no noise")
        if not (multiplier or epsilon) or not 0 < delta < 1:
            raise ScenarioError("privacy: without a noise multiplier or an ε there is no noise")
        is_adaptive = read_flag(settings, "privacy.adaptive-clip")
        bucket = read_whole(settings, "privacy.bucket")
        is_masked = read_flag(settings, "privacy.secure-aggregation")
        counts = is_masked or mode == "distributed"
        minimum = read_whole(settings, "cohort.minimum") if counts else 1
        if bucket and (bucket < LEAST_CLIENTS or (counts and bucket > minimum)):
            raise ScenarioError(
                f"privacy.bucket: {bucket} is below {LEAST_CLIENTS}, or above cohort.minimum"
            )
        mechanism = make_mechanism(
            mode,
            multiplier,
            (epsilon, delta),
            rounds,
            share,
            fewest_in_a_sum(bucket, minimum if mode == "distributed" else 1),
            numbers_of(scalars, is_adaptive),
        )
        clip = read_number(settings, "privacy.clip")
        return cls(mechanism, clip, is_adaptive, rounds, delta, is_masked, bucket, minimum)

    @property
    def epsilon(self) -> float:
        """The ε of all rounds, by what the mode protects."""
        return epsilon_of(self.rounds * self.mechanism.rho, self.delta)

    @property
    def epsilon_for_the_server(self) -> float:
        """The ε of all rounds for the server: of sums if masks and noise of clients hide the rest.

        Infinite where what it sees has no noise.
        """
        is_a_sum = self.is_masked and self.mechanism.mode == "distributed"
        return self.epsilon if is_a_sum else self.epsilon_of_reports

    @property
    def epsilon_of_reports(self) -> float:
        """The ε of a client's reports in all rounds for who sees each of them, as the server does.

        Infinite where reports have no noise.
        """
        rho = self.rounds * self.mechanism.rho_of_a_report
        return math.inf if math.isinf(rho) else epsilon_of(rho, self.delta)

    def describe(self) -> list[str]:
        """Return sentences for the owner of a client's examples."""
        mechanism = self.mechanism
        trust = (MASKED_TRUST if self.is_masked else TRUST)[mechanism.mode]
        if mechanism.mode == "distributed" and not self.is_masked:
            trust += f"; for the server alone ε = {self.epsilon_of_reports:.3g}"
        if self.bucket:
            trust += (
                f". A sum is that of a bucket of {self.bucket} clients or one more, drawn by lot, "
                "and what is said of a round's clients holds for each bucket"
            )
        return [
            f"differential privacy, {mechanism.mode}: clip {self.clip:g}"
            f"{' at first' if self.is_adaptive else ''}, noise multiplier "
            f"{mechanism.noise_multiplier:.4g}, ε = {self.epsilon:.3g} at δ = {self.delta:g} for a "
            "client in all rounds",
            trust,
        ]
