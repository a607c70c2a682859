"""Interrupted runs, absent clients, and the ledger from which both continue."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Settings, config_of, grid_of, ledger_of, serve_until_killed
from flwr.app import Message
from helpers import files_of

from samara.server.app import serve
from samara.server.rounds import aggregation
from samara.server.rounds.aggregation import observe_round
from samara.server.rounds.event_log import EventLog
from samara.server.store import NEXT_EVENT_FILE, read_layout, replay_run
from samara.shared.errors import ConfigError, LedgerError, RefusalCode
from samara.shared.protocol.frames.instructions import TrainInstruction
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.ledger import ledger as ledgers
from samara.shared.protocol.ledger.ledger import Ledger
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.protocol.round_delta import RoundDelta
from samara.shared.protocol.step_size import Observation
from samara.shared.results.result import RESULT_FILE, read_result
from samara.shared.settings.config import RunConfig
from samara.shared.settings.setting import SETTINGS_FILE
from samara.simulations.exports.adapter import export
from samara.simulations.simulate import simulate


def test_who_was_away_catches_up_and_all_stand_where_the_server_stands(
    settings: Settings,
) -> None:
    config = config_of(settings, cohort__fraction=0.3, rounds=6)
    folder = simulate(config)
    cohorts = [[c.client for c in r.delta.contributors] for r in read_ledger(folder / "ledger")]
    assert all(len(cohort) == 1 for cohort in cohorts)
    assert len({cohort[0] for cohort in cohorts}) > 1
    final = read_result(folder)["evaluations"][-1]
    assert set(final["columns"]["global"]["clients"]) == {"0", "1", "2"}
    assert final["refused"] == {}


def test_a_client_that_cannot_reach_the_digest_refuses_and_says_so(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(settings, rounds=2)
    grid = grid_of(config)
    plain = grid._deliver

    def loses_the_tail(message: Message) -> Message:
        if message.metadata.dst_node_id == 1001 and message.metadata.message_type == "train":
            message.content.config_records["samara"]["tail"] = b""
        return plain(message)

    grid._deliver = loses_the_tail  # type: ignore[method-assign]
    folder = serve(config, grid)
    first, second = read_result(folder)["rounds"]
    assert first["refused"] == {}
    reason = "it cannot catch up to the end of round 1: it reached round 0 (code 8); the reason is"
    assert second["refused"]["1"].startswith(reason)
    assert "client 1 refuses: the session is at round 0 with digest" in caplog.text
    assert [c.client for c in list(read_ledger(folder / "ledger"))[1].delta.contributors] == [0, 2]


def test_an_interrupted_run_goes_on_to_the_same_ledger(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = simulate(config_of(settings, out=str(tmp_path / "whole")))
    config = config_of(settings)
    serve_until_killed(config, 5)
    assert len(list(read_ledger(Path(config.out) / "ledger"))) == 1
    resumed = simulate(config)
    assert ledger_of(resumed) == ledger_of(whole)
    before = read_result(resumed)
    assert [event["round"] for event in before["rounds"]] == [1, 2, 3]
    assert read_result(simulate(config)) == before


@pytest.mark.parametrize("killed", [(EventLog, "_record"), (Ledger, "append")])
def test_a_run_killed_as_its_round_ends_has_the_event_of_that_round_once(
    killed: tuple[type, str], settings: Settings, tmp_path: Path
) -> None:
    """The run is killed before the ledger's record, or between the record and the event."""
    whole = read_result(simulate(config_of(settings, out=str(tmp_path / "whole"))))
    config = config_of(settings)
    kind, name = killed
    plain = getattr(kind, name)

    def dies(of: Any, written: Any) -> Any:
        number = written.round if isinstance(written, RoundDelta) else written["round"]
        if number == 2:
            raise KeyboardInterrupt
        return plain(of, written)

    with pytest.MonkeyPatch.context() as dying:
        dying.setattr(kind, name, dies)
        with pytest.raises(KeyboardInterrupt):
            simulate(config)
    folder = Path(config.out)
    assert (folder / NEXT_EVENT_FILE).exists()
    assert len(list(read_ledger(folder / "ledger"))) == 1 + (kind is EventLog)
    result = read_result(simulate(config))
    assert not (folder / NEXT_EVENT_FILE).exists()
    assert result["final_digest"] == whole["final_digest"]
    assert [event["round"] for event in result["rounds"]] == [1, 2, 3]
    of_process = "seconds", "time", "passes"
    second, expected = (
        {key: value for key, value in each["rounds"][1].items() if key not in of_process}
        for each in (result, whole)
    )
    if kind is EventLog:
        assert second == expected
    assert second["clients"].keys() == expected["clients"].keys()


def test_an_event_that_waits_and_is_damaged_or_of_another_round_is_left_out(
    settings: Settings,
) -> None:
    config = config_of(settings)
    serve_until_killed(config, 5)
    file = Path(config.out) / NEXT_EVENT_FILE
    for content in ('{"round": 7}', "[1]", "{"):
        file.write_text(content)
        serve_until_killed(config, 1)
        assert not file.exists()
    assert [event["round"] for event in read_result(simulate(config))["rounds"]] == [1, 2, 3]


