"""The private aggregator, which computes a round's delta and observation from noised sums.

No code in this module uses the vector of a single client. It adds up the vectors. The server adds
noise to the sum, unless the clients have already added noise. It writes the noised sum to disk and
computes all other numbers from it.
"""

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from samara.server.rounds.aggregation import AggregatedRound
from samara.server.rounds.buckets import clip_sum, combine_sums
from samara.server.rounds.event_log import hidden_client_fields
from samara.server.rounds.planner import Request
from samara.server.rounds.releases import RELEASES_FILE, Release, ReleasedSum, ReleaseLog
from samara.server.rounds.report_validation import ReplyValidator, ValidatedReplies
from samara.server.rounds.round_answers import AnsweredRound, RoundAnswers
from samara.server.store import RunStore
from samara.shared.errors import ReplayError
from samara.shared.privacy.adaptive_clip import next_clip
from samara.shared.privacy.discrete_gaussian import Noise, sample_noise
from samara.shared.privacy.mechanism import TRUST
from samara.shared.privacy.vector import (
    CURVATURE_SCALE,
    SENSITIVITY,
    VectorSum,
    limit_sum,
    noise_of_others,
    read_sum,
)
from samara.shared.protocol.frames.instructions import TrainInstruction, token_of
from samara.shared.protocol.frames.vector_report import (
    AnyVectorReport,
    NoisedVectorReport,
    VectorReport,
)
from samara.shared.protocol.replay import quantize
from samara.shared.protocol.round_delta import Group, RoundDelta, source_of
from samara.shared.protocol.secure_aggregation.buckets import LEAST_TRIMMED, draw_buckets
from samara.shared.protocol.step_size import Observation
from samara.shared.settings.config import RunConfig

log = logging.getLogger("samara.server")

_SURE = 3.0
"""Threshold for missing clients, in standard deviations of the noise of a client count.

A sum is divided by the expected number of clients, unless the noised count is below this number by
more than the threshold. The divisor is then the noised count, but at least the threshold.
"""


@dataclass(frozen=True, eq=False)
class VectorTotal:
    """A sum of vectors without the server's noise.

    Attributes:
        numbers: the sum, int64 [n].
        clients: number of vectors in the sum.
    """

    numbers: NDArray[np.int64]
    clients: int


@dataclass(frozen=True)
class RoundTotal:
    """The sums of a round's vectors without the server's noise.

    Attributes:
        sums: one sum, or one sum for each bucket; empty if there is no sum.
        problem: reason why there is no sum; empty if there are sums, or if too few clients report.
    """

    sums: tuple[VectorTotal, ...] = ()
    problem: str = ""

    @property
    def clients(self) -> int:
        """The number of vectors in all sums."""
        return sum(one.clients for one in self.sums)


