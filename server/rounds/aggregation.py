"""Aggregation of a round's reports into one round delta, independent of their order.

A client's contribution to a round is u = Σ y·z(seed). The sum runs over the client's directions,
and the y are the client's clipped projected gradients. An aggregation rule only multiplies the y by
factors, one per report or one per projected gradient. The round's update therefore remains a list
of seeds and coefficients, and replay needs no knowledge of rules. Robust rules assume that up to
`hostile_count` of the clients are hostile.
"""

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from samara.server.rounds.rule import MEAN, Contribution, Rule
from samara.server.store import RunStore
from samara.shared.errors import ReplayError, ReportError
from samara.shared.privacy.mechanism import Mechanism
from samara.shared.protocol.directions import DIRECTION_BITS, pool_seeds
from samara.shared.protocol.frames.instructions import SeedPolicy, TrainInstruction, token_of
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.frames.vector_report import AnyVectorReport, MaskedReport
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.replay import default_backend, quantize, zero_state
from samara.shared.protocol.round_delta import (
    Contributor,
    Group,
    PoolSeeds,
    RoundDelta,
    SeedSource,
    source_of,
)
from samara.shared.protocol.step_size import Observation
from samara.shared.settings.config import RunConfig

log = logging.getLogger("samara.server")

Answer = tuple[TrainInstruction, Report]
"""A report and the instruction that it answers."""
Numbers = NDArray[np.float64]

TOO_LARGE = "its report would exceed the range of the exact state"
HOSTILE_SHARE = 0.3
"""Share of the clients that robust rules assume to be hostile."""
_CENTERINGS = 5
_UNIT = 30
"""Fractional bits of the fixed-point coefficients with which `_update` computes an update.

A sum of 2²⁰ such coefficients stays within int64.
"""


@dataclass(frozen=True)
class AggregatedRound:
    """The result of aggregating a round.

    Attributes:
        delta: round delta; empty if there is a problem.
        problem: reason why the round does not change the model; empty if it does.
        too_large: clients whose reports were left out, because with them the sum would exceed the
            range of the exact state.
        observation: measurements for the step-size controller; None without reports in time.
        observed: clients whose reports the observation uses; empty if privacy hides the clients.
        loss: mean loss over the reports, including late reports; None without reports.
        reports: number of reports in the delta; an estimate from a noised count if differential
            privacy hides the number.
        epsilon: ε that the run has spent; None without differential privacy.
        clip: clip of the round; 0 if the clip is not adaptive.
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
        """The round's event fields ``epsilon``, ``clip`` and ``buckets``; empty without privacy."""
        spent = {} if self.epsilon is None else {"epsilon": self.epsilon}
        own = {"clip": self.clip, "buckets": self.buckets}
        return spent | {name: value for name, value in own.items() if value}


