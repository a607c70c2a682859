import math
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers import instruction_with, report_to
from numpy.typing import NDArray

from samara.server.rounds.aggregation import aggregate, check_report
from samara.server.rounds.cohort_sampling import sample_cohort
from samara.shared.errors import ReplayError, ReportError, SamaraError
from samara.shared.protocol.directions import directions
from samara.shared.protocol.frames.instructions import SeedPolicy, TrainInstruction, token_of
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.replay import replay
from samara.shared.protocol.round_delta import Contributor, DerivedSeeds, PoolSeeds, RoundDelta

CAP = 10_000
ASKED = instruction_with(steps=4, queries=3)
SHARED = instruction_with(steps=4, queries=3, seed_policy=SeedPolicy.SHARED)
POOL = instruction_with(steps=4, queries=3, seed_policy=SeedPolicy.POOL, pool_size=5)
UNIT = 2.0**-30
"""Unit of a coefficient with the largest shift."""


def coefficients(delta: RoundDelta) -> dict[int, NDArray[np.float64]]:
    """Coefficients [steps, q] of a delta without wide sums, by client."""
    found = {}
    for group in delta.groups:
        assert isinstance(group.source, DerivedSeeds)
        scaled = np.ldexp(group.scalars.coefficients.astype(float), group.scalars.shift - 40)
        found[group.source.seed_stream] = scaled.reshape(group.source.steps, group.source.queries)
    return found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token": bytes(8)}, "answers an instruction of another round"),
        (
            {"steps": 5},
            "reports 5 × 3 scalars of 5 steps, but the instruction has 4 steps of 3 queries",
        ),
        ({"gradients": np.zeros((4, 2), np.float32)}, "4 × 2 scalars of 4 steps"),
        ({"gradients": np.zeros((4, 4), np.float32)}, "4 × 4 scalars of 4 steps"),
        ({"gradients": np.zeros(5, np.float32), "summed_steps": 4}, "5 scalars of 4 steps"),
        ({"examples": 0}, "reports scalars but no examples"),
    ],
)
def test_a_report_that_does_not_answer_the_instruction_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    sound = report_to(ASKED, 5)
    changed = {**vars(report_to(ASKED, 5, steps=changes.pop("steps", None))), **changes}
    check_report(sound, ASKED)
    with pytest.raises(ReportError, match=f"client 5 .*{message}"):
        check_report(type(sound)(**changed), ASKED)


def test_a_report_of_fewer_steps_answers_the_instruction() -> None:
    check_report(report_to(ASKED, steps=1), ASKED)


def test_one_client_moves_by_its_own_coefficients() -> None:
    report = report_to(ASKED, 6)
    delta = aggregate(ASKED, [report], CAP)
    assert (delta.round, delta.track, delta.token) == (1, 0, token_of(ASKED.encode()))
    assert delta.contributors == (Contributor(6, 10, 4),)
    expected = -ASKED.learning_rate * report.gradients.astype(float) / ASKED.queries
    np.testing.assert_allclose(coefficients(delta)[7], expected, rtol=0, atol=UNIT)
    np.testing.assert_array_equal(delta.groups[0].seeds(), ASKED.seeds(6).ravel())


def test_gradients_are_clipped_before_they_are_weighed() -> None:
    asked = instruction_with(clip=0.25)
    reports = [
        report_to(asked, client, gradients=np.full((2, 4), g, np.float32))
        for client, g in enumerate((1e6, -0.125))
    ]
    found = coefficients(aggregate(asked, reports, CAP))
    np.testing.assert_allclose(found[1], -0.1 / 2 * 0.25 / 4, rtol=0, atol=UNIT)
    np.testing.assert_allclose(found[2], 0.1 / 2 * 0.125 / 4, rtol=0, atol=UNIT)


@pytest.mark.parametrize("asked", [ASKED, SHARED])
def test_examples_weigh_up_to_the_cap(asked: TrainInstruction) -> None:
    reports = [report_to(asked, client, n) for client, n in enumerate((10, 99, 100, 2**32 - 1))]
    found = coefficients(aggregate(asked, reports, weight_cap=100))
    parts = {
        client + 1: -0.1 / 3 * weight / 309 * reports[client].gradients.astype(float)
        for client, weight in enumerate((10, 99, 100, 100))
    }
    expected = {0: sum(parts.values())} if asked is SHARED else parts
    assert found.keys() == expected.keys()
    for client, block in expected.items():
        np.testing.assert_allclose(found[client], block, rtol=0, atol=UNIT)