class PrivateAggregator:
    """An aggregator that adds up the vectors of a round and releases the noised sums.

    Args:
        config: settings of the run.
        store: folder of the run, with the releases and the ledger.
        noise: source of noise; by default the operating system's randomness.
    """

    def __init__(self, config: RunConfig, store: RunStore, noise: Noise = sample_noise) -> None:
        self._ledger, self._noise = store.ledger, noise
        self._clip, self._is_adaptive = config.privacy.clip, config.privacy.adaptive_clip
        self._bucket = config.privacy.bucket
        terms = config.terms.privacy
        assert terms is not None, "a run without differential privacy has no private aggregator"
        self.mechanism = terms.mechanism
        """The run's noise mechanism."""
        if self.mechanism.mode == "distributed" and not terms.is_masked:
            log.warning("privacy.mode = distributed: %s", TRUST["distributed"])
        file: Path = store.folder / RELEASES_FILE
        budget = config.privacy.budget(terms.rounds, self.mechanism)
        self._releases = ReleaseLog(file, self.mechanism.rho, budget, config.privacy.delta)

    @property
    def epsilon(self) -> float:
        """The ε spent so far."""
        return self._releases.epsilon

    def joint_clip(self, number: int) -> float:
        """Return the joint clip of a round's instruction; 0 if the clip is not adaptive.

        An adaptive clip is computed from the previous release. A run that continues after a stop
        therefore sends the same instruction again.

        Args:
            number: number of the round.
        """
        if not self._is_adaptive:
            return 0.0
        if (last := self._releases.last_before(number)) is None:
            return self._clip
        total, clients, _ = combine_sums(last.sums, last.clip, has_indicator=True)
        return next_clip(last.clip, total.within, clients)

    def is_released(self, token: bytes) -> bool:
        """Return whether a release answers this instruction."""
        return self._releases.find(token) is not None

    def check_budget(self, instruction: TrainInstruction) -> None:
        """Check that the privacy budget allows the release of a round.

        Raises:
            TrainingError: if the budget does not allow the release.
        """
        self._releases.check_budget(instruction.round, token_of(instruction.encode()))

    def aggregate(
        self,
        instruction: TrainInstruction,
        replies: ValidatedReplies[VectorReport] | ValidatedReplies[NoisedVectorReport],
        minimum: int,
        expected: int,
    ) -> AggregatedRound:
        """Release the sum of a round; return its delta and observation.

        Args:
            instruction: instruction of the round.
            replies: validated replies to the instruction.
            minimum: minimum number of reports for a release.
            expected: number of reports that the round waits for.
        """
        answers: Mapping[int, AnyVectorReport] = replies.answers
        buckets = [sorted(answers)]
        if self._bucket:  # without masks, buckets need not hide the vectors from the server
            token = token_of(instruction.encode())
            buckets = draw_buckets(token, dict.fromkeys(answers, b""), self._bucket)
        sums = []
        for bucket in buckets if answers else []:
            vectors = [answers[client].vector for client in bucket]
            sums.append(VectorTotal(np.sum(vectors, axis=0, dtype=np.int64), len(vectors)))
        return self.aggregate_total(instruction, RoundTotal(tuple(sums)), minimum, expected)

    def aggregate_total(
        self, instruction: TrainInstruction, summed: RoundTotal, minimum: int, expected: int
    ) -> AggregatedRound:
        """Add noise to a round's sums and release them; return the round's delta and observation.

        If the instruction already has a release, the function uses this release again.

        Args:
            instruction: instruction of the round.
            summed: the sums of the round's vectors.
            minimum: minimum number of vectors for a release.
            expected: number of reports that the round waits for.
        """
        release = self._releases.find(token_of(instruction.encode()))
        if release is None:
            problem = summed.problem
            if not problem and summed.clients < minimum:
                problem = "the reports are fewer than cohort.minimum"
            if problem:
                return AggregatedRound(_delta(instruction, ()), problem, epsilon=self.epsilon)
            release = self._release(instruction, summed, expected)
        clip = self._clip_of(instruction)
        combined = combine_sums(release.sums, clip, self._is_adaptive)
        total, clients, multiplier = combined
        if self._bucket and len(release.sums) < LEAST_TRIMMED:
            log.warning(
                "round %d: a hostile client can move the plain sum of %d buckets; from %d buckets "
                "on, a trimmed mean limits each client's influence",
                *(instruction.round, len(release.sums), LEAST_TRIMMED),
            )
        means = (total.gradients / clients).reshape(instruction.steps, instruction.queries)
        observation = self._observe(instruction, total, clients, multiplier)
        source = source_of(instruction, 0, instruction.steps)
        try:
            blocks = quantize(instruction.coefficients(means).ravel())
            groups = tuple(Group(instruction.round, source, block) for block in blocks)
            delta = _delta(instruction, groups)
            problem = ""
            self._ledger.check(delta)
        except ReplayError as error:
            delta = _delta(instruction, ())
            problem = str(error)
        if problem:
            observation = replace(observation, learning_rate=0.0)
        return AggregatedRound(
            delta,
            problem,
            observation=observation,
            loss=observation.loss,
            reports=0 if problem else round(clients),
            epsilon=self.epsilon,
            clip=release.clip,
            buckets=len(release.sums) if self._bucket else 0,
        )

    def _clip_of(self, instruction: TrainInstruction) -> float:
        return instruction.joint_clip if self._is_adaptive else self._clip

    def _release(
        self,
        instruction: TrainInstruction,
        summed: RoundTotal,
        expected: int,
    ) -> Release:
        """Add noise to a round's sums, write the sums as a release, and return the release."""
        sums = tuple(self._add_noise(instruction, one, expected) for one in summed.sums)
        token = token_of(instruction.encode())
        clip = instruction.joint_clip
        rho = self.mechanism.rho
        delta = self._releases.delta
        return self._releases.add(Release(instruction.round, token, rho, delta, clip, sums))

    def _add_noise(
        self, instruction: TrainInstruction, summed: VectorTotal, expected: int
    ) -> ReleasedSum:
        """Return a sum with noise.

        If the clients have added noise to their vectors, the server adds no noise. The server
        receives each of these vectors, so that their number is not secret. The size of a bucket is
        not secret either, because it follows from the clients' keys.
        """
        mechanism = self.mechanism
        exact = summed.numbers.astype(object)
        noise = mechanism.noise_of_a_sum(summed.clients)
        clients = float(summed.clients)
        if mechanism.client_sigma:
            total = limit_sum(exact)
        else:
            sigma = math.ceil(mechanism.noise_multiplier * SENSITIVITY)
            total = limit_sum(exact + self._noise(len(exact), sigma))
            if not self._bucket:
                read = read_sum(total, self._clip_of(instruction), self._is_adaptive)
                clients = _clients_of(read, noise, expected)
        if self._bucket:
            total = clip_sum(total, mechanism.longest_sum(clients, noise))
        return ReleasedSum(noise, total, clients)

    def _observe(
        self, instruction: TrainInstruction, total: VectorSum, clients: float, multiplier: float
    ) -> Observation:
        """Return the step-size measurements of a release, and the noise of these measurements.

        For a single client, only the clip is known. The mean square of a client's projected
        gradients and the squared norm of its local update are therefore the largest values that the
        clip allows. The squared norm of the round's update includes the noise, because noise also
        moves the model.
        """
        scalars = instruction.steps * instruction.queries
        clip = self._clip_of(instruction)
        means = total.gradients / clients
        loss_noise, curvature_noise, _ = noise_of_others(multiplier)
        directions = instruction.measured_directions(instruction.steps)
        return Observation(
            loss=total.loss / clients,
            mean_square=clip**2 / scalars,
            squared_norm=float(means @ means) / instruction.queries**2,
            local_squared_norm=clip**2 / instruction.queries**2,
            learning_rate=instruction.learning_rate,
            curvature=total.curvature / clients / CURVATURE_SCALE if directions else None,
            directions=directions,
            loss_noise=loss_noise / clients,
            curvature_noise=curvature_noise / clients / CURVATURE_SCALE,
            curvature_is_root=True,
        )


