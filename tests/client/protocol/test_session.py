from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import delta_of, history_of, layout_of
from numpy.typing import NDArray

from samara.client.protocol import session as session_module
from samara.client.protocol.session import Session, SharedCatchUp
from samara.shared.errors import CatchUpError
from samara.shared.protocol.ledger.records import CatchUp, LedgerHeader, Record, Snapshot

LAYOUT = layout_of()
HISTORY = history_of([delta_of(n) for n in (1, 2, 3)], LAYOUT)
HEADER = HISTORY.header


def catch_up(session: Session, catch_up: CatchUp, goal: int) -> Session:
    """The session after catching up to a round of the history."""
    return session.catch_up(catch_up, HEADER, LAYOUT, goal, HISTORY.digests[goal])


@pytest.fixture
def session() -> Session:
    """The session after round 1."""
    return catch_up(Session.begin(HEADER, LAYOUT), CatchUp(tail=HISTORY.tail(0, 1)), 1)


def assert_refused(
    session: Session, tail: bytes, goal: int, message: str, snapshot: bytes = b""
) -> None:
    before = session.to_bytes()
    with pytest.raises(CatchUpError, match=message):
        catch_up(session, CatchUp(snapshot, tail), goal)
    assert session.to_bytes() == before


def test_a_session_begins_where_the_ledger_does() -> None:
    begun = Session.begin(HEADER, LAYOUT)
    assert begun.position == HISTORY.header.start
    assert begun.digest == HISTORY.digests[0]
    assert not begun.state.any()


def test_catching_up_reaches_the_state_of_the_server(session: Session) -> None:
    after = catch_up(session, CatchUp(tail=HISTORY.tail(1)), 3)
    np.testing.assert_array_equal(after.state, HISTORY.states[3])
    assert (after.position.round, after.digest) == (3, HISTORY.digests[3])
    np.testing.assert_array_equal(session.state, HISTORY.states[1])


def test_nothing_new_leaves_the_session_where_it_is(session: Session) -> None:
    same = catch_up(session, CatchUp(), 1)
    assert same.to_bytes() == session.to_bytes()


def test_another_goal_is_refused(session: Session) -> None:
    assert_refused(session, HISTORY.tail(1), 2, "is at round 3")
    assert_refused(session, HISTORY.tail(1, 2), 3, "is at round 2")
    assert_refused(session, b"", 2, "send the rounds after 1")


def test_a_tail_with_a_gap_is_refused(session: Session) -> None:
    assert_refused(session, HISTORY.tail(2), 3, "round 2: ")


def test_what_a_session_has_already_is_passed_over(session: Session) -> None:
    """The server sends known rounds again, for example because an answer was lost."""
    after = catch_up(session, CatchUp(tail=HISTORY.tail(0)), 3)
    np.testing.assert_array_equal(after.state, HISTORY.states[3])
    assert catch_up(after, CatchUp(tail=HISTORY.tail(1)), 3).to_bytes() == after.to_bytes()


def test_the_tail_of_another_run_is_refused() -> None:
    other = Session.begin(LedgerHeader(0, b"another!", LAYOUT.hash), LAYOUT)
    assert_refused(other, HISTORY.tail(0), 3, "round 1: ")


