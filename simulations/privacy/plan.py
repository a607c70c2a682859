"""The plan of a run's privacy: the cost of the rounds, and the noise in their updates."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table

from samara.server.rounds.buckets import NOISE_OF_A_MEDIAN
from samara.server.rounds.cohort_sampling import sample_cohort
from samara.shared.errors import ConfigError
from samara.shared.privacy.mechanism import MASKED_TRUST, TRUST, make_mechanism
from samara.shared.privacy.vector import gradient_noise, numbers_of
from samara.shared.protocol.secure_aggregation.buckets import LEAST_TRIMMED, fewest_in_a_sum
from samara.shared.settings.config import load_scenario
from samara.shared.terms.privacy import PrivacyTerms
from samara.shared.terms.run_terms import reporting_rounds

USUAL_EPSILONS = (8.0, 2.0, 0.5)
"""Values of ε that are compared if neither ε nor a noise multiplier is given."""


@dataclass(frozen=True)
class PlannedRun:
    """The settings of a planned run on which the run's privacy depends.

    Attributes:
        rounds: number of releases, one per round.
        clients: number of clients in a sum.
        scalars: number of projected gradients of a client in a round, steps · queries.
        mode: source of the noise, ``privacy.mode``.
        epsilon: upper bound of the ε of all rounds; None to derive it from the noise multiplier.
        noise_multiplier: noise multiplier; None to derive it from ε.
        delta: δ of the whole run.
        honest_share: share of honest clients in the smallest sum, for distributed noise.
        minimum: minimum number of clients in a sum.
        adaptive_clip: whether the clip follows the clients' norms.
        is_masked: whether clients mask their reports.
        bucket: minimum number of clients in a bucket; 0 if a round has one sum.
    """

    rounds: int
    clients: int
    scalars: int
    mode: str = "central"
    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float = 1e-5
    honest_share: float = 1.0
    minimum: int = 1
    adaptive_clip: bool = False
    is_masked: bool = False
    bucket: int = 0

    @property
    def terms(self) -> list[PrivacyTerms]:
        """The privacy terms to compare: one for the given ε or multiplier, or one per usual ε.

        Raises:
            ConfigError: if both ε and a noise multiplier are given, or a number is out of range.
        """
        self._check()
        epsilons: Iterable[float] = USUAL_EPSILONS if self.epsilon is None else (self.epsilon,)
        if self.noise_multiplier is not None:
            epsilons = (0.0,)
        return [
            PrivacyTerms(
                make_mechanism(
                    self.mode,
                    self.noise_multiplier or 0.0,
                    (epsilon, self.delta),
                    self.rounds,
                    self.honest_share,
                    fewest_in_a_sum(self.bucket, self.minimum),
                    numbers_of(self.scalars, self.adaptive_clip),
                ),
                1.0,
                self.adaptive_clip,
                self.rounds,
                self.delta,
                self.is_masked,
                self.bucket,
            )
            for epsilon in epsilons
        ]

    def noise_of_a_scalar(self, terms: PrivacyTerms) -> float:
        """Return the standard deviation of the noise of a mean projected gradient.

        The unit is the clip.
        """
        buckets = max(1, self.clients // self.bucket) if self.bucket else 1
        each = self.clients / buckets
        noise = terms.mechanism.noise_of_a_sum(each) / each / math.sqrt(buckets)
        if buckets >= LEAST_TRIMMED:
            noise *= NOISE_OF_A_MEDIAN
        return gradient_noise(self.adaptive_clip) * noise

    def noise_of_a_round(self, terms: PrivacyTerms) -> float:
        """Return the norm of a round's noise, in units of the clip.

        The clip is also the largest norm of the clients' mean.
        """
        return self.noise_of_a_scalar(terms) * math.sqrt(self.scalars)

    def noise_of_all_rounds(self, terms: PrivacyTerms) -> float:
        """Return the norm of all rounds' noise, divided by the largest sum of the rounds' mean
        norms.

        The norm of a round's mean is at most the clip, and the norms of means add up over the
        rounds. For independent noise, the squares of the norms add up.
        """
        return self.noise_of_a_round(terms) / math.sqrt(self.rounds)

    def _check(self) -> None:
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise ConfigError(
                "--epsilon and --noise-multiplier: one follows from the other; give only one of "
                "them"
            )
        if self.mode not in TRUST:
            raise ConfigError(f"--mode {self.mode}: must be one of {', '.join(TRUST)}")
        if not 0 < self.delta < 1:
            raise ConfigError(f"--delta {self.delta:g}: must be above 0 and below 1, such as 1e-5")
        if not 0 < self.honest_share <= 1:
            raise ConfigError(
                f"--honest-share {self.honest_share:g}: must be above 0 and at most 1, such as 0.5"
            )
        for name, given in (
            ("--epsilon", self.epsilon),
            ("--noise-multiplier", self.noise_multiplier),
        ):
            if given is not None and not 0.001 <= given <= 1e6:
                raise ConfigError(f"{name} {given:g}: must be from 0.001 to 1,000,000")


def plan_of_scenario(file: Path, assignments: Iterable[str] = ()) -> PlannedRun:
    """Return the planned run of a scenario; without `privacy.mode`, assume ``central``.

    Args:
        file: scenario file.
        assignments: settings that override settings of the scenario, each as ``key=value``.

    Raises:
        ConfigError: if the file cannot be read, or the settings are invalid; the message lists
            every mistake.
    """
    config = load_scenario(file, assignments)
    cohort = config.cohort
    privacy = config.privacy
    clients = range(config.data.clients - cohort.newcomers)
    asked = sample_cohort(config.seed, 1, clients, cohort.fraction, cohort.minimum)
    run = PlannedRun(
        reporting_rounds(config.flat()),
        len(asked),
        config.steps * config.queries,
        minimum=cohort.minimum,
    )
    if not run.rounds:
        raise ConfigError(
            f"{file}: method {config.method} has no federated rounds; set another method"
        )
    if not privacy.is_on:
        return run
    return replace(
        run,
        mode=privacy.mode,
        noise_multiplier=privacy.noise_multiplier or None,
        epsilon=None if privacy.noise_multiplier else privacy.epsilon,
        delta=privacy.delta,
        honest_share=privacy.honest_share or 1.0,
        adaptive_clip=privacy.adaptive_clip,
        is_masked=privacy.secure_aggregation,
        bucket=privacy.bucket,
    )


def plan_table(run: PlannedRun) -> Table:
    """Return the costs and the noise of a run as a table.

    Raises:
        ConfigError: as in `PlannedRun.terms`.
    """
    table = Table()
    table.add_column("ε", justify="right")
    table.add_column("ε for the server", justify="right")
    heads = ("ρ", "noise multiplier", "noise of a mean scalar", "noise of a round's mean")
    for head in heads:
        table.add_column(head, justify="right")
    for terms in run.terms:
        for_the_server = terms.epsilon_for_the_server
        table.add_row(
            f"{terms.epsilon:.3g}",
            "no limit" if math.isinf(for_the_server) else f"{for_the_server:.3g}",
            f"{terms.rounds * terms.mechanism.rho:.4g}",
            f"{terms.mechanism.noise_multiplier:.4g}",
            f"{run.noise_of_a_scalar(terms):.3g} clip",
            f"{run.noise_of_a_round(terms):.3g} clip",
        )
    return table


def warn_of_plan(run: PlannedRun) -> str:
    """Return a warning if the noise that an ε requires exceeds the signal; otherwise "".

    Readouts whose total noise exceeded the largest possible signal gained at most a third of their
    noiseless gain (docs/measurements/privacy-costs.md).
    """
    noisy = [terms for terms in run.terms if run.noise_of_all_rounds(terms) > 1]
    if not noisy:
        return ""
    epsilons = " and ".join(f"{terms.epsilon:.3g}" for terms in noisy)
    times = " and ".join(f"{run.noise_of_all_rounds(terms):.2g}" for terms in noisy)
    return (
        f"With ε = {epsilons}, the noise of all rounds is {times} times the largest possible "
        "signal. Such runs learn little or nothing. More clients, a larger ε, or fewer scalars "
        "reduce the noise."
    )


def describe_plan(run: PlannedRun) -> str:
    """Return sentences that explain the table of a planned run."""
    trust = MASKED_TRUST if run.is_masked else TRUST
    honest = ""
    if run.mode == "distributed":
        (first, *_) = run.terms
        honest = f"The noise of {first.mechanism.honest:,} honest clients suffices. "
    if run.bucket:
        honest += (
            f"Each bucket has {run.bucket:,} or {run.bucket + 1:,} clients; the noise is that of "
            "the buckets' trimmed mean, or of their sum if there are fewer than five buckets. "
        )
    return (
        f"{run.mode}: {trust[run.mode]}. {honest}The run has {run.rounds:,} rounds of "
        f"{run.clients:,} clients with {run.scalars:,} scalars each; δ = {run.delta:g}. The norm "
        "of a mean is at most one clip, so that larger noise hides the mean. Every client is "
        "assumed to be in every round, without amplification by sampling."
    )
