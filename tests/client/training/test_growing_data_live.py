"""A live client with growing data: over rounds, restarts, evaluations, limits and its commands."""

import json
import re
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asked_clients import run_id_in
from asking import evaluate_task, hello_task, train_task
from federations import Live, Settings, config_of
from helpers import instruction_with
from residents import device_settings
from typer.testing import CliRunner

from samara.client.limits.scalar_counts import ScalarCounts
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.protocol.session import Session
from samara.client.trainer.trainer_service import serve_trainer
from samara.client.training.own_examples import OwnExamples, row_of_text
from samara.devices.live.commands import app as client_app
from samara.devices.live.settings import ClientSettings
from samara.server.app import serve
from samara.shared.errors import ConfigError, DataError, RefusalCode
from samara.shared.protocol.frames.evaluation import Evaluation
from samara.shared.protocol.frames.hello import SPLIT_EXAMPLES, Hello
from samara.shared.protocol.frames.instructions import EvaluateInstruction, Split
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.ledger.records import LedgerHeader
from samara.shared.protocol.replay import digest, zero_state
from samara.shared.results.result import RunResult
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import run_id_of
from samara.shared.tasks.catalog import load_task
from samara.simulations.simulate import simulate

FIRST = 40


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """A watched file with a few examples."""
    path = tmp_path / "inbox.jsonl"
    add(path, FIRST)
    return path


@pytest.fixture
def server_config(settings: Settings) -> RunConfig:
    theirs = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    return config_of(settings | theirs, cohort__available=1, evaluate__every=1, rounds=6)


