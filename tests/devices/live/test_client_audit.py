"""`samara client audit` shows a device's answers, from a real client's own files."""

import json
from pathlib import Path
from typing import Any

import pytest
from asked_clients import (
    ask,
    evaluate_frame,
    load,
    made_up_run,
    refusal_of,
    run_id_in,
    server_config_for,
    train_frame,
)
from asking import hello_task, train_task
from federations import Settings
from typer.testing import CliRunner

from samara.client.limits.answer_log import ANSWERS_FILE, read_answers
from samara.client.limits.scalar_counts import ScalarCounts
from samara.client.trainer.remote_trainer import RemoteTrainer
from samara.client.trainer.trainer_service import serve_trainer
from samara.devices.live.commands import app as client_app
from samara.shared.errors import ConfigError, RefusalCode, TrainerError
from samara.shared.protocol.frames.evaluation import Evaluation
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.frames.report import Report


def audit(folder: Path) -> dict[str, Any]:
    shown = CliRunner().invoke(client_app, ["audit", "--home", str(folder), "--json"])
    assert shown.exit_code == 0
    audited: dict[str, Any] = json.loads(shown.output)
    return audited


def test_the_owner_reads_what_was_asked_and_what_left(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = load(settings, tmp_path)
    client, history = trainer.client_under(server_config_for(settings)), made_up_run(trainer, 1)
    train = train_frame(trainer, curvature_every=1)
    report = client.answer(train_task(train))
    assert client.answer(train_task(train)) == report
    assert (
        refusal_of(client.answer(train_task(train_frame(trainer, batch=1))))[0] == RefusalCode.BATCH
    )
    frame = evaluate_frame(trainer, history, 1, Split.TRAIN)
    assert refusal_of(ask(client, frame, history, 1))[0] == RefusalCode.EVALUATION
    frame = evaluate_frame(trainer, history, 1, Split.TEST)
    compared = ask(client, frame, history, 1, personal=True)
    columns = Evaluation.decode(compared).columns
    audited = audit(tmp_path)
    [run] = audited["runs"]
    asked = [(one["asked"], one["round"], one["split"]) for one in run["answers_in_file"]]
    assert asked == [
        ("train", 1, ""),
        ("train", 1, ""),
        ("train", 1, ""),
        ("evaluate", 1, "train"),
        ("compare", 1, "test"),
    ]
    refused = [one["refused"] for one in run["answers_in_file"] if one["refused"]]
    assert ["data.least-batch = 2" in refused[0], "training examples" in refused[1]] == [True] * 2
    total = audited["total"]
    assert (total["answers"], total["repeated"], total["refused"]) == (2, 1, 2)
    assert total["scalars"] == Report.decode(report).gradients.size
    assert total["losses"] == 2 + len(columns)
    assert total["counts"] == 1 + sum(column.counts.size for column in columns)
    size = trainer.runtime.layout.size
    assert total["ratio"] == (total["scalars"] + total["losses"]) / size
    by_split = ScalarCounts(tmp_path).read()
    about_test = by_split[trainer.data.hash_of(Split.TEST)][trainer.runtime.layout.hash.hex()]
    about_training = by_split[trainer.data.hash_of(Split.TRAIN)]
    fitted = len(columns) - 2  # without global and zero-shot
    [sent] = [count.sent for count in about_training.values()]
    assert about_test.sent + sent - fitted == total["scalars"] + total["losses"]
    monkeypatch.setenv("COLUMNS", "200")
    shown = CliRunner().invoke(client_app, ["audit", "--home", str(tmp_path)]).output
    assert "train: K=1, q=4, B=8, ε=0.01" in shown
    assert "4 scalars, 2 losses, 1 counts" in shown
    assert "the same answer again" in shown
    assert "personal comparison on the test examples" in shown
    assert "this device's clock, which may be wrong" in shown


def test_an_answer_that_cannot_be_logged_does_not_leave(settings: Settings, tmp_path: Path) -> None:
    trainer = load(settings, tmp_path)
    client, frame = trainer.client_under(server_config_for(settings)), train_frame(trainer)
    (tmp_path / ANSWERS_FILE).mkdir()
    assert refusal_of(client.answer(train_task(frame)))[0] == RefusalCode.TRAINER
    (tmp_path / ANSWERS_FILE).rmdir()
    report = client.answer(train_task(frame))
    assert Report.decode(report).client == 7
    [answer] = read_answers(tmp_path).answers
    assert answer.scalars == 4


def test_refusals_for_settings_that_cannot_be_used_are_logged_too(
    settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("s")
    trainer, unsound = load(settings, folder), b'{"rounds": -1}'
    with (
        serve_trainer(lambda: trainer, folder / "t.sock"),
        RemoteTrainer(str(folder / "t.sock")) as remote,
    ):
        assert (
            refusal_of(remote.answer(train_task(train_frame(trainer), settings=unsound)).frame)[0]
            == RefusalCode.SETTINGS
        )
        hello = remote.answer(hello_task(unsound)).frame
    assert refusal_of(hello)[0] == RefusalCode.SETTINGS
    [one] = read_answers(folder).answers  # a hello is no instruction
    assert (one.asked, one.run, "rounds" in one.refused) == (
        "train",
        run_id_in(trainer).hex(),
        True,
    )


def test_a_client_without_answers_and_wrong_options_are_told(tmp_path: Path) -> None:
    shown = CliRunner().invoke(client_app, ["audit", "--home", str(tmp_path)])
    assert shown.exit_code == 0
    assert "this client has answered nothing yet" in shown.output
    assert audit(tmp_path)["total"]["answers"] == 0
    assert isinstance(CliRunner().invoke(client_app, ["audit"]).exception, ConfigError)
    missing = CliRunner().invoke(client_app, ["audit", "--home", str(tmp_path / "none")])
    assert (
        str(missing.exception) == f"{tmp_path / 'none'}: there is no client; check --name or --home"
    )
    (tmp_path / ANSWERS_FILE).mkdir()
    shown = CliRunner().invoke(client_app, ["audit", "--home", str(tmp_path)])
    assert isinstance(shown.exception, TrainerError)
