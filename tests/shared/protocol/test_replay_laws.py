from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from samara.shared.protocol.directions import Distribution, directions
from samara.shared.protocol.replay import (
    COEFFICIENT_BITS,
    MAX_DENSE_VALUE,
    MAX_SHIFT,
    STATE_BITS,
    CoefficientBlock,
    DenseValues,
    Entry,
    ScalarGroup,
    Shrink,
    check_fits,
    quantize,
    rebuild,
    replay,
    summed,
    to_float32,
)

WIDEST = 2**31 - 1
SIZE = 9
DISTRIBUTIONS = st.sampled_from(["gaussian", "rademacher"])
STATES = hnp.arrays(np.int64, SIZE, elements=st.integers(-(2**60), 2**60))
COEFFICIENTS = hnp.arrays(
    np.float64,
    st.integers(1, 6),
    elements=st.floats(-1024, 1024) | st.floats(-1, 1) | st.floats(-1e-9, 1e-9),
)


@st.composite
def groups(draw: st.DrawFn) -> ScalarGroup:
    count = draw(st.integers(0, 5))
    seeds = hnp.arrays(np.uint64, count, elements=st.integers(0, 2**64 - 1))
    coefficients = hnp.arrays(np.int32, count, elements=st.integers(-WIDEST, WIDEST))
    return draw(seeds), CoefficientBlock(draw(st.integers(0, MAX_SHIFT)), draw(coefficients))


