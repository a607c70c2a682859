"""The resident trainer: its files, its service on a socket, and its state after kill -9."""

import json
import logging
import re
import stat
from functools import partial
from pathlib import Path

import pytest
from asked_clients import run_id_in, train_frame
from asking import hello_task, sent, train_task
from federations import Live, Settings, config_of, ledger_of, wrap_local_steps
from flwr.app import Error
from helpers import instruction_with, layout_of, no_sync
from residents import CLIENTS, device_settings, process, resident

from samara.client.app import TRAINER_VARIABLE
from samara.client.app import app as client_app
from samara.client.limits.device_settings import with_device_settings
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.protocol.session import Session
from samara.client.protocol.session_store import (
    SessionFolder,
    decode_session,
    encode_session,
)
from samara.client.trainer.remote_trainer import RemoteTrainer
from samara.client.trainer.trainer_service import serve_trainer
from samara.client.trainer.trainer_socket import address_of
from samara.server.app import serve
from samara.server.transport.messages import make_message
from samara.shared.errors import CatchUpError, ConfigError, DataError, RefusalCode, TrainerError
from samara.shared.protocol.frames.hello import Hello
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.frames.vector_report import VectorReport
from samara.shared.protocol.ledger.records import CatchUp, LedgerHeader
from samara.shared.results.result import read_result
from samara.shared.settings.config import RunConfig
from samara.simulations.engines.in_process import InProcessGrid
from samara.simulations.simulate import simulate


@pytest.fixture
def server_config(settings: Settings) -> RunConfig:
    """Settings of a server for live clients: they name no model or data that a client could use."""
    theirs = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    return config_of(settings | theirs, cohort__available=1, evaluate__every=0)


def sessions_of(folder: Path) -> list[Session]:
    return [decode_session(file.read_bytes()) for file in folder.glob("runs/*/session")]


def test_a_run_over_sockets_ends_where_the_devices_stand(
    settings: Settings, server_config: RunConfig, short: Path
) -> None:
    folders = [short / str(client) for client in CLIENTS]
    residents = [resident(settings, d, f) for d, f in zip(CLIENTS, folders, strict=True)]
    sockets = [short / f"{client}.sock" for client in CLIENTS]
    with (
        serve_trainer(lambda: residents[0], sockets[0]),
        serve_trainer(lambda: residents[1], sockets[1]),
    ):
        assert all(stat.S_IMODE(socket.stat().st_mode) == 0o600 for socket in sockets)
        folder = serve(server_config, Live(sockets, server_config))
        status = RemoteTrainer(str(sockets[0])).__enter__().status()
    assert not any(socket.exists() for socket in sockets)
    result = json.loads((folder / "result.json").read_text())
    assert set(result["clients"]) == {str(client) for client in CLIENTS}
    assert all(facts["examples"] > 100 for facts in result["clients"].values())
    for where in folders:
        [session] = sessions_of(where)
        assert session.digest.hex() == result["final_digest"]
        assert session.position.round == 3
    assert (status.model_loads, status.paused) == (1, "")
    assert status.answered > 6
    for device, where in zip(CLIENTS, folders, strict=True):
        device_settings(settings, device, where).write()
    repeated = config_of(server_config.flat(), out=str(short / "again"))
    again = simulate(repeated, cohorts_from=folder, homes=folders)
    assert read_result(again)["final_digest"] == result["final_digest"]
    with pytest.raises(ConfigError, match="add --cohorts-from"):
        simulate(repeated, homes=folders)


def test_live_clients_of_a_private_run_say_nothing_of_their_examples(
    settings: Settings, server_config: RunConfig, short: Path
) -> None:
    private = {
        "privacy__mode": "central",
        "privacy__epsilon": 4.0,
        "seed_policy": "shared",
        "aggregation__rule": "mean",
        "rounds": 2,
    }
    config = config_of(server_config.flat(), **private)
    one = resident(settings, CLIENTS[0], short / "one")
    with serve_trainer(lambda: one, short / "one.sock", shares_cost=True):
        folder = serve(config, Live([short / "one.sock"], config))
    result = read_result(folder)
    (facts,) = result["clients"].values()
    assert facts["examples"] == 0
    assert "split_examples" not in facts
    assert result["evaluations"] == []
    assert [set(next(iter(e["clients"].values()))) for e in result["rounds"]] == [
        {"scalars", "bytes_up", "bytes_down"}
    ] * 2
    assert result["rounds"][-1]["epsilon"] == pytest.approx(4.0)
    [session] = sessions_of(short / "one")
    assert session.position.round == 1
    assert VectorReport.decode(session.report).client == CLIENTS[0]


