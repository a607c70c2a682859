"""After a change of base model, the owner's better personal model stays in use."""

import json
import os
from pathlib import Path

import pytest
import torch
from exported import CLIENT, logits_of, other_base, run_export, take_part
from federations import Settings
from helpers import layout_of
from residents import device_settings, resident
from typer.testing import CliRunner

from samara.client.protocol.joined_runs import JoinedRuns, run_folders
from samara.client.protocol.session import Session
from samara.client.protocol.session_store import SessionFolder
from samara.client.questions.model_in_use import (
    VALIDATION_FILE,
    ValidationFile,
    ValidationLosses,
    describe_model_in_use,
    find_run_in_use,
)
from samara.client.questions.personal_model import PersonalModels
from samara.devices.live.commands import app as client_app
from samara.shared.errors import TrainerError
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.ledger.records import LedgerHeader
from samara.shared.settings.config import RunConfig
from samara.shared.tasks.label_scores import cross_entropy
from samara.shared.tasks.rows import hash_examples


def losses(**of: float) -> ValidationLosses:
    return ValidationLosses("00", of)


def test_the_model_with_less_loss_on_common_examples_is_better() -> None:
    old = losses(a=0.5, b=0.5)
    assert losses(a=0.5, b=0.4).is_better_than(old)
    assert not losses(a=0.5, b=0.5).is_better_than(old)
    assert not losses(a=0.6, c=0.0, d=0.0).is_better_than(old)
    assert losses(a=0.4, c=9.0).is_better_than(old)
    assert losses(c=9.0).is_better_than(old)
    assert losses().is_better_than(old)


def run_with(home: Path, seed: int, model: int, of: ValidationLosses | None, age: int) -> str:
    """Store a run with a session and optional validation losses; return the run's id in hex."""
    layout, model_id = layout_of(6), bytes([model]) * 32
    run_id = JoinedRuns(home).write(RunConfig.of({"seed": seed}, "test"), layout, model_id)
    sessions = SessionFolder(home)
    start = Session.begin(LedgerHeader(0, run_id, layout.hash), layout)
    sessions.write_session(run_id, start)
    folder = sessions.folder_of(run_id)
    os.utime(folder / "session", (1000 - age, 1000 - age))
    if of:
        content = {"digest": of.digest, "losses": of.losses, "model_path": ""}
        (folder / VALIDATION_FILE).write_text(json.dumps(content))
    return run_id.hex()


def test_a_newer_run_takes_over_when_it_is_better(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="no run yet"):
        find_run_in_use(tmp_path)
    assert describe_model_in_use(tmp_path) == ""
    first = run_with(tmp_path, 1, 1, None, age=30)
    assert find_run_in_use(tmp_path).name == first
    old = run_with(tmp_path, 2, 1, losses(a=0.5, b=0.5), age=20)
    assert find_run_in_use(tmp_path).name == old
    new = run_with(tmp_path, 3, 2, None, age=10)
    assert find_run_in_use(tmp_path).name == old
    assert find_run_in_use(tmp_path, bytes([2]) * 32).name == new
    shown = describe_model_in_use(tmp_path)
    assert shown == (
        f"model in use: the model of run {old}, loss 0.500 on 2 different validation examples; "
        f"the latest run, {new}, has no personal model yet"
    )
    run_with(tmp_path, 3, 2, losses(a=0.5, b=0.6, c=0.0), age=10)
    assert find_run_in_use(tmp_path).name == old
    assert "has loss 0.367" in describe_model_in_use(tmp_path)
    run_with(tmp_path, 3, 2, losses(a=0.5, b=0.4, c=9.0), age=10)
    assert find_run_in_use(tmp_path).name == new
    file = tmp_path / "runs" / new / VALIDATION_FILE
    file.write_text("{")
    assert find_run_in_use(tmp_path).name == old
    (tmp_path / "runs" / old / "session").unlink()
    assert find_run_in_use(tmp_path).name == new


def test_the_personal_model_of_the_old_base_serves_until_the_new_one_is_better(
    settings: Settings, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("u")
    take_part(settings, home, tmp_path / "old run")
    (old,) = run_folders(home)
    trainer = resident(settings, CLIENT, home)
    models = PersonalModels(trainer).of()
    examples = trainer.data.tokenized(Split.VALIDATION)
    scores = models.runtime.scores(models.states["personal"], examples.prompts)
    noted = ValidationFile(old).read()
    assert noted is not None
    keys = [hash_examples([one]) for one in trainer.data.in_split(Split.VALIDATION)]
    one_by_one = [
        float(cross_entropy(scores[None, row : row + 1], examples.labels[row : row + 1])[0])
        for row in range(len(keys))
    ]
    assert noted.losses.keys() == set(keys)
    assert len(noted.losses) > 5
    for key, expected in zip(keys, one_by_one, strict=True):
        assert noted.losses[key] == pytest.approx(expected, rel=1e-4)

    base = other_base(tmp_path / "base", Path(settings["model.path"]))
    take_part(settings | {"model.path": str(base)}, home, tmp_path / "new run")
    new, older = run_folders(home)
    assert older == old
    for folder, is_best in ((old, True), (new, False)):
        content = json.loads((new / VALIDATION_FILE).read_text())
        content["losses"] = dict.fromkeys(content["losses"], 99.0 if is_best else 0.0)
        (new / VALIDATION_FILE).write_text(json.dumps(content))
        assert find_run_in_use(home) == folder
        shown = CliRunner().invoke(client_app, ["status", "--name", "a", "--home", str(home)])
        assert f"model in use: the model of run {folder.name}" in shown.output
        out = tmp_path / folder.name
        assert run_export(home, out, "--form", "merged").exit_code == 0
        assert f"run {folder.name}" in (out / "README.md").read_text()
    chosen = device_settings(settings | {"model.path": str(base)}, CLIENT, home)
    assert chosen.config.model.path == str(base)
    mine = resident(settings | {"model.path": str(base)}, CLIENT, home)
    assert PersonalModels(mine).of().run == new.name
    assert not torch.allclose(logits_of(tmp_path / old.name), logits_of(tmp_path / new.name))
