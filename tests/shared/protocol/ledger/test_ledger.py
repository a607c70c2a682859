"""The writer of a ledger: its appends, their durability, and refused ledgers."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import delta_of, files_of, history_of, layout_of, no_room, no_sync, write_files

from samara.shared.errors import LedgerError, ReplayError
from samara.shared.protocol.ledger import ledger as ledgers
from samara.shared.protocol.ledger.ledger import Ledger
from samara.shared.protocol.ledger.reading import read_header, read_ledger
from samara.shared.protocol.ledger.records import LedgerHeader
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.protocol.replay import CoefficientBlock
from samara.shared.protocol.round_delta import Group, RoundDelta

LAYOUT = layout_of()
HISTORY = history_of([delta_of(n) for n in range(1, 8)], LAYOUT)
ROUNDS = len(HISTORY.deltas)
EVERY = pytest.mark.parametrize("every", [0, 1, 2, 3, 7, 100])


def opened(folder: Path, every: int = 0) -> closing[Ledger]:
    return closing(Ledger(folder, HISTORY.header, LAYOUT, every))


def assert_at(ledger: Ledger, number: int) -> None:
    assert ledger.position == HISTORY.position(number)
    assert ledger.digest == HISTORY.digests[number]
    np.testing.assert_array_equal(ledger.state, HISTORY.states[number])


@EVERY
def test_a_ledger_is_the_same_files_however_often_it_is_reopened(
    tmp_path: Path, every: int
) -> None:
    once, often = tmp_path / "once", tmp_path / "often"
    with opened(once, every) as ledger:
        for delta in HISTORY.deltas:
            ledger.append(delta)
    for number, delta in enumerate(HISTORY.deltas):
        with opened(often, every) as ledger:
            assert not ledger.recovered
            assert_at(ledger, number)
            assert ledger.append(delta) == len(HISTORY.kept(number, number + 1))
            assert_at(ledger, number + 1)
        assert files_of(often) == HISTORY.files(number + 1, every)
    assert files_of(once) == files_of(often)
    records = list(read_ledger(once, strict=True))
    assert [r.delta.encode() for r in records] == [d.encode() for d in HISTORY.deltas]
    assert read_header(once) == HISTORY.header
    begin, *steps = verify_ledger(once, LAYOUT)
    assert (begin.round, begin.record) == (0, None)
    for step, state in zip(steps, HISTORY.states[1:], strict=True):
        np.testing.assert_array_equal(step.state, state)


def test_a_segment_of_full_size_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "SEGMENT_BYTES", HISTORY.sizes[3])
    with opened(tmp_path) as ledger:
        for delta in HISTORY.deltas:
            ledger.append(delta)
    assert files_of(tmp_path) == {
        name: data for name, data in HISTORY.files(7, 3).items() if name.endswith(".seg")
    }
    with opened(tmp_path) as ledger:
        assert_at(ledger, 7)


@EVERY
def test_a_reader_begins_after_any_round(tmp_path: Path, every: int) -> None:
    with opened(write_files(tmp_path, HISTORY.files(7, every)), every) as ledger:
        for since in range(ROUNDS + 1):
            read = read_ledger(tmp_path, since)
            assert b"".join(record.encode() for record in read) == HISTORY.kept(since)
        for beyond in (-1, ROUNDS + 1):
            with pytest.raises(LedgerError, match=f"no round {beyond}"):
                ledger.catch_up(beyond)


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_round_is_on_the_disk_when_append_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A new segment needs two fsyncs: its bytes, and then its name."""
    synced: list[tuple[str, bytes | None]] = []

    def recording(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append((path.name, path.read_bytes() if path.is_file() else None))

    folder = write_files(tmp_path / "ledger", HISTORY.files(number, 2))
    after = HISTORY.files(number + 1, 2)
    segment, snapshot = f"{number - number % 2 + 1:010}.seg", f"{number + 1:010}.snap"
    with opened(folder, 2) as ledger:
        monkeypatch.setattr(os, "fsync", recording)
        ledger.append(HISTORY.deltas[number])
        monkeypatch.undo()
    expected: list[tuple[str, bytes | None]] = [(segment, after[segment])]
    if number and number % 2 == 0:
        expected = [(f"{segment}.new", after[segment]), ("ledger", None)]
    if number % 2 == 1:
        expected += [(f"{snapshot}.new", after[snapshot]), ("ledger", None)]
    assert synced == expected


@pytest.mark.parametrize("wrong", [1, 3, 4])
def test_only_the_next_round_may_be_appended(tmp_path: Path, wrong: int) -> None:
    with opened(write_files(tmp_path, HISTORY.files(1))) as ledger:
        with pytest.raises(LedgerError, match=f"round {wrong} does not follow round 1"):
            ledger.append(delta_of(wrong))
        assert_at(ledger, 1)
        ledger.append(HISTORY.deltas[1])
    assert files_of(tmp_path) == HISTORY.files(2)


def test_a_delta_of_another_track_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger, pytest.raises(LedgerError, match="track 77"):
        ledger.append(replace(HISTORY.deltas[0], track=77))


def test_a_round_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    widest = CoefficientBlock(10, np.full(100, 2**31 - 1, np.int32))
    huge = RoundDelta(1, 0, bytes(8), (), (Group(1, np.arange(100, dtype=np.uint64), widest),))
    with opened(tmp_path) as ledger:
        for refuse in (ledger.check, ledger.append):
            with pytest.raises(ReplayError):
                refuse(huge)
        assert_at(ledger, 0)
        ledger.append(HISTORY.deltas[0])
        assert_at(ledger, 1)


@pytest.mark.parametrize("disk", [no_sync, no_room])
@pytest.mark.parametrize("number", [1, 2])
def test_a_round_that_the_disk_refuses_leaves_the_ledger_as_it_was(
    tmp_path: Path, disk: Callable[[int], AbstractContextManager[None]], number: int
) -> None:
    """Round 2 extends a segment, round 3 begins one."""
    with opened(write_files(tmp_path, HISTORY.files(number, 2)), 2) as ledger:
        room = 10 + (HISTORY.sizes[1] if number == 1 else 0)
        with disk(room), pytest.raises(LedgerError, match=f"cannot append round {number + 1}"):
            ledger.append(HISTORY.deltas[number])
        assert files_of(tmp_path) == HISTORY.files(number, 2)
        assert_at(ledger, number)
        for delta in HISTORY.deltas[number:]:
            ledger.append(delta)
    assert files_of(tmp_path) == HISTORY.files(ROUNDS, 2)


def test_what_a_failed_append_could_not_take_back_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(write_files(tmp_path, HISTORY.files(1))) as ledger:
        longer = replace(HISTORY.deltas[1], entries=HISTORY.deltas[1].entries * 2)
        path = tmp_path / "0000000001.seg"
        with no_sync(0), pytest.raises(LedgerError, match="cannot append"):
            ledger.append(longer)
        path.write_bytes(path.read_bytes() + b"what the disk kept of the longer record" * 9)
        ledger.append(HISTORY.deltas[1])
    assert files_of(tmp_path) == HISTORY.files(2)


def test_a_snapshot_that_the_disk_refuses_does_not_lose_its_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on client")

    with opened(write_files(tmp_path, HISTORY.files(1, 2)), 2) as ledger:
        monkeypatch.setattr(ledgers, "write_durably", refuse)
        with pytest.raises(LedgerError, match="round 2 itself is safe"):
            ledger.append(HISTORY.deltas[1])
        monkeypatch.undo()
        assert_at(ledger, 2)
    with opened(tmp_path, 2) as ledger:
        assert_at(ledger, 2)
    assert files_of(tmp_path) == HISTORY.files(2, 2)


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path, HISTORY.files(3))
    with opened(tmp_path), pytest.raises(LedgerError, match="another process is writing"):
        Ledger(tmp_path, HISTORY.header, LAYOUT, 0)
    with opened(tmp_path) as ledger:
        assert_at(ledger, 3)