class RoundAggregator:
    """Aggregates a round's reports by the run's rule, and measures them for the step size.

    Args:
        config: settings of the run.
        store: folder of the run, with the layout and the ledger to which the deltas are appended.
    """

    def __init__(self, config: RunConfig, store: RunStore) -> None:
        self._ledger = store.ledger
        self._weight_cap = config.cohort.weight_cap
        self._rule = Rule.of(config.aggregation.rule, store.layout)

    def aggregate(
        self,
        instruction: TrainInstruction,
        reports: Mapping[int, Report],
        late: Mapping[int, Answer],
        minimum: int,
    ) -> AggregatedRound:
        """Return the round's delta and measurements.

        The delta contains all reports, or the reports with the smallest projected gradients if the
        sum of all would exceed the range of the exact state.

        Args:
            instruction: instruction of the round.
            reports: valid reports for this instruction, by client.
            late: valid reports for earlier rounds, by client; no client is in both mappings.
            minimum: minimum number of reports with which the round changes the model.
        """
        answers = [(instruction, report) for report in reports.values()]
        folded = self._fold(instruction, sorted([*answers, *late.values()], key=_size), minimum)
        left_out = set(folded.too_large)
        in_time = {c: report for c, report in reports.items() if c not in left_out}
        delayed = [late[c][1] for c in sorted(late) if c not in left_out]
        return replace(
            folded,
            observation=self.observe(instruction, in_time, bool(folded.problem)),
            observed=in_time.keys(),
            loss=mean_loss([*in_time.values(), *delayed], self._weight_cap, self._rule),
            reports=len(folded.delta.contributors),
        )

    def _fold(
        self, instruction: TrainInstruction, answers: Sequence[Answer], minimum: int
    ) -> AggregatedRound:
        """Return the delta of as many of the first answers as fit the range of the exact state."""
        if len(answers) < minimum:
            problem = f"{len(answers)} reports are fewer than cohort.minimum"
            return AggregatedRound(self._delta(instruction, []), problem)
        try:
            return AggregatedRound(self._delta(instruction, answers))
        except ReplayError as error:
            problem = str(error)
        fitting = 0
        beyond = len(answers)
        while beyond - fitting > 1:
            middle = (fitting + beyond) // 2
            try:
                self._delta(instruction, answers[:middle])
                fitting = middle
            except ReplayError:
                beyond = middle
        if fitting < max(1, minimum):
            log.warning("round %d does not change the model: %s", instruction.round, problem)
            return AggregatedRound(self._delta(instruction, []), problem)
        too_large = sorted(report.client for _, report in answers[fitting:])
        delta = self._delta(instruction, answers[:fitting])
        return AggregatedRound(delta, too_large=too_large)

    def observe(
        self, instruction: TrainInstruction, reports: Mapping[int, Report], is_unused: bool
    ) -> Observation | None:
        """Return a round's measurements for the step-size controller; None without reports.

        Args:
            instruction: instruction of the round.
            reports: reports for this instruction, by client, without late reports.
            is_unused: whether the round does not change the model.
        """
        if not reports:
            return None
        observation = observe_round(
            instruction, list(reports.values()), self._weight_cap, self._rule
        )
        return replace(observation, learning_rate=0.0) if is_unused else observation

    def _delta(self, instruction: TrainInstruction, answers: Sequence[Answer]) -> RoundDelta:
        """Return the delta of the given reports.

        Raises:
            ReplayError: if the delta does not fit the exact state.
        """
        reports = [report for answered, report in answers if answered is instruction]
        late = [answer for answer in answers if answer[0] is not instruction]
        delta = aggregate(instruction, reports, self._weight_cap, late, self._rule)
        self._ledger.check(delta)
        return delta


def _size(answer: Answer) -> tuple[float, int]:
    """Return the sort key of a report: the sum Σ|g| per step, then the client index."""
    _, report = answer
    total = np.abs(report.gradients, dtype=np.float64).sum()
    return float(total) / report.steps, report.client


def check_report(report: Report, instruction: TrainInstruction) -> None:
    """Check that a report fits the instruction that it answers.

    Raises:
        ReportError: if the report does not fit; the message names client and difference.
    """
    if report.token != token_of(instruction.encode()):
        raise ReportError(f"client {report.client} answers an instruction of another round")
    expected: tuple[int, ...] = (report.steps, instruction.queries)
    if instruction.seed_policy is SeedPolicy.POOL:
        expected = (len(instruction.uses(report.steps)),)
    if report.gradients.shape != expected or report.steps > instruction.steps:
        scalars = " × ".join(map(str, report.gradients.shape))
        raise ReportError(
            f"client {report.client} reports {scalars} scalars of {report.steps} steps, but the "
            f"instruction has {instruction.steps} steps of {instruction.queries} queries"
        )
    if report.examples < 1:
        raise ReportError(f"client {report.client} reports scalars but no examples")