def test_a_run_that_finds_its_step_size_goes_on_to_the_same_ledger(
    settings: Settings, tmp_path: Path
) -> None:
    auto = {"learning_rate": "auto", "rounds": 4, "steps": 3}
    whole = simulate(config_of(settings, **auto, out=str(tmp_path / "whole")))
    config = config_of(settings, **auto)
    serve_until_killed(config, 11)
    resumed = simulate(config)
    assert ledger_of(resumed) == ledger_of(whole)
    rates = [event["learning_rate"] for event in read_result(resumed)["rounds"]]
    assert rates[0] == 0
    assert rates[-1] > 0


def test_a_loss_that_rises_takes_rounds_back_to_the_bit(
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The run reverts, lowers the given learning rate and says so; the round has no contributor.

    Another run can repeat this round, because the clients whose reports decided it are recorded.
    """

    def rising(instruction: TrainInstruction, *rest: Any) -> Observation:
        loss = 9.0 if instruction.round == 6 else 0.7
        return replace(observe_round(instruction, *rest), loss=loss)

    monkeypatch.setattr(aggregation, "observe_round", rising)
    caplog.set_level("INFO", "samara.server")
    folder = simulate(config_of(settings, learning_rate=0.1, rounds=7, cohort__empty_rounds=1))
    steps = {step.round: step for step in replay_run(folder)}
    sixth = read_result(folder)["rounds"][5]
    assert sixth["problem"] == "the loss rose, so the model returns to its state after round 4"
    assert sixth["problem"] in caplog.text
    assert sixth["back_to"] == 4
    np.testing.assert_array_equal(steps[6].state, steps[4].state)
    assert (steps[5].state != steps[4].state).any()
    assert steps[6].record is not None
    assert not steps[6].record.delta.contributors
    rates = [event["learning_rate"] for event in read_result(folder)["rounds"]]
    assert rates[:6] == [0.1] * 6
    assert rates[6] == pytest.approx(0.01)
    changes = {"learning_rate": 0.1, "rounds": 7, "out": str(tmp_path / "again")}
    again = simulate(config_of(settings, **changes), cohorts_from=folder)
    assert read_result(again)["final_digest"] == read_result(folder)["final_digest"]
    file = folder / "step_size.jsonl"
    file.write_text(re.sub(r'"clients": \[[^]]*\], ', "", file.read_text()))
    with pytest.raises(
        LedgerError, match="does not name the clients whose reports decided round 6"
    ):
        simulate(config_of(settings, **changes), cohorts_from=folder)


def with_small_records(settings: Settings, **changes: Any) -> RunConfig:
    """Settings with one client per round, and a snapshot every second round.

    A snapshot is longer than a few records.
    """
    sparse = {"cohort__fraction": 0.3, "rounds": 7, "ledger__snapshot_every": 2}
    return config_of(settings, **(sparse | changes))


def test_a_run_goes_on_from_a_compacted_ledger_to_the_same_end(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction takes a snapshot as shorter than any record, so every client gets the snapshot."""
    monkeypatch.setattr(ledgers, "snapshot_bytes", lambda _: 0)
    config = with_small_records(settings, out=str(tmp_path / "whole"))
    whole = simulate(config)
    assert sorted(ledger_of(whole)) == [
        *("0000000004.snap", "0000000005.seg", "0000000006.snap", "0000000007.seg")
    ]
    assert [step.round for step in replay_run(whole)] == [4, 5, 6, 7]
    config = with_small_records(settings)
    serve_until_killed(config, 7)
    assert sorted(ledger_of(Path(config.out)))[0] == "0000000004.snap"
    snapshots: list[bytes] = []

    def watched(message: Message) -> Message:
        record = message.content.config_records["samara"]
        snapshots.append(bytes(record.get("snapshot", b"")))  # type: ignore[arg-type]
        return plain(message)

    grid = grid_of(config)
    plain, grid._deliver = grid._deliver, watched  # type: ignore[method-assign]
    resumed = serve(config, grid)
    assert ledger_of(resumed) == ledger_of(whole)
    assert read_result(resumed)["final_digest"] == read_result(whole)["final_digest"]
    assert any(snapshots)
    assert read_result(resumed)["evaluations"][-1]["refused"] == {}


def test_the_way_of_catching_up_does_not_change_the_run(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_tail = simulate(with_small_records(settings, ledger__snapshot_every=0))
    monkeypatch.setattr(ledgers, "snapshot_bytes", lambda _: 0)
    config = with_small_records(settings, ledger__snapshot_every=2, out=str(tmp_path / "other"))
    by_snapshot = simulate(config)
    digests = [read_result(run)["rounds"][-1]["loss"] for run in (by_tail, by_snapshot)]
    assert digests[0] == digests[1]
    *_, first = replay_run(by_tail)
    *_, second = replay_run(by_snapshot)
    np.testing.assert_array_equal(first.state, second.state)


def test_a_snapshot_that_was_changed_on_its_way_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ledgers, "snapshot_bytes", lambda _: 0)
    config = with_small_records(settings)
    grid = grid_of(config)
    plain, tampered = grid._deliver, []

    def tampers(message: Message) -> Message:
        record = message.content.config_records["samara"]
        snapshot = bytearray(record.get("snapshot", b""))  # type: ignore[arg-type]
        if snapshot and not tampered:
            snapshot[-1] ^= 1
            record["snapshot"] = bytes(snapshot)
            tampered.append(message.metadata.message_type)
            reply = plain(message)
            refusal = Refusal.decode(bytes(reply.content.config_records["samara"]["frame"]))  # type: ignore[arg-type]
            assert refusal.code == RefusalCode.CATCH_UP
            assert "the digest of the snapshot's state is not the digest after round" in caplog.text
            return reply
        return plain(message)

    grid._deliver = tampers  # type: ignore[method-assign]
    result = read_result(serve(config, grid))
    assert tampered
    refused = [why for event in result["rounds"] for why in event["refused"].values()]
    assert len(refused) == 1
    assert refused[0].startswith("it cannot catch up to the end of round 1: it reached round 0 (")
    assert result["final_round"] == config.rounds


def test_a_folder_of_another_run_is_refused(settings: Settings) -> None:
    simulate(config_of(settings))
    differs = r"another run, which is finished and differs in learning-rate \(0.1 there, 0.2 here\)"
    with pytest.raises(ConfigError, match=differs):
        simulate(config_of(settings, learning_rate=0.2))


def test_an_unfinished_run_names_the_setting_that_was_edited(settings: Settings) -> None:
    config = config_of(settings)
    serve_until_killed(config, 5)
    differs = (
        r"was begun with other settings: learning-rate \(0.1 there, 0.2 here\); a run keeps its "
        r"settings: restore them to continue the run, or begin a new run in another folder"
    )
    changed = config_of(settings, learning_rate=0.2)
    for begin in (simulate, lambda config: serve(config, grid_of(config))):
        with pytest.raises(LedgerError, match=differs):
            begin(changed)
    assert not (Path(config.out) / RESULT_FILE).exists()
    simulate(config)
    assert (Path(config.out) / RESULT_FILE).exists()


def test_a_run_goes_on_though_its_model_moved_and_is_executed_otherwise(
    settings: Settings, tmp_path: Path
) -> None:
    whole = simulate(config_of(settings, out=str(tmp_path / "whole")))
    serve_until_killed(config_of(settings), 5)
    moved = shutil.copytree(settings["model.path"], tmp_path / "moved")
    elsewhere = {"model__path": str(moved), "memory_budget": 2**30}
    config = config_of(settings, **elsewhere, threads=2, ledger__snapshot_every=2)
    resumed = simulate(config)
    assert read_result(resumed)["final_digest"] == read_result(whole)["final_digest"]
    assert read_result(resumed)["final_round"] == 3


def test_a_run_of_an_earlier_version_is_verified_and_exported_but_not_continued(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The run's id depended on all settings, and two of its keys had other names."""
    config = config_of(settings, personal__rounds=1)
    with monkeypatch.context() as earlier:
        earlier.setattr(RunConfig, "identity", RunConfig.flat)
        folder = simulate(config)
    (folder / SETTINGS_FILE).unlink()
    result = read_result(folder)
    for now, then in (
        ("model.torch-device", "model.device"),
        ("cohort.clustering-rounds", "cohort.grouping-rounds"),
    ):
        result["config"][then] = result["config"].pop(now)
    (folder / RESULT_FILE).write_text(json.dumps(result))
    for finished in (True, False):
        with pytest.raises(LedgerError) as refused:
            simulate(config)
        for part in (
            str(folder),
            "another run",
            "an earlier version of Samara began that run",
            "verify or export",
        ):
            assert part in str(refused.value)
        if finished:
            *_, last = replay_run(folder)
            assert last.round == 3
            assert export(folder, 1, tmp_path / "adapter") == {}
            (folder / RESULT_FILE).unlink()


def test_private_rounds_are_the_same_from_a_compacted_ledger(
    settings: Settings, tmp_path: Path
) -> None:
    ends = []
    for every in (0, 1):
        config = config_of(
            settings,
            rounds=1,
            personal__rounds=4,
            ledger__snapshot_every=every,
            out=str(tmp_path / str(every)),
        )
        folder = simulate(config) / "clients" / "0" / "personal.ledger"
        *_, last = verify_ledger(folder, read_layout(Path(config.out)))
        ends.append(last)
    assert sorted(files_of(folder)) == ["0000000003.snap", "0000000004.seg", "0000000004.snap"]
    assert [end.round for end in ends] == [4, 4]
    np.testing.assert_array_equal(ends[0].state, ends[1].state)
