"""The limit on the scalars that a client sends, with real frames, over runs and restarts."""

import re
from pathlib import Path

import pytest
from asking import train_task
from federations import Live, Settings, config_of, wrap_local_steps
from private_reports import first_instruction
from residents import CLIENTS, device_settings, resident
from typer.testing import CliRunner

from samara.client.limits.pass_counts import PASSES_FILE, PassCounts
from samara.client.limits.scalar_counts import ScalarCounts
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.protocol.session import Session
from samara.client.protocol.session_store import SessionFolder
from samara.client.trainer.trainer_service import serve_trainer
from samara.client.training.client_data import ClientData
from samara.client.training.model_runtime import load_run
from samara.devices.live.commands import app as client_app
from samara.server.app import serve
from samara.shared.errors import RefusalCode, TrainerError
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.frames.report import Report
from samara.shared.results.result import RunResult
from samara.shared.settings.config import RunConfig
from samara.simulations.simulate import simulate

GRADIENTS, PER_ROUND = 4, 5
"""Projected gradients in a report, and all its scalars: the mean loss is one, too."""


@pytest.fixture
def server_config(settings: Settings) -> RunConfig:
    """The settings of a server that asks live clients for 4 scalars a round."""
    theirs = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    return config_of(settings | theirs, cohort__available=1, evaluate__every=0, cohort__patience=1)


def limited(settings: Settings, client: int, folder: Path, limit: float) -> ResidentTrainer:
    """A client whose owner has set a limit, loaded again from its folder."""
    config = config_of(settings, data__scalar_limit=limit, data__clients=1)
    return ResidentTrainer.load(config, client, folder)


def sent_by(folder: Path, data: ClientData) -> int:
    """The number of scalars about its training examples that a client has sent."""
    by_layout = ScalarCounts(folder).read()[data.hash_of(Split.TRAIN)]
    return sum(count.sent for count in by_layout.values())


def test_who_has_sent_enough_refuses_and_the_others_go_on(
    settings: Settings, server_config: RunConfig, short: Path
) -> None:
    config = config_of(server_config.flat(), rounds=5, personal__rounds=0)
    free = resident(settings, CLIENTS[0], short / "free")
    size = limited(settings, CLIENTS[1], short / "careful", 0.0).runtime.layout.size
    careful = limited(settings, CLIENTS[1], short / "careful", 2 * PER_ROUND / size)
    sockets = [short / "free.sock", short / "careful.sock"]
    with serve_trainer(lambda: free, sockets[0]), serve_trainer(lambda: careful, sockets[1]):
        result = RunResult.read(serve(config, Live(sockets, config)))
    reports = [sorted(entry.clients) for entry in result.rounds]
    assert reports == [sorted(CLIENTS)] * 2 + [[CLIENTS[0]]] * 3
    [refusal] = result.rounds[2].refused.values()
    assert refusal.startswith("its owner's limit leaves 0 scalars, and the instruction asks for 5")
    assert not result.rounds[3].refused  # it rests
    assert set(result.evaluations[-1].columns["global"].clients) == set(CLIENTS)
    assert result.scalar_ratios is not None
    assert result.scalar_ratios.clients == {
        CLIENTS[0]: 5 * GRADIENTS / size,
        CLIENTS[1]: 2 * GRADIENTS / size,
    }
    assert result.scalar_ratios.max == 5 * GRADIENTS / size
    assert sent_by(short / "free", free.data) == 5 * PER_ROUND
    assert sent_by(short / "careful", careful.data) == 2 * PER_ROUND


def test_the_count_outlives_processes_and_runs(
    settings: Settings, server_config: RunConfig, tmp_path: Path
) -> None:
    limit = 12 / limited(settings, 7, tmp_path, 0.0).runtime.layout.size
    first = limited(settings, 7, tmp_path, limit)
    client = first.client_under(server_config)
    instruction = first_instruction(first).encode()  # 9 scalars
    report = client.answer(train_task(instruction))
    assert Report.decode(report).gradients.size == 8
    second = limited(settings, 7, tmp_path, limit)
    client = second.client_under(server_config)
    assert (
        client.answer(train_task(instruction)) == report
    )  # a repeated one is answered, and not counted
    client = second.client_under(config_of(server_config.flat(), seed=1))
    other_run = first_instruction(second)
    refusal = Refusal.decode(client.answer(train_task(other_run.encode())))
    assert (refusal.code, refusal.numbers) == (RefusalCode.SCALARS, (9, 3))
    assert sent_by(tmp_path, second.data) == 9
    smaller = first_instruction(second, steps=1, queries=2)
    assert Report.decode(client.answer(train_task(smaller.encode()))).gradients.size == 2
    assert sent_by(tmp_path, second.data) == 12


