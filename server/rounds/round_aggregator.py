"""The round aggregator: the delta and the observation that the reports of a round make."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from samara.server.rounds.aggregation import Answer, aggregate, mean_loss, observe_round
from samara.server.rounds.rule import Rule
from samara.server.rounds.validator import ValidatedReplies
from samara.server.store import RunStore
from samara.shared.config import RunConfig
from samara.shared.errors import ReplayError
from samara.shared.frames.instructions import TrainInstruction
from samara.shared.frames.report import Report
from samara.shared.round_delta import RoundDelta
from samara.shared.step_size import Observation

log = logging.getLogger("samara.server")

TOO_LARGE = "its report does not fit the exact state"


@dataclass(frozen=True)
class AggregatedRound:
    """The result of aggregating a round.

    Attributes:
        delta: round delta; it changes nothing if there is a problem.
        problem: reason why the round changes nothing; empty if it does.
        too_large: clients whose reports were left out, since those of the others fit the exact
            state without them.
        observation: what the round says of the step size; None without reports in time.
        observed: clients whose reports it is made of, as far as that may be known.
        loss: mean loss of the reports, late ones included; None without any.
        reports: number of reports in the delta, as far as that may be known.
        epsilon: ε that the run has spent; None without differential privacy.
        clip: adaptive clip of the round; 0 without one.
        buckets: number of buckets with a sum; 0 without buckets.
    """

    delta: RoundDelta
    problem: str = ""
    too_large: list[int] = field(default_factory=list)
    observation: Observation | None = None
    observed: Collection[int] = ()
    loss: float | None = None
    reports: int = 0
    epsilon: float | None = None
    clip: float = 0.0
    buckets: int = 0

    @property
    def privacy(self) -> dict[str, float]:
        """The fields of the round's event about differential privacy; empty without it."""
        spent = {} if self.epsilon is None else {"epsilon": self.epsilon}
        own = {"clip": self.clip, "buckets": self.buckets}
        return spent | {name: value for name, value in own.items() if value}


class RoundAggregator:
    """Aggregates and observes the reports of rounds by the rule of the run.

    Args:
        config: settings of the run.
        store: ledger that the deltas must fit, and layout of the run.
    """

    def __init__(self, config: RunConfig, store: RunStore) -> None:
        self._ledger = store.ledger
        self._weight_cap = config.cohort.weight_cap
        self._rule = Rule.of(config.aggregation.rule, store.layout)

    def aggregate(
        self, instruction: TrainInstruction, replies: ValidatedReplies[Report], minimum: int
    ) -> AggregatedRound:
        """Return the delta of as many reports as fit the exact state, and what they say.

        Args:
            instruction: instruction of the round.
            replies: replies to it that have been validated.
            minimum: number of reports below which the round changes nothing.
        """
        folded = self._fold(instruction, replies, minimum)
        left_out = set(folded.too_large)
        in_time = {c: report for c, report in replies.answers.items() if c not in left_out}
        reports = [own for c, own in replies.all_reports().items() if c not in left_out]
        return replace(
            folded,
            observation=self.observe(instruction, in_time, bool(folded.problem)),
            observed=in_time.keys(),
            loss=mean_loss(reports, self._weight_cap, self._rule),
            reports=len(folded.delta.contributors),
        )

    def _fold(
        self, instruction: TrainInstruction, replies: ValidatedReplies[Report], minimum: int
    ) -> AggregatedRound:
        """Return the delta of as many reports as fit the exact state, the smallest first."""
        answers = [(instruction, report) for report in replies.answers.values()]
        answers = sorted([*answers, *replies.late.values()], key=_size)
        if len(answers) < minimum:
            problem = f"{len(answers)} reports, fewer than cohort.minimum"
            return AggregatedRound(self._delta(instruction, []), problem)
        try:
            return AggregatedRound(self._delta(instruction, answers))
        except ReplayError as error:
            problem = str(error)
        fitting, beyond = 0, len(answers)
        while beyond - fitting > 1:
            middle = (fitting + beyond) // 2
            try:
                self._delta(instruction, answers[:middle])
                fitting = middle
            except ReplayError:
                beyond = middle
        if fitting < max(1, minimum):
            log.warning("round %d changes nothing: %s", instruction.round, problem)
            return AggregatedRound(self._delta(instruction, []), problem)
        too_large = sorted(report.client for _, report in answers[fitting:])
        delta = self._delta(instruction, answers[:fitting])
        return AggregatedRound(delta, too_large=too_large)

    def observe(
        self, instruction: TrainInstruction, reports: Mapping[int, Report], is_unused: bool
    ) -> Observation | None:
        """Return what a round's reports say of the step size; None without any.

        Args:
            instruction: instruction of the round.
            reports: reports on it by client, without late ones.
            is_unused: whether the round changes nothing.
        """
        if not reports:
            return None
        observation = observe_round(
            instruction, list(reports.values()), self._weight_cap, self._rule
        )
        return replace(observation, learning_rate=0.0) if is_unused else observation

    def _delta(self, instruction: TrainInstruction, answers: Sequence[Answer]) -> RoundDelta:
        """Return the delta of some reports.

        Raises:
            ReplayError: if it does not fit the exact state.
        """
        reports = [report for answered, report in answers if answered is instruction]
        late = [answer for answer in answers if answer[0] is not instruction]
        delta = aggregate(instruction, reports, self._weight_cap, late, self._rule)
        self._ledger.check(delta)
        return delta


def _size(answer: Answer) -> tuple[float, int]:
    """Return what reports are ordered by: mean Σ|g| of a step, then client."""
    _, report = answer
    total = np.abs(report.gradients, dtype=np.float64).sum()
    return float(total) / report.steps, report.client