@pytest.mark.parametrize(
    "other",
    [
        LedgerHeader(0, b"another!", LAYOUT.hash),
        LedgerHeader(1, HISTORY.header.run_id, LAYOUT.hash),
        LedgerHeader(0, HISTORY.header.run_id, bytes(32)),
    ],
)
@pytest.mark.parametrize("rounds", [0, 2, 3])
def test_the_ledger_of_another_run_track_or_layout_is_refused(
    tmp_path: Path, other: LedgerHeader, rounds: int
) -> None:
    write_files(tmp_path, HISTORY.files(rounds, 2))
    with pytest.raises(LedgerError, match="another run, track or layout"):
        Ledger(tmp_path, other, LAYOUT, 2)
    assert files_of(tmp_path) == HISTORY.files(rounds, 2)


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(LedgerError, match="file: cannot be opened"):
        Ledger(file, HISTORY.header, LAYOUT, 0)
    for folder in (file, tmp_path / "nowhere"):
        with pytest.raises(LedgerError, match="cannot be read"):
            read_header(folder)
    with pytest.raises(LedgerError, match="no segment"):
        read_header(tmp_path)
    for content in (b"", b"SAMARALG", b"hello", b"x" * 200):
        folder = write_files(tmp_path / "ledger", {"0000000001.seg": content})
        with pytest.raises(LedgerError, match="header is damaged"):
            read_header(folder)
        with pytest.raises(LedgerError, match="header is damaged"):
            Ledger(folder, HISTORY.header, LAYOUT, 0)
        assert files_of(folder) == {"0000000001.seg": content}