@pytest.mark.parametrize("asked", [ASKED, SHARED])
def test_fewer_steps_are_scaled_to_the_mean_number_of_steps(asked: TrainInstruction) -> None:
    reports = [report_to(asked, 0, 10), report_to(asked, 1, 30, steps=1)]
    found = coefficients(aggregate(asked, reports, CAP))
    mean_steps = 0.25 * 4 + 0.75 * 1
    first = -0.1 / 3 * 0.25 * mean_steps / 4 * reports[0].gradients.astype(float)
    second = -0.1 / 3 * 0.75 * mean_steps / 1 * reports[1].gradients.astype(float)
    if asked is SHARED:
        first[:1] += second
        np.testing.assert_allclose(found[0], first, rtol=0, atol=UNIT)
    else:
        np.testing.assert_allclose(found[1], first, rtol=0, atol=UNIT)
        np.testing.assert_allclose(found[2], second, rtol=0, atol=UNIT)


@pytest.mark.parametrize(
    "changes",
    [
        {"gradients": np.zeros(4, np.float32)},
        {"gradients": np.zeros(6, np.float32)},
        {"summed_steps": 1},
        {"summed_steps": 5},
        {"gradients": np.zeros((4, 3), np.float32), "summed_steps": 0},
    ],
)
def test_a_report_that_has_not_one_sum_per_used_seed_is_refused(changes: dict[str, Any]) -> None:
    check_report(report_to(POOL, 5), POOL)
    with pytest.raises(ReportError, match=r"client 5 reports .* the instruction has"):
        check_report(report_to(POOL, 5, **changes), POOL)


def test_a_pool_makes_one_group_of_its_used_seeds() -> None:
    for count in (1, 2, 20):
        (group,) = aggregate(POOL, [report_to(POOL, client) for client in range(count)], CAP).groups
        assert isinstance(group.source, PoolSeeds)
        assert group.source.root == POOL.pool_root
        assert group.source.indices.tolist() == [0, 1, 2, 3, 4]
    (few,) = aggregate(POOL, [report_to(POOL, 0, steps=1)], CAP).groups
    assert isinstance(few.source, PoolSeeds)
    assert few.source.indices.tolist() == sorted(POOL.pool_indices(0)[0].tolist())


def test_sums_of_a_pool_are_weighed_like_the_gradients_they_are_of() -> None:
    """The state equals that of independent clients with the same seeds, up to rounding."""
    size, clients = 40, {0: (10, 4), 1: (30, 2), 7: (5000, 4)}
    examples = sum(n for n, _ in clients.values())
    mean_steps = sum(n * k for n, k in clients.values()) / examples
    expected, reports = np.zeros(size), []
    for client, (n, steps) in clients.items():
        gradients = np.random.default_rng(client).normal(size=(steps, 3)).astype(np.float32)
        sums = POOL.sums(gradients)
        reports.append(report_to(POOL, client, n, steps, gradients=sums))
        z = directions(POOL.seeds(client)[:steps].ravel(), size, "gaussian") / 2048
        weight = n / examples * mean_steps / steps
        expected -= POOL.learning_rate / 3 * weight * gradients.ravel().astype(float) @ z
    delta = aggregate(POOL, reports, CAP)
    assert [c.steps for c in delta.contributors] == [4, 2, 4]
    state = replay(np.zeros(size, np.int64), delta.scalar_groups(), "gaussian")
    np.testing.assert_allclose(np.ldexp(state.astype(float), -51), expected, atol=1e-7)


def test_a_sum_of_a_pool_beyond_what_clipping_leaves_is_cut() -> None:
    asked = replace(POOL, clip=0.5)
    report = report_to(asked, gradients=np.full(5, 100, np.float32))
    (group,) = aggregate(asked, [report], CAP).groups
    assert isinstance(group.source, PoolSeeds)
    uses = dict(zip(asked.pool_indices(0).flat, asked.uses(4).tolist(), strict=False))
    expected = [-0.1 / 3 * 0.5 * uses[index] for index in group.source.indices.tolist()]
    found = np.ldexp(group.scalars.coefficients.astype(float), group.scalars.shift - 40)
    np.testing.assert_allclose(found, expected, atol=UNIT)


