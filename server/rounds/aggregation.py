"""Aggregation of a round's reports into one round delta. Pure; their order is irrelevant."""

import math
from collections.abc import Collection, Sequence
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


def staleness_weight(rounds_late: int) -> float:
    """Return the factor of a late report's weight, 1/√(1 + rounds late), as in FedBuff.

    Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation (2022), section 5.
    """
    return 1 / math.sqrt(1 + rounds_late)


def aggregate(
    instruction: TrainInstruction,
    reports: Sequence[Report],
    weight_cap: int,
    late: Sequence[tuple[TrainInstruction, Report]] = (),
) -> RoundDelta:
    """Return the round delta that the reports of a round make.

    A report's weight is w = min(examples, cap) / Σ. As in FedNova (Wang et al., 2020), the steps of
    a client that did k of K steps are scaled by τ / k with τ = Σ w·k, so that clients with fewer
    steps do not bend the direction of the average. With equal steps that factor is 1, and
    averaging coefficients is averaging the clients' models.

    Args:
        instruction: instruction of the round.
        reports: reports on it that have passed `check_report`, at most one per client.
        weight_cap: number of examples beyond which a report gains no weight.
        late: reports of earlier rounds that count in this one, each with the instruction that it
            answers; only with independent seeds. Each weighs `staleness_weight` times its usual
            weight, and its directions are those of its own round.

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
    examples: list[float] = [min(report.examples, weight_cap) for report in reports]
    examples += [
        staleness_weight(instruction.round - answered.round) * min(report.examples, weight_cap)
        for answered, report in late
    ]
    scalars = _scalars(instruction, reports, late, examples) if all_reports else ()
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
    instruction: TrainInstruction, reports: Sequence[Report], weight_cap: int
) -> Observation:
    """Return what a round's reports say of the step size.

    Args:
        instruction: instruction of the round.
        reports: reports on it that have passed `check_report`, at least one.
        weight_cap: number of examples beyond which a report gains no weight.
    """
    reports = sorted(reports, key=lambda report: report.client)
    weights = [min(report.examples, weight_cap) for report in reports]
    unit = replace(instruction, learning_rate=1.0)
    coefficients = [block for _, _, block in _scalars(unit, reports, (), weights)]
    squares = [_sum_of_squares(instruction, report) for report in reports]
    queries = [report.steps * instruction.queries for report in reports]
    curvatures = [
        (report.curvature, instruction.measured_directions(report.steps))
        for report in reports
        if report.curvature is not None
    ]
    directions = sum(count for _, count in curvatures)
    return Observation(
        loss=float(np.average([report.mean_loss for report in reports], weights=weights)),
        mean_square=sum(squares) / sum(queries),
        squared_norm=sum(float(block @ block) for block in coefficients),
        local_squared_norm=float(np.mean(squares)) / instruction.queries**2,
        learning_rate=instruction.learning_rate,
        curvature=sum(curvature * n for curvature, n in curvatures) / directions
        if directions
        else None,
        directions=directions,
    )


def mean_loss(reports: Collection[Report], weight_cap: int) -> float | None:
    """Return the clients' mean loss, weighted like their reports; None without any."""
    weights = [min(report.examples, weight_cap) for report in reports]
    losses = [report.mean_loss for report in reports]
    if not weights:
        return None
    return sum(loss * w for loss, w in zip(losses, weights, strict=True)) / sum(weights)


def _sum_of_squares(instruction: TrainInstruction, report: Report) -> float:
    """Return Σ g² of a report.

    With a pool g's are summed by index; a sum of n independent g's has Σ g² as its mean square.
    """
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
    """Return round, seeds and coefficients (float64 [n]) of each group; late ones come last."""
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
    groups: list[tuple[int, DerivedSeeds | PoolSeeds, NDArray[np.float64]]] = []
    for (answered, report), weight in zip(answers, weights, strict=True):
        block = weight / total * instruction.coefficients(instruction.clipped(report.gradients))
        stream = answered.seed_stream(report.client)
        derived = DerivedSeeds(answered.root, stream, *block.shape)
        groups.append((answered.round, derived, block.ravel()))
    return groups


def _weights(reports: Sequence[Report], examples: Sequence[float]) -> list[float]:
    """Return examples·τ/k of each report; exactly its examples if all did the same steps."""
    steps = [report.steps for report in reports]
    mean_steps = sum(n * k for n, k in zip(examples, steps, strict=True)) / sum(examples)
    return [n * (mean_steps / k) for n, k in zip(examples, steps, strict=True)]


def _weighted_sums(
    weights: Sequence[float], gradients: Sequence[NDArray[np.float64]]
) -> NDArray[np.float64]:
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
    instruction: TrainInstruction, weights: Sequence[float], reports: Sequence[Report]
) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
    """Return the tried indices of the pool, ascending, and Σ weight·g of each, rounded once."""
    products: dict[int, list[float]] = {}
    for weight, report in zip(weights, reports, strict=True):
        uses = instruction.uses(report.steps)
        indices = instruction.pool_indices(report.client).ravel()[: len(uses)]
        sums = weight * instruction.clipped_sums(report.gradients, uses)
        for index, product in zip(indices.tolist(), sums.tolist(), strict=True):
            products.setdefault(index, []).append(product)
    tried = sorted(products)
    return np.array(tried, np.uint32), np.array([math.fsum(products[i]) for i in tried])