def check_vector_report(
    report: AnyVectorReport | MaskedReport, instruction: TrainInstruction, mechanism: Mechanism
) -> None:
    """Check that a vector report fits the instruction.

    The norm of a masked vector cannot be checked.

    Args:
        report: the report.
        instruction: the instruction that the report answers.
        mechanism: the run's noise mechanism.

    Raises:
        ReportError: if the report does not fit; the message names the client and the difference.
    """
    if report.token != token_of(instruction.encode()):
        raise ReportError(f"client {report.client} answers an instruction of another round")
    if len(report.vector) != mechanism.numbers:
        raise ReportError(
            f"client {report.client} reports {len(report.vector)} numbers, but the instruction "
            f"asks for {mechanism.numbers}"
        )
    if isinstance(report, MaskedReport):
        return
    if np.linalg.norm(report.vector.astype(np.float64)) > mechanism.longest_report:
        raise ReportError(
            f"the vector of client {report.client} is longer than clip and noise allow"
        )


def staleness_weight(rounds_late: int) -> float:
    """Return the weight factor of a late report, 1/√(1 + rounds late), as in FedBuff.

    Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation (2022), section 5.
    """
    return 1 / math.sqrt(1 + rounds_late)


def aggregate(
    instruction: TrainInstruction,
    reports: Sequence[Report],
    weight_cap: int,
    late: Sequence[Answer] = (),
    rule: Rule = MEAN,
) -> RoundDelta:
    """Return the round delta of a round's reports.

    A report's weight w is min(examples, cap), divided by the sum of this number over all reports.
    Every rule except `mean` also caps each number of examples at the `usual_limit` of all of them.
    As in FedNova (Wang et al., 2020), the projected gradients of a client that did k steps are
    multiplied by τ / k with τ = Σ w·k. Clients with different numbers of steps therefore do not
    bias the direction of the average. If all clients did the same number of steps, the factor τ / k
    is 1, and the average of the coefficients gives the average of the clients' models.

    The rules `median` and `trimmed-mean` ignore weights and use zeros for missing steps.

    Args:
        instruction: instruction of the round.
        reports: reports for this instruction that have passed `check_report`, at most one per
            client.
        weight_cap: largest number of examples that counts for a report's weight.
        late: late reports that this round uses, each with the instruction that it answers; only
            with independent seeds. The weight of a late report is multiplied by `staleness_weight`.
            Its directions come from the instruction that it answers.
        rule: aggregation rule.

    Returns:
        The delta. With independent seeds it has one group per client; with shared seeds or a pool
        it has a single group. Without reports it has no group and does not change the model.

    Raises:
        ReportError: if a client has two reports.
        ReplayError: if a coefficient exceeds the range of the fixed-point numbers.
    """
    reports = sorted(reports, key=lambda report: report.client)
    late = sorted(late, key=lambda pair: pair[1].client)
    all_reports = sorted([*reports, *(report for _, report in late)], key=lambda r: r.client)
    clients = [report.client for report in all_reports]
    if len(set(clients)) < len(clients):
        raise ReportError(f"a client reports twice; the reports are from clients {clients}")
    answers = [*((instruction, report) for report in reports), *late]
    scalars = _scalars(instruction, answers, weight_cap, rule) if answers else ()
    groups = [
        Group(origin, source, block)
        for origin, source, coefficients in scalars
        for block in quantize(coefficients)
    ]
    contributors = tuple(
        Contributor(report.client, report.examples, report.steps) for report in all_reports
    )
    return RoundDelta(
        instruction.round,
        instruction.track,
        token_of(instruction.encode()),
        contributors,
        tuple(groups),
    )


