import io
import json
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import History, delta_of, history_of, layout_of

import samara
from server.store import LEDGER_FILE, METRICS_FILE, RESULT_FILE, RunStore, read_result, replayed
from shared.errors import LedgerError, ReplayError, SamaraError
from shared.files import write_durably
from shared.ledger import (
    Ledger,
    LedgerHeader,
    Position,
    encode_record,
    read_header,
    read_records,
    records,
)
from shared.replay import Pass, zero_state
from shared.round_delta import Group, RoundDelta

LAYOUT = layout_of()
HISTORY = history_of([delta_of(n) for n in (1, 2, 3)], LAYOUT)
HEADER_BYTES = HISTORY.sizes[0]


def write_ledger(path: Path, rounds: int = 3) -> Path:
    path.write_bytes(HISTORY.ledger[: HISTORY.sizes[rounds]])
    return path


def opened(folder: Path) -> closing[RunStore]:
    return closing(RunStore(folder, LAYOUT, HISTORY.header))


def opened_ledger(path: Path) -> closing[Ledger]:
    return closing(Ledger(path, HISTORY.header))


def write_run(folder: Path, rounds: int = 3) -> Path:
    with opened(folder) as store:
        for delta in HISTORY.deltas[:rounds]:
            store.append(delta)
        store.finish({"final_round": rounds, "final_digest": store.digest.hex()})
    return folder


def read_file(folder: Path) -> Iterator[object]:
    return read_records(folder / LEDGER_FILE)


def place_of(byte: int, history: History) -> str:
    """What a reader should name when this byte of the ledger is wrong."""
    record = sum(byte >= size for size in history.sizes)
    return f"round {record}:" if record else "header"


