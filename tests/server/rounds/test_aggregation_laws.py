from dataclasses import replace

import numpy as np
from helpers import instruction_with, layout_of, report_to
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from samara.server.rounds.aggregation import aggregate
from samara.server.rounds.cohort_sampling import sample_cohort
from samara.server.rounds.rule import Rule
from samara.shared.protocol.frames.instructions import SeedPolicy
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.replay import replay, zero_state

EXAMPLES = st.integers(1, 2**32 - 1)
POLICIES = st.sampled_from(SeedPolicy)
CLIENTS = st.sets(st.integers(0, 2**32 - 1), min_size=1, max_size=40)
GRADIENTS = hnp.arrays(np.float32, (2, 4), elements=st.floats(-100, 100, width=32))

LAYOUT = layout_of(30)
ROBUST = st.one_of(
    st.tuples(st.sampled_from(["median-norm", "multi-krum", "centered-clipping"]), POLICIES),
    st.tuples(st.sampled_from(["trimmed-mean", "median"]), st.just(SeedPolicy.SHARED)),
)
"""All rules except `mean`, with the seed policies that each allows."""


@given(
    POLICIES,
    st.lists(st.tuples(EXAMPLES, st.integers(1, 2)), max_size=6),
    st.randoms(use_true_random=False),
)
def test_the_order_of_reports_does_not_matter(
    policy: SeedPolicy, clients: list[tuple[int, int]], random: object
) -> None:
    asked = instruction_with(seed_policy=policy)
    reports = [report_to(asked, client, n, k) for client, (n, k) in enumerate(clients)]
    shuffled = list(reports)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert aggregate(asked, shuffled, 10_000).encode() == aggregate(asked, reports, 10_000).encode()


@given(GRADIENTS, EXAMPLES, st.integers(1, 30), st.sampled_from([0.0, 0.5, 10.0]))
def test_equal_clients_with_shared_seeds_count_as_one(
    gradients: NDArray[np.float32], examples: int, count: int, clip: float
) -> None:
    asked = instruction_with(seed_policy=SeedPolicy.SHARED, clip=clip)

    def delta_and_state(clients: int) -> tuple[list[bytes], list[int]]:
        report = report_to(asked, 0, examples, gradients=gradients)
        reports = [replace(report, client=client) for client in range(clients)]
        delta = aggregate(asked, reports, 10_000)
        state = replay(zero_state(30), delta.scalar_groups(), "gaussian")
        return [group.encode() for group in delta.groups], state.tolist()

    assert delta_and_state(count) == delta_and_state(1)


@given(POLICIES, st.lists(EXAMPLES, min_size=1, max_size=8))
def test_no_client_moves_the_round_more_than_alone(policy: SeedPolicy, clients: list[int]) -> None:
    asked = instruction_with(seed_policy=policy)
    reports = [report_to(asked, client, n) for client, n in enumerate(clients)]

    def reach(some: list[Report]) -> float:
        groups = [group.scalars for group in aggregate(asked, some, 10_000).groups]
        return sum(
            float(np.abs(p.coefficients.astype(np.int64)).sum()) * 2.0 ** (p.shift - 40)
            for p in groups
        )

    assert reach(reports) <= max(reach([report]) for report in reports) + 1e-9


@given(
    ROBUST,
    st.lists(st.tuples(EXAMPLES, st.integers(1, 2)), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_no_rule_depends_on_the_order_of_reports(
    rule_and_policy: tuple[str, SeedPolicy],
    clients: list[tuple[int, int]],
    random: object,
) -> None:
    name, policy = rule_and_policy
    asked, rule = instruction_with(seed_policy=policy), Rule(name, LAYOUT)
    reports = [report_to(asked, client, n, k) for client, (n, k) in enumerate(clients)]
    shuffled = list(reports)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    ordered = aggregate(asked, reports, 10_000, rule=rule).encode()
    assert aggregate(asked, shuffled, 10_000, rule=rule).encode() == ordered


@given(ROBUST, GRADIENTS, EXAMPLES, st.integers(1, 9))
def test_every_rule_makes_of_equal_reports_the_report(
    rule_and_policy: tuple[str, SeedPolicy],
    gradients: NDArray[np.float32],
    examples: int,
    count: int,
) -> None:
    name, _ = rule_and_policy
    asked = instruction_with(seed_policy=SeedPolicy.SHARED)
    report = report_to(asked, 0, examples, gradients=gradients)
    reports = [replace(report, client=client) for client in range(count)]
    delta = aggregate(asked, reports, 10_000, rule=Rule(name, LAYOUT))
    state = replay(zero_state(30), delta.scalar_groups(), "gaussian")
    alone = replay(zero_state(30), aggregate(asked, [report], 10_000).scalar_groups(), "gaussian")
    np.testing.assert_allclose(np.ldexp(state, -51), np.ldexp(alone, -51), rtol=1e-9, atol=1e-7)


@given(
    ROBUST,
    st.integers(3, 9),
    st.sampled_from([1e-3, -1.0, 30.0, -1e4, 1e6]),
    EXAMPLES,
)
def test_one_client_moves_a_round_no_farther_than_honest_ones(
    rule_and_policy: tuple[str, SeedPolicy], count: int, factor: float, examples: int
) -> None:
    """The norm of a round's coefficients is at most that of the largest honest report."""
    name, policy = rule_and_policy
    asked = instruction_with(seed_policy=policy)
    reports = [report_to(asked, client) for client in range(count)]
    wild = np.clip(reports[0].gradients * np.float32(factor), -1e6, 1e6)
    reports[0] = replace(reports[0], gradients=wild, examples=examples)

    def reach(some: list[Report], rule: str) -> float:
        groups = aggregate(asked, some, 10_000, rule=Rule(rule, LAYOUT)).groups
        squares = [
            np.sum(np.square(np.ldexp(g.scalars.coefficients, g.scalars.shift - 40)))
            for g in groups
        ]
        return float(np.sqrt(np.sum(squares)))

    largest = max(reach([report], "mean") for report in reports[1:])
    assert reach(reports, name) <= largest * (1 + 1e-6) + 1e-9


@given(st.integers(0, 2**63), st.integers(1, 2**32 - 1), CLIENTS, st.integers(1, 100))
def test_a_cohort_depends_on_who_is_there_and_not_on_their_order(
    run_seed: int, number: int, clients: set[int], percent: int
) -> None:
    ascending = sorted(clients)
    chosen = sample_cohort(run_seed, number, ascending, percent / 100, 1)
    assert chosen == sample_cohort(
        run_seed, number, [*reversed(ascending), *ascending], percent / 100, 1
    )
    assert set(chosen) <= clients


@given(st.integers(0, 2**63), st.integers(1, 99), CLIENTS, st.integers(1, 100), st.integers(1, 9))
def test_one_device_less_changes_at_most_one_place(
    run_seed: int, number: int, clients: set[int], percent: int, minimum: int
) -> None:
    missing = min(clients)
    chosen, without = (
        set(sample_cohort(run_seed, number, present, percent / 100, minimum))
        for present in (clients, clients - {missing})
    )
    assert len(chosen - without) <= 1
    assert len(without - chosen) <= 1
    assert missing in chosen or without <= chosen