def test_a_reader_needs_no_lock_and_sees_what_is_there(tmp_path: Path) -> None:
    with opened(tmp_path, 2) as ledger:
        for number, delta in enumerate(HISTORY.deltas):
            read = [record.delta.round for record in read_ledger(tmp_path)]
            assert read == list(range(1, number + 1))
            ledger.append(delta)


def test_a_reader_ends_before_a_record_that_is_being_written(tmp_path: Path) -> None:
    files = HISTORY.files(3, 2)
    whole = HISTORY.files(4, 2)["0000000003.seg"]
    for size in range(len(files["0000000003.seg"]), len(whole)):
        write_files(tmp_path, files | {"0000000003.seg": whole[:size]})
        assert [record.delta.round for record in read_ledger(tmp_path)] == [1, 2, 3]
        if size > len(files["0000000003.seg"]):
            with pytest.raises(LedgerError, match="round 4: the ledger ends inside"):
                list(read_ledger(tmp_path, strict=True))


def test_a_reader_that_is_overtaken_goes_on_to_the_end_of_what_it_found(tmp_path: Path) -> None:
    """A reader reads exactly the segments that existed when it began."""
    with opened(tmp_path, 2) as ledger:
        for delta in HISTORY.deltas[:3]:
            ledger.append(delta)
        reader = read_ledger(tmp_path)
        read = [next(reader).delta.round]
        for delta in HISTORY.deltas[3:]:
            ledger.append(delta)
        read += [record.delta.round for record in reader]
    assert read == [1, 2, 3, 4]


def test_a_reader_whose_segments_were_compacted_away_is_told(tmp_path: Path) -> None:
    with opened(tmp_path, 1) as ledger:
        for delta in HISTORY.deltas:
            ledger.append(delta)
        reader: Iterator[object] = read_ledger(tmp_path)
        next(reader)
        ledger.compact(ROUNDS)
        with pytest.raises(LedgerError, match=r"by compaction .*; read the ledger again"):
            next(reader)
        with pytest.raises(LedgerError, match="rounds before 7 are not kept"):
            next(read_ledger(tmp_path, 0))
        assert [record.delta.round for record in read_ledger(tmp_path)] == [7]
