"""Opening a ledger after a crash, a power cut, or disk damage."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from helpers import delta_of, files_of, history_of, layout_of, write_files
from numpy.typing import NDArray

from samara.shared.errors import LedgerError
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.ledger import copying, records
from samara.shared.protocol.ledger.copying import copy_ledger
from samara.shared.protocol.ledger.latest_state import read_latest_state
from samara.shared.protocol.ledger.ledger import Ledger
from samara.shared.protocol.ledger.reading import read_header, read_ledger
from samara.shared.protocol.ledger.records import Record, Snapshot
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.protocol.replay import Backend, digest

LAYOUT = layout_of()
HISTORY = history_of([delta_of(n) for n in range(1, 8)], LAYOUT)
FIRST, SECOND, THIRD, LAST = (f"{number:010}.seg" for number in (1, 3, 5, 7))
OLDER, NEWEST = "0000000004.snap", "0000000006.snap"
SOUND = HISTORY.files(7, 2)
REMEDY = "; restore the folder from a backup, or begin a new run"
Files = Mapping[str, bytes]


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync, because no test here depends on it."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def opened(folder: Path, every: int = 2) -> closing[Ledger]:
    return closing(Ledger(folder, HISTORY.header, LAYOUT, every))


def assert_recovers(folder: Path, files: Files, number: int, said: str) -> None:
    """Check that opening finds a round and reports the damage, and the ledger continues."""
    with opened(write_files(folder, files)) as ledger:
        assert said in ledger.recovered if said else not ledger.recovered
        assert ledger.position == HISTORY.position(number)
        assert ledger.digest == HISTORY.digests[number]
        np.testing.assert_array_equal(ledger.state, HISTORY.states[number])
        for delta in HISTORY.deltas[number:]:
            ledger.append(delta)
    with opened(folder) as ledger:
        assert (ledger.position.round, ledger.recovered) == (7, "")
    assert [step.round for step in verify_ledger(folder, LAYOUT)][-1] == 7


def assert_refused(folder: Path, files: Files, said: str) -> None:
    """Check that opening fails with a message, and leaves every record unchanged."""
    write_files(folder, files)
    with pytest.raises(LedgerError, match=said) as caught:
        Ledger(folder, HISTORY.header, LAYOUT, 2)
    assert str(caught.value).endswith(REMEDY)
    assert files_of(folder) == files


def without(files: Files, *names: str) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name not in names}


def flipped(data: bytes, byte: int) -> bytes:
    return data[:byte] + bytes([data[byte] ^ 16]) + data[byte + 1 :]


@pytest.mark.parametrize(("number", "step"), [(1, 9), (2, 9), (6, 1)])
def test_a_crash_at_any_byte_of_an_append_leaves_the_whole_rounds(
    tmp_path: Path, number: int, step: int
) -> None:
    """Round 1 is the first round. Round 6 extends a segment that comes after a snapshot."""
    before, after = HISTORY.files(number - 1, 2), HISTORY.files(number, 2)
    segment = f"{number - (number + 1) % 2:010}.seg"
    whole = len(before[segment])
    for size in range(whole + 1, len(after[segment]), step):
        said = f"dropped {size - whole} bytes of round {number}, which was never completely"
        write_files(tmp_path, before | {segment: after[segment][:size]})
        with opened(tmp_path) as ledger:
            assert said in ledger.recovered
            assert ledger.position == HISTORY.position(number - 1)
            assert files_of(tmp_path) == before
            ledger.append(HISTORY.deltas[number - 1])
        assert files_of(tmp_path) == after


@pytest.mark.parametrize(("number", "name"), [(2, SECOND), (4, OLDER), (0, FIRST)])
def test_a_crash_at_any_byte_of_a_new_file_leaves_no_trace(
    tmp_path: Path, number: int, name: str
) -> None:
    """The file is a new segment or a snapshot, and has not been renamed to its final name yet."""
    before = without(HISTORY.files(number, 2), name)
    content = HISTORY.files(7, 2)[name]
    for size in range(0, len(content) + 1, 11):
        write_files(tmp_path, before | {f"{name}.new": content[:size]})
        with opened(tmp_path) as ledger:
            assert not ledger.recovered
            assert ledger.position == HISTORY.position(number)
        assert files_of(tmp_path) == HISTORY.files(number, 2)


class _Crash(BaseException):
    """The process is gone: nobody catches the error, and nothing is cleaned up."""


def crashing_at(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the process die just before its n-th call that changes the disk."""
    left = call

    def dying(function: Callable[..., None]) -> Callable[..., None]:
        def wrapped(*arguments: object, **keywords: object) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise _Crash
            function(*arguments, **keywords)

        return wrapped

    for owner, name in ((os, "fsync"), (os, "replace"), (Path, "unlink")):
        monkeypatch.setattr(owner, name, dying(getattr(owner, name)))


