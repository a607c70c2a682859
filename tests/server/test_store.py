"""The folder of a run, and the command that verifies it."""

import json
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from helpers import delta_of, history_of, layout_of, write_files

from samara.command import main
from samara.server.store import (
    LEDGER_FOLDER,
    METRICS_FILE,
    RESULT_FILE,
    RunStore,
    replay_run,
    write_result,
)
from samara.shared.errors import LedgerError, SamaraError
from samara.shared.protocol.ledger.records import LedgerHeader, Record
from samara.shared.results.result import read_result
from samara.shared.storage.events import append_event

LAYOUT = layout_of()
HISTORY = history_of([delta_of(n) for n in range(1, 8)], LAYOUT)


def opened(folder: Path, every: int = 0) -> closing[RunStore]:
    return closing(RunStore(folder, LAYOUT, HISTORY.header, every))


def write_run(folder: Path, rounds: int = 3, every: int = 0) -> Path:
    with opened(folder, every) as store:
        for delta in HISTORY.deltas[:rounds]:
            store.ledger.append(delta)
            append_event(folder / METRICS_FILE, {"event": "round", "round": delta.round})
        digest = store.ledger.digest.hex()
        write_result(store.folder, {"final_round": rounds, "final_digest": digest})
    return folder


def flipped_bits(data: bytes) -> list[bytes]:
    def flipped(bit: int) -> bytes:
        return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]

    return [flipped(bit) for bit in range(8 * len(data))]


def test_any_flipped_bit_of_the_layout_is_found(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run") / "layout.json"
    for damaged in flipped_bits(path.read_bytes())[::7]:
        path.write_bytes(damaged)
        with pytest.raises(SamaraError):
            list(replay_run(path.parent))


def test_reopening_a_run_leads_to_the_same_digest(tmp_path: Path) -> None:
    write_run(tmp_path)
    with opened(tmp_path) as store:
        np.testing.assert_array_equal(store.ledger.state, HISTORY.states[3])
        assert store.ledger.digest == HISTORY.digests[3]
        assert store.ledger.position.round == 3
    for step, expected in zip(replay_run(tmp_path), HISTORY.states, strict=False):
        np.testing.assert_array_equal(step.state, expected)
    assert (step.round, step.record is None) == (3, False)


def test_a_run_of_another_layout_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path)
    other = layout_of(24)
    with pytest.raises(LedgerError, match="another layout"):
        RunStore(tmp_path, other, LedgerHeader(0, HISTORY.header.run_id, other.hash), 0)


def test_events_survive_reopening(tmp_path: Path) -> None:
    events = [{"event": "evaluation", "round": n, "loss": 0.1 * n} for n in (1, 2)]
    for event in events:
        with opened(tmp_path):
            append_event(tmp_path / METRICS_FILE, event)
    with opened(tmp_path) as store:
        assert store.events() == events


def test_a_ledger_that_lost_rounds_which_the_metrics_have_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path)
    write_files(tmp_path / LEDGER_FOLDER, HISTORY.files(2))
    for _ in range(2):
        with pytest.raises(
            LedgerError, match=r"ends at round 2, but .* at round 3: rounds were lost"
        ):
            RunStore(tmp_path, LAYOUT, HISTORY.header, 0)


def test_an_event_noted_after_a_crash_survives_too(tmp_path: Path) -> None:
    whole, torn = json.dumps({"round": 1}) + "\n", '{"rou'
    (tmp_path / METRICS_FILE).write_text(whole + torn)
    with opened(tmp_path):
        append_event(tmp_path / METRICS_FILE, {"round": 2})
    with opened(tmp_path) as store:
        assert store.events() == [{"round": 1}, {"round": 2}]


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
    """Run ``samara server check --replay``; return its exit status and its output."""

    def run(folder: Path) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["samara", "server", "check", "--replay", str(folder)])
        monkeypatch.setenv("COLUMNS", "500")
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return int(ended.value.code or 0), out + err

    return run


Verify = Callable[[Path], tuple[int, str]]


def test_a_sound_run_is_proven(tmp_path: Path, verify: Verify) -> None:
    status, said = verify(write_run(tmp_path))
    assert status == 0
    assert "3 rounds, 18 scalars" in said
    assert HISTORY.digests[3].hex() in said