def test_shared_seeds_make_one_group_however_many_clients() -> None:
    for count in (1, 2, 20):
        delta = aggregate(SHARED, [report_to(SHARED, client) for client in range(count)], CAP)
        assert len(delta.groups) == 1
        np.testing.assert_array_equal(delta.groups[0].seeds(), SHARED.seeds(0).ravel())


def test_large_gradients_that_cancel_leave_the_small_one_whole() -> None:
    asked = instruction_with(seed_policy=SeedPolicy.SHARED, learning_rate=10.0)
    reports = [
        report_to(asked, client, 7777, gradients=np.full((2, 4), g, np.float32))
        for client, g in enumerate((1e6, 1e-3, -1e6))
    ]
    (group,) = aggregate(asked, reports, CAP).groups
    exact = -10 * Fraction(float(np.float32(1e-3))) / 3 / 4 * 2**40
    assert group.scalars.shift == 0
    assert np.abs(group.scalars.coefficients - round(exact)).max() <= 1


def test_equal_clients_that_are_clipped_count_as_one() -> None:
    asked = instruction_with(
        seed_policy=SeedPolicy.SHARED, clip=0.3232187812220742, learning_rate=0.2745718247295447
    )
    report = report_to(asked, 0, 8698, gradients=np.full((2, 4), 5, np.float32))
    alone = aggregate(asked, [report], CAP)
    together = aggregate(asked, [replace(report, client=client) for client in range(10)], CAP)
    assert [group.encode() for group in together.groups] == [
        group.encode() for group in alone.groups
    ]


def test_a_device_that_reports_twice_is_refused() -> None:
    with pytest.raises(ReportError, match="reports twice"):
        aggregate(ASKED, [report_to(ASKED, client) for client in (3, 1, 3)], CAP)


@pytest.mark.parametrize("asked", [ASKED, SHARED])
def test_a_round_without_reports_changes_nothing(asked: TrainInstruction) -> None:
    delta = aggregate(asked, [], CAP)
    assert (delta.contributors, delta.groups) == ((), ())
    state = np.arange(5)
    np.testing.assert_array_equal(replay(state, delta.scalar_groups(), "gaussian"), state)
    assert RoundDelta.decode(delta.encode()).round == asked.round


def test_a_round_too_wide_to_apply_is_refused() -> None:
    wild = instruction_with(learning_rate=1e6)
    with pytest.raises(ReplayError, match="lower learning-rate or set clip"):
        aggregate(wild, [report_to(wild)], CAP)


def test_any_device_that_a_frame_can_name_is_folded_or_refused() -> None:
    report = report_to(ASKED, 2**32 - 1)
    with pytest.raises(SamaraError):
        aggregate(ASKED, [Report.decode(report.encode())], CAP).encode()


# Sampling


@pytest.mark.parametrize("fraction", ["1", "0.5", "0.1", "0.07", "0.001"])
def test_a_cohort_is_a_share_rounded_up_and_at_least_the_minimum(fraction: str) -> None:
    for present, minimum in product(range(1, 130), (1, 5, 50)):
        share = math.ceil(Fraction(fraction) * present)
        chosen = sample_cohort(3, 1, range(present), float(fraction), minimum)
        assert len(chosen) == min(present, max(minimum, share))
        assert chosen == sorted(set(chosen))
        assert set(chosen) <= set(range(present))


def test_a_cohort_of_nobody_is_empty() -> None:
    assert sample_cohort(3, 1, [], 0.5, 2) == []


def test_every_device_is_picked_equally_often() -> None:
    rounds, picked = 2000, np.zeros(20)
    for number in range(1, rounds + 1):
        picked[sample_cohort(3, number, range(20), 0.25, 1)] += 1
    deviation = np.sqrt(rounds * 0.25 * 0.75)
    assert np.abs(picked - rounds * 0.25).max() < 5 * deviation
