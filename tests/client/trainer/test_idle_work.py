"""Private rounds of live clients: between messages, interrupted, with the simulation's bits."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asking import hello_task, sent
from federations import Live, Settings, config_of
from live import attempts
from residents import (
    CLIENTS,
    Unhurried,
    device_settings,
    is_idle,
    process,
    resident,
    rounds_of,
    under,
)

from samara.client.limits.pauses import Pauses
from samara.client.personal.personalizations import PERSONALIZATIONS_FILE, read_personalizations
from samara.client.protocol.joined_runs import RUN_FILE, JoinedRuns
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.questions.model_in_use import (
    VALIDATION_FILE,
    ValidationFile,
    find_unevaluated_runs,
)
from samara.client.questions.model_validation import note_validation
from samara.client.trainer import trainer_service
from samara.client.trainer.idle_work import IdleWork, InterruptionError
from samara.client.trainer.remote_trainer import RemoteTrainer
from samara.client.trainer.trainer_service import serve_trainer
from samara.client.training.own_examples import OwnExamples, row_of_text
from samara.server.app import serve
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.results.result import read_result
from samara.shared.settings.config import RunConfig
from samara.shared.tasks.catalog import load_task
from samara.simulations.simulate import simulate


@pytest.fixture
def server_config(settings: Settings) -> RunConfig:
    theirs = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    own = {"rounds": 4, "personal.rounds": 2, "personal.learning-rate": 0.1}
    evaluation = {"evaluate.every": 0, "evaluate.limit": 8}
    return config_of(settings | theirs | own | evaluation, cohort__available=1)


@pytest.mark.parametrize(
    ("method", "when"),
    [
        ("finetune", "every 2 rounds"),
        ("finetune", "end"),
        pytest.param("finetune", "always", marks=pytest.mark.slow),
        pytest.param("finetune", "on-data", marks=pytest.mark.slow),
        pytest.param("ditto", "every 2 rounds", marks=pytest.mark.exhaustive),
        pytest.param("mixture", "every 3 rounds", marks=pytest.mark.exhaustive),
        pytest.param("partial", "every 2 rounds", marks=pytest.mark.exhaustive),
        pytest.param("readout", "every 2 rounds", marks=pytest.mark.slow),
    ],
)
def test_live_clients_have_the_private_ledgers_of_the_simulation(
    method: str, when: str, settings: Settings, server_config: RunConfig, short: Path
) -> None:
    config = config_of(
        server_config.flat(), method=method, personal__when=when, adapter__label_bias=True
    )
    homes = [short / str(client) for client in CLIENTS]
    residents = [resident(settings, d, f) for d, f in zip(CLIENTS, homes, strict=True)]
    sockets = [short / f"{client}.sock" for client in CLIENTS]
    with (
        serve_trainer(lambda: residents[0], sockets[0]),
        serve_trainer(lambda: residents[1], sockets[1]),
    ):
        ready = lambda: all(is_idle(home) for home in homes)  # noqa: E731
        folder = serve(config, Unhurried(sockets, config, ready))
    for client, home in zip(CLIENTS, homes, strict=True):
        device_settings(settings, client, home).write()
    repeated = config_of(config.flat(), out=str(short / "again"))
    again = simulate(repeated, cohorts_from=folder, homes=homes)
    assert read_result(again)["final_digest"] == read_result(folder)["final_digest"]
    for client, home in zip(CLIENTS, homes, strict=True):
        simulated = again / "clients" / str(client)
        assert rounds_of(under(home)) == rounds_of(simulated)
        if when != "end":
            assert read_personalizations(under(home)) == read_personalizations(simulated)


def test_the_owner_decides_when_and_needs_no_server(
    settings: Settings, server_config: RunConfig, short: Path
) -> None:
    home, socket = short / "h", short / "t.sock"
    away = resident(settings, 7, home)
    with serve_trainer(lambda: away, socket):
        stopped = Live([socket], server_config)
        plain, evaluated = stopped._deliver, list[str]()

        def stops(message: Any) -> Any:
            evaluated.append(message.metadata.message_type)
            if message.metadata.message_type == "train" and evaluated.count("train") == 3:
                raise KeyboardInterrupt
            return plain(message)

        stopped._deliver = stops  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            serve(config_of(server_config.flat(), out=str(short / "stopped")), stopped)
    assert not list(home.glob("runs/*/clients/*/personal.ledger"))
    own = device_settings(settings, 7, home)
    own = own.model_copy(
        update={"device_settings": own.device_settings | {"personal.when": "always"}}
    )
    returned = type(away).load(own.config, 7, home)
    with serve_trainer(lambda: returned, socket):
        for _ in attempts("private rounds without a server"):
            if list(home.glob(f"runs/*/clients/7/{PERSONALIZATIONS_FILE}")):
                break
    (one,) = read_personalizations(under(home))
    assert (one.global_round, one.first, one.last) == (1, 1, 2)


@pytest.fixture
def waiting(
    settings: Settings, server_config: RunConfig, short: Path, monkeypatch: pytest.MonkeyPatch
) -> ResidentTrainer:
    """A trainer with pending private rounds in an earlier run; it has since met another run."""
    config = config_of(server_config.flat(), personal__when="always", rounds=3)
    trainer, socket = resident(settings, 7, short / "h"), short / "t.sock"
    with monkeypatch.context() as without_idle_time:
        without_idle_time.setattr(IdleWork, "_wake", lambda idle: None)
        with serve_trainer(lambda: trainer, socket):
            leaving, plain = Live([socket], config), Live._deliver
            asked = list[str]()

            def stops(message: Any) -> Any:
                asked.append(message.metadata.message_type)
                if asked.count("train") == 3:
                    raise KeyboardInterrupt
                return plain(leaving, message)

            leaving._deliver = stops  # type: ignore[method-assign]
            with pytest.raises(KeyboardInterrupt):
                serve(config, leaving)
            assert not is_idle(short / "h")
            assert not list((short / "h").glob(f"runs/*/clients/7/{PERSONALIZATIONS_FILE}"))
            other = config_of(config.flat(), seed=99, out=str(short / "other"))
            with RemoteTrainer(str(socket)) as remote:
                remote.answer(hello_task(sent(other)))
    return trainer


def test_private_rounds_that_wait_are_taken_though_the_client_is_in_another_run_by_now(
    waiting: ResidentTrainer, server_config: RunConfig, short: Path
) -> None:
    home, socket = short / "h", short / "t.sock"
    (left,) = [folder.parents[1] for folder in home.glob("runs/*/clients/7")]
    with serve_trainer(lambda: waiting, socket):
        for _ in attempts("the private rounds that wait"):
            if is_idle(home) and (left / VALIDATION_FILE).exists():
                break
        other = config_of(
            server_config.flat(), personal__when="always", rounds=3, seed=99, out=str(short / "o")
        )
        serve(other, Unhurried([socket], other, lambda: is_idle(home)))
    (one,) = read_personalizations(left / "clients" / "7")
    assert (one.global_round, one.first, one.last) == (1, 1, 2)
    (latest,) = set(home.glob("runs/*")) - {left}
    taken = read_personalizations(latest / "clients" / "7")
    assert [each.global_round for each in taken] == [1, 2, 3]


def move_to_other_model(home: Path, run: Path) -> bytes:
    """Move a client's files of a run to a run with another base model; return that run's id."""
    description = json.loads((run / RUN_FILE).read_text())
    other = JoinedRuns(home).write(
        RunConfig.of(description["settings"], "test"),
        Layout.from_json(description["layout"]),
        bytes(32),
    )
    for name in ("session", "clients"):
        (run / name).rename(home / "runs" / other.hex() / name)
    return other


def test_private_rounds_that_cannot_be_taken_wait_and_keep_nobody_from_others(
    waiting: ResidentTrainer, short: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = short / "h"
    (left,) = [folder.parents[1] for folder in home.glob("runs/*/clients/7")]
    other_model = move_to_other_model(home, left)
    for _ in range(2):
        assert waiting.take_private_rounds() == b""
    assert caplog.text.count(f"run {other_model.hex()} wait") == 1
    assert "trained with a model other than the one" in caplog.text
    assert not is_idle(home)


@pytest.mark.slow
def test_killing_the_trainer_in_private_rounds_leaves_whole_ones(
    settings: Settings, server_config: RunConfig, short: Path
) -> None:
    config = config_of(
        server_config.flat(),
        personal__when="every 2 rounds",
        personal__rounds=50,  # many fifths of a second, at which the files are read
        personal__learning_rate=0.01,
    )
    undisturbed = resident(settings, 7, short / "u")
    with serve_trainer(lambda: undisturbed, short / "u.sock"):
        ready = lambda: is_idle(short / "u")  # noqa: E731
        serve(config, Unhurried([short / "u.sock"], config, ready))
    mine, layout = device_settings(settings, 7, short / "k"), undisturbed.runtime.layout
    rounds = list[int]()

    with process(mine) as kill:

        def killed_meanwhile() -> bool:
            ledgers = list(mine.folder.glob("runs/*/clients/7/personal.ledger/*.seg"))
            if ledgers and not is_idle(mine.folder) and len(rounds) < 3:
                kill()
                ledger = ledgers[0].parent
                rounds.append(sum(1 for _ in read_ledger(ledger)))
            return is_idle(mine.folder)

        disturbed = config_of(config.flat(), out=str(short / "disturbed"))
        serve(disturbed, Unhurried([mine.socket], disturbed, killed_meanwhile))
    assert rounds
    *_, last = verify_ledger(under(mine.folder) / "personal.ledger", layout)
    assert last.round == 2 * config.private_rounds
    assert rounds_of(under(mine.folder)) == rounds_of(under(short / "u"))


def test_a_message_interrupts_idle_work_before_its_next_pass() -> None:
    passes, begun, go = list[int](), threading.Event(), threading.Event()

    def work() -> None:
        from samara.client.forward.turns import forward_pass

        for number in range(3):
            with forward_pass():
                passes.append(number)
                begun.set()
                go.wait(60)
        done.set()

    done = threading.Event()
    with ThreadPoolExecutor(1) as worker:
        idle = IdleWork(worker, work, seconds=3600)
        idle.begin()
        assert begun.wait(60)
        with idle.message():
            answer = worker.submit(lambda: list(passes))
            go.set()
            assert answer.result(60) == [0]  # the pass that ran was finished, and no other began
        assert done.wait(60)  # and the work began again afterwards
        idle.close()
    assert passes == [0, 0, 1, 2]


def test_a_device_slower_than_its_federation_evaluates_its_model_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done, due = list[str](), iter([b"run", b"run", b"", b""])
    interrupted = iter([True, False, False])

    def take() -> bytes:
        done.append("private rounds")
        return next(due)

    def evaluate(_: object, run_id: bytes) -> None:
        if next(interrupted):
            raise InterruptionError
        done.append("evaluation")

    monkeypatch.setattr(trainer_service, "note_validation", evaluate)
    busy: Any = SimpleNamespace(folder=tmp_path, take_private_rounds=take)
    with ThreadPoolExecutor(1) as worker:
        service = trainer_service._Service(
            busy, worker, Pauses(lambda: ""), lambda: None, shares_cost=False
        )
        with pytest.raises(InterruptionError):
            service._take_private_rounds()
        service._take_private_rounds()
    assert done == ["private rounds", *2 * ["evaluation", "private rounds"]]


def test_idle_work_pauses_within_the_limits_of_the_device() -> None:
    reasons, done = ["on battery"], threading.Event()
    with ThreadPoolExecutor(1) as worker:
        idle = IdleWork(worker, done.set, lambda: reasons[0], seconds=0.01)
        idle.begin()
        worker.submit(lambda: None).result(60)
        assert not done.is_set()
        reasons[0] = ""
        assert done.wait(60)
        idle.close()


def test_an_error_of_idle_work_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    ran = threading.Event()

    def fail() -> None:
        ran.set()
        raise ValueError("a mistake")

    with ThreadPoolExecutor(1) as worker:
        idle = IdleWork(worker, fail, seconds=3600)
        idle.begin()
        assert ran.wait(60)
        worker.submit(lambda: None).result(60)
        idle.close()
    assert "the private rounds failed" in caplog.text


def test_an_example_that_the_owner_teaches_makes_private_rounds_due(
    settings: Settings, server_config: RunConfig, short: Path
) -> None:
    config = config_of(server_config.flat(), personal__when="on-data")
    home, socket = short / "h", short / "t.sock"
    taught = resident(settings, 7, home)

    def starts() -> list[tuple[int, int]]:
        every = [read_personalizations(folder) for folder in home.glob("runs/*/clients/7")]
        return [(one.global_round, one.first) for found in every for one in found]

    with serve_trainer(lambda: taught, socket):
        serve(config, Unhurried([socket], config, lambda: is_idle(home)))
        assert starts() == [(1, 1), (4, 3)]
        task = load_task(settings["task"])
        texts = [f"the walk was very very warm {'!' * number}" for number in range(20)]
        OwnExamples(home).learn([row_of_text(task, text, "1") for text in texts], task)
        with RemoteTrainer(str(socket)) as remote:
            # any message; without one the trainer looks by itself, but later
            remote.answer(hello_task(sent(config)))
            for _ in attempts("private rounds on new examples"):
                if len(starts()) > 2:
                    break
    assert starts() == [(1, 1), (4, 3), (4, 5)]


def test_a_trainer_killed_before_the_evaluation_of_private_rounds_evaluates_at_its_next_start(
    settings: Settings,
    server_config: RunConfig,
    short: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = config_of(server_config.flat(), personal__when="end", rounds=1)
    home, socket, reached = short / "h", short / "t.sock", threading.Event()
    killed = resident(settings, 7, home)
    with monkeypatch.context() as without_evaluation:
        without_evaluation.setattr(trainer_service, "note_validation", lambda *_: reached.set())
        with serve_trainer(lambda: killed, socket):
            serve(config, Live([socket], config))
            assert reached.wait(60)
    (run,) = home.glob("runs/*")
    assert len(read_personalizations(run / "clients" / "7")) == 1
    assert not (run / VALIDATION_FILE).exists()
    assert find_unevaluated_runs(home) == [bytes.fromhex(run.name)]

    started = resident(settings, 7, home)
    with serve_trainer(lambda: started, socket):
        for _ in attempts("the evaluation without a message"):
            if (run / VALIDATION_FILE).exists():
                break
    assert find_unevaluated_runs(home) == []
    noted = ValidationFile(run).read()
    assert noted is not None
    assert len(noted.losses) > 5
    assert len(read_personalizations(run / "clients" / "7")) == 1

    os.utime(run / VALIDATION_FILE, (0, 0))  # as after other private rounds
    assert find_unevaluated_runs(home) == [bytes.fromhex(run.name)]
    other_model = move_to_other_model(home, run)
    assert find_unevaluated_runs(home) == [other_model]
    note_validation(started, other_model)  # another base model: there is nothing to load
    assert not (home / "runs" / other_model.hex() / VALIDATION_FILE).exists()
    assert "could not be evaluated" not in caplog.text
