"""A federation on linear texts: steps, reports, noise, step size and replay are those of a run.

Only the losses are computed here, of all clients in one product, since all try the same directions.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.privacy.linear_texts import Floats, Texts
from benchmarks.privacy.texts import groups_of, joined
from samara.client.estimators.prge import LossRequest, run_estimators
from samara.client.training.local_step_plan import LocalStepPlan
from samara.server.rounds.aggregation import aggregate, observe_round
from samara.server.rounds.private_aggregator import PrivateAggregator
from samara.server.rounds.replies import ValidatedReplies
from samara.server.store import RunStore
from samara.shared.config import RunConfig
from samara.shared.directions import DIRECTION_BITS, directions
from samara.shared.frames.instructions import TrainInstruction, token_of
from samara.shared.frames.report import Report
from samara.shared.frames.vector_report import NoisedVectorReport, VectorReport, hide_report
from samara.shared.privacy.discrete_gaussian import Noise, sample_noise
from samara.shared.privacy.vector import SENSITIVITY, VectorSum, limit_sum, read_sum
from samara.shared.replay import STATE_BITS, check_fits, replay, zero_state
from samara.shared.round_delta import RoundDelta
from samara.shared.step_size import Observation, StepSize

BLOCK = 256
"""The texts whose losses are computed at once, so that they stay in a processor's cache."""


def make_config(settings: dict[str, Any]) -> RunConfig:
    """Return settings of a run of a readout whose clients share directions and are averaged."""
    common: dict[str, Any] = {
        "method": "global",
        "seed-policy": "shared",
        "aggregation.rule": "mean",
    }
    common |= {"adapter.layers": "readout", "evaluate.best": False, "personal.rounds": 0}
    return RunConfig.of({**common, **settings}, "benchmark")


def directions_of(seeds: NDArray[np.uint64], elements: int) -> Floats:
    """Return Gaussian directions as numbers, float64 [n, d]."""
    return directions(seeds, elements, "gaussian").astype(np.float64) * 2.0**-DIRECTION_BITS


class StackedTexts:
    """The texts of clients one after the other, so that one product serves all.

    Args:
        clients: texts of every client, at least one each.
    """

    def __init__(self, clients: Sequence[Texts]) -> None:
        self.texts = joined(clients)
        counts = np.array([len(own.labels) for own in clients])
        self.counts = counts
        """The number of texts of every client, int64 [clients]."""
        self.owner = np.repeat(np.arange(len(clients)), counts)
        """The client of every text, int64 [n]."""
        self.starts = np.cumsum(counts) - counts
        """The first text of every client, int64 [clients]."""
        self._signs = 1 - 2.0 * self.texts.labels

    def margins_at(self, numbers: Floats) -> Floats:
        """Return the difference of the two labels' scores of every text, float64 [n]."""
        return np.asarray(self.texts.margins + self.texts.gradients @ numbers)

    def losses(
        self, margins: Floats, along: Floats, requests: Sequence[LossRequest]
    ) -> list[NDArray[np.float64]]:
        """Return the losses that every client's request asks for.

        Args:
            margins: of every text at its client's state, float64 [n].
            along: what a step of 1 along each direction adds to them, float64 [n, q].
            requests: one of each client, with the same directions.
        """
        share = np.zeros(len(margins))
        for start, request in zip(self.starts, requests, strict=True):
            share[start + request.batch] = 1 / len(request.batch)
        shifts = np.zeros((len(margins), 1))
        factors = [0.0]
        if len(requests[0].seeds):
            shifts, factors = along, [sign * requests[0].epsilon for sign in requests[0].signs]
        found = []
        for clients, texts in self._blocks:
            wrong = np.concatenate([factor * shifts[texts] for factor in factors], axis=1)
            wrong += margins[texts, None]
            wrong *= self._signs[texts, None]
            # log(1 + exp(x)) in a quarter of the time that np.logaddexp takes, and as exact in
            # float64; in place, since what does not fit a cache takes four times as long
            small = np.abs(wrong)
            np.log(np.exp(np.negative(small, out=small), out=small) + 1, out=small)
            losses = np.maximum(wrong, 0, out=wrong)
            losses += small
            losses *= share[texts, None]
            starts = self.starts[clients] - texts.start
            found += list(np.add.reduceat(losses, starts, axis=0))
        return found

    @property
    def _blocks(self) -> Iterator[tuple[slice, slice]]:
        """Yield consecutive clients, and their texts, a few hundred at a time."""
        ends, first = np.append(self.starts[1:], len(self.owner)), 0
        while first < len(ends):
            last = int(np.searchsorted(ends, self.starts[first] + BLOCK, side="right"))
            last = max(last, first + 1)
            yield slice(first, last), slice(int(self.starts[first]), int(ends[last - 1]))
            first = last