def test_a_run_without_rounds_is_proven(tmp_path: Path, verify: Verify) -> None:
    status, said = verify(write_run(tmp_path, rounds=0))
    assert status == 0
    assert "0 rounds" in said


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_a_proof_finds_that_rounds_are_missing(tmp_path: Path, verify: Verify, rounds: int) -> None:
    write_files(write_run(tmp_path) / LEDGER_FOLDER, HISTORY.files(rounds))
    status, said = verify(tmp_path)
    assert status == 1
    assert "ends with round 3" in said


@pytest.mark.parametrize("result", [{}, {"final_round": 3, "final_digest": 5}, {"final_round": 3}])
def test_a_proof_finds_a_result_that_says_otherwise(
    tmp_path: Path, verify: Verify, result: dict[str, object]
) -> None:
    (write_run(tmp_path) / RESULT_FILE).write_text(json.dumps(result))
    status, said = verify(tmp_path)
    assert status == 1
    assert RESULT_FILE in said


def test_a_proof_finds_a_record_whose_digest_was_made_up(tmp_path: Path, verify: Verify) -> None:
    record = Record.create(HISTORY.position(1), HISTORY.deltas[1], HISTORY.digests[3])
    files = HISTORY.files(1)
    segment = write_run(tmp_path) / LEDGER_FOLDER / "0000000001.seg"
    segment.write_bytes(files[segment.name] + record.encode())
    status, said = verify(tmp_path)
    assert status == 1
    assert "round 2: replaying it gives a digest other than" in said


def test_a_run_with_snapshots_is_proven(tmp_path: Path, verify: Verify) -> None:
    status, said = verify(write_run(tmp_path, rounds=7, every=2))
    assert (status, "  7 rounds, 42 scalars" in said) == (0, True)
    assert HISTORY.digests[7].hex() in said


def test_a_proof_of_a_compacted_run_begins_at_its_oldest_snapshot(
    tmp_path: Path, verify: Verify
) -> None:
    write_run(tmp_path, rounds=7, every=2)
    with opened(tmp_path, 2) as store:
        store.ledger.compact(7)
    status, said = verify(tmp_path)
    assert (status, "rounds 1 to 4 are in a snapshot; 3 rounds, 18 scalars" in said) == (0, True)
    assert HISTORY.digests[7].hex() in said


def test_a_proof_finds_any_damage_to_a_snapshot(tmp_path: Path, verify: Verify) -> None:
    path = write_run(tmp_path, rounds=7, every=3) / LEDGER_FOLDER / "0000000003.snap"
    sound = path.read_bytes()
    for damaged in [*flipped_bits(sound)[::97], sound[:-1], sound + b"x", b"", HISTORY.snapshot(6)]:
        path.write_bytes(damaged)
        status, said = verify(tmp_path)
        assert (status, "0000000003.snap" in said) == (1, True)


@pytest.mark.parametrize("name", ["0000000001.seg.new", "notes", "1.seg", "0000000006.snap.bak"])
def test_a_proof_finds_what_does_not_belong_there(
    tmp_path: Path, verify: Verify, name: str
) -> None:
    (write_run(tmp_path) / LEDGER_FOLDER / name).touch()
    status, said = verify(tmp_path)
    assert (status, f"{name}: not part of a ledger" in said) == (1, True)


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        (["0000000001.seg"], "neither round 1 nor a snapshot"),
        (["0000000003.seg"], "round 3: the record is missing"),
        (["0000000001.seg", "0000000003.seg"], "0000000002.snap: round 2: its record is missing"),
        (["0000000007.seg", "0000000005.seg"], "0000000006.snap: round 6: its record is missing"),
    ],
)
def test_a_proof_finds_that_files_are_missing(
    tmp_path: Path, verify: Verify, gone: list[str], message: str
) -> None:
    folder = write_run(tmp_path, rounds=7, every=2) / LEDGER_FOLDER
    if gone == ["0000000001.seg"]:
        gone = [*gone, *(path.name for path in folder.glob("*.snap"))]
    for name in gone:
        (folder / name).unlink()
    status, said = verify(tmp_path)
    assert (status, message in said) == (1, True)


def test_a_proof_of_what_is_no_run_fails_with_a_message(tmp_path: Path, verify: Verify) -> None:
    status, said = verify(tmp_path / "nowhere")
    assert status == 1
    assert "nowhere: does not exist; name the folder of a run" in said
