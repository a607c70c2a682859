import numpy as np
import pytest
from helpers import RUN_ID, delta_of, history_of, layout_of

from client.session import Session
from shared.errors import CatchUpError

LAYOUT = layout_of()
HISTORY = history_of([delta_of(n) for n in (1, 2, 3)], LAYOUT)


@pytest.fixture
def session() -> Session:
    """After round 1."""
    begun = Session.begin(LAYOUT, RUN_ID, 0)
    return begun.caught_up(HISTORY.tail(0, 1), LAYOUT, HISTORY.digests[1])


def assert_refused(session: Session, tail: bytes, goal: bytes, message: str) -> None:
    before = session.to_bytes()
    with pytest.raises(CatchUpError, match=message):
        session.caught_up(tail, LAYOUT, goal)
    assert session.to_bytes() == before


def test_a_session_begins_where_the_ledger_does() -> None:
    begun = Session.begin(LAYOUT, RUN_ID, 0)
    assert begun.position == HISTORY.header.start
    assert begun.digest == HISTORY.digests[0]
    assert not begun.state.any()


def test_catching_up_reaches_the_state_of_the_server(session: Session) -> None:
    caught_up = session.caught_up(HISTORY.tail(1), LAYOUT, HISTORY.digests[3])
    np.testing.assert_array_equal(caught_up.state, HISTORY.states[3])
    assert (caught_up.position.round, caught_up.digest) == (3, HISTORY.digests[3])
    np.testing.assert_array_equal(session.state, HISTORY.states[1])


def test_nothing_new_leaves_the_session_where_it_is(session: Session) -> None:
    same = session.caught_up(b"", LAYOUT, HISTORY.digests[1])
    assert same.to_bytes() == session.to_bytes()


def test_another_goal_is_refused(session: Session) -> None:
    assert_refused(session, HISTORY.tail(1), HISTORY.digests[2], "stands at round 3")
    assert_refused(session, HISTORY.tail(1, 2), HISTORY.digests[3], "stands at round 2")
    assert_refused(session, b"", HISTORY.digests[2], "send the rounds after 1")


def test_a_tail_with_a_gap_or_a_repetition_is_refused(session: Session) -> None:
    assert_refused(session, HISTORY.tail(2), HISTORY.digests[3], "round 2: ")
    assert_refused(session, HISTORY.tail(0), HISTORY.digests[3], "round 2: ")


def test_the_tail_of_another_run_is_refused() -> None:
    other = Session.begin(LAYOUT, b"another!", 0)
    assert_refused(other, HISTORY.tail(0), HISTORY.digests[3], "round 1: ")


def test_any_flipped_bit_of_a_tail_is_refused(session: Session) -> None:
    tail = HISTORY.tail(1)
    for bit in range(0, 8 * len(tail), 3):
        damaged = bytearray(tail)
        damaged[bit // 8] ^= 1 << bit % 8
        assert_refused(session, bytes(damaged), HISTORY.digests[3], "round [23]: ")


def test_any_truncation_of_a_tail_is_refused(session: Session) -> None:
    tail = HISTORY.tail(1)
    for size in range(len(tail)):
        assert_refused(session, tail[:size], HISTORY.digests[3], "round [123]")


def test_a_record_that_leads_elsewhere_than_it_says_is_refused(session: Session) -> None:
    other = layout_of(24)
    with pytest.raises(CatchUpError, match="round 1: replaying it gives another digest"):
        Session.begin(LAYOUT, RUN_ID, 0).caught_up(HISTORY.tail(0), other, HISTORY.digests[3])


def test_bytes_hold_the_whole_session(session: Session) -> None:
    answered = session.answered(b"token of", b"report")
    saved = answered.to_bytes()
    read = Session.from_bytes(saved)
    assert read.to_bytes() == saved
    np.testing.assert_array_equal(read.state, answered.state)
    assert (read.position, read.digest) == (answered.position, answered.digest)
    assert (read.token, read.report) == (b"token of", b"report")
    read.caught_up(HISTORY.tail(1), LAYOUT, HISTORY.digests[3])


def test_catching_up_keeps_the_last_answer(session: Session) -> None:
    answered = session.answered(b"token of", b"report")
    caught_up = answered.caught_up(HISTORY.tail(1), LAYOUT, HISTORY.digests[3])
    assert (caught_up.token, caught_up.report) == (b"token of", b"report")