def observe_round(
    instruction: TrainInstruction, reports: Sequence[Report], weight_cap: int, rule: Rule = MEAN
) -> Observation:
    """Return the step-size measurements of a round's reports.

    Every rule except `mean` uses trimmed means over the clients for the loss, the curvature and the
    squares of projected gradients. Each trimmed mean lies within the range of the honest clients'
    values.

    Args:
        instruction: instruction of the round.
        reports: reports for this instruction that have passed `check_report`, at least one.
        weight_cap: largest number of examples that counts for a report's weight.
        rule: aggregation rule.
    """
    reports = sorted(reports, key=lambda report: report.client)
    unit = replace(instruction, learning_rate=1.0)
    answers = [(unit, report) for report in reports]
    coefficients = [block for _, _, block in _scalars(unit, answers, weight_cap, rule)]
    squares = [_sum_of_squares(instruction, report) for report in reports]
    queries = [report.steps * instruction.queries for report in reports]
    measured = [report for report in reports if report.curvature is not None]
    curvatures = np.array([report.curvature for report in measured], np.float64)
    counts = [instruction.measured_directions(report.steps) for report in measured]
    directions = sum(counts)
    curvature: float | None = None
    if rule.name == "mean":
        weights = [min(report.examples, weight_cap) for report in reports]
        loss = float(np.average([report.mean_loss for report in reports], weights=weights))
        mean_square = sum(squares) / sum(queries)
        local_square = float(np.mean(squares))
        if directions:
            products = zip(curvatures.tolist(), counts, strict=True)
            curvature = sum(value * count for value, count in products) / directions
    else:
        loss = float(trimmed_mean(np.array([report.mean_loss for report in reports])))
        mean_square = float(trimmed_mean(np.divide(squares, queries)))
        local_square = float(trimmed_mean(np.array(squares)))
        if directions:
            curvature = float(trimmed_mean(curvatures))
    return Observation(
        loss=loss,
        mean_square=mean_square,
        squared_norm=sum(float(block @ block) for block in coefficients),
        local_squared_norm=local_square / instruction.queries**2,
        learning_rate=instruction.learning_rate,
        curvature=curvature,
        directions=directions,
    )


def mean_loss(reports: Collection[Report], weight_cap: int, rule: Rule = MEAN) -> float | None:
    """Return the clients' mean loss; None without reports.

    The rule `mean` weights each client by its number of examples, at most `weight_cap`. Other rules
    use a trimmed mean.
    """
    if not reports:
        return None
    losses = [report.mean_loss for report in reports]
    if rule.name != "mean":
        return float(trimmed_mean(np.array(losses)))
    weights = [min(report.examples, weight_cap) for report in reports]
    return sum(loss * w for loss, w in zip(losses, weights, strict=True)) / sum(weights)


def _sum_of_squares(instruction: TrainInstruction, report: Report) -> float:
    """Return Σ g² over a report's clipped projected gradients g.

    A pool report holds one sum of g for each pool index. For independent g with mean 0, the square
    of their sum has the same expectation as the sum of their squares.
    """
    return float(np.sum(np.square(_clipped(instruction, report))))


def _scalars(
    instruction: TrainInstruction, answers: Sequence[Answer], weight_cap: int, rule: Rule
) -> list[tuple[int, SeedSource, Numbers]]:
    """Return round, seeds and coefficients (float64 [n]) of each group of the round delta.

    With independent seeds, there is one group per answer, in the order of the answers.
    """
    gradients = [_clipped(instruction, report) for _, report in answers]
    number = instruction.round
    if combine := {"trimmed-mean": trimmed_mean, "median": coordinate_median}.get(rule.name):
        shared = instruction.coefficients(combine(_padded(gradients)))
        return [(number, source_of(instruction, 0, len(shared)), shared.ravel())]
    weights, total = _weights(instruction, answers, gradients, weight_cap, rule)
    if instruction.seed_policy is SeedPolicy.POOL:
        reports = [report for _, report in answers]
        indices, sums = _sums_by_index(instruction, weights, reports, gradients)
        seeds = PoolSeeds(instruction.pool_root, indices)
        return [(number, seeds, instruction.coefficients(sums / total))]
    if instruction.seed_policy is SeedPolicy.SHARED:
        shared = instruction.coefficients(_weighted_sums(weights, gradients) / total)
        return [(number, source_of(instruction, 0, len(shared)), shared.ravel())]
    groups: list[tuple[int, SeedSource, Numbers]] = []
    for (answered, report), weight, own in zip(answers, weights, gradients, strict=True):
        block = weight / total * instruction.coefficients(own)
        source = source_of(answered, report.client, len(block))
        groups.append((answered.round, source, block.ravel()))
    return groups