def test_a_crash_between_any_two_calls_loses_no_acknowledged_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crash at every call while seven rounds are appended, stored in snapshots and compacted."""
    call, finished = 0, False
    while not finished:
        folder, acknowledged = tmp_path / str(call), 0
        with monkeypatch.context() as patch:
            crashing_at(call, patch)
            try:
                with opened(folder) as ledger:
                    for delta in HISTORY.deltas:
                        ledger.append(delta)
                        acknowledged = delta.round
                        ledger.compact(acknowledged)
                finished = True
            except _Crash:
                pass
        with opened(folder) as ledger:
            number = ledger.position.round
            assert number >= acknowledged
            assert not ledger.recovered
            assert ledger.position == HISTORY.position(number)
            np.testing.assert_array_equal(ledger.state, HISTORY.states[number])
            for delta in HISTORY.deltas[number:]:
                ledger.append(delta)
            ledger.compact(7)
        assert files_of(folder) == without(SOUND, FIRST, SECOND, "0000000002.snap")
        assert [step.round for step in verify_ledger(folder, LAYOUT)] == [4, 5, 6, 7]
        call += 1
    assert call > 25


@pytest.mark.parametrize("zeros", [1, 10, 16, 60, 64, 100])
def test_an_append_that_the_power_cut_left_as_zeros_is_cut_off(tmp_path: Path, zeros: int) -> None:
    files = HISTORY.files(3, 2)
    files[SECOND] += bytes(zeros)
    assert_recovers(tmp_path, files, 3, f"dropped {zeros} bytes of round 4")


def test_a_last_record_with_zeros_for_its_hash_is_cut_off_but_only_the_last(
    tmp_path: Path,
) -> None:
    files = HISTORY.files(3)
    damaged = files | {FIRST: files[FIRST][:-70] + bytes(70)}
    assert_recovers(tmp_path, damaged, 2, "of round 3")
    end = HISTORY.sizes[2]
    damaged = files | {FIRST: files[FIRST][: end - 32] + bytes(32) + files[FIRST][end:]}
    assert_refused(tmp_path, damaged, "round 2")


def test_a_flipped_bit_is_no_torn_record(tmp_path: Path) -> None:
    files = HISTORY.files(3)
    for byte in range(0, len(files[FIRST]), 5):
        place = sum(byte >= size for size in HISTORY.sizes)
        said = f"round {place}:" if place else "header is damaged"
        assert_refused(tmp_path, {FIRST: flipped(files[FIRST], byte)}, said)


def test_a_torn_record_is_no_crash_where_more_records_follow_or_it_began_a_segment(
    tmp_path: Path,
) -> None:
    for size in (len(SOUND[LAST]) - 1, 125, 124, 123, 0):
        assert_refused(tmp_path, {**SOUND, LAST: SOUND[LAST][:size]}, LAST)
    files = without(SOUND, *(name for name in SOUND if name.endswith(".snap")))
    files[SECOND] = files[SECOND][:-1]
    assert_refused(tmp_path, files, "round 4: the ledger ends inside")


def test_a_damaged_snapshot_is_made_up_for_by_an_older_one(tmp_path: Path) -> None:
    compacted = without(SOUND, FIRST, SECOND, "0000000002.snap")
    for files in (SOUND, compacted):
        for byte in range(0, len(SOUND[NEWEST]), 29):
            damaged = {**files, NEWEST: flipped(SOUND[NEWEST], byte)}
            assert_recovers(tmp_path, damaged, 7, f"{NEWEST}: ")
        for data in (b"", SOUND[NEWEST][:-1], SOUND[NEWEST] + b"x", SOUND[OLDER]):
            assert_recovers(tmp_path, {**files, NEWEST: data}, 7, f"{NEWEST}: ")
    every = {name: data[:-1] for name, data in SOUND.items() if name.endswith(".snap")}
    assert_recovers(tmp_path, SOUND | every, 7, "the other files replace it")


def test_a_snapshot_at_the_very_end_is_made_anew_if_it_is_damaged(tmp_path: Path) -> None:
    files = HISTORY.files(6, 2)
    write_files(tmp_path, {**files, NEWEST: files[NEWEST][:-1]})
    with opened(tmp_path) as ledger:
        assert NEWEST in ledger.recovered
    assert files_of(tmp_path) == files


def test_a_ledger_whose_snapshots_are_all_damaged_and_old_rounds_gone_is_refused(
    tmp_path: Path,
) -> None:
    compacted = without(SOUND, FIRST, SECOND, "0000000002.snap")
    damaged = {name: compacted[name][:-1] for name in (OLDER, NEWEST)}
    assert_refused(tmp_path, compacted | damaged, "no records lead to the last round")
    assert_refused(tmp_path, without(compacted, OLDER, NEWEST), "no records lead to the last round")


def test_a_snapshot_of_another_history_is_not_believed(tmp_path: Path) -> None:
    """The snapshot is valid and of this run, but does not fit the records."""
    link = Record.create(HISTORY.position(4), delta_of(5), HISTORY.digests[6]).link
    other = Record.create(link.position, delta_of(6), HISTORY.digests[1]).link
    foreign = b"".join(Snapshot(HISTORY.header, other, HISTORY.states[1]).parts())
    assert_recovers(tmp_path, {**SOUND, NEWEST: foreign}, 7, "do not continue this snapshot")
    files = HISTORY.files(6, 2)
    write_files(tmp_path, {**files, NEWEST: foreign})
    with opened(tmp_path) as ledger:
        assert "do not continue this snapshot" in ledger.recovered
    assert files_of(tmp_path) == files


def test_damage_before_the_newest_snapshot_is_said_and_does_no_harm(tmp_path: Path) -> None:
    for damaged in (
        without(SOUND, SECOND),
        {**SOUND, SECOND: SOUND[SECOND][:-1]},
        {**SOUND, SECOND: flipped(SOUND[SECOND], 20)},
    ):
        with opened(write_files(tmp_path, damaged)) as ledger:
            assert SECOND in ledger.recovered or f"{FIRST}: the segment ends at" in ledger.recovered
            assert "0000000002.snap: the records after round 2 are missing" in ledger.recovered
            assert ledger.position == HISTORY.position(7)
            assert ledger.catch_up(6).tail == HISTORY.tail(6)
            assert ledger.catch_up(3).snapshot == HISTORY.snapshot(7)


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ([LAST, NEWEST], ""),
        ([LAST, THIRD], "0000000006.snap: the records end before this snapshot, at round 4"),
        ([THIRD, NEWEST], "0000000005.seg: round 5|no records lead|comes before it, is missing"),
        ([FIRST, OLDER, NEWEST, "0000000002.snap"], "no records lead"),
    ],
)
def test_missing_files(tmp_path: Path, gone: list[str], said: str) -> None:
    files = without(SOUND, *gone)
    if said:
        assert_refused(tmp_path, files, said)
    else:  # as the ledger was before: nothing in it shows that there was more
        assert_recovers(tmp_path, files, 6, "")


def test_a_snapshot_alone_is_enough_to_go_on(tmp_path: Path) -> None:
    with opened(write_files(tmp_path, {NEWEST: SOUND[NEWEST]})) as ledger:
        np.testing.assert_array_equal(ledger.state, HISTORY.states[6])
        assert ledger.catch_up(2).snapshot == SOUND[NEWEST]
        ledger.append(HISTORY.deltas[6])
    assert files_of(tmp_path) == {name: SOUND[name] for name in (NEWEST, LAST)}
    with opened(tmp_path) as ledger:
        assert ledger.position == HISTORY.position(7)


def test_files_that_change_their_names_are_refused(tmp_path: Path) -> None:
    swapped = {**SOUND, LAST: SOUND[THIRD], THIRD: SOUND[LAST]}
    assert_refused(tmp_path, swapped, "the segment begins with round 5")
    swapped = {**SOUND, SECOND: SOUND[THIRD], THIRD: SOUND[SECOND]}
    with opened(write_files(tmp_path, swapped)) as ledger:
        assert "the segment begins with round 3" in ledger.recovered
        assert ledger.position == HISTORY.position(7)


def test_opening_replays_only_what_follows_the_newest_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed: list[int] = []
    plain = records.replay_batch

    def counted(
        state: NDArray[np.int64],
        records: Sequence[Record],
        layout: Layout,
        backend: Backend | None,
    ) -> NDArray[np.int64]:
        replayed.extend(record.delta.round for record in records)
        return plain(state, records, layout, backend)

    monkeypatch.setattr(records, "replay_batch", counted)
    with opened(write_files(tmp_path, SOUND)):
        assert replayed == [7]


def test_a_record_whose_digest_was_made_up_is_named_on_opening(tmp_path: Path) -> None:
    position, segment = HISTORY.position(1), HISTORY.files(1)[FIRST]
    for number in (2, 3, 4):
        wrong = Record.create(position, HISTORY.deltas[number - 1], HISTORY.digests[1])
        position, segment = wrong.position, segment + wrong.encode()
    assert_refused(tmp_path, {FIRST: segment}, "round 2: replaying it gives a digest other than")


def test_long_records_are_proved_and_let_go_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    plain = records.replay_batch

    def counted(
        state: NDArray[np.int64],
        records: Sequence[Record],
        layout: Layout,
        backend: Backend | None,
    ) -> NDArray[np.int64]:
        lengths.append(len(records))
        return plain(state, records, layout, backend)

    monkeypatch.setattr(records, "replay_batch", counted)
    write_files(tmp_path, HISTORY.files(7))
    for most, size, expected in ((256, 300, [2, 2, 2, 1]), (3, 10_000, [3, 3, 1]), (7, 1, [1] * 7)):
        monkeypatch.setattr(records, "CHECK_EVERY", most)
        monkeypatch.setattr(records, "_BATCH_BYTES", size)
        lengths.clear()
        with opened(tmp_path, 0) as ledger:
            assert lengths == expected
            assert ledger.digest == HISTORY.digests[7]


def test_a_machine_that_miscalculates_is_told_apart_from_a_wrong_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [bytes(32)]

    def mistaken(layout_hash: bytes, state: NDArray[np.int64]) -> bytes:
        return answers.pop() if answers else digest(layout_hash, state)

    monkeypatch.setattr(records, "digest", mistaken)
    write_files(tmp_path, HISTORY.files(7))
    with pytest.raises(LedgerError, match="memory or processor of this machine"):
        Ledger(tmp_path, HISTORY.header, LAYOUT, 0)


@pytest.mark.parametrize(
    ("byte", "said"), [(60, "the segment's header is damaged"), (-40, "round")]
)
def test_every_reader_of_a_damaged_ledger_names_its_file_and_the_remedy(
    tmp_path: Path, byte: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_TRIES", 1)
    files = HISTORY.files(7)
    folder = write_files(
        tmp_path / "ledger", {FIRST: flipped(files[FIRST], byte % len(files[FIRST]))}
    )
    readers: list[Callable[[], object]] = [
        lambda: Ledger(folder, HISTORY.header, LAYOUT, 2),
        lambda: (read_header(folder), list(read_ledger(folder))),
        lambda: list(read_ledger(folder)),
        lambda: read_latest_state(folder, LAYOUT),
        lambda: list(verify_ledger(folder, LAYOUT)),
        lambda: copy_ledger(folder, tmp_path / "copy", LAYOUT),
    ]
    for read in readers:
        with pytest.raises(LedgerError) as caught:
            read()
        message = str(caught.value)
        assert message.startswith(f"{folder / FIRST}: {said}")
        assert message.endswith(REMEDY)


def test_snapshots_alone_can_be_compacted(tmp_path: Path) -> None:
    snapshots = {name: data for name, data in SOUND.items() if name.endswith(".snap")}
    with opened(write_files(tmp_path, snapshots)) as ledger:
        ledger.compact(6)
        assert sorted(files_of(tmp_path)) == [OLDER, NEWEST]
