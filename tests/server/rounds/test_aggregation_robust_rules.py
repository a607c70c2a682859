"""Every rule agrees with a plain numpy reference, and withstands one extreme report."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from helpers import instruction_with, layout_of, report_to
from numpy.typing import NDArray

from samara.server.rounds.aggregation import (
    aggregate,
    centering_weights,
    hostile_count,
    krum_selection,
    mean_loss,
    norm_factors,
    observe_round,
    trimmed_mean,
    usual_limit,
)
from samara.server.rounds.rule import Rule
from samara.shared.errors import ConfigError
from samara.shared.protocol.directions import directions
from samara.shared.protocol.frames.instructions import SeedPolicy, TrainInstruction
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.replay import replay, zero_state
from samara.shared.settings.config import RunConfig
from samara.shared.settings.setting import with_current_keys

CAP = 10_000
LAYOUT = layout_of(60)
REPORT_RULES: tuple[str, ...] = (
    "mean",
    "median-norm",
    "multi-krum",
    "centered-clipping",
)
COORDINATE_RULES: tuple[str, ...] = ("trimmed-mean", "median")


def instruction_of(policy: SeedPolicy) -> TrainInstruction:
    return instruction_with(steps=2, queries=3, seed_policy=policy, layout_hash=LAYOUT.hash)


def update(asked: TrainInstruction, reports: list[Report], name: str) -> NDArray[np.float64]:
    """The change of the weights, float64 [d]."""
    delta = aggregate(asked, reports, CAP, rule=Rule(name, LAYOUT))
    state = replay(zero_state(LAYOUT.size), delta.scalar_groups(), LAYOUT.distribution)
    return np.ldexp(state.astype(float), -51)


def update_of(asked: TrainInstruction, report: Report) -> NDArray[np.float64]:
    """The change of the weights by one report alone, by its definition, float64 [d]."""
    if asked.seed_policy is SeedPolicy.POOL:
        seeds = asked.seeds(report.client).ravel()[: report.gradients.size]
    else:
        seeds = asked.seeds(report.client)[: report.steps].ravel()
    z = directions(seeds, LAYOUT.size, LAYOUT.distribution) / 2048
    scaled = report.gradients.astype(float).ravel()
    return -asked.learning_rate / asked.queries * scaled @ z


def reports_of(asked: TrainInstruction, clients: int = 7, hostile: int = 0) -> list[Report]:
    reports = [report_to(asked, client, 100 + client) for client in range(clients)]
    wild = [
        replace(report, gradients=report.gradients * np.float32(1e3), examples=10**6)
        for report in reports[:hostile]
    ]
    return [*wild, *reports[hostile:]]


@pytest.mark.parametrize(
    ("clients", "hostile"), [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (8, 2), (32, 10)]
)
def test_a_minority_is_expected_to_be_hostile(clients: int, hostile: int) -> None:
    assert hostile_count(clients) == hostile


def test_of_two_values_the_lower_is_the_limit() -> None:
    assert usual_limit(np.array([7.0, 3.0])) == 3
    assert usual_limit(np.array([9.0, 1.0, 4.0])) == 4


@pytest.mark.parametrize("clients", range(1, 101))
def test_the_limit_is_of_honest_values_whatever_hostile_clients_report(clients: int) -> None:
    """With large hostile values, the limit is the others' median or the (f + 1)-th value.

    With small hostile values, the limit is at least the smallest honest value.
    """
    hostile = hostile_count(clients)
    others = np.arange(1.0, clients - hostile + 1)
    median = (len(others) + 1) // 2
    large = usual_limit(np.concatenate([others, np.full(hostile, 1e9)]))
    assert large == max(median, hostile + 1)
    assert large <= len(others)
    assert usual_limit(np.concatenate([others, np.zeros(hostile)])) >= 1
    everybody = np.arange(1.0, clients + 1)
    assert usual_limit(everybody) <= np.median(everybody)


def test_a_trimmed_mean_leaves_out_both_ends_of_every_element() -> None:
    values = np.array([[1.0, -50.0], [2.0, 5.0], [1e9, 6.0], [3.0, 7.0]])
    np.testing.assert_array_equal(trimmed_mean(values), [2.5, 5.5])


def test_norms_are_cut_to_the_limit() -> None:
    np.testing.assert_array_equal(norm_factors(np.array([1.0, 2.0, 8.0])), [1, 1, 0.25])
    np.testing.assert_array_equal(norm_factors(np.zeros(3)), np.ones(3))


def test_krum_selects_by_the_definition() -> None:
    rows = np.random.default_rng(0).normal(size=(9, 5))
    rows[[2, 6]] += 30
    f, scores = hostile_count(9), []
    for i, row in enumerate(rows):
        squares = sorted(
            float(np.sum((row - other) ** 2)) for j, other in enumerate(rows) if i != j
        )
        scores.append(sum(squares[: 9 - f - 2]))
    expected = np.isin(np.arange(9), np.argsort(scores)[: 9 - f])
    np.testing.assert_array_equal(krum_selection(rows @ rows.T), expected)
    assert not expected[[2, 6]].any()


def test_centered_clipping_is_that_of_the_vectors_themselves() -> None:
    rng = np.random.default_rng(1)
    rows, weights = rng.normal(size=(6, 4)), np.full(6, 1 / 6)
    rows[0] *= 1000
    center = np.zeros(4)
    for _ in range(5):
        away = rows - center
        distances = np.linalg.norm(away, axis=1)
        limit = np.sort(distances)[2]
        center = center + weights @ (away * np.minimum(1, limit / distances)[:, None])
    np.testing.assert_allclose(centering_weights(rows @ rows.T, weights) @ rows, center)


@pytest.mark.parametrize("policy", SeedPolicy)
def test_the_mean_is_the_default_of_the_function(policy: SeedPolicy) -> None:
    asked = instruction_of(policy)
    reports = reports_of(asked)
    named = aggregate(asked, reports, CAP, rule=Rule("mean", LAYOUT))
    assert aggregate(asked, reports, CAP).encode() == named.encode()


@pytest.mark.parametrize("policy", SeedPolicy)
def test_median_norm_is_a_mean_of_reports_cut_to_the_limit_of_the_norms(policy: SeedPolicy) -> None:
    asked = instruction_of(policy)
    reports = reports_of(asked, hostile=2)
    norms = np.array([np.linalg.norm(report.gradients.astype(float)) for report in reports])
    # the third smallest of 7, the median without the two largest
    weights = np.minimum([report.examples for report in reports], 104)
    expected = sum(
        weight / weights.sum() * min(1, np.sort(norms)[2] / norm) * update_of(asked, report)
        for weight, norm, report in zip(weights, norms, reports, strict=True)
    )
    np.testing.assert_allclose(update(asked, reports, "median-norm"), expected, atol=1e-8)


@pytest.mark.parametrize("policy", SeedPolicy)
@pytest.mark.parametrize("name", ["multi-krum", "centered-clipping"])
def test_rules_of_distances_weigh_whole_reports(policy: SeedPolicy, name: str) -> None:
    asked = instruction_of(policy)
    reports = [replace(report, examples=100) for report in reports_of(asked, hostile=2)]
    parts = np.stack([update_of(asked, report) for report in reports])
    compared = parts
    if policy is SeedPolicy.SHARED:
        compared = np.stack([report.gradients.astype(float).ravel() for report in reports])
    products = compared @ compared.T
    if name == "multi-krum":
        selected = krum_selection(products)
        assert not selected[:2].any()
        shares = selected / selected.sum()
    else:
        shares = centering_weights(products, np.full(7, 1 / 7))
    np.testing.assert_allclose(update(asked, reports, name), shares @ parts, atol=1e-6)


@pytest.mark.parametrize("name", COORDINATE_RULES)
def test_rules_of_coordinates_take_every_projected_gradient_for_itself(
    name: str,
) -> None:
    asked = instruction_of(SeedPolicy.SHARED)
    reports = reports_of(asked, hostile=2)
    rows = np.sort(np.stack([report.gradients.astype(float) for report in reports]), axis=0)
    middle = rows[3] if name == "median" else rows[2:5].mean(axis=0)
    whole = replace(reports[0], gradients=middle.astype(np.float32))
    np.testing.assert_allclose(update(asked, reports, name), update_of(asked, whole), atol=1e-7)


@pytest.mark.parametrize("name", COORDINATE_RULES)
def test_a_step_that_most_clients_did_not_take_is_not_set_by_the_others(
    name: str,
) -> None:
    asked = instruction_of(SeedPolicy.SHARED)
    short = [report_to(asked, client, steps=1) for client in range(6)]
    both = report_to(asked, 6)
    delta = aggregate(asked, [*short, both], CAP, rule=Rule(name, LAYOUT))
    assert not delta.groups[0].scalars.coefficients[3:].any()
    assert delta.groups[0].scalars.coefficients[:3].any()


@pytest.mark.parametrize("name", [*REPORT_RULES[1:], *COORDINATE_RULES])
def test_losses_curvatures_and_squares_are_those_of_honest_clients(name: str) -> None:
    asked = replace(instruction_of(SeedPolicy.SHARED), curvature_every=1)
    rule = Rule(name, LAYOUT)
    honest = [
        replace(report, mean_loss=0.5 + report.client / 100, curvature=3.0 + report.client)
        for report in reports_of(asked)
    ]
    before = observe_round(asked, honest, CAP, rule)
    largest = max(float(np.sum(np.square(r.gradients, dtype=float))) / 9 for r in honest)
    for lie in (
        {"mean_loss": 1e6},
        {"mean_loss": -1e6},
        {"curvature": 1e12},
        {"curvature": -1e12},
        {"gradients": np.full((2, 3), 1e6, np.float32)},
        {"examples": 10**6},
    ):
        liars: list[Report] = [replace(report, **lie) for report in honest[:2]]  # type: ignore[arg-type]
        after = observe_round(asked, [*liars, *honest[2:]], CAP, rule)
        assert 0.5 <= after.loss <= 0.56
        assert after.curvature is not None
        assert 3 <= after.curvature <= 9
        assert after.mean_square <= 5 * before.mean_square
        assert after.local_squared_norm <= 5 * before.local_squared_norm
        assert after.squared_norm <= largest
        loss = mean_loss([*liars, *honest[2:]], CAP, rule)
        assert loss is not None
        assert 0.5 <= loss <= 0.56


def test_rules_of_coordinates_need_shared_seeds() -> None:
    for name, policy in (("median", "independent"), ("trimmed-mean", "pool")):
        with pytest.raises(ConfigError, match="set seed-policy to shared"):
            RunConfig.of({"aggregation.rule": name, "seed-policy": policy}, "test")
    with pytest.raises(ConfigError, match=r"aggregation\.rule: Input should be 'mean'"):
        RunConfig.of({"aggregation.rule": "krum"}, "test")


def test_the_rule_is_part_of_the_run_id_but_that_of_earlier_versions() -> None:
    """A run that an earlier version began keeps its id, because its rule is not in the id."""
    identities: list[dict[str, Any]] = [
        RunConfig.of({"aggregation.rule": name}, "test").identity()
        for name in ("mean", "median-norm", "multi-krum")
    ]
    assert all(one != other for one, other in combinations(identities, 2))
    assert "aggregation.rule" not in identities[0]
    stored = RunConfig().flat()
    del stored["aggregation.rule"]
    assert with_current_keys(RunConfig, stored)["aggregation.rule"] == "mean"
    assert with_current_keys(RunConfig, RunConfig().flat())["aggregation.rule"] == "median-norm"
