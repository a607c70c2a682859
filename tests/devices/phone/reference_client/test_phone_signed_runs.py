"""The reference phone refuses requests that do not follow from its signed scenario."""

from dataclasses import replace
from pathlib import Path

import pytest
from asking import evaluate_task, hello_task, train_task
from federations import Settings, config_of
from phones import exported, phone_of, use_torch_as_runtime
from scenarios import operator_key, signed
from typer.testing import CliRunner

from samara.client.protocol.scenario_folder import ScenarioFolder, take_scenario
from samara.client.training.model_runtime import load_run
from samara.devices.phone.commands import app
from samara.devices.phone.reference_client.examples import read_examples
from samara.devices.phone.reference_client.phone_learner import PhoneLearner
from samara.devices.phone.reference_client.readout_program import load_program
from samara.devices.phone.tokenization import examples_as_jsonl
from samara.shared.errors import RefusalCode, SamaraError, ScenarioError
from samara.shared.protocol.frames.evaluation import Evaluation
from samara.shared.protocol.frames.hello import Hello
from samara.shared.protocol.frames.instructions import EvaluateInstruction, Split
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.replay import digest, zero_state
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import identity_bytes, run_id_of

CLIENT = 7


def test_a_phone_obeys_its_signed_scenario_and_no_other_run(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_torch_as_runtime(monkeypatch)
    config = config_of(settings, adapter__layers="readout", evaluate__every=2)
    program = load_program(exported(config.flat(), tmp_path / "phone.pte"))
    rows = tmp_path / "rows.jsonl"
    rows.write_text(examples_as_jsonl(load_run(config)[1].share_of(0, 3)))
    trainer = PhoneLearner(program, read_examples(rows, program.manifest))
    layout, home = trainer.layout, tmp_path / "home"
    start = digest(layout.hash, zero_state(layout.size))
    asked = config.terms.instruction(
        run_id_of(config, layout, trainer.model_id),
        *(1, layout.hash, start),
        **{"learning_rate": 0.1, "clip": 0.0, "curvature_every": 0},
    )
    many = replace(asked, queries=100)
    obedient, settings = phone_of(trainer, CLIENT, tmp_path / "unsigned"), identity_bytes(config)
    assert Report.decode(obedient.answer(train_task(many.encode(), CatchUp(), settings)))
    foreign = replace(many, run_id=b"made up!")

    file = tmp_path / "field.signed"
    file.write_bytes(signed(config, operator_key(tmp_path)).encode())
    take_scenario(file, home)
    phone = phone_of(trainer, CLIENT, home)
    assert Hello.decode(phone.answer(hello_task())).client == CLIENT
    monkeypatch.setattr(PhoneLearner, "take_steps", None)
    for attack in (
        foreign,
        many,
        replace(asked, batch=2),
        replace(asked, root=1),
        replace(asked, round=4),
    ):
        refusal = Refusal.decode(phone.answer(train_task(attack.encode(), CatchUp())))
        assert (refusal.code, refusal.client) == (RefusalCode.SCENARIO, CLIENT)
    refused = ScenarioFolder(home).read_refused()
    assert refused is not None
    assert refused.count == 5
    monkeypatch.undo()
    use_torch_as_runtime(monkeypatch)
    frame = phone.answer(train_task(asked.encode(), CatchUp()))
    assert Report.decode(frame).gradients.shape == (2, 2)
    again = phone_of(trainer, CLIENT, home)
    assert again.answer(train_task(asked.encode(), CatchUp())) == frame
    other = replace(asked, learning_rate=0.05).encode()
    assert Refusal.decode(again.answer(train_task(other, CatchUp()))).code == RefusalCode.SCENARIO
    question = EvaluateInstruction(asked.run_id, 0, 0, Split.TEST, layout.hash, start)
    assert Evaluation.decode(phone.answer(evaluate_task(question.encode(), CatchUp()))).columns
    early = replace(question, round=1).encode()
    assert (
        Refusal.decode(phone.answer(evaluate_task(early, CatchUp()))).code == RefusalCode.SCENARIO
    )
    next(home.glob("scenarios/*.signed")).write_bytes(b"")
    with pytest.raises(ScenarioError, match="not a signed scenario"):
        phone_of(trainer, CLIENT, home)


def test_a_phone_does_not_begin_with_a_damaged_scenario(tmp_path: Path) -> None:
    data = signed(RunConfig.of({}, "test"), operator_key(tmp_path)).encode()
    (tmp_path / "bad.signed").write_bytes(data.replace(b'"rounds": 40', b'"rounds": 41'))
    paths = {name: str(tmp_path / name) for name in ("program", "rows", "key", "home")}
    options = [word for name, path in paths.items() for word in (f"--{name}", path)]
    called = CliRunner().invoke(
        app,
        ["up", *options, "--gateway", "h:1", "--scenario", str(tmp_path / "bad.signed")],
    )
    assert isinstance(called.exception, SamaraError)
    assert "the signature is wrong" in str(called.exception)
    assert not (tmp_path / "home" / "scenarios").exists()