def add(path: Path, count: int, what: str = "film") -> None:
    with path.open("a") as file:
        for number in range(count):
            text = f"the {what} was {'good' if number % 2 else 'bad'} " + "very " * (number // 2)
            file.write(json.dumps({"text": text, "label": number % 2}) + "\n")


def owner_settings(settings: Settings, inbox: Path, folder: Path) -> ClientSettings:
    mine = device_settings(settings | {"data.path": str(inbox)}, 7, folder)
    return mine.model_copy(update={"device_settings": mine.device_settings | {"data.watch": True}})


def growing(settings: Settings, inbox: Path, folder: Path, **changes: Any) -> ResidentTrainer:
    own = owner_settings(settings, inbox, folder).config.flat()
    return ResidentTrainer.load(config_of(own, **changes), 7, folder)


def instruction_of(trainer: ResidentTrainer, round_: int = 1, **changes: Any) -> bytes:
    layout, run = trainer.runtime.layout, run_id_in(trainer)
    start = Session.begin(LedgerHeader(0, run, layout.hash), layout)
    return instruction_with(
        run_id=run, layout_hash=layout.hash, start_digest=start.digest, root=round_, **changes
    ).encode()


def train(trainer: ResidentTrainer, config: RunConfig, round_: int = 1, **changes: Any) -> Report:
    client = trainer.client_for(json.dumps(config.flat()).encode())
    frame = client.answer(train_task(instruction_of(trainer, round_, **changes)))
    return Report.decode(frame)


def test_examples_that_come_during_a_run_are_in_the_next_round(
    settings: Settings, server_config: RunConfig, inbox: Path, short: Path
) -> None:
    trainer = growing(settings, inbox, short / "home")
    introduced = {split: len(trainer.data.in_split(split)) for split in Split}
    rounds: list[int] = []

    def grow(kind: str, partition: int) -> None:
        if kind == "train":
            rounds.append(len(rounds) + 1)
            if len(rounds) == 3:
                add(inbox, 30, "meal")
                OwnExamples(short / "home").learn(
                    [{"text": "a kind walk", "label": 1}], load_task(settings["task"])
                )
            if len(rounds) == 5:
                inbox.unlink()

    with serve_trainer(lambda: trainer, short / "a.sock"):
        folder = serve(server_config, Live([short / "a.sock"], server_config, grow))
    result = RunResult.read(folder)
    [counts] = [[entry.clients[7].examples for entry in result.rounds]]
    before, after = introduced[Split.TRAIN], len(trainer.data.in_split(Split.TRAIN))
    assert after > before + 10
    assert counts == [before] * 3 + [after] * 3
    for evaluation in result.evaluations:
        examples = evaluation.columns["global"].clients[7].examples
        assert examples == introduced[Split[evaluation.split.upper()]]
    assert not any(entry.refused for entry in result.rounds)
    owner_settings(settings, inbox, short / "home").write()
    again = config_of(server_config.flat(), out=str(short / "again"))
    with pytest.raises(ConfigError, match="the data of this client grow"):
        simulate(again, cohorts_from=folder, homes=[short / "home"])


def test_a_repeated_instruction_gets_the_stored_report_though_the_data_have_grown(
    settings: Settings, server_config: RunConfig, inbox: Path, tmp_path: Path
) -> None:
    trainer = growing(settings, inbox, tmp_path / "home")
    first = train(trainer, server_config)
    add(inbox, 30, "meal")
    again = train(trainer, server_config)
    assert again.encode() == first.encode()
    assert train(trainer, server_config, 2).examples > first.examples


def test_an_evaluation_counts_no_more_than_the_client_has_introduced(
    settings: Settings, server_config: RunConfig, inbox: Path, tmp_path: Path
) -> None:
    asked, numbers = json.dumps(server_config.flat()), count(1)

    def counted(trainer: ResidentTrainer) -> int:
        client, layout = trainer.client_for(asked), trainer.runtime.layout
        run_id = run_id_of(server_config, layout, trainer.runtime.model_id)
        start = digest(layout.hash, zero_state(layout.size))
        another = next(numbers)  # an instruction that was not given before
        frame = EvaluateInstruction(run_id, 0, another, Split.TEST, layout.hash, start).encode()
        return int(Evaluation.decode(client.answer(evaluate_task(frame))).columns[0].counts.sum())

    trainer = growing(settings, inbox, tmp_path / "home")
    hello = Hello.decode(trainer.client_for(asked).answer(hello_task()))
    introduced = json.loads(hello.facts)[SPLIT_EXAMPLES]["test"]
    assert counted(trainer) == introduced > 0
    add(inbox, 60, "meal")
    assert counted(trainer) == introduced < len(trainer.data.in_split(Split.TEST))
    again = growing(settings, inbox, tmp_path / "home")  # another process knows it, too
    assert counted(again) == introduced
    again.client_for(asked).answer(hello_task())
    assert counted(again) == len(again.data.in_split(Split.TEST))


def test_what_was_sent_about_old_examples_stays_sent_when_others_come(
    settings: Settings, server_config: RunConfig, inbox: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    unlimited = growing(settings, inbox, home)
    unlimited.client_for(json.dumps(server_config.flat()).encode())  # with the run's layout
    size = unlimited.runtime.layout.size
    limited = growing(settings, inbox, home, data__scalar_limit=14 / size)
    assert train(limited, server_config).gradients.size == 8  # and a loss
    add(inbox, 30, "meal")
    again = growing(settings, inbox, home, data__scalar_limit=14 / size)
    for trainer in (limited, again):
        client = trainer.client_for(json.dumps(server_config.flat()).encode())
        refusal = Refusal.decode(client.answer(train_task(instruction_of(trainer, 2))))
        assert (refusal.code, refusal.numbers) == (RefusalCode.SCALARS, (9, 5))
    assert train(again, server_config, 3, steps=1, queries=4).gradients.size == 4
    sent = [next(iter(one.values())).sent for one in ScalarCounts(home).read().values()]
    assert sent == [14, 5]


def test_a_client_that_has_nothing_left_refuses_until_it_learns_again(
    settings: Settings, server_config: RunConfig, inbox: Path, tmp_path: Path
) -> None:
    home, asked = tmp_path / "home", json.dumps(server_config.flat())
    trainer = growing(settings, inbox, home)
    inbox.write_text("")
    for round_ in (1, 2):
        refusal = Refusal.decode(
            trainer.client_for(asked).answer(train_task(instruction_of(trainer, round_)))
        )
        assert (refusal.code, refusal.numbers) == (RefusalCode.BATCH, (0, 2))
    assert Hello.decode(trainer.client_for(asked).answer(hello_task())).examples == 0
    layout = trainer.runtime.layout
    start = digest(layout.hash, zero_state(layout.size))
    frame = EvaluateInstruction(run_id_in(trainer), 0, 0, Split.TEST, layout.hash, start).encode()
    assert (
        Refusal.decode(trainer.client_for(asked).answer(evaluate_task(frame, personal=True))).code
        == RefusalCode.DATA
    )
    assert (
        not Evaluation.decode(trainer.client_for(asked).answer(evaluate_task(frame)))
        .columns[0]
        .counts.any()
    )
    task = load_task(settings["task"])
    taught = [row_of_text(task, f"a {'very ' * n} good film", "great") for n in range(10)]
    OwnExamples(home).learn(taught, task)
    assert train(trainer, server_config, 3).examples >= 5
    with pytest.raises(DataError, match="has no training example"):
        growing(settings, inbox, tmp_path / "another")


def test_a_readout_computes_new_examples_alone(
    settings: Settings, inbox: Path, tmp_path: Path
) -> None:
    readout = config_of(settings, adapter__layers="readout", data__path="d")
    trainer = growing(settings, inbox, tmp_path / "home")
    first = train(trainer, readout)
    passes = trainer.runtime.passes
    assert passes >= first.examples
    add(inbox, 6, "walk")
    second = train(trainer, readout, 2)
    assert second.examples > first.examples
    assert trainer.runtime.passes - passes == second.examples - first.examples
    for number in range(6):
        add(inbox, 3, f"meal {number}")
        train(trainer, readout, 3 + number)
    kept = trainer.runtime._representations
    assert kept is not None
    assert len(kept._splits) <= len(trainer.data.parts()) < 5
    inbox.write_text("".join(inbox.read_text().splitlines(True)[: FIRST + 6]))
    fresh = growing(settings, inbox, tmp_path / "another")
    same = train(fresh, readout, 2)
    np.testing.assert_allclose(same.gradients, second.gradients, rtol=1e-3, atol=1e-4)


def test_the_commands_of_an_owner(
    settings: Settings, inbox: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    owner_settings(settings, inbox, home).write()

    def run(*arguments: str, given: str = "") -> str:
        result = CliRunner().invoke(client_app, [*arguments, "--home", str(home)], input=given)
        return result.output if result.exit_code == 0 else f"failed: {result.exception}"

    shown = run("learn", "the meal was cold", "--label", "terrible")
    found = re.search(r"example ([0-9a-f]{12}) is stored, for (training|validation|test)", shown)
    assert found
    rows = "".join(json.dumps({"text": f"a {n} film", "label": n % 2}) + "\n" for n in range(4))
    assert run("learn", "-", given=rows).count("is stored, for") == 4
    assert "row 1: label 5 is unknown" in run("learn", "-", given='{"text": "a", "label": 5}')
    for wrong in (["learn"], ["learn", "a"], ["learn", "-", "--label", "1"], ["learn", "--delete"]):
        assert ": give " in run(*wrong)
    assert "5 learned examples" in run("learn", "--list")
    inbox.write_text(inbox.read_text() + "{\n")
    status = " ".join(run("status", "--name", "a").split())
    assert re.search(r"learned \W+\d", status)
    assert re.search(r"watched \W+\d", status)
    assert f"{inbox}:{FIRST + 1}:isnotJSON" in status.replace(" ", "")  # long lines are folded
    assert "the newest example was added at" in status
    assert "1 examples deleted" in run("learn", "--delete", found[1])
    assert "the meal was cold" not in run("learn", "--list")
    assert "no example has the id" in run("learn", "--delete", found[1])
    assert "4 examples deleted" in run("learn", "--delete", "--all")
    inbox.unlink()
    assert "the examples cannot be read" in run("status", "--name", "a")
