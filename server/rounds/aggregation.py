"""Aggregation of a round's reports into one round delta; their order is irrelevant.

A client's contribution to a round is u = Σ y·z(seed) along the directions that it tried, y being
its clipped projected gradients. A rule acts on the y's alone, by a factor per report or per
projected gradient, so an update stays a list of seeds and coefficients and replay does not know of
rules. Robust rules expect that `hostile_count` of the clients are hostile, whoever they are.
"""

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from samara.server.rounds.rule import MEAN, Contribution, Rule
from samara.server.store import RunStore
from samara.shared.config import RunConfig
from samara.shared.directions import DIRECTION_BITS, pool_seeds
from samara.shared.errors import ReplayError, ReportError
from samara.shared.frames.instructions import SeedPolicy, TrainInstruction, token_of
from samara.shared.frames.report import Report
from samara.shared.frames.vector_report import AnyVectorReport, MaskedReport
from samara.shared.layout import Layout
from samara.shared.privacy.mechanism import Mechanism
from samara.shared.replay import default_backend, quantize, zero_state
from samara.shared.round_delta import (
    Contributor,
    Group,
    PoolSeeds,
    RoundDelta,
    SeedSource,
    source_of,
)
from samara.shared.step_size import Observation

log = logging.getLogger("samara.server")

Answer = tuple[TrainInstruction, Report]
"""A report with the instruction that it answers."""
Numbers = NDArray[np.float64]

TOO_LARGE = "its report does not fit the exact state"
HOSTILE_SHARE = 0.3
"""The share of the clients that rules expect to be hostile."""
_CENTERINGS = 5
_UNIT = 30
"""Bits after the point of the coefficients that contributions are compared by: small enough that
2²⁰ of them cannot leave the range of int64."""


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
        self,
        instruction: TrainInstruction,
        reports: Mapping[int, Report],
        late: Mapping[int, Answer],
        minimum: int,
    ) -> AggregatedRound:
        """Return the delta of as many reports as fit the exact state, and what they say.

        Args:
            instruction: instruction of the round.
            reports: sound reports on it, by client.
            late: by other client, a sound report of an earlier round.
            minimum: number of reports below which the round changes nothing.
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
        """Return the delta of as many of the answers, in their order, as fit the exact state."""
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


def check_report(report: Report, instruction: TrainInstruction) -> None:
    """Raise an error for a report that does not fit the instruction.

    Raises:
        ReportError: naming the client and what does not fit.
    """
    if report.token != token_of(instruction.encode()):
        raise ReportError(f"client {report.client} answers another instruction than this round's")
    expected: tuple[int, ...] = (report.steps, instruction.queries)
    if instruction.seed_policy is SeedPolicy.POOL:
        expected = (len(instruction.uses(report.steps)),)
    if report.gradients.shape != expected or report.steps > instruction.steps:
        scalars = " × ".join(map(str, report.gradients.shape))
        raise ReportError(
            f"client {report.client} reports {scalars} scalars of {report.steps} steps; "
            f"the instruction has {instruction.steps} steps of {instruction.queries} queries"
        )
    if report.examples < 1:
        raise ReportError(f"client {report.client} reports without having examples")


def check_vector_report(
    report: AnyVectorReport | MaskedReport, instruction: TrainInstruction, mechanism: Mechanism
) -> None:
    """Raise an error for a vector report that does not fit the instruction.

    Args:
        report: the report; of a masked one only the length can be known.
        instruction: instruction that it answers.
        mechanism: who adds which noise.

    Raises:
        ReportError: naming the client and what does not fit.
    """
    if report.token != token_of(instruction.encode()):
        raise ReportError(f"client {report.client} answers another instruction than this round's")
    if len(report.vector) != mechanism.numbers:
        raise ReportError(
            f"client {report.client} reports {len(report.vector)} numbers; the instruction asks "
            f"for {mechanism.numbers}"
        )
    if isinstance(report, MaskedReport):
        return
    if np.linalg.norm(report.vector.astype(np.float64)) > mechanism.longest_report:
        raise ReportError(f"the vector of client {report.client} is longer than noise explains")


def staleness_weight(rounds_late: int) -> float:
    """Return the factor of a late report's weight, 1/√(1 + rounds late), as in FedBuff.

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
    """Return the round delta that the reports of a round make.

    A report's weight is w = min(examples, cap) / Σ, and with any rule but `mean` the `usual_limit`
    of the numbers of examples is another cap. As in FedNova (Wang et al., 2020), the steps of a
    client that did k of K steps are scaled by τ / k with τ = Σ w·k, so that clients with fewer
    steps do not bend the direction of the average. With equal steps that factor is 1, and
    averaging coefficients is averaging the clients' models.

    Medians and trimmed means of projected gradients take every report as it is: without weights,
    and with zeros for the steps that a client did not take.

    Args:
        instruction: instruction of the round.
        reports: reports on it that have passed `check_report`, at most one per client.
        weight_cap: number of examples beyond which a report gains no weight.
        late: reports of earlier rounds that count in this one, each with the instruction that it
            answers; only with independent seeds. Each weighs `staleness_weight` times its usual
            weight, and its directions are those of its own round.
        rule: rule by which the reports become one update.

    Returns:
        The delta: one group per client with independent seeds, one group in all with shared seeds
        or a pool; without reports a delta that changes nothing.

    Raises:
        ReportError: if a client has two reports.
        ReplayError: if a coefficient cannot be applied.
    """
    reports = sorted(reports, key=lambda report: report.client)
    late = sorted(late, key=lambda pair: pair[1].client)
    all_reports = sorted([*reports, *(report for _, report in late)], key=lambda r: r.client)
    clients = [report.client for report in all_reports]
    if len(set(clients)) < len(clients):
        raise ReportError(f"a client reports twice among {clients}")
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
    """Return what a round's reports say of the step size.

    With any rule but `mean`, loss, curvature and squares are trimmed means over the clients, so
    that they stay within the range of what clients that are not hostile report.

    Args:
        instruction: instruction of the round.
        reports: reports on it that have passed `check_report`, at least one.
        weight_cap: number of examples beyond which a report gains no weight.
        rule: rule by which the reports become one update.
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
        mean_square, local_square = sum(squares) / sum(queries), float(np.mean(squares))
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
    """Return the clients' mean loss; None without any.

    It is weighted like the reports with the rule `mean`, and otherwise a trimmed mean.
    """
    if not reports:
        return None
    losses = [report.mean_loss for report in reports]
    if rule.name != "mean":
        return float(trimmed_mean(np.array(losses)))
    weights = [min(report.examples, weight_cap) for report in reports]
    return sum(loss * w for loss, w in zip(losses, weights, strict=True)) / sum(weights)


def _sum_of_squares(instruction: TrainInstruction, report: Report) -> float:
    """Return Σ g² of a report.

    With a pool g's are summed by index; a sum of n independent g's has Σ g² as its mean square.
    """
    return float(np.sum(np.square(_clipped(instruction, report))))


def _scalars(
    instruction: TrainInstruction, answers: Sequence[Answer], weight_cap: int, rule: Rule
) -> list[tuple[int, SeedSource, Numbers]]:
    """Return round, seeds and coefficients (float64 [n]) of each group; late ones come last."""
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
    """Return a report's projected gradients clipped to ±clip, same shape; of a pool their sums."""
    uses: NDArray[np.int64] | int = 1
    if instruction.seed_policy is SeedPolicy.POOL:
        uses = instruction.uses(report.steps)
    return instruction.clipped_sums(report.gradients, uses)


