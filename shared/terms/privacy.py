"""The differential-privacy terms of a run, from its settings, and their description in words."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from samara.shared.errors import ScenarioError
from samara.shared.privacy.accountant import epsilon_of
from samara.shared.privacy.mechanism import MASKED_TRUST, TRUST, Mechanism, make_mechanism
from samara.shared.privacy.vector import numbers_of
from samara.shared.protocol.secure_aggregation.buckets import fewest_in_a_sum
from samara.shared.protocol.secure_aggregation.graph import LEAST_CLIENTS
from samara.shared.terms.values import read_flag, read_number, read_text, read_whole


@dataclass(frozen=True)
class PrivacyTerms:
    """The noise that hides a client's reports in a run, and its privacy cost.

    Attributes:
        mechanism: the noise, and the side that adds it.
        clip: largest L2 norm of all projected gradients of a client's report; an adaptive clip
            begins with this value.
        is_adaptive: whether the instructions of later rounds set their own clip.
        rounds: rounds of the federation.
        delta: δ of the whole run.
        is_masked: whether clients mask their reports, so that the server sees only sums.
        bucket: least number of clients in a bucket when it is drawn; 0 if a round has one sum.
        minimum: least number of clients in a round, if the noise or the sums depend on it;
            otherwise 1.
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
            settings: the settings; privacy settings may be missing.
            rounds: rounds of the federation.
            scalars: number of a client's projected gradients in a round.

        Raises:
            ScenarioError: if a setting has the wrong type or is out of range.
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
        """The ε of all rounds together, from the cost of each round (`Mechanism.rho`)."""
        return epsilon_of(self.rounds * self.mechanism.rho, self.delta)

    @property
    def epsilon_for_the_server(self) -> float:
        """The ε of all rounds as seen by the server.

        If clients mask their reports and add the noise, the server sees only noised sums, and the
        result is the sums' ε. If the server sees numbers without noise, ε is infinite.
        """
        is_a_sum = self.is_masked and self.mechanism.mode == "distributed"
        return self.epsilon if is_a_sum else self.epsilon_of_reports

    @property
    def epsilon_of_reports(self) -> float:
        """The ε of all reports of a client against a server that sees each report.

        It is infinite if the client adds no noise.
        """
        rho = self.rounds * self.mechanism.rho_of_a_report
        return math.inf if math.isinf(rho) else epsilon_of(rho, self.delta)

    def describe(self) -> list[str]:
        """Describe the terms in sentences for the owner of a client's examples."""
        mechanism = self.mechanism
        trust = (MASKED_TRUST if self.is_masked else TRUST)[mechanism.mode]
        if mechanism.mode == "distributed" and not self.is_masked:
            trust += f"; for the server alone ε = {self.epsilon_of_reports:.3g}"
        if self.bucket:
            trust += (
                f". A sum is that of a bucket of {self.bucket} clients or one more, drawn by lot, "
                "and the statements about a round's clients hold for each bucket"
            )
        return [
            f"differential privacy, {mechanism.mode}: clip {self.clip:g}"
            f"{' at first' if self.is_adaptive else ''}, noise multiplier "
            f"{mechanism.noise_multiplier:.4g}, ε = {self.epsilon:.3g} at δ = {self.delta:g} for a "
            "client in all rounds",
            trust,
        ]
