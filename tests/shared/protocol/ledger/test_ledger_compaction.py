"""The files that compaction deletes, and the catch-ups of clients that are behind."""

import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from helpers import History, delta_of, files_of, history_of, layout_of, write_files
from hypothesis import given, settings
from hypothesis import strategies as st

from samara.client.protocol.session import Session
from samara.shared.errors import LedgerError
from samara.shared.protocol.ledger import ledger as ledgers
from samara.shared.protocol.ledger.ledger import Ledger
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.ledger.verification import verify_ledger

ROUNDS = 7
DELTAS = [delta_of(n) for n in range(1, ROUNDS + 1)]
SMALL = history_of(DELTAS, layout_of(20))
"""A run in which a snapshot is longer than one record and shorter than two."""
LARGE = history_of(DELTAS, layout_of(200))
"""A run in which a snapshot is longer than all records together."""
HISTORIES = pytest.mark.parametrize("history", [SMALL, LARGE], ids=["small", "large"])


def opened(folder: Path, history: History, every: int = 2) -> closing[Ledger]:
    return closing(Ledger(folder, history.header, history.layout, every))


def names(*numbers: int) -> list[str]:
    """Names of files if every second round has a snapshot; segments then have odd numbers."""
    return [f"{number:010}.{'seg' if number % 2 else 'snap'}" for number in numbers]


def session_at(number: int, history: History) -> Session:
    state, digest = history.states[number], history.digests[number]
    return Session(history.position(number), state, digest)


def assert_everybody_catches_up(ledger: Ledger, history: History) -> None:
    last = ledger.position.round
    goal = last, history.digests[last]
    for since in range(last + 1):
        session, catch_up = session_at(since, history), ledger.catch_up(since)
        after = session.catch_up(catch_up, history.header, history.layout, *goal)
        np.testing.assert_array_equal(after.state, history.states[last])
        assert after.position == history.position(last)


@HISTORIES
@pytest.mark.parametrize("rounds", [0, 1, 3, 5])
def test_nothing_is_deleted_before_there_are_two_snapshots_and_a_gap_behind_them(
    tmp_path: Path, history: History, rounds: int
) -> None:
    files = history.files(rounds, 4)
    with opened(write_files(tmp_path, files), history, 4) as ledger:
        ledger.compact(rounds)
    assert files_of(tmp_path) == files


@pytest.mark.parametrize(
    ("passed", "kept"),
    [
        (0, names(1, 3, 4, 5, 6, 7)),
        (1, names(1, 3, 4, 5, 6, 7)),
        (2, names(3, 4, 5, 6, 7)),
        (3, names(3, 4, 5, 6, 7)),
        (4, names(4, 5, 6, 7)),
        (7, names(4, 5, 6, 7)),
    ],
)
def test_a_segment_goes_when_every_client_has_passed_it(
    tmp_path: Path, passed: int, kept: list[str]
) -> None:
    files = LARGE.files(7, 2)
    with opened(write_files(tmp_path, files), LARGE) as ledger:
        ledger.compact(passed)
        assert files_of(tmp_path) == {name: files[name] for name in kept}
        assert_everybody_catches_up(ledger, LARGE)
        ledger.compact(passed)
        assert sorted(files_of(tmp_path)) == kept
    with opened(tmp_path, LARGE) as ledger:
        assert not ledger.recovered
        assert_everybody_catches_up(ledger, LARGE)
    assert [step.round for step in verify_ledger(tmp_path, LARGE.layout)][-1] == 7


def test_a_segment_goes_when_the_snapshot_is_shorter_though_a_client_is_still_before_it(
    tmp_path: Path,
) -> None:
    files = SMALL.files(7, 2)
    with opened(write_files(tmp_path, files), SMALL) as ledger:
        ledger.compact(0)
        assert sorted(files_of(tmp_path)) == names(4, 5, 6, 7)
        assert_everybody_catches_up(ledger, SMALL)
    assert [step.round for step in verify_ledger(tmp_path, SMALL.layout)] == [4, 5, 6, 7]


def test_a_ledger_stays_bounded_however_long_it_grows(tmp_path: Path) -> None:
    """One client never catches up; the files stay within the rule's limit."""
    history = history_of([delta_of(n) for n in range(1, 41)], layout_of(100))
    record, snapshot = len(history.kept(0, 1)), len(history.snapshot(1))
    with opened(tmp_path, history) as ledger:
        for delta in history.deltas:
            ledger.append(delta)
            ledger.compact(0)
            size = sum(map(len, files_of(tmp_path).values()))
            headers = 124 * len(list(tmp_path.glob("*.seg")))
            assert size - headers <= 3 * snapshot + 3 * 2 * record
    assert [step.round for step in verify_ledger(tmp_path, history.layout)][-1] == 40