def flipped_bits(data: bytes) -> list[tuple[int, bytes]]:
    def flipped(bit: int) -> bytes:
        return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]

    return [(bit // 8, flipped(bit)) for bit in range(8 * len(data))]


def test_appended_rounds_are_there_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    for delta, digest, size in zip(
        HISTORY.deltas, HISTORY.digests[1:], np.diff(HISTORY.sizes), strict=True
    ):
        with opened_ledger(path) as ledger:
            assert ledger.position.round == delta.round - 1
            assert ledger.append(delta, digest) == size
    assert path.read_bytes() == HISTORY.ledger
    with opened_ledger(path) as ledger:
        assert not ledger.recovered
        frames = [record.delta.encode() for record in ledger.records()]
    assert frames == [delta.encode() for delta in HISTORY.deltas]
    assert [record.end_digest for record in read_records(path)] == list(HISTORY.digests[1:])
    assert read_header(path) == HISTORY.header


def test_tail_is_the_records_after_a_round(tmp_path: Path) -> None:
    with opened_ledger(write_ledger(tmp_path / "ledger")) as ledger:
        tails = [ledger.tail(since) for since in range(4)]
        for beyond in (-1, 4):
            with pytest.raises(LedgerError, match=f"no round {beyond}"):
                ledger.tail(beyond)
    assert tails == [HISTORY.tail(since) for since in range(4)]


def test_a_round_is_on_the_disk_when_append_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_ledger(tmp_path / "ledger", rounds=1)
    synced = []

    def recording(descriptor: int) -> None:
        assert os.path.samestat(os.fstat(descriptor), path.stat())
        synced.append(path.read_bytes())

    with opened_ledger(path) as ledger:
        monkeypatch.setattr(os, "fsync", recording)
        ledger.append(HISTORY.deltas[1], HISTORY.digests[2])
        assert synced == [HISTORY.ledger[: HISTORY.sizes[2]]]


def test_a_crash_at_any_byte_of_the_last_record_leaves_the_whole_rounds(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    for torn in range(HISTORY.sizes[3] - HISTORY.sizes[2]):
        path.write_bytes(HISTORY.ledger[: HISTORY.sizes[2] + torn])
        said = f"dropped {torn} bytes of round 3, which was never completely written; "
        with opened_ledger(path) as ledger:
            assert ledger.position.round == 2
            assert (said in ledger.recovered) if torn else not ledger.recovered
            assert path.read_bytes() == HISTORY.ledger[: HISTORY.sizes[2]]
            ledger.append(HISTORY.deltas[2], HISTORY.digests[3])
        assert path.read_bytes() == HISTORY.ledger


def test_a_torn_record_is_an_error_to_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    for size in range(HISTORY.sizes[2] + 1, HISTORY.sizes[3]):
        path.write_bytes(HISTORY.ledger[:size])
        with pytest.raises(LedgerError, match="round 3: the ledger ends inside"):
            list(read_records(path))


def test_any_flipped_bit_of_a_record_is_found_and_its_round_named() -> None:
    for byte, damaged in flipped_bits(HISTORY.ledger)[8 * HEADER_BYTES :]:
        with pytest.raises(LedgerError, match=place_of(byte, HISTORY)):
            list(records(io.BytesIO(damaged[HEADER_BYTES:]), HISTORY.header.start))


@pytest.mark.parametrize("read", [read_file, replayed], ids=["read", "replayed"])
def test_a_flipped_bit_anywhere_in_the_file_is_found_and_its_place_named(
    tmp_path: Path, read: Callable[[Path], Iterator[object]]
) -> None:
    path = write_run(tmp_path) / LEDGER_FILE
    for byte, damaged in flipped_bits(HISTORY.ledger)[::9]:
        path.write_bytes(damaged)
        with pytest.raises(LedgerError, match=f"ledger: .*{place_of(byte, HISTORY)}"):
            list(read(tmp_path))


def test_a_flipped_bit_is_no_torn_record_to_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    for byte, damaged in flipped_bits(HISTORY.ledger)[::17]:
        path.write_bytes(damaged)
        with pytest.raises(LedgerError, match="restore the file") as caught:
            Ledger(path, HISTORY.header)
        assert place_of(byte, HISTORY) in str(caught.value)
        assert path.read_bytes() == damaged


def test_any_flipped_bit_of_the_layout_is_found(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run") / "layout.json"
    for _, damaged in flipped_bits(path.read_bytes())[::7]:
        path.write_bytes(damaged)
        with pytest.raises(SamaraError):
            list(replayed(path.parent))


def test_records_out_of_their_order_are_refused(tmp_path: Path) -> None:
    first, second, third = (HISTORY.tail(n, n + 1) for n in range(3))
    path = tmp_path / "ledger"
    for order, place in [
        ((second, first, third), 1),
        ((first, third, second), 2),
        ((first, third), 2),
        ((first, first), 2),
    ]:
        path.write_bytes(HISTORY.ledger[:HEADER_BYTES] + b"".join(order))
        with pytest.raises(LedgerError, match=f"round {place}:"):
            list(read_records(path))


def test_a_record_that_names_another_round_than_its_place_is_refused(tmp_path: Path) -> None:
    path = write_ledger(tmp_path / "ledger", rounds=1)
    head = HISTORY.ledger[HISTORY.sizes[1] - 32 : HISTORY.sizes[1]]
    record = encode_record(delta_of(5), bytes(32), Position(4, head))
    path.write_bytes(path.read_bytes() + record)
    with pytest.raises(LedgerError, match="round 2: the record says it is round 5"):
        list(read_records(path))


def test_records_of_another_run_do_not_continue_the_chain(tmp_path: Path) -> None:
    other = LedgerHeader(0, b"another!", LAYOUT.hash)
    path = tmp_path / "ledger"
    path.write_bytes(other.encode() + HISTORY.ledger[HEADER_BYTES:])
    with pytest.raises(LedgerError, match=r"round 1: .* does not follow"):
        list(read_records(path))


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    path = write_ledger(tmp_path / "ledger")
    with opened_ledger(path), pytest.raises(LedgerError, match="another process is writing"):
        Ledger(path, HISTORY.header)
    with opened_ledger(path) as ledger:
        assert ledger.position.round == 3


@pytest.mark.parametrize(
    "other",
    [
        LedgerHeader(0, b"another!", LAYOUT.hash),
        LedgerHeader(1, HISTORY.header.run_id, LAYOUT.hash),
        LedgerHeader(0, HISTORY.header.run_id, bytes(32)),
    ],
)
def test_the_ledger_of_another_run_track_or_layout_is_refused(
    tmp_path: Path, other: LedgerHeader
) -> None:
    path = write_ledger(tmp_path / "ledger")
    with pytest.raises(LedgerError, match="another run, track or layout"):
        Ledger(path, other)
    assert path.read_bytes() == HISTORY.ledger


@pytest.mark.parametrize("wrong", [1, 3, 4])
def test_only_the_next_round_may_be_appended(tmp_path: Path, wrong: int) -> None:
    path = write_ledger(tmp_path / "ledger", rounds=1)
    with opened_ledger(path) as ledger:
        with pytest.raises(LedgerError, match=f"round {wrong} does not follow round 1"):
            ledger.append(delta_of(wrong), bytes(32))
        ledger.append(HISTORY.deltas[1], HISTORY.digests[2])
    assert path.read_bytes() == HISTORY.ledger[: HISTORY.sizes[2]]


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with pytest.raises(LedgerError, match="cannot be read"):
        read_header(path)
    for content in (b"", b"SAMARALG", b"hello", b"x" * 200):
        path.write_bytes(content)
        with pytest.raises(LedgerError, match="header"):
            read_header(path)
    for content in (b"hello", b"x" * 200):
        path.write_bytes(content)
        with pytest.raises(LedgerError, match="header"):
            Ledger(path, HISTORY.header)
        assert path.read_bytes() == content


@pytest.mark.parametrize("size", [0, 1, 40, 87])
def test_a_crash_inside_the_header_leaves_an_empty_ledger(tmp_path: Path, size: int) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(HISTORY.ledger[:size])
    with opened_ledger(path) as ledger:
        ledger.append(HISTORY.deltas[0], HISTORY.digests[1])
    assert path.read_bytes() == HISTORY.ledger[: HISTORY.sizes[1]]


@pytest.mark.parametrize("zeros", [1, 10, 16, 60, 64, 100])
def test_an_append_that_the_power_cut_left_as_zeros_is_cut_off(tmp_path: Path, zeros: int) -> None:
    path, end = tmp_path / "ledger", HISTORY.sizes[2]
    path.write_bytes(HISTORY.ledger[:end] + bytes(zeros))
    with opened_ledger(path) as ledger:
        assert "round 3" in ledger.recovered
    assert path.read_bytes() == HISTORY.ledger[:end]


def test_a_last_record_with_zeros_for_its_hash_is_cut_off_but_only_the_last(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(HISTORY.ledger[:-70] + bytes(70))
    with opened_ledger(path) as ledger:
        assert (ledger.position.round, "round 3" in ledger.recovered) == (2, True)
    end = HISTORY.sizes[2]
    damaged = HISTORY.ledger[: end - 32] + bytes(32) + HISTORY.ledger[end:]
    path.write_bytes(damaged)
    with pytest.raises(LedgerError, match="round 2"):
        Ledger(path, HISTORY.header)
    assert path.read_bytes() == damaged


def test_a_delta_of_another_track_is_refused(tmp_path: Path) -> None:
    path = write_ledger(tmp_path / "ledger", rounds=0)
    with opened_ledger(path) as ledger, pytest.raises(LedgerError, match="track 77"):
        ledger.append(replace(HISTORY.deltas[0], track=77), HISTORY.digests[1])


@contextmanager
def no_sync(size: int) -> Iterator[None]:
    """The disk takes what is written, and cannot keep it."""

    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        yield


@contextmanager
def no_room(size: int) -> Iterator[None]:
    """No file may grow beyond a size."""
    usual, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (usual, hard))


@pytest.mark.parametrize("disk", [no_sync, no_room])
def test_a_round_that_the_disk_refuses_leaves_the_ledger_as_it_was(
    tmp_path: Path, disk: Callable[[int], AbstractContextManager[None]]
) -> None:
    path = write_ledger(tmp_path / "ledger", rounds=1)
    with opened_ledger(path) as ledger:
        with disk(HISTORY.sizes[1] + 10), pytest.raises(LedgerError, match="cannot append round 2"):
            ledger.append(HISTORY.deltas[1], HISTORY.digests[2])
        assert path.read_bytes() == HISTORY.ledger[: HISTORY.sizes[1]]
        for n in (1, 2):
            ledger.append(HISTORY.deltas[n], HISTORY.digests[n + 1])
    assert path.read_bytes() == HISTORY.ledger


@pytest.mark.parametrize("disk", [no_sync, no_room])
def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, disk: Callable[[int], AbstractContextManager[None]]
) -> None:
    path = tmp_path / "file"
    write_durably(path, b"old")
    with disk(2), pytest.raises(OSError, match=r"No space|too large"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    write_durably(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_file_is_on_the_disk_before_it_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, rename = [], os.replace

    def replacing(source: Path, target: Path) -> None:
        calls.append((target.name, source.read_bytes()))
        rename(source, target)

    monkeypatch.setattr(os, "replace", replacing)
    monkeypatch.setattr(os, "fsync", lambda _: calls.append("fsync"))
    write_durably(tmp_path / "file", b"content")
    assert calls == ["fsync", ("file", b"content"), "fsync"]


# The folder of a run


def test_reopening_a_run_replays_to_the_same_digest(tmp_path: Path) -> None:
    write_run(tmp_path)
    with opened(tmp_path) as store:
        np.testing.assert_array_equal(store.state, HISTORY.states[3])
        assert store.digest == HISTORY.digests[3]
        assert store.ledger.position.round == 3
    rounds = list(replayed(tmp_path))
    assert [record.end_digest for record, _ in rounds] == list(HISTORY.digests[1:])
    for (_, state), expected in zip(rounds, HISTORY.states[1:], strict=True):
        np.testing.assert_array_equal(state, expected)


def test_a_round_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    widest = Pass(10, np.full(100, 2**31 - 1, np.int32))
    huge = RoundDelta(1, 0, bytes(8), (), (Group(1, np.arange(100, dtype=np.uint64), widest),))
    with opened(tmp_path) as store:
        for refuse in (store.check, store.append):
            with pytest.raises(ReplayError):
                refuse(huge)
        np.testing.assert_array_equal(store.state, zero_state(LAYOUT.size))
        assert store.digest == HISTORY.digests[0]
        store.append(HISTORY.deltas[0])
        assert store.digest == HISTORY.digests[1]


def test_a_run_of_another_layout_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path)
    other = layout_of(24)
    with pytest.raises(LedgerError, match="another layout"):
        RunStore(tmp_path, other, LedgerHeader(0, HISTORY.header.run_id, other.hash))


def test_events_survive_reopening(tmp_path: Path) -> None:
    events = [{"event": "round", "round": n, "loss": 0.1 * n} for n in (1, 2)]
    for event in events:
        with opened(tmp_path) as store:
            store.note(event)
    with opened(tmp_path) as store:
        assert store.events == events


def test_an_event_noted_after_a_crash_survives_too(tmp_path: Path) -> None:
    whole, torn = json.dumps({"round": 1}) + "\n", '{"rou'
    (tmp_path / METRICS_FILE).write_text(whole + torn)
    with opened(tmp_path) as store:
        store.note({"round": 2})
    with opened(tmp_path) as store:
        assert store.events == [{"round": 1}, {"round": 2}]


@pytest.mark.parametrize("content", ["", "{", "[]", "1"])
def test_a_damaged_result_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / RESULT_FILE).write_text(content)
    with pytest.raises(SamaraError, match="damaged"):
        read_result(tmp_path)


def test_a_missing_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SamaraError, match="has the run ended"):
        read_result(tmp_path)


# The command that proves a run


@pytest.fixture
def verify(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Path], tuple[int, str]]:
    """Run ``samara server verify``: its exit status, and what it said."""

    def run(folder: Path) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["samara", "server", "verify", str(folder)])
        monkeypatch.setenv("COLUMNS", "500")
        with pytest.raises(SystemExit) as ended:
            samara.main()
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return int(ended.value.code or 0), out + err

    return run


