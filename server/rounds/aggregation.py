"""Aggregation: reports in, one round delta out. Pure, and indifferent to the order of reports."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shared.errors import ReportError
from shared.frames.instructions import SeedPolicy, TrainInstruction, token_of
from shared.frames.report import Report
from shared.replay import quantize
from shared.round_delta import Contributor, DerivedSeeds, Group, PoolSeeds, RoundDelta
from shared.step_size import Observation


def check_report(report: Report, instruction: TrainInstruction) -> None:
    """Refuse a report that does not answer the instruction.

    Raises:
        ReportError: saying what does not fit.
    """
    if report.token != token_of(instruction.encode()):
        raise ReportError(f"client {report.client} answers another instruction than this round's")
    asked: tuple[int, ...] = (report.steps, instruction.queries)
    if instruction.seed_policy is SeedPolicy.POOL:
        asked = (len(instruction.uses(report.steps)),)
    if report.gradients.shape != asked or report.steps > instruction.steps:
        scalars = " × ".join(map(str, report.gradients.shape))
        raise ReportError(
            f"client {report.client} reports {scalars} scalars of {report.steps} steps; "
            f"{instruction.steps} steps of {instruction.queries} queries were asked for"
        )
    if report.examples < 1:
        raise ReportError(f"client {report.client} reports without having examples")


def staleness_weight(rounds_late: int) -> float:
    """What a report counts that is so many rounds late: 1/√(1 + late), as in FedBuff.

    Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation (2022), section 5.
    """
    return 1 / math.sqrt(1 + rounds_late)


def aggregate(
    instruction: TrainInstruction,
    reports: Sequence[Report],
    weight_cap: int,
    late: Sequence[tuple[TrainInstruction, Report]] = (),
) -> RoundDelta:
    """Fold the reports of a round into its delta.

    A report weighs w = min(examples, cap) / Σ. A client that did k of K steps counts as FedNova
    (Wang et al., 2020) has it: its steps are scaled by τ / k with τ = Σ w·k, so that doing fewer
    steps does not bend the direction of the average. With equal steps that factor is 1, and
    averaging coefficients is averaging the clients' models.

    Args:
        instruction: of the round; every report has passed `check_report`.
        reports: at most one per client, in any order.
        weight_cap: examples beyond which a report gains no weight.
        late: reports of earlier rounds that came in this one, with the instruction that each
            answers; directions are independent. Each weighs `staleness_weight` times its usual
            weight, and its directions are those of its own round.

    Returns:
        The delta: one group per client with independent seeds, one in all with shared seeds or
        a pool; without reports a delta that changes nothing.

    Raises:
        ReportError: if a client reports twice.
        ReplayError: if a coefficient cannot be applied.
    """
    reports = sorted(reports, key=lambda report: report.client)
    late = sorted(late, key=lambda answer: answer[1].client)
    everybody = sorted([*reports, *(report for _, report in late)], key=lambda r: r.client)
    clients = [report.client for report in everybody]
    if len(set(clients)) < len(clients):
        raise ReportError(f"a client reports twice among {clients}")
    examples: list[float] = [min(report.examples, weight_cap) for report in reports]
    examples += [
        staleness_weight(instruction.round - asked.round) * min(report.examples, weight_cap)
        for asked, report in late
    ]
    scalars = _scalars(instruction, reports, late, examples) if everybody else ()
    groups = [
        Group(origin, source, one_pass)
        for origin, source, coefficients in scalars
        for one_pass in quantize(coefficients)
    ]
    contributors = tuple(
        Contributor(report.client, report.examples, report.steps) for report in everybody
    )
    return RoundDelta(
        instruction.round,
        instruction.track,
        token_of(instruction.encode()),
        contributors,
        tuple(groups),
    )


def observe_round(
    instruction: TrainInstruction, reports: Sequence[Report], weight_cap: int
) -> Observation:
    """What a round tells about the step size.

    Args:
        instruction: of the round; every report has passed `check_report`.
        reports: at least one.
        weight_cap: as in `aggregate`.
    """
    reports = sorted(reports, key=lambda report: report.client)
    weights = [min(report.examples, weight_cap) for report in reports]
    unit = replace(instruction, learning_rate=1.0)
    coefficients = [part for _, _, part in _scalars(unit, reports, (), weights)]
    squares = [_sum_of_squares(instruction, report) for report in reports]
    queries = [report.steps * instruction.queries for report in reports]
    bends = [
        (report.curvature, instruction.measured_directions(report.steps))
        for report in reports
        if report.curvature is not None
    ]
    directions = sum(count for _, count in bends)
    return Observation(
        loss=float(np.average([report.mean_loss for report in reports], weights=weights)),
        mean_square=sum(squares) / sum(queries),
        squared_norm=sum(float(part @ part) for part in coefficients),
        local_squared_norm=float(np.mean(squares)) / instruction.queries**2,
        learning_rate=instruction.learning_rate,
        curvature=sum(bend * n for bend, n in bends) / directions if directions else None,
        directions=directions,
    )


def _sum_of_squares(instruction: TrainInstruction, report: Report) -> float:
    """Σ g² of a report. A pool's sum of n independent g's has on the average Σ g² for a square."""
    uses: NDArray[np.int64] | int = 1
    if instruction.seed_policy is SeedPolicy.POOL:
        uses = instruction.uses(report.steps)
    return float(np.sum(np.square(instruction.clipped_sums(report.gradients, uses))))


def _scalars(
    instruction: TrainInstruction,
    reports: Sequence[Report],
    late: Sequence[tuple[TrainInstruction, Report]],
    examples: Sequence[float],
) -> list[tuple[int, DerivedSeeds | PoolSeeds, NDArray[np.float64]]]:
    """Round of origin, seeds, and their coefficients float64 [n]; late reports come last."""
    answers = [*((instruction, report) for report in reports), *late]
    weights, total = _weights([report for _, report in answers], examples), sum(examples)
    number = instruction.round
    if instruction.seed_policy is SeedPolicy.POOL:
        indices, sums = _sums_by_index(instruction, weights, reports)
        seeds = PoolSeeds(instruction.pool_root, indices)
        return [(number, seeds, instruction.coefficients(sums / total))]
    if instruction.seed_policy is SeedPolicy.SHARED:
        clipped = [instruction.clipped(report.gradients) for report in reports]
        shared = instruction.coefficients(_weighted_sums(weights, clipped) / total)
        return [(number, DerivedSeeds(instruction.root, 0, *shared.shape), shared.ravel())]
    own: list[tuple[int, DerivedSeeds | PoolSeeds, NDArray[np.float64]]] = []
    for (asked, report), weight in zip(answers, weights, strict=True):
        clipped_own = instruction.clipped(report.gradients)
        block = weight / total * instruction.coefficients(clipped_own)
        seeds_of_own = DerivedSeeds(asked.root, asked.seed_stream(report.client), *block.shape)
        own.append((asked.round, seeds_of_own, block.ravel()))
    return own


def _weights(reports: Sequence[Report], examples: Sequence[float]) -> list[float]:
    """examples·τ/k of each report; exactly its examples where all did the same steps."""
    steps = [report.steps for report in reports]
    mean_steps = sum(n * k for n, k in zip(examples, steps, strict=True)) / sum(examples)
    return [n * (mean_steps / k) for n, k in zip(examples, steps, strict=True)]


def _weighted_sums(
    weights: Sequence[float], gradients: Sequence[NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Σ weight·g per step and query, each rounded once.

    `math.fsum` is exact before it rounds, so neither the order of the clients nor how examples
    are spread over them can change a bit where the g's agree.
    """
    steps = max(len(own) for own in gradients)
    sums = np.zeros((steps, gradients[0].shape[1]))
    for step, query in np.ndindex(sums.shape):
        sums[step, query] = math.fsum(
            weight * own[step, query]
            for weight, own in zip(weights, gradients, strict=True)
            if step < len(own)
        )
    return sums


def _sums_by_index(
    instruction: TrainInstruction, weights: Sequence[float], reports: Sequence[Report]
) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
    """Which seeds of the pool were tried, ascending, and Σ weight·g of each, rounded once."""
    products: dict[int, list[float]] = {}
    for weight, report in zip(weights, reports, strict=True):
        uses = instruction.uses(report.steps)
        indices = instruction.pool_indices(report.client).ravel()[: len(uses)]
        sums = weight * instruction.clipped_sums(report.gradients, uses)
        for index, product in zip(indices.tolist(), sums.tolist(), strict=True):
            products.setdefault(index, []).append(product)
    tried = sorted(products)
    return np.array(tried, np.uint32), np.array([math.fsum(products[i]) for i in tried])