def take_local_steps(
    clients: Sequence[Texts], instruction: TrainInstruction, numbers: Floats
) -> list[Report]:
    """Return the report of every client on an instruction whose directions all share.

    Args:
        clients: texts of every client, at least one each.
        instruction: instruction of the round.
        numbers: trained numbers at the start of the round, float64 [d].
    """
    stacked = StackedTexts(clients)
    margins = stacked.margins_at(numbers)
    plans = [
        LocalStepPlan(instruction, client, own.labels, label_count=2)
        for client, own in enumerate(clients)
    ]
    for seeds in instruction.seeds(0):
        along = stacked.texts.gradients @ directions_of(seeds, len(numbers)).T
        estimates = run_estimators(
            [plan.next_estimator() for plan in plans], partial(stacked.losses, margins, along)
        )
        for plan, estimate in zip(plans, estimates, strict=True):
            plan.finish_step(estimate)
        gradients = np.stack([instruction.clipped(one.gradients) for one in estimates])
        moves = instruction.coefficients(gradients)
        margins = margins + (along * moves[stacked.owner]).sum(axis=1)
    token = token_of(instruction.encode())
    return [plan.report(token) for plan in plans]


@dataclass
class _Ledger:
    """The state, in the place of a ledger on the disk."""

    state: NDArray[np.int64]

    def check(self, delta: RoundDelta) -> None:
        """Raise an error if a delta does not fit the state."""
        check_fits(self.state, [group.scalars for group in delta.groups])


@dataclass(frozen=True)
class _Store:
    """The parts of a run's store that a private aggregator uses."""

    ledger: _Ledger
    folder: Path


def open_aggregator(config: RunConfig, folder: Path, elements: int, **noise: Any) -> Any:
    """Return a run's private aggregator with a state of zeros; its releases are in a folder."""
    store = _Store(_Ledger(zero_state(elements)), folder)
    return PrivateAggregator(config, cast(RunStore, store), **noise)


def vector_reports(reports: Sequence[Report], clip: float) -> ValidatedReplies[VectorReport]:
    """Return reports as their clipped vectors, as the server decodes them."""
    vectors = [hide_report(report, clip, 0).encode() for report in reports]
    decoded = [VectorReport.decode(frame) for frame in vectors]
    return ValidatedReplies[VectorReport](answers={own.client: own for own in decoded})


def noised_reports(
    reports: Sequence[Report], clip: float, sigma: int, noise: Noise = sample_noise
) -> ValidatedReplies[NoisedVectorReport]:
    """Return reports as clipped vectors with the noise of each client, as the server decodes them.

    Args:
        reports: reports of a round.
        clip: largest norm of a client's numbers.
        sigma: σ of the noise that each client adds.
        noise: source of noise; the operating system's randomness by default.
    """
    vectors = [NoisedVectorReport.of(VectorReport.of(own, clip), sigma, noise) for own in reports]
    decoded = [NoisedVectorReport.decode(vector.encode()) for vector in vectors]
    return ValidatedReplies[NoisedVectorReport](answers={own.client: own for own in decoded})