Verify = Callable[[Path], tuple[int, str]]


def test_verify_proves_a_sound_run(tmp_path: Path, verify: Verify) -> None:
    status, said = verify(write_run(tmp_path))
    assert status == 0
    assert "3 rounds, 18 scalars" in said
    assert HISTORY.digests[3].hex() in said


def test_verify_proves_a_run_without_rounds(tmp_path: Path, verify: Verify) -> None:
    status, said = verify(write_run(tmp_path, rounds=0))
    assert status == 0
    assert "0 rounds" in said


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_verify_finds_that_rounds_are_missing(tmp_path: Path, verify: Verify, rounds: int) -> None:
    write_ledger(write_run(tmp_path) / LEDGER_FILE, rounds)
    status, said = verify(tmp_path)
    assert status == 1
    assert "says round 3" in said


@pytest.mark.parametrize("result", [{}, {"final_round": 3, "final_digest": 5}, {"final_round": 3}])
def test_verify_finds_a_result_that_says_otherwise(
    tmp_path: Path, verify: Verify, result: dict[str, object]
) -> None:
    (write_run(tmp_path) / RESULT_FILE).write_text(json.dumps(result))
    status, said = verify(tmp_path)
    assert status == 1
    assert RESULT_FILE in said


def test_verify_finds_a_record_whose_digest_was_made_up(tmp_path: Path, verify: Verify) -> None:
    write_run(tmp_path, rounds=1)
    with opened_ledger(tmp_path / LEDGER_FILE) as ledger:
        ledger.append(HISTORY.deltas[1], HISTORY.digests[3])
    status, said = verify(tmp_path)
    assert status == 1
    assert "round 2: replaying it gives another digest" in said


def test_verify_of_what_is_no_run_fails_with_a_message(tmp_path: Path, verify: Verify) -> None:
    status, said = verify(tmp_path / "nowhere")
    assert status == 1
    assert "nowhere: cannot be read" in said.replace("/layout.json", "")