def _clipped(instruction: TrainInstruction, report: Report) -> Numbers:
    """Return a report's projected gradients, each clipped to ±clip, in the shape of the report.

    A pool report holds sums of projected gradients. A sum of n projected gradients is clipped to
    ±n·clip.
    """
    uses: NDArray[np.int64] | int = 1
    if instruction.seed_policy is SeedPolicy.POOL:
        uses = instruction.uses(report.steps)
    return instruction.clipped_sums(report.gradients, uses)


def _padded(gradients: Sequence[Numbers]) -> Numbers:
    """Stack clients' projected gradients, [clients, steps, queries]; missing steps become zeros."""
    padded = np.zeros((len(gradients), max(map(len, gradients)), gradients[0].shape[1]))
    for row, own in zip(padded, gradients, strict=True):
        row[: len(own)] = own
    return padded


def _weights(
    instruction: TrainInstruction,
    answers: Sequence[Answer],
    gradients: Sequence[Numbers],
    weight_cap: int,
    rule: Rule,
) -> tuple[list[float], float]:
    """Return the factor of each report's projected gradients, and the divisor of their sum.

    With the rule `mean` a report's factor is examples·τ/k for k steps, and the divisor is
    Σ examples; see `aggregate` for τ. If all clients did the same number of steps, the factor is
    exactly the number of examples.
    """
    examples = _counted_examples(instruction, answers, weight_cap, rule)
    total = sum(examples)
    steps = [report.steps for _, report in answers]
    mean_steps = sum(n * k for n, k in zip(examples, steps, strict=True)) / total
    scales = [mean_steps / k for k in steps]
    if rule.name != "mean":
        scaled = [scale * own for scale, own in zip(scales, gradients, strict=True)]
        shares = np.array(examples)
        match rule.name:
            case "median-norm":
                shares *= norm_factors(np.array([np.linalg.norm(own) for own in scaled]))
            case "multi-krum":
                shares *= krum_selection(_products(instruction, answers, scaled, rule))
                total = float(shares.sum())
            case "centered-clipping":
                products = _products(instruction, answers, scaled, rule)
                shares = centering_weights(products, shares / total)
                total = 1.0
            case _ if rule.function is not None:
                contributions = [
                    Contribution(report.client, counted, own, report.mean_loss)
                    for (_, report), counted, own in zip(answers, examples, scaled, strict=True)
                ]
                shares = rule.weights(contributions)
                total = 1.0
        examples = shares.tolist()
    return [n * scale for n, scale in zip(examples, scales, strict=True)], total


def _counted_examples(
    instruction: TrainInstruction, answers: Sequence[Answer], weight_cap: int, rule: Rule
) -> list[float]:
    """Return each report's number of examples, capped and multiplied by its staleness weight."""
    cap = float(weight_cap)
    if rule.name != "mean":
        cap = min(cap, usual_limit(np.array([float(report.examples) for _, report in answers])))
    return [
        min(report.examples, cap) * staleness_weight(instruction.round - answered.round)
        for answered, report in answers
    ]


