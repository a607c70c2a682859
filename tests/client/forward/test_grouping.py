import numpy as np
import pytest
from helpers import layout_of
from hypothesis import given
from hypothesis import strategies as st

from samara.client.forward.grouping import (
    GROUPINGS,
    Grouping,
    Schedule,
    candidate_micro_batches,
    choose_fastest,
    distinct_groupings,
    find_largest_micro_batch,
    perturbations_per_pass,
    split_by_grouping,
)
from samara.shared.model.dual_forwarding import DualForwarding
from samara.shared.model.perturbations import Perturbations, PerturbedAdapters
from samara.shared.protocol.directions import directions

LAYOUT = layout_of()
CENTER = np.random.default_rng(0).normal(size=LAYOUT.size).astype(np.float32)


def points_of(queries: int) -> Perturbations:
    z = directions(np.arange(queries, dtype=np.uint64), LAYOUT.size, "gaussian")
    return Perturbations.from_arrays(LAYOUT, CENTER, z, 0.5)


def dual_of(queries: int) -> DualForwarding:
    z = directions(np.arange(queries, dtype=np.uint64), LAYOUT.size, "gaussian")
    return DualForwarding.begin(LAYOUT, CENTER, z, 0.5)


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("queries", [1, 2, 5])
@pytest.mark.parametrize("make", [points_of, dual_of])
def test_groups_hold_every_point_once(make: object, queries: int, grouping: Grouping) -> None:
    perturbations: PerturbedAdapters = make(queries)  # type: ignore[operator]
    whole = perturbations.tensor("second").numpy()
    seen = []
    for places, some in split_by_grouping(perturbations, grouping):
        assert len(places) == some.count == perturbations_per_pass(grouping, queries)
        np.testing.assert_array_equal(some.tensor("second").numpy(), whole[places])
        seen += list(places)
    assert sorted(seen) == list(range(2 * queries))


def test_a_single_point_is_left_whole() -> None:
    (places, alone), *rest = split_by_grouping(
        Perturbations.from_arrays(LAYOUT, CENTER), "sequential"
    )
    assert (list(places), alone.count, rest) == ([0], 1, [])


def test_both_forms_begin_with_the_same_adapters() -> None:
    for name in ("first", "second"):
        np.testing.assert_allclose(
            points_of(3).tensor(name), dual_of(3).tensor(name), rtol=0, atol=1e-6
        )


def test_one_query_has_no_outer_loop() -> None:
    assert distinct_groupings(1) == ("sequential", "inner")
    assert distinct_groupings(2) == GROUPINGS


stages = st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 1_000)), min_size=1, max_size=4)


@given(stages, st.integers(1, 200_000), st.integers(1, 64))
def test_what_fits_is_never_over_the_budget(
    stages: list[tuple[int, int]], budget: int, most: int
) -> None:
    tried = []

    def peak_bytes(examples: int) -> int:
        tried.append(examples)
        return max(fixed + each * examples for fixed, each in stages)

    fitting = find_largest_micro_batch(peak_bytes, budget, most)
    assert 0 <= fitting <= most
    assert all(peak_bytes(examples) <= budget for examples in list(tried) if examples > 1)
    assert fitting == 0 or peak_bytes(fitting) <= budget
    if fitting == 0:
        assert peak_bytes(1) > budget


@given(st.integers(1, 1_000))
def test_with_memory_in_proportion_all_that_fits_is_found(most: int) -> None:
    assert find_largest_micro_batch(lambda examples: 7 * examples, 7 * 100, most) == min(most, 100)


def test_micro_batches_are_halves() -> None:
    assert list(candidate_micro_batches(8)) == [8, 4, 2, 1]
    assert list(candidate_micro_batches(5)) == [5, 3, 2, 1]
    assert list(candidate_micro_batches(1)) == [1]


def test_the_fastest_is_chosen_and_close_ones_are_timed_again() -> None:
    slow, close, best = Schedule("both"), Schedule("inner"), Schedule("outer")
    times = {slow: [9.0], close: [1.0, 1.3, 1.3, 1.3], best: [1.2, 0.9, 1.2, 1.2]}
    calls = {schedule: iter(series) for schedule, series in times.items()}
    chosen, shortest = choose_fastest(times, lambda schedule: next(calls[schedule]))
    assert chosen == best
    assert shortest == {slow: 9.0, close: 1.0, best: 0.9}
    assert all(next(call, None) is None for call in calls.values())