def test_any_flipped_bit_of_a_tail_is_refused(session: Session) -> None:
    tail = HISTORY.tail(1)
    for bit in range(0, 8 * len(tail), 3):
        damaged = bytearray(tail)
        damaged[bit // 8] ^= 1 << bit % 8
        assert_refused(session, bytes(damaged), 3, "round [23]: ")


def test_any_truncation_of_a_tail_is_refused(session: Session) -> None:
    tail = HISTORY.tail(1)
    for size in range(len(tail)):
        assert_refused(session, tail[:size], 3, "round [123]")


@pytest.mark.parametrize("every", [1, 2, 3, 256])
def test_a_record_that_leads_elsewhere_than_it_says_is_found_by_one_replay(
    every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digests are checked after each record, or only at the end of a step."""
    position, tail = HISTORY.position(1), HISTORY.tail(0, 1)
    for number, end_digest in ((2, bytes(32)), (3, HISTORY.digests[3]), (4, bytes(32))):
        delta = HISTORY.deltas[number - 1] if number < 4 else delta_of(4)
        record = Record.create(position, delta, end_digest)
        position, tail = record.position, tail + record.encode()
    monkeypatch.setattr(session_module, "STEP_RECORDS", every)
    replayed: list[int] = []
    replay_batch = session_module.replay_batch

    def counted(
        state: NDArray[np.int64], batch: Sequence[Record], *others: Any
    ) -> NDArray[np.int64]:
        replayed.extend(record.delta.round for record in batch)
        return replay_batch(state, batch, *others)

    monkeypatch.setattr(session_module, "replay_batch", counted)
    begun = Session.begin(HEADER, LAYOUT)
    ahead = catch_up(begun, CatchUp(tail=HISTORY.tail(0, 1)), 1)
    for session in (begun, replace(ahead, position=replace(ahead.position, head=bytes(32)))):
        replayed.clear()
        before = session.to_bytes()
        with pytest.raises(CatchUpError, match=r"round [24]: .* gives a digest other than"):
            session.catch_up(CatchUp(tail=tail), HEADER, LAYOUT, 4, bytes(32))
        assert replayed == sorted(set(replayed))
        assert session.to_bytes() == before


def test_records_that_lead_elsewhere_are_not_replayed(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records' own hashes show that they lead to another round or state."""
    monkeypatch.setattr(session_module, "replay_batch", None)
    assert_refused(session, HISTORY.tail(1, 2), 3, "is at round 2")
    with pytest.raises(CatchUpError, match="is at round 3"):
        session.catch_up(CatchUp(tail=HISTORY.tail(1)), HEADER, LAYOUT, 3, bytes(32))


# Catching up by a snapshot


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_snapshot_and_the_records_after_it_reach_the_state_of_the_server(number: int) -> None:
    reported = Session.begin(HEADER, LAYOUT).with_report(b"token of", b"report")
    after = catch_up(reported, CatchUp(HISTORY.snapshot(number), HISTORY.tail(number)), 3)
    np.testing.assert_array_equal(after.state, HISTORY.states[3])
    assert (after.position, after.digest) == (HISTORY.position(3), HISTORY.digests[3])
    assert (after.token, after.report) == (b"token of", b"report")
    assert after.to_bytes() == Session.from_bytes(after.to_bytes()).to_bytes()


@pytest.mark.parametrize("number", [1, 2])
def test_a_snapshot_does_not_take_a_client_back(number: int) -> None:
    begun = catch_up(Session.begin(HEADER, LAYOUT), CatchUp(tail=HISTORY.tail(0, 2)), 2)
    after = catch_up(begun, CatchUp(HISTORY.snapshot(number), HISTORY.tail(number)), 3)
    np.testing.assert_array_equal(after.state, HISTORY.states[3])
    assert after.position == HISTORY.position(3)


def test_any_flipped_bit_of_a_snapshot_is_refused(session: Session) -> None:
    sound, tail = HISTORY.snapshot(2), HISTORY.tail(2)
    for bit in range(0, 8 * len(sound), 3):
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        assert_refused(session, tail, 3, "from round 1: ", bytes(damaged))


def test_a_snapshot_of_another_length_is_refused(session: Session) -> None:
    sound, tail = HISTORY.snapshot(2), HISTORY.tail(2)
    for size in range(1, len(sound)):
        assert_refused(session, tail, 3, "from round 1: ", sound[:size])
    assert_refused(session, tail, 3, "has 352 bytes, not 353", sound + b"\0")


def test_a_snapshot_of_another_run_track_or_layout_is_refused(session: Session) -> None:
    link = HISTORY.links[2]
    assert link is not None
    for other in (
        replace(HEADER, run_id=b"another!"),
        replace(HEADER, track=1),
        replace(HEADER, layout_hash=bytes(32)),
    ):
        foreign = b"".join(Snapshot(other, link, HISTORY.states[2]).parts())
        assert_refused(session, HISTORY.tail(2), 3, "another run, track or layout", foreign)


def test_a_snapshot_with_another_state_or_round_does_not_fit_the_chain(session: Session) -> None:
    """The checksums of the altered snapshots are right, but the records do not continue them."""
    link = HISTORY.links[2]
    assert link is not None
    for other in (
        replace(link, end_digest=HISTORY.digests[3]),
        replace(link, previous=bytes(32), end_digest=HISTORY.digests[3]),
        replace(link, round=1, end_digest=HISTORY.digests[3]),
        replace(link, round=4, end_digest=HISTORY.digests[3]),
    ):
        forged = b"".join(Snapshot(HEADER, other, HISTORY.states[3]).parts())
        assert_refused(session, HISTORY.tail(2), 3, "from round 1: |is at round 4", forged)
        unproven = b"".join(Snapshot(HEADER, other, HISTORY.states[2]).parts())
        assert_refused(session, HISTORY.tail(2), 3, "is not the digest after", unproven)


def test_another_round_than_the_servers_is_refused(session: Session) -> None:
    link = HISTORY.links[3]
    assert link is not None
    forged = b"".join(Snapshot(HEADER, replace(link, round=9), HISTORY.states[3]).parts())
    assert_refused(session, b"", 3, "is at round 9", forged)


def test_bytes_hold_the_whole_session(session: Session) -> None:
    reported = session.with_report(b"token of", b"report")
    saved = reported.to_bytes()
    read = Session.from_bytes(saved)
    assert read.to_bytes() == saved
    np.testing.assert_array_equal(read.state, reported.state)
    assert (read.position, read.digest) == (
        reported.position,
        reported.digest,
    )
    assert (read.token, read.report) == (b"token of", b"report")
    catch_up(read, CatchUp(tail=HISTORY.tail(1)), 3)


def test_catching_up_keeps_the_last_answer(session: Session) -> None:
    reported = session.with_report(b"token of", b"report")
    after = catch_up(reported, CatchUp(tail=HISTORY.tail(1)), 3)
    assert (after.token, after.report) == (b"token of", b"report")


def test_sessions_of_a_process_share_the_replay_of_the_same_records(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, replayed = SharedCatchUp(), []
    replay = Session.catch_up

    def counted(session: Session, catch_up: CatchUp, *others: Any) -> Session:
        replayed.append(len(catch_up))
        return replay(session, catch_up, *others)

    monkeypatch.setattr(Session, "catch_up", counted)

    def reach(session: Session, tail: bytes, goal: int) -> Session:
        return shared.reach(
            session, CatchUp(tail=tail), HEADER, LAYOUT, goal, HISTORY.digests[goal]
        )

    tail = HISTORY.tail(1)
    first, other = session.with_report(b"token", b"report"), session
    for each in (first, other):
        after = reach(each, tail, 3)
        np.testing.assert_array_equal(after.state, HISTORY.states[3])
        assert (after.digest, after.report) == (HISTORY.digests[3], each.report)
        reach(after, b"", 3)
    assert replayed == [len(tail), 0, 0]
    begun = Session.begin(HEADER, LAYOUT)  # at another round: a replay of its own
    np.testing.assert_array_equal(reach(begun, HISTORY.tail(0), 3).state, HISTORY.states[3])
    with pytest.raises(CatchUpError):
        reach(session, tail[:-1], 3)
    np.testing.assert_array_equal(reach(session, tail, 3).state, HISTORY.states[3])