def _products(
    instruction: TrainInstruction,
    answers: Sequence[Answer],
    gradients: Sequence[Numbers],
    rule: Rule,
) -> Numbers:
    """Return the inner products of the reports' updates, float64 [reports, reports].

    With shared seeds the function returns the inner products of the projected gradients. They are
    almost equal, because the directions of different seeds are almost orthogonal.
    """
    norms = np.array([np.linalg.norm(own) for own in gradients])
    units = [own / (norm or 1.0) for own, norm in zip(gradients, norms, strict=True)]
    if instruction.seed_policy is SeedPolicy.SHARED:
        rows = _padded(units).reshape(len(units), -1)
    else:
        assert rule.layout is not None, "a rule with inner products needs the layout"
        rows = np.empty((len(units), rule.layout.size), np.float32)
        for row, (answered, report), own in zip(rows, answers, units, strict=True):
            row[:] = _update(answered, report, own, rule.layout)
    products: Numbers = (rows @ rows.T).astype(np.float64) * np.outer(norms, norms)
    return products


def _update(
    instruction: TrainInstruction, report: Report, gradients: Numbers, layout: Layout
) -> NDArray[np.float64]:
    """Return the update Σ g·z(seed) of a report's projected gradients g, float64 [d].

    The vector of all g must have norm 1, so that the fixed-point sum does not overflow.
    """
    if instruction.seed_policy is SeedPolicy.POOL:
        used = instruction.pool_indices(report.client).ravel()[: len(gradients)]
        seeds = pool_seeds(instruction.pool_root, used)
    else:
        seeds = instruction.seeds(report.client)[: len(gradients)].ravel()
    coefficients = np.rint(np.ldexp(gradients.ravel(), _UNIT)).astype(np.int64)
    total = zero_state(layout.size)
    default_backend().fold(total, seeds, coefficients, layout.distribution)
    update: NDArray[np.float64] = np.ldexp(total.astype(np.float64), -_UNIT - DIRECTION_BITS)
    return update


def _weighted_sums(weights: Sequence[float], gradients: Sequence[Numbers]) -> Numbers:
    """Return Σ weight·g over the reports for each step and query, float64 [steps, queries].

    `math.fsum` rounds each sum only once, at its end. If the clients report equal projected
    gradients g, neither the order of the clients nor their numbers of examples change a bit of the
    sums.
    """
    steps = max(len(client_gradients) for client_gradients in gradients)
    sums = np.zeros((steps, gradients[0].shape[1]))
    for step, query in np.ndindex(sums.shape):
        sums[step, query] = math.fsum(
            weight * client_gradients[step, query]
            for weight, client_gradients in zip(weights, gradients, strict=True)
            if step < len(client_gradients)
        )
    return sums


def _sums_by_index(
    instruction: TrainInstruction,
    weights: Sequence[float],
    reports: Sequence[Report],
    gradients: Sequence[Numbers],
) -> tuple[NDArray[np.uint32], Numbers]:
    """Return the pool indices that occur, ascending, and the sum Σ weight·g of each index.

    `math.fsum` rounds each sum only once, at its end.
    """
    products: dict[int, list[float]] = {}
    for weight, report, own in zip(weights, reports, gradients, strict=True):
        indices = instruction.pool_indices(report.client).ravel()[: len(own)]
        for index, product in zip(indices.tolist(), (weight * own).tolist(), strict=True):
            products.setdefault(index, []).append(product)
    tried = sorted(products)
    return np.array(tried, np.uint32), np.array([math.fsum(products[i]) for i in tried])