def test_killing_the_trainer_between_messages_changes_nothing(
    settings: Settings, server_config: RunConfig, short: Path, tmp_path: Path
) -> None:
    undisturbed = resident(settings, 7, short / "u")
    with serve_trainer(lambda: undisturbed, short / "u.sock"):
        expected = serve(server_config, Live([short / "u.sock"], server_config))
    disturbed = config_of(server_config.flat(), out=str(tmp_path / "disturbed"))
    mine = device_settings(settings, 7, short / "k")
    messages: list[str] = []
    with process(mine) as kill:

        def killed_after_training(kind: str, partition: int) -> None:
            messages.append(kind)
            if kind == "train" and messages.count("train") < 3:
                kill()

        folder = serve(disturbed, Live([mine.socket], disturbed, killed_after_training))
        [session] = sessions_of(mine.folder)
    assert ledger_of(folder) == ledger_of(expected)
    [known] = sessions_of(short / "u")
    assert session.to_bytes() == known.to_bytes()


def test_a_repeated_instruction_gets_the_stored_report_from_disk(
    settings: Settings,
    server_config: RunConfig,
    short: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = resident(settings, 7, short)
    hello = Hello.decode(first.client_under(server_config).answer(hello_task()))
    assert (hello.client, hello.round) == (7, 0)
    layout = first.runtime.layout
    header = LedgerHeader(0, run_id_in(first), layout.hash)
    start = Session.begin(header, layout)
    instruction = instruction_with(
        run_id=run_id_in(first), layout_hash=layout.hash, start_digest=start.digest
    ).encode()
    report = first.client_under(server_config).answer(train_task(instruction))
    assert report
    second = ResidentTrainer.load(first.runtime.config, 7, short)

    def never(*arguments: object) -> Report:
        raise AssertionError("trained twice")

    wrap_local_steps(monkeypatch, never)
    assert second.client_under(server_config).answer(train_task(instruction)) == report


def test_a_damaged_session_begins_anew_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sessions, session = SessionFolder(tmp_path), _session()
    assert sessions.read_session(bytes(8)) is None
    sessions.write_session(bytes(8), session)
    kept = sessions.read_session(bytes(8))
    assert kept is not None
    assert kept.to_bytes() == session.to_bytes()
    file = tmp_path / "runs" / bytes(8).hex() / "session"
    file.write_bytes(file.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING, "samara.client"):
        assert sessions.read_session(bytes(8)) is None
    assert "the session starts again from round 0" in caplog.text


@pytest.mark.parametrize("cut", [0, 4, 20, 60])
def test_whatever_is_cut_off_a_session_is_noticed(cut: int) -> None:
    with pytest.raises(CatchUpError, match="damaged"):
        decode_session(encode_session(_session())[:cut])


def test_a_full_disk_is_told_to_the_server(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    with pytest.raises(TrainerError, match="cannot be written"):
        SessionFolder(tmp_path).write_session(bytes(8), _session())


def test_a_device_keeps_its_own_settings() -> None:
    asked = RunConfig.of({"rounds": 9, "adapter.rank": 3, "threads": 8, "batch": 5}, "server")
    device_settings = RunConfig.of(
        {"threads": 1, "model.path": "m", "data.path": "d", "task": "t"}, "own"
    )
    config = with_device_settings(asked, device_settings)
    assert (config.rounds, config.adapter.rank, config.batch) == (9, 3, 5)
    assert (config.threads, config.model.path, config.data.path, config.task) == (1, "m", "d", "t")


def test_unsound_settings_from_the_server_are_refused(
    settings: Settings, short: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = resident(settings, 7, short)
    with serve_trainer(lambda: trainer, short / "t.sock"):
        unsound = [
            ({"rounds": -1}, RefusalCode.SETTINGS, "1 mistake"),
            ({"no-such": 1}, RefusalCode.CODE, "this version of Samara does not know no-such"),
        ]
        for sent, code, message in unsound:
            with RemoteTrainer(str(short / "t.sock")) as remote:
                refusal = Refusal.decode(remote.answer(hello_task(json.dumps(sent).encode())).frame)
            assert (refusal.client, refusal.code) == (7, code)
            assert f"client 7 refuses: run config: {message}" in caplog.text
            assert re.search("install (that|the server's) version$", caplog.text, re.MULTILINE)
            caplog.clear()
        with RemoteTrainer(str(short / "t.sock")) as remote:
            refusal = Refusal.decode(remote.answer(hello_task(b"[")).frame)
            assert refusal.code == RefusalCode.SETTINGS
        assert "client 7 refuses: run config: is not JSON" in caplog.text


def test_a_paused_trainer_refuses_and_says_where_it_stands(
    settings: Settings, server_config: RunConfig, short: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer, reasons = resident(settings, 7, short), ["91 °C is over 85 °C"]
    with (
        serve_trainer(lambda: trainer, short / "t.sock", lambda: reasons[0]),
        RemoteTrainer(str(short / "t.sock")) as remote,
    ):
        trainer.client_under(server_config)  # with the run's layout
        frame, told = train_frame(trainer), sent(server_config)
        refusal = Refusal.decode(remote.answer(train_task(frame, settings=told)).frame)
        assert (refusal.client, refusal.round) == (7, 0)
        assert refusal.code == RefusalCode.PAUSED
        assert "client 7 refuses: paused: 91 °C is over 85 °C" in caplog.text
        assert remote.status().paused
        assert Hello.decode(remote.answer(hello_task(told)).frame).client == 7


def test_a_full_disk_is_named_to_the_server_and_in_the_owners_log(
    settings: Settings, server_config: RunConfig, short: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = resident(settings, 7, short)
    with (
        serve_trainer(lambda: trainer, short / "t.sock"),
        RemoteTrainer(str(short / "t.sock")) as remote,
    ):
        told = sent(server_config)
        trainer.client_under(server_config)
        frame = train_frame(trainer)
        for task in (hello_task(told), train_task(frame, settings=told)):
            caplog.clear()
            with no_sync(0):
                refusal = Refusal.decode(remote.answer(task).frame)
            assert (refusal.client, refusal.code, refusal.numbers) == (7, RefusalCode.DISK, (1, 0))
            assert "its disk is full: no space left on device" in refusal.description
            assert "No space left" in caplog.text
            assert "client 7 refuses: " in caplog.text
        reply = remote.answer(train_task(frame, settings=told))
        assert Report.decode(reply.frame).client == 7


def test_without_a_trainer_flower_gets_a_code_and_the_log_the_reason(
    server_config: RunConfig,
    short: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(
        "samara.client.trainer.remote_trainer.RemoteTrainer", partial(RemoteTrainer, patience=0.1)
    )
    monkeypatch.setenv(TRAINER_VARIABLE, str(short / "nobody.sock"))
    grid = InProcessGrid(client_app, 1, server_config.flat())
    [node] = grid.get_node_ids()
    [reply] = grid.send_and_receive([make_message(node, "query", "hello", b"", CatchUp(), 60.0)])
    assert isinstance(reply.error, Error)
    reason = str(reply.error.reason)
    assert reason.startswith("its resident trainer cannot be reached (code 11)")
    assert str(short) not in reason
    assert f"no trainer answers at {short}" in caplog.text


def test_a_path_too_long_for_a_socket_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="107 bytes"):
        address_of(tmp_path / ("x" * 120))


def test_a_device_without_training_examples_says_so(settings: Settings, tmp_path: Path) -> None:
    data = tmp_path / "d"
    data.mkdir()
    row = json.dumps({"text": "the film was good", "label": 1}) + "\n"
    (data / "train.jsonl").write_text("")
    (data / "test.jsonl").write_text(row)
    with pytest.raises(DataError):
        resident(settings | {"data.path": str(data)}, 7, tmp_path / "home")


def _session() -> Session:
    layout = layout_of()
    return Session.begin(LedgerHeader(0, bytes(8), layout.hash), layout).with_report(b"t" * 8, b"r")