def test_without_snapshots_every_round_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path, SMALL, 0) as ledger:
        for delta in DELTAS:
            ledger.append(delta)
            ledger.compact(delta.round)
        assert_everybody_catches_up(ledger, SMALL)
    assert files_of(tmp_path) == SMALL.files(7)


@pytest.mark.parametrize("every", [0, 2, 7])
def test_who_is_behind_gets_the_shorter_of_records_and_state(tmp_path: Path, every: int) -> None:
    with opened(tmp_path / "small", SMALL, every) as ledger:
        for delta in DELTAS:
            ledger.append(delta)
            assert_everybody_catches_up(ledger, SMALL)
            assert ledger.catch_up(delta.round) == CatchUp()
            assert ledger.catch_up(delta.round - 1).tail == SMALL.records[delta.round - 1]
            for since in range(delta.round - 1):
                assert ledger.catch_up(since) == CatchUp(SMALL.snapshot(delta.round))
        with pytest.raises(LedgerError, match="no round 8"):
            ledger.catch_up(8)
    with opened(tmp_path / "small", SMALL, every) as ledger:
        assert ledger.catch_up(0).snapshot == SMALL.snapshot(ROUNDS)
        assert_everybody_catches_up(ledger, SMALL)
    with opened(write_files(tmp_path / "large", LARGE.files(7, every)), LARGE, every) as ledger:
        given = [ledger.catch_up(since) for since in range(8)]
        assert given == [CatchUp(tail=LARGE.tail(since)) for since in range(8)]
        assert_everybody_catches_up(ledger, LARGE)


def test_nothing_is_deleted_on_the_word_of_a_damaged_snapshot(tmp_path: Path) -> None:
    files = LARGE.files(7, 2)
    older, newest = names(4, 6)
    with opened(write_files(tmp_path, files), LARGE) as ledger:
        (tmp_path / older).write_bytes(files[older][:-1])
        with pytest.raises(LedgerError, match=f"{older}: a snapshot of 200 elements has"):
            ledger.compact(7)
        kept = {name: data for name, data in files.items() if name != older}
        assert files_of(tmp_path) == kept
        ledger.compact(3)
        assert sorted(files_of(tmp_path)) == names(2, 3, 5, 6, 7)
        assert newest in files_of(tmp_path)
    assert [step.round for step in verify_ledger(tmp_path, LARGE.layout)] == [2, 3, 4, 5, 6, 7]


def test_a_damaged_snapshot_is_not_sent(tmp_path: Path) -> None:
    (newest,) = names(6)
    with opened(write_files(tmp_path, SMALL.files(7, 2)), SMALL) as ledger:
        (tmp_path / newest).write_bytes(SMALL.snapshot(4))
        assert_everybody_catches_up(ledger, SMALL)
    with opened(tmp_path, SMALL) as ledger:
        assert newest in ledger.recovered
        assert_everybody_catches_up(ledger, SMALL)


def test_a_disk_that_refuses_to_delete_is_an_error_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    files = LARGE.files(7, 2)
    with opened(write_files(tmp_path, files), LARGE) as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", refuse)
            with pytest.raises(LedgerError, match="cannot delete: Read-only"):
                ledger.compact(7)
        assert files_of(tmp_path) == files
        ledger.compact(7)
        assert sorted(files_of(tmp_path)) == names(4, 5, 6, 7)


@settings(max_examples=40)
@given(st.data())
def test_every_way_through_a_ledger_is_the_replay_of_all_rounds(data: st.DataObject) -> None:
    """Append, compact and reopen in any order: every client reaches the state of all rounds."""
    every = data.draw(st.integers(0, 4), "snapshot every")
    history = data.draw(st.sampled_from([SMALL, LARGE]), "history")
    segment_bytes = data.draw(st.sampled_from([1, 400, 10_000]), "segment bytes")
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledgers, "SEGMENT_BYTES", segment_bytes)
        patch.setattr(ledgers.os, "fsync", lambda _: None)
        folder, done = Path(name) / "ledger", 0
        while done < ROUNDS:
            with opened(folder, history, every) as ledger:
                assert ledger.position == history.position(done)
                until = data.draw(st.integers(done + 1, ROUNDS), "rounds until reopening")
                for delta in history.deltas[done:until]:
                    ledger.append(delta)
                    ledger.compact(data.draw(st.integers(0, delta.round), "passed"))
                done = until
        with opened(folder, history, every) as ledger:
            assert_everybody_catches_up(ledger, history)
        *_, last = verify_ledger(folder, history.layout)
        np.testing.assert_array_equal(last.state, history.states[ROUNDS])
