import numpy as np
from helpers import delta_of, history_of, layout_of
from hypothesis import given
from hypothesis import strategies as st

from samara.client.protocol.session import Session
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.replay import replay, zero_state

ROUNDS = 8
LAYOUT = layout_of(distribution="rademacher")
HISTORY = history_of([delta_of(n) for n in range(1, ROUNDS + 1)], LAYOUT)


@given(
    st.lists(st.tuples(st.integers(0, ROUNDS), st.integers(0, ROUNDS)), max_size=6), st.booleans()
)
def test_catching_up_in_any_pieces_and_by_any_snapshots_is_one_replay_of_all(
    stops: list[tuple[int, int]], saved: bool
) -> None:
    session = Session.begin(HISTORY.header, LAYOUT)
    for stop, by in [*sorted(stops), (ROUNDS, 0)]:
        since, snapshot = session.position.round, b""
        if since < by <= stop:
            since, snapshot = by, HISTORY.snapshot(by)
        catch_up = CatchUp(snapshot, HISTORY.tail(since, stop))
        goal = stop, HISTORY.digests[stop]
        session = session.catch_up(catch_up, HISTORY.header, LAYOUT, *goal)
        if saved:
            session = Session.from_bytes(session.to_bytes())
    groups = [group for delta in HISTORY.deltas for group in delta.scalar_groups()]
    whole = replay(zero_state(LAYOUT.size), groups, LAYOUT.distribution)
    np.testing.assert_array_equal(session.state, whole)
    assert session.position == HISTORY.position(ROUNDS)
    assert session.digest == HISTORY.digests[-1]