class PrivateRoundAnswers(RoundAnswers):
    """Validates and aggregates the answers of a differentially private run; see `RoundAnswers`."""

    def __init__(self, config: RunConfig, store: RunStore, validator: ReplyValidator) -> None:
        super().__init__(config, store, validator)
        self._private = PrivateAggregator(config, store)

    def joint_clip(self, number: int) -> float:
        """Return the joint clip of a round's instruction; see `PrivateAggregator.joint_clip`."""
        return self._private.joint_clip(number)

    def check_budget(self, instruction: TrainInstruction) -> None:
        """Check that the budget allows a round; see `PrivateAggregator.check_budget`."""
        self._private.check_budget(instruction)

    def fold(
        self, request: Request[TrainInstruction], replies: Iterable[Message], minimum: int
    ) -> AnsweredRound:
        """Aggregate the replies to the round; see `RoundAnswers.fold`."""
        instruction, down = request.instruction, request.bytes_down
        vectors = self._validator.validate_vectors(replies, instruction, self._private.mechanism)
        released = self._private.aggregate(instruction, vectors, minimum, request.expected_reports)
        return AnsweredRound(
            released,
            vectors.answers.keys(),
            vectors.refused,
            sum(vectors.bytes_up.values()),
            sum(down.values()),
            hidden_client_fields(
                instruction.report_scalars, vectors.answers, vectors.bytes_up, down
            ),
        )


def _clients_of(total: VectorSum, multiplier: float, expected: int) -> float:
    """Return the number of clients by which a sum is divided.

    The divisor is the number of clients that the round waited for, unless the noised count is lower
    by more than `_SURE` standard deviations of the noise. Noise alone makes the count that low
    about once in 700 rounds. If it is that low, the divisor is the noised count, but at least
    `_SURE` standard deviations, because division by a count near 0 would give a very long update of
    pure noise.

    Args:
        total: the sum, with the noised count.
        multiplier: noise multiplier of the sum.
        expected: number of clients that the round waited for.
    """
    _, _, noise = noise_of_others(multiplier)
    if total.count >= expected - _SURE * noise:
        return float(expected)
    return min(float(expected), max(1.0, total.count, _SURE * noise))


def _delta(instruction: TrainInstruction, groups: tuple[Group, ...]) -> RoundDelta:
    """Return a round delta without contributors, because the noise hides the participants."""
    token = token_of(instruction.encode())
    return RoundDelta(instruction.round, instruction.track, token, (), groups)