def _padded(gradients: Sequence[Numbers]) -> Numbers:
    """Return projected gradients of several clients, [n, K, q], zeros where steps are missing."""
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
    """Return by what each report's projected gradients are multiplied, and the divisor of the sum.

    With the rule `mean` these are examples·τ/k and Σ examples, so that the weight is exactly the
    number of examples if all did the same steps.
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
                shares, total = centering_weights(products, shares / total), 1.0
            case _ if rule.function is not None:
                contributions = [
                    Contribution(report.client, counted, own, report.mean_loss)
                    for (_, report), counted, own in zip(answers, examples, scaled, strict=True)
                ]
                shares, total = rule.weights(contributions), 1.0
        examples = shares.tolist()
    return [n * scale for n, scale in zip(examples, scales, strict=True)], total


def _counted_examples(
    instruction: TrainInstruction, answers: Sequence[Answer], weight_cap: int, rule: Rule
) -> list[float]:
    """Return the number of examples that each report counts."""
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
    """Return the inner products of the updates that the reports stand for, [n, n].

    Along shared directions those of the projected gradients do, since independent directions are
    almost orthogonal.
    """
    norms = np.array([np.linalg.norm(own) for own in gradients])
    units = [own / (norm or 1.0) for own, norm in zip(gradients, norms, strict=True)]
    if instruction.seed_policy is SeedPolicy.SHARED:
        rows = _padded(units).reshape(len(units), -1)
    else:
        assert rule.layout is not None, "the updates of reports are as wide as the layout"
        rows = np.empty((len(units), rule.layout.size), np.float32)
        for row, (answered, report), own in zip(rows, answers, units, strict=True):
            row[:] = _update(answered, report, own, rule.layout)
    products: Numbers = (rows @ rows.T).astype(np.float64) * np.outer(norms, norms)
    return products


def _update(
    instruction: TrainInstruction, report: Report, gradients: Numbers, layout: Layout
) -> NDArray[np.float64]:
    """Return Σ g·z(seed) of a report, float64 [d], for g's of norm 1."""
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
    """Return Σ weight·g per step and query, each rounded once.

    `math.fsum` is exact before it rounds, so neither the order of the clients nor the division of
    examples among them changes a bit where the g's agree.
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
    """Return the tried indices of the pool, ascending, and Σ weight·g of each, rounded once."""
    products: dict[int, list[float]] = {}
    for weight, report, own in zip(weights, reports, gradients, strict=True):
        indices = instruction.pool_indices(report.client).ravel()[: len(own)]
        for index, product in zip(indices.tolist(), (weight * own).tolist(), strict=True):
            products.setdefault(index, []).append(product)
    tried = sorted(products)
    return np.array(tried, np.uint32), np.array([math.fsum(products[i]) for i in tried])


def hostile_count(clients: int) -> int:
    """Return how many of some clients rules expect to be hostile: fewer than half, 0 of two."""
    return max(0, min(max(1, round(HOSTILE_SHARE * clients)), (clients - 1) // 2))


def usual_limit(values: Numbers) -> float:
    """Return the limit that clients' values are cut to: the median of the n − f smallest.

    f is `hostile_count`. Whoever wants to count more reports large values, and f of them move the
    median of all n to a large one of the others. Without the f largest, which comparative gradient
    elimination leaves out too (Gupta, Liu and Vaidya, Byzantine Fault-Tolerant Distributed Machine
    Learning with Norm-Based Comparative Gradient Elimination, 2021), it is the others' own median.
    The limit is no lower than the (f + 1)-th smallest value, so that f small ones cannot move it
    below all others. It is at most the median, and of two values the lower.

    Args:
        values: float64 [n].
    """
    clients, hostile = len(values), hostile_count(len(values))
    rank = max(hostile + 1, math.ceil((clients - hostile) / 2))
    return float(np.sort(values)[rank - 1])


def trimmed_mean(values: Numbers) -> Numbers:
    """Return the mean over clients without the `hostile_count` lowest and highest values.

    Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates (2018),
    definition 2.

    Args:
        values: float64 [n, ...]; every element of the rest is trimmed for itself.

    Returns:
        float64 [...].
    """
    cut = hostile_count(len(values))
    mean: Numbers = np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0)
    return mean


def coordinate_median(values: Numbers) -> Numbers:
    """Return the median over clients of every element; Yin et al. (2018), definition 1.

    Args:
        values: float64 [n, ...].
    """
    median: Numbers = np.median(values, axis=0)
    return median


def norm_factors(norms: Numbers) -> Numbers:
    """Return the factors, at most 1, that scale reports down to the `usual_limit` of their norms.

    Clipping of norms against poisoned updates: Sun et al., Can You Really Backdoor Federated
    Learning? (2019), section 5; the limit comes from the cohort here.

    Args:
        norms: norms of the contributions, float64 [n].
    """
    limit = usual_limit(norms)
    factors: Numbers = limit / np.maximum(norms, max(limit, np.finfo(float).tiny))
    return np.where(norms <= limit, 1.0, factors)


def krum_selection(products: Numbers) -> NDArray[np.bool_]:
    """Return which contributions multi-Krum averages: those close to most others.

    The score of a contribution is the sum of its squared distances to its n − f − 2 nearest, f
    being `hostile_count`; the n − f with the lowest scores are selected (Blanchard et al., Machine
    Learning with Adversaries: Byzantine Tolerant Gradient Descent, 2017, section 4).

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
    """Return the weights that the contributions have in a mean by centered clipping.

    From v = 0, v ← v + Σ w·(u − v)·min(1, τ/|u − v|) is repeated, with the `usual_limit` of the
    distances from v as τ (Karimireddy et al., Learning from History for Byzantine Robust
    Optimization, 2021, algorithm 2, without the momentum, which would put earlier rounds' seeds
    into a round). v stays a weighted sum of the contributions.

    Args:
        products: inner products of the contributions, float64 [n, n].
        weights: shares of the clients, float64 [n], with sum 1.

    Returns:
        Weights of the contributions, float64 [n].
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
    np.fill_diagonal(distances, -1.0)  # sorts first, before equal reports at distance 0
    return distances