@st.composite
def dense_values(draw: st.DrawFn) -> DenseValues:
    first = draw(st.integers(0, SIZE))
    value = st.integers(-MAX_DENSE_VALUE // 8, MAX_DENSE_VALUE // 8)
    count = st.integers(0, SIZE - first)
    return DenseValues(first, draw(hnp.arrays(np.int64, count, elements=value)))


@given(
    STATES,
    st.lists(groups() | dense_values(), max_size=4),
    st.randoms(use_true_random=False),
    DISTRIBUTIONS,
)
def test_the_order_of_groups_and_dense_values_does_not_matter(
    state: NDArray[np.int64], some: list[Entry], random: object, how: Distribution
) -> None:
    shuffled = list(some)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(replay(state, some, how), replay(state, shuffled, how))


@given(STATES, groups(), st.integers(0, 5), DISTRIBUTIONS)
def test_a_group_may_be_split_and_reordered(
    state: NDArray[np.int64], group: ScalarGroup, cut: int, how: Distribution
) -> None:
    seeds, whole = group
    head = (seeds[:cut], CoefficientBlock(whole.shift, whole.coefficients[:cut]))
    tail = (seeds[cut:][::-1], CoefficientBlock(whole.shift, whole.coefficients[cut:][::-1]))
    np.testing.assert_array_equal(replay(state, [group], how), replay(state, [tail, head], how))


@given(STATES, groups(), st.integers(0, SIZE), DISTRIBUTIONS)
def test_a_range_of_elements_may_be_replayed_alone(
    state: NDArray[np.int64], group: ScalarGroup, cut: int, how: Distribution
) -> None:
    whole = replay(state, [group], how)
    np.testing.assert_array_equal(replay(state[:cut], [group], how), whole[:cut])
    seeds, coefficients = summed([group])
    z = directions(seeds, SIZE, how)[:, cut:].astype(np.int64)
    np.testing.assert_array_equal(state[cut:] + coefficients @ z, whole[cut:])


ENTRIES = st.lists(groups() | dense_values() | st.builds(Shrink, st.integers(1, 62)), max_size=6)


@given(STATES, dense_values(), DISTRIBUTIONS)
def test_opposite_dense_values_lead_back(
    state: NDArray[np.int64], dense: DenseValues, how: Distribution
) -> None:
    back = DenseValues(dense.first, -dense.values)
    after = replay(state, [dense], how)
    last = dense.first + len(dense.values)
    np.testing.assert_array_equal(
        after[dense.first : last], state[dense.first : last] + dense.values
    )
    np.testing.assert_array_equal(replay(after, [back], how), state)


@given(hnp.arrays(np.float64, 4, elements=st.floats(-1024, 1024)))
def test_numbers_become_the_nearest_dense_values(numbers: NDArray[np.float64]) -> None:
    dense = DenseValues.from_numbers(3, numbers)
    assert dense.bound <= MAX_DENSE_VALUE
    exact = [Fraction(number) * 2**STATE_BITS for number in numbers.tolist()]
    assert all(
        abs(v - e) <= Fraction(1, 2) for v, e in zip(dense.values.tolist(), exact, strict=True)
    )


@given(STATES, ENTRIES, st.integers(0, 6), DISTRIBUTIONS)
def test_replaying_head_and_then_tail_is_replaying_all(
    state: NDArray[np.int64], some: list[Entry], cut: int, how: Distribution
) -> None:
    in_two = replay(replay(state, some[:cut], how), some[cut:], how)
    np.testing.assert_array_equal(in_two, replay(state, some, how))


@given(STATES, ENTRIES, DISTRIBUTIONS)
def test_a_rebuild_is_the_rounds_one_by_one(
    state: NDArray[np.int64], entries: list[Entry], how: Distribution
) -> None:
    after = state
    for entry in entries:
        after = replay(after, [entry], how)
    np.testing.assert_array_equal(rebuild(state, entries, how), after)


@given(STATES, ENTRIES, DISTRIBUTIONS)
def test_what_fits_leaves_a_state_that_fits(
    state: NDArray[np.int64], entries: list[Entry], how: Distribution
) -> None:
    check_fits(replay(state, entries, how), [])


@given(STATES, groups(), DISTRIBUTIONS)
def test_opposite_coefficients_lead_back(
    state: NDArray[np.int64], group: ScalarGroup, how: Distribution
) -> None:
    seeds, scalars = group
    back = (seeds, CoefficientBlock(scalars.shift, -scalars.coefficients))
    np.testing.assert_array_equal(replay(replay(state, [group], how), [back], how), state)


@given(COEFFICIENTS)
def test_quantized_coefficients_are_the_nearest_under_the_smallest_shift(
    coefficients: NDArray[np.float64],
) -> None:
    passes = quantize(coefficients)
    shift = passes[0].shift
    exact = [Fraction(c) * 2**COEFFICIENT_BITS for c in coefficients.tolist()]
    total = sum(p.coefficients.astype(object) for p in passes)
    assert {p.shift for p in passes} == {shift}
    assert all(np.abs(p.coefficients.astype(np.int64)).max() <= WIDEST for p in passes)
    assert total.tolist() == [round(c / 2**shift) for c in exact]
    assert shift == 0 or max(abs(round(c / 2 ** (shift - 1))) for c in exact) > WIDEST
    assert len(passes) == 1 or shift == MAX_SHIFT
    lost = [abs(c - int(n) * 2**shift) for c, n in zip(exact, total, strict=True)]
    assert max(lost) <= Fraction(2**shift, 2)


@given(st.lists(groups(), max_size=4))
def test_sums_are_those_of_each_seed(of_rounds: list[ScalarGroup]) -> None:
    expected: dict[int, int] = {}
    for seeds, block in of_rounds:
        for seed, c in zip(seeds.tolist(), block.coefficients.tolist(), strict=True):
            expected[seed] = expected.get(seed, 0) + (c << block.shift)
    seeds, coefficients = summed(of_rounds)
    assert seeds.tolist() == sorted(seed for seed, c in expected.items() if c)
    assert coefficients.tolist() == [expected[seed] for seed in seeds.tolist()]


@given(hnp.arrays(np.int64, 20, elements=st.integers(-(2**62), 2**62)))
def test_weights_are_the_nearest_float32_of_the_state(state: NDArray[np.int64]) -> None:
    def nearest(number: int) -> Fraction:
        lost = 2 ** max(number.bit_length() - 24, 0)
        return Fraction(round(Fraction(number, lost)) * lost, 2**STATE_BITS)

    expected = [nearest(number) for number in state.tolist()]
    assert [Fraction(weight) for weight in to_float32(state).tolist()] == expected
