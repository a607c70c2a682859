"""The private aggregator: the delta and the observation that a round's noised sums make.

Nothing here looks at the vector of a single client: they are added up, noise is added to the sum
unless the clients have added it, the result is on the disk, and all else follows from it.
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
from samara.server.rounds.replies import (
    AnsweredRound,
    ReplyValidator,
    RoundAnswers,
    ValidatedReplies,
)
from samara.server.store import RunStore
from samara.shared.config import RunConfig
from samara.shared.errors import ReplayError
from samara.shared.frames.instructions import TrainInstruction, token_of
from samara.shared.frames.vector_report import AnyVectorReport, NoisedVectorReport, VectorReport
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
from samara.shared.replay import quantize
from samara.shared.round_delta import Group, RoundDelta, source_of
from samara.shared.secure_aggregation.buckets import LEAST_TRIMMED, draw_buckets
from samara.shared.step_size import Observation

log = logging.getLogger("samara.server")

_SURE = 3.0
"""The standard deviations by which the noised count must be below the number of clients asked, for
it to be taken as the number of clients that answered; and the fewest that such a number is."""


@dataclass(frozen=True, eq=False)
class VectorTotal:
    """A sum of vectors before the server adds noise.

    Attributes:
        numbers: the sum, int64 [n].
        clients: number of vectors in it.
    """

    numbers: NDArray[np.int64]
    clients: int


@dataclass(frozen=True)
class RoundTotal:
    """The sums of a round's vectors before the server adds noise.

    Attributes:
        sums: the sum, or one of each bucket; none if nothing can be added up.
        problem: why there is none, where it is not for too few reports.
    """

    sums: tuple[VectorTotal, ...] = ()
    problem: str = ""

    @property
    def clients(self) -> int:
        """The number of vectors in all sums."""
        return sum(one.clients for one in self.sums)


class PrivateAggregator:
    """Adds up the vectors of rounds, and makes releases of the sums.

    Args:
        config: settings of the run.
        store: ledger that the deltas must fit; the releases are beside it.
        noise: source of noise; the operating system's randomness by default.
    """

    def __init__(self, config: RunConfig, store: RunStore, noise: Noise = sample_noise) -> None:
        self._ledger, self._noise = store.ledger, noise
        self._clip, self._is_adaptive = config.privacy.clip, config.privacy.adaptive_clip
        self._bucket = config.privacy.bucket
        terms = config.terms.privacy
        assert terms is not None, "a run without differential privacy has no private aggregator"
        self.mechanism = terms.mechanism
        """Who adds which noise."""
        if self.mechanism.mode == "distributed" and not terms.is_masked:
            log.warning("privacy.mode = distributed: %s", TRUST["distributed"])
        file: Path = store.folder / RELEASES_FILE
        budget = config.privacy.budget(terms.rounds, self.mechanism)
        self._releases = ReleaseLog(file, self.mechanism.rho, budget, config.privacy.delta)

    @property
    def epsilon(self) -> float:
        """The ε that was spent."""
        return self._releases.epsilon

    def joint_clip(self, number: int) -> float:
        """Return the clip that a round's instruction has; 0 if it is that of the settings.

        It follows from the release before, so that a continued run asks the same again.

        Args:
            number: the round.
        """
        if not self._is_adaptive:
            return 0.0
        if (last := self._releases.last_before(number)) is None:
            return self._clip
        total, clients, _ = combine_sums(last.sums, last.clip, has_indicator=True)
        return next_clip(last.clip, total.within, clients)

    def is_released(self, token: bytes) -> bool:
        """Return whether there is a release that answers an instruction."""
        return self._releases.find(token) is not None

    def check_budget(self, instruction: TrainInstruction) -> None:
        """Raise an error if a round would need a release that the budget does not allow.

        Raises:
            TrainingError: if it would.
        """
        self._releases.check_budget(instruction.round, token_of(instruction.encode()))

    def aggregate(
        self,
        instruction: TrainInstruction,
        replies: ValidatedReplies[VectorReport] | ValidatedReplies[NoisedVectorReport],
        minimum: int,
        expected: int,
    ) -> AggregatedRound:
        """Return the delta and the observation that the release of a round makes.

        Args:
            instruction: instruction of the round.
            replies: replies to it that have been validated.
            minimum: number of reports below which nothing is released.
            expected: number of reports that the round waits for.
        """
        answers: Mapping[int, AnyVectorReport] = replies.answers
        buckets = [sorted(answers)]
        if self._bucket:  # there are no keys, and the server sees everything
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
        """Return the delta and the observation that the release of sums of vectors makes.

        Args:
            instruction: instruction of the round.
            summed: the sums.
            minimum: number of vectors below which nothing is released.
            expected: number of reports that the round waits for.
        """
        release = self._releases.find(token_of(instruction.encode()))
        if release is None:
            problem = summed.problem
            if not problem and summed.clients < minimum:
                problem = "fewer reports than cohort.minimum"
            if problem:
                return AggregatedRound(_delta(instruction, ()), problem, epsilon=self.epsilon)
            release = self._release(instruction, summed, expected)
        clip = self._clip_of(instruction)
        combined = combine_sums(release.sums, clip, self._is_adaptive)
        total, clients, multiplier = combined
        if self._bucket and len(release.sums) < LEAST_TRIMMED:
            log.warning(
                "round %d: %d buckets, fewer than %d: a plain sum, which a hostile client can move",
                *(instruction.round, len(release.sums), LEAST_TRIMMED),
            )
        means = (total.gradients / clients).reshape(instruction.steps, instruction.queries)
        observation = self._observe(instruction, total, clients, multiplier)
        source = source_of(instruction, 0, instruction.steps)
        try:
            blocks = quantize(instruction.coefficients(means).ravel())
            groups = tuple(Group(instruction.round, source, block) for block in blocks)
            delta, problem = _delta(instruction, groups), ""
            self._ledger.check(delta)
        except ReplayError as error:
            delta, problem = _delta(instruction, ()), str(error)
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
        """Return the release of sums of vectors once it is on the disk."""
        sums = tuple(self._add_noise(instruction, one, expected) for one in summed.sums)
        token, clip = token_of(instruction.encode()), instruction.joint_clip
        rho, delta = self.mechanism.rho, self._releases.delta
        return self._releases.add(Release(instruction.round, token, rho, delta, clip, sums))

    def _add_noise(
        self, instruction: TrainInstruction, summed: VectorTotal, expected: int
    ) -> ReleasedSum:
        """Return a sum with noise.

        The server adds noise unless the vectors have some. Who adds noise to a vector shows the
        server that there is one, so that their number is no secret of the sum's then; nor is that
        of a bucket's, which was drawn from their keys.
        """
        mechanism, exact = self.mechanism, summed.numbers.astype(object)
        noise, clients = mechanism.noise_of_a_sum(summed.clients), float(summed.clients)
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
        """Return what a release says of the step size, and how much of it is noise.

        Of single clients nothing is known but what the clip allows: the mean square of their
        projected gradients, and how far their local steps go, are taken as large as it lets them
        be. The energy of the update includes its noise, which moves the model as well.
        """
        scalars, clip = instruction.steps * instruction.queries, self._clip_of(instruction)
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
    """The answers to the instructions of rounds with differential privacy; see `RoundAnswers`."""

    def __init__(self, config: RunConfig, store: RunStore, validator: ReplyValidator) -> None:
        super().__init__(config, store, validator)
        self._private = PrivateAggregator(config, store)

    def joint_clip(self, number: int) -> float:
        """Return the clip that a round's instruction has; see `PrivateAggregator`."""
        return self._private.joint_clip(number)

    def check_budget(self, instruction: TrainInstruction) -> None:
        """Raise an error if a round would spend more than the run may; see `PrivateAggregator`."""
        self._private.check_budget(instruction)

    def fold(
        self, request: Request[TrainInstruction], replies: Iterable[Message], minimum: int
    ) -> AnsweredRound:
        """Return a round with the replies to its instruction; see `RoundAnswers.fold`."""
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
    """Return the number of clients that a sum is divided by.

    It is the number of clients that the round waited for, unless the noised count is below it by
    more than noise explains; then it is the count. Noise explains less once in some hundred rounds,
    so that a sum is never divided by less than that noise: by a count near 0 it would be an update
    that is nothing but noise, many times as long as any other.
    """
    _, _, noise = noise_of_others(multiplier)
    if total.count >= expected - _SURE * noise:
        return float(expected)
    return min(float(expected), max(1.0, total.count, _SURE * noise))


def _delta(instruction: TrainInstruction, groups: tuple[Group, ...]) -> RoundDelta:
    """Return a round delta that names no contributors: who took part is hidden by the noise."""
    token = token_of(instruction.encode())
    return RoundDelta(instruction.round, instruction.track, token, (), groups)