def test_a_crash_before_the_session_is_stored_counts_the_report_once(
    settings: Settings,
    server_config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = 9 / limited(settings, 7, tmp_path, 0.0).runtime.layout.size
    trainer = limited(settings, 7, tmp_path, limit)
    trainer.client_under(server_config)
    instruction = first_instruction(trainer).encode()

    def full(folder: SessionFolder, run_id: bytes, session: Session) -> None:
        if session.report:
            raise TrainerError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(SessionFolder, "write_session", full)
        refusal = Refusal.decode(
            trainer.client_under(server_config).answer(train_task(instruction))
        )
    assert refusal.code == RefusalCode.TRAINER
    assert sent_by(tmp_path, trainer.data) == 9
    again = limited(settings, 7, tmp_path, limit)
    assert (
        Report.decode(again.client_under(server_config).answer(train_task(instruction))).client == 7
    )
    assert sent_by(tmp_path, trainer.data) == 9


def test_nothing_is_computed_for_an_instruction_over_the_limit(
    settings: Settings,
    server_config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*arguments: object) -> Report:
        raise AssertionError("it trained")

    wrap_local_steps(monkeypatch, never)
    trainer = limited(settings, 7, tmp_path, 1e-9)
    trainer.client_under(server_config)
    instruction = first_instruction(trainer).encode()
    refusal = Refusal.decode(trainer.client_under(server_config).answer(train_task(instruction)))
    assert (refusal.code, refusal.numbers) == (RefusalCode.SCALARS, (9, 0))


def test_a_simulation_holds_its_clients_to_the_limit_over_a_restart(settings: Settings) -> None:
    size = limited(settings, 7, Path(settings["out"] + "-size"), 0.0).runtime.layout.size
    limit = 2 * PER_ROUND / size
    config = config_of(settings, data__scalar_limit=limit, personal__rounds=0)
    answers: list[str] = []

    def interrupt(kind: str, partition: int) -> None:
        answers.append(kind)
        if answers.count("train") == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(config, interrupt)
    result = RunResult.read(simulate(config))
    assert [entry.reports for entry in result.rounds] == [3, 3, 0]
    assert all("leaves 0 scalars" in reason for reason in result.rounds[2].refused.values())
    source = load_run(config).data
    for client in range(3):
        folder = Path(config.out) / "clients" / str(client)
        assert sent_by(folder, source.share_of(client, 3)) == 2 * PER_ROUND


def test_the_status_of_a_client_shows_what_it_has_sent(
    settings: Settings, server_config: RunConfig, short: Path
) -> None:
    folder = short / "a"
    device_settings(settings, 7, folder).folder.mkdir()
    device_settings(settings, 7, folder).write()
    trainer = limited(settings, 7, folder, 0.0)
    arguments = ["status", "--name", "a", "--home", str(folder)]
    shown = CliRunner().invoke(client_app, arguments)
    assert "a: client 7, not running" in shown.output
    trainer.client_under(server_config)
    instruction = first_instruction(trainer)
    for _ in range(2):  # a repeated instruction takes no pass
        trainer.client_under(server_config).answer(train_task(instruction.encode()))
    rows = instruction.steps * 2 * instruction.queries * instruction.batch
    assert PassCounts(folder).read() == {instruction.run_id.hex(): rows}
    with serve_trainer(lambda: trainer, folder / "trainer.sock"):
        shown = CliRunner().invoke(client_app, arguments)
    assert shown.exit_code == 0
    assert "running, 0 messages answered" in shown.output
    assert f"{trainer.runtime.layout.size:,}" in shown.output
    assert f"{9 / trainer.runtime.layout.size:.3g}" in shown.output
    assert "data.scalar-limit = 0: no limit" in shown.output
    assert re.search(rf"{instruction.run_id.hex()} .* {rows} ", shown.output)
    (folder / PASSES_FILE).write_text("[")
    assert not PassCounts(folder).read()