class Federation:
    """The rounds of a run.

    Args:
        config: settings of the run.
        clients: texts of every client.
        folder: folder for the releases.
        noise: source of noise; the operating system's randomness by default.
    """

    def __init__(
        self,
        config: RunConfig,
        clients: Sequence[Texts],
        folder: Path,
        noise: Noise = sample_noise,
    ) -> None:
        self._config, self._clients, self._noise = config, clients, noise
        elements = clients[0].gradients.shape[1]
        self._states = [zero_state(elements)]
        self._private = None
        if config.privacy.is_on:
            self._private = open_aggregator(config, folder, elements, noise=noise)
        given = None if config.learning_rate == "auto" else config.learning_rate
        decreasing = config.learning_rate_schedule == "linear"
        self._size = StepSize(config.federated_rounds, given, config.epsilon, decreasing)
        self.reverts = 0
        """The number of rounds that were reverts."""
        self.rates: list[float] = []
        """η of every round so far."""

    @property
    def numbers(self) -> Floats:
        """The trained numbers, float64 [d]."""
        return np.ldexp(self._states[-1].astype(np.float64), -STATE_BITS)

    @property
    def epsilon(self) -> float | None:
        """The ε that was spent; None without privacy."""
        return self._private.epsilon if self._private else None

    def run(self) -> None:
        """Run all rounds."""
        for _ in range(self._config.federated_rounds):
            self.run_round()

    def run_round(self) -> None:
        """Run one round, as `samara.server.rounds.strategy` does."""
        instruction = self._instruction()
        self.rates.append(instruction.learning_rate)
        reports = take_local_steps(self._clients, instruction, self.numbers)
        delta, observation = self._aggregate(instruction, reports)
        self._size = self._size.after(observation)
        if self._size.back_to is not None:
            self.reverts += 1
            self._states.append(self._states[self._size.back_to])
        else:
            groups = [(group.seeds(), group.scalars) for group in delta.groups]
            self._states.append(replay(self._states[-1], groups, "gaussian"))

    def _instruction(self) -> TrainInstruction:
        size, config = self._size, self._config
        return config.terms.instruction(
            bytes(8),
            len(self._states),
            bytes(32),
            bytes(32),
            learning_rate=size.learning_rate,
            clip=size.clip,
            curvature_every=size.curvature_every(config.queries, config.differences),
        )

    def _aggregate(
        self, instruction: TrainInstruction, reports: Sequence[Report]
    ) -> tuple[RoundDelta, Observation | None]:
        if self._private is None:
            cap = self._config.cohort.weight_cap
            return aggregate(instruction, reports, cap), observe_round(instruction, reports, cap)
        clip, sigma = self._config.privacy.clip, self._private.mechanism.client_sigma
        replies: Any = vector_reports(reports, clip)
        if sigma:
            replies = noised_reports(reports, clip, sigma, self._noise)
        minimum = self._config.cohort.minimum
        made = self._private.aggregate(instruction, replies, minimum, len(reports))
        return made.delta, made.observation


def still_instruction(config: RunConfig, number: int, curvature_every: int = 0) -> TrainInstruction:
    """Return the instruction of a round whose η is 0, as in the warm-up of a step size."""
    return config.terms.instruction(
        *(bytes(8), number, bytes(32), bytes(32)),
        learning_rate=0.0,
        clip=0.0,
        curvature_every=curvature_every,
    )


def public_norms(public: Texts, examples: int, config: RunConfig) -> Floats:
    """Return the norms of the projected gradients that clients with public texts report, [n].

    Their median is the rule by which these measurements choose `privacy.clip`. The clients have as
    many texts as those that train, and report on a first round, whose η is 0.

    Args:
        public: texts of nobody who trains.
        examples: texts of a client.
        config: settings of the run.
    """
    numbers = np.zeros(public.gradients.shape[1])
    groups = groups_of(public, examples)
    reports = take_local_steps(groups, still_instruction(config, 1), numbers)
    return np.array([np.linalg.norm(report.gradients) for report in reports], np.float64)


def noised_sum(
    vectors: Sequence[NDArray[np.int32]],
    noise_multiplier: float,
    clip: float,
    noise: Noise = sample_noise,
) -> VectorSum:
    """Return the sum of vectors with the noise of a release; `PrivateAggregator` makes one so.

    Args:
        vectors: clipped vectors, int32 [n] each.
        noise_multiplier: standard deviation of the noise in units of the sensitivity; 0 for none.
        clip: largest norm of a client's numbers.
        noise: source of noise; the operating system's randomness by default.
    """
    total = np.sum(vectors, axis=0, dtype=np.int64).astype(object)
    if noise_multiplier:
        sigma = math.ceil(noise_multiplier * SENSITIVITY)
        total = total + noise(len(total), sigma)
    return read_sum(limit_sum(total), clip)