def hostile_count(clients: int) -> int:
    """Return the number of clients that robust rules assume to be hostile.

    The number is at least 1 if there are three clients or more. It is always smaller than half of
    the number of clients.
    """
    return max(0, min(max(1, round(HOSTILE_SHARE * clients)), (clients - 1) // 2))


def usual_limit(values: Numbers) -> float:
    """Return the limit for clients' values: the median of the n − f smallest values.

    Here f is `hostile_count`. A client that wants more influence reports a large value. If f
    clients do so, the median of all n values rises to one of the larger honest values. Comparative
    gradient elimination also leaves out the f largest values (Gupta, Liu and Vaidya, Byzantine
    Fault-Tolerant Distributed Machine Learning with Norm-Based Comparative Gradient Elimination,
    2021).

    The limit is at least the (f + 1)-th smallest value, so that f small values cannot move it below
    all honest values. If n − f is even, the limit is the lower of the two middle values.

    Args:
        values: one value per client, float64 [n].
    """
    clients = len(values)
    hostile = hostile_count(len(values))
    rank = max(hostile + 1, math.ceil((clients - hostile) / 2))
    return float(np.sort(values)[rank - 1])


def trimmed_mean(values: Numbers) -> Numbers:
    """Return the mean over clients without the f lowest and the f highest values.

    Here f is `hostile_count`.

    Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates (2018),
    definition 2.

    Args:
        values: float64 [n, ...], with the clients on the first axis; every element is trimmed
            independently.

    Returns:
        float64 [...].
    """
    cut = hostile_count(len(values))
    mean: Numbers = np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0)
    return mean


def coordinate_median(values: Numbers) -> Numbers:
    """Return the median of every element over the clients; Yin et al. (2018), definition 1.

    Args:
        values: float64 [n, ...], with the clients on the first axis.
    """
    median: Numbers = np.median(values, axis=0)
    return median


def norm_factors(norms: Numbers) -> Numbers:
    """Return the factor, at most 1, that scales each contribution down to the limit on norms.

    The limit is the `usual_limit` of the norms of the round. Sun et al., Can You Really Backdoor
    Federated Learning? (2019), section 5, describe norm clipping with a fixed limit.

    Args:
        norms: norms of the contributions, float64 [n].

    Returns:
        float64 [n].
    """
    limit = usual_limit(norms)
    factors: Numbers = limit / np.maximum(norms, max(limit, np.finfo(float).tiny))
    return np.where(norms <= limit, 1.0, factors)


def krum_selection(products: Numbers) -> NDArray[np.bool_]:
    """Return a mask of the contributions that multi-Krum averages.

    The score of a contribution is the sum of its squared distances to its n − f − 2 nearest
    neighbours, where f is `hostile_count`. The n − f contributions with the lowest scores are
    selected (Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient
    Descent, 2017, section 4).

    Args:
        products: inner products of the contributions, float64 [n, n].

    Returns:
        bool [n].
    """
    clients = len(products)
    hostile = hostile_count(clients)
    nearest = max(1, clients - hostile - 2)
    scores = np.sort(_squared_distances(products), axis=1)[:, 1 : 1 + nearest].sum(axis=1)
    selected: NDArray[np.bool_] = scores <= np.sort(scores)[clients - hostile - 1]
    return selected


def centering_weights(products: Numbers, weights: Numbers) -> Numbers:
    """Return the weights of the contributions in a centered-clipping mean.

    The iteration starts from v = 0 and repeats v ← v + Σ w·(u − v)·min(1, τ/|u − v|), where τ is
    the `usual_limit` of the distances |u − v| (Karimireddy et al., Learning from History for
    Byzantine Robust Optimization, 2021, algorithm 2). After every iteration v is a weighted sum of
    the contributions u. The paper's momentum is left out, because it would add seeds of earlier
    rounds to a round's delta.

    Args:
        products: inner products of the contributions, float64 [n, n].
        weights: weights w of the clients, float64 [n], with sum 1.

    Returns:
        Weights of the contributions in the final v, float64 [n].
    """
    center = np.zeros(len(weights))
    for _ in range(_CENTERINGS):
        squares = np.diag(products) - 2 * products @ center + center @ products @ center
        moves = weights * norm_factors(np.sqrt(np.maximum(squares, 0.0)))
        center = center * (1 - moves.sum()) + moves
    return center


def _squared_distances(products: Numbers) -> Numbers:
    squares = np.diag(products)
    distances: Numbers = np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0.0)
    # a report's own entry sorts first, before equal reports at distance 0
    np.fill_diagonal(distances, -1.0)
    return distances
