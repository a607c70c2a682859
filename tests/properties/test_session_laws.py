import numpy as np
from helpers import RUN_ID, delta_of, history_of, layout_of
from hypothesis import given
from hypothesis import strategies as st

from client.session import Session
from shared.replay import replay, zero_state

ROUNDS = 8
LAYOUT = layout_of(distribution="rademacher")
HISTORY = history_of([delta_of(n) for n in range(1, ROUNDS + 1)], LAYOUT)


@given(st.lists(st.integers(0, ROUNDS), max_size=6), st.booleans())
def test_catching_up_in_any_pieces_is_one_replay_of_all(stops: list[int], saved: bool) -> None:
    session = Session.begin(LAYOUT, RUN_ID, 0)
    for stop in [*sorted(stops), ROUNDS]:
        tail = HISTORY.tail(session.position.round, stop)
        session = session.caught_up(tail, LAYOUT, HISTORY.digests[stop])
        if saved:
            session = Session.from_bytes(session.to_bytes())
    groups = [group for delta in HISTORY.deltas for group in delta.scalar_groups()]
    whole = replay(zero_state(LAYOUT.size), groups, LAYOUT.distribution)
    np.testing.assert_array_equal(session.state, whole)
    assert session.position.head == HISTORY.ledger[-32:]
    assert session.digest == HISTORY.digests[-1]
