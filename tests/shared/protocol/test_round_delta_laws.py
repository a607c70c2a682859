"""Rounds that revert other rounds, in any order and any number of times."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from samara.shared.protocol.frames.instructions import PERSONAL_TRACK
from samara.shared.protocol.replay import CoefficientBlock, replay, zero_state
from samara.shared.protocol.round_delta import (
    ConsecutiveSeeds,
    DerivedSeeds,
    Group,
    PoolSeeds,
    RoundDelta,
    SeedSource,
    revert_delta,
    seeds_of,
)

D = 16
QUERIES = 2
MOVES = st.lists(st.one_of(st.none(), st.integers(0, 12)), min_size=1, max_size=12)
"""Rounds of a run: None is a round of steps, and a number n is a revert to round n or earlier."""


def stepped(number: int, coefficient: int) -> RoundDelta:
    """A round of two equal groups, so that a test does not confuse it with a reverting round."""
    source = DerivedSeeds(7, 0, 1, QUERIES)
    group = Group(number, source, CoefficientBlock(20, np.full(QUERIES, coefficient, np.int32)))
    return RoundDelta(number, PERSONAL_TRACK, bytes(8), (), (group, group))


@given(MOVES, st.integers(1, 5))
def test_a_return_leads_where_it_says_by_what_is_left_of_the_steps(
    moves: list[int | None], coefficient: int
) -> None:
    deltas: list[RoundDelta] = []
    states, steps = [zero_state(D)], [0]  # after every round; steps less those reverted
    for number, move in enumerate(moves, start=1):
        if move is None:
            deltas.append(stepped(number, coefficient))
            steps.append(steps[-1] + 1)
        else:
            back_to = min(move, number - 1)
            deltas.append(revert_delta(number, PERSONAL_TRACK, bytes(8), deltas[back_to:]))
            assert len(deltas[-1].groups) <= 2 * moves[:number].count(None)
            if back_to == 0:
                assert len(deltas[-1].groups) == 2 * steps[-1]
            steps.append(steps[back_to])
        states.append(replay(states[-1], deltas[-1].scalar_groups(), "gaussian"))
        if move is not None:
            np.testing.assert_array_equal(states[-1], states[back_to])


SOURCES = st.one_of(
    st.builds(
        DerivedSeeds,
        st.integers(0, 2**64 - 1),
        st.integers(0, 9),
        st.integers(1, 3),
        st.integers(1, 3),
    ),
    st.builds(ConsecutiveSeeds, st.integers(0, 2**64 - 1), st.integers(1, 4)),
    st.builds(PoolSeeds, st.integers(0, 2**64 - 1), st.just(np.arange(3, dtype=np.uint32))),
    st.just(np.array([1, 2**64 - 1], np.uint64)),
)


@given(st.lists(SOURCES, max_size=8))
def test_seeds_of_several_sources_are_those_of_each(sources: list[SeedSource]) -> None:
    none = CoefficientBlock(0, np.zeros(0, np.int32))
    groups = [Group(1, source, none) for source in sources]
    for seeds, group in zip(seeds_of(groups), groups, strict=True):
        np.testing.assert_array_equal(seeds, group.seeds())
