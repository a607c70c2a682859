"""A phone in runs with differential privacy: reports are sent once, and limits are kept."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from asking import evaluate_task, hello_task, train_task
from federations import Settings, config_of
from phones import as_client, exported, phone_of, use_torch_as_runtime
from scenarios import give, operator_key

from samara.client.limits.answer_limits import AnswerLimits
from samara.client.limits.privacy_budget import ChargeLog
from samara.client.training.model_runtime import load_run
from samara.devices.phone.reference_client.examples import read_examples
from samara.devices.phone.reference_client.phone import Phone
from samara.devices.phone.reference_client.phone_learner import PhoneLearner
from samara.devices.phone.reference_client.readout_program import load_program
from samara.devices.phone.tokenization import examples_as_jsonl
from samara.shared.errors import RefusalCode
from samara.shared.protocol.frames.hello import SPLIT_EXAMPLES, Hello
from samara.shared.protocol.frames.instructions import EvaluateInstruction, Split, TrainInstruction
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.frames.vector_report import (
    NoisedVectorReport,
    VectorReport,
    hide_report,
)
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.replay import digest, zero_state
from samara.shared.protocol.wire import Kind, kind_of
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import identity_bytes, run_id_of

CLIENT = 7
MODES: dict[str, dict[str, Any]] = {
    "central": {},
    "local": {},
    "distributed": {"privacy__honest_share": 0.7, "cohort__minimum": 3},
}


class Asked(NamedTuple):
    """A phone's program and examples, and the first round of a run."""

    trainer: PhoneLearner
    config: RunConfig

    @property
    def settings(self) -> bytes:
        return identity_bytes(self.config)

    def instruction(self, **changes: Any) -> TrainInstruction:
        layout = self.trainer.layout
        run_id = run_id_of(self.config, layout, self.trainer.model_id)
        start = digest(layout.hash, zero_state(layout.size))
        numbers = {"learning_rate": 0.1, "clip": 0.0, "curvature_every": 0}
        asked = self.config.terms.instruction(run_id, 1, layout.hash, start, **numbers)
        return replace(asked, **changes)

    def evaluation(self) -> bytes:
        asked = self.instruction()
        question = asked.run_id, 0, 0, Split.VALIDATION, asked.layout_hash, asked.start_digest
        return EvaluateInstruction(*question).encode()

    def ask(self, phone: Phone, settings: bytes | None = None, **changes: Any) -> bytes:
        own = self.settings if settings is None else settings
        return phone.answer(train_task(self.instruction(**changes).encode(), CatchUp(), own))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one program, exported once."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def asked(
    settings: Settings, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Asked]:
    use_torch_as_runtime(monkeypatch)

    def make(mode: str = "central", **changes: Any) -> Asked:
        own = {
            "adapter__layers": "readout",
            "method": "global",
            "seed_policy": "shared",
            "aggregation__rule": "mean",
            "privacy__mode": mode,
            "privacy__noise_multiplier": 4.0,
            "privacy__clip": 0.5,
            **MODES.get(mode, {}),
        }
        if mode == "none":
            own = {"adapter__layers": "readout", "method": "global"}
        config, file = config_of(settings, **(own | changes)), programs / "phone.pte"
        if not file.exists():
            exported(config.flat(), file)
        rows = tmp_path / "rows.jsonl"
        rows.write_text(examples_as_jsonl(load_run(config)[1].share_of(0, 3)))
        program = load_program(file)
        return Asked(PhoneLearner(program, read_examples(rows, program.manifest)), config)

    return make


@pytest.mark.parametrize("mode", MODES)
def test_a_report_is_clipped_as_a_whole_and_noised_as_the_mode_says(
    asked: Callable[..., Asked], mode: str, tmp_path: Path
) -> None:
    run = asked(mode)
    frame = run.ask(phone_of(run.trainer, CLIENT, tmp_path / "home"))
    plain = as_client(run.trainer, CLIENT).take_steps(
        run.instruction(), zero_state(run.trainer.layout.size)
    )
    clipped = hide_report(plain, 0.5, 0)
    if mode == "central":
        assert VectorReport.decode(frame).encode() == clipped.encode()
        return
    privacy = run.config.terms.privacy
    assert privacy is not None
    noise = NoisedVectorReport.decode(frame).vector - clipped.vector
    assert 0 < np.abs(noise).max() < 20 * privacy.mechanism.client_sigma


@pytest.mark.parametrize("mode", ["central", "local"])
def test_a_repeated_instruction_gets_the_same_bytes_and_costs_once(
    asked: Callable[..., Asked], mode: str, tmp_path: Path
) -> None:
    """This also holds for a restarted phone, even without its session."""
    run, home = asked(mode), tmp_path / "home"
    frame = run.ask(phone_of(run.trainer, CLIENT, home))
    assert run.ask(phone_of(run.trainer, CLIENT, home)) == frame
    next(home.glob("runs/*/session")).unlink()
    assert run.ask(phone_of(run.trainer, CLIENT, home)) == frame
    assert [(charge.round, charge.mode) for charge in ChargeLog(home).read()] == [(1, mode)]


def test_a_round_beyond_the_phones_own_budget_is_refused(
    asked: Callable[..., Asked], tmp_path: Path
) -> None:
    run, plain, home = asked("local"), asked("none"), tmp_path / "home"
    assert run.ask(phone_of(run.trainer, CLIENT, home))
    limits = AnswerLimits(epsilon_limit=0.5)
    strict = phone_of(run.trainer, CLIENT, home, limits)
    refused = run.ask(strict, root=1), plain.ask(strict), run.ask(strict, b"", root=2)
    assert {Refusal.decode(frame).code for frame in refused} == {RefusalCode.BUDGET}
    assert len(ChargeLog(home).read()) == 1


def test_what_may_tell_of_examples_is_refused_with_one_code(
    asked: Callable[..., Asked], tmp_path: Path
) -> None:
    run, plain, limits = asked(), asked("none"), AnswerLimits(least_batch=1000)
    phone = phone_of(run.trainer, CLIENT, tmp_path / "home", limits)
    assert Refusal.decode(run.ask(phone)).code == RefusalCode.HIDDEN
    answer = phone.answer(evaluate_task(run.evaluation(), CatchUp(), run.settings))
    assert Refusal.decode(answer).code == RefusalCode.HIDDEN
    assert Refusal.decode(plain.ask(phone)).code == RefusalCode.BATCH


def test_an_adaptive_clip_is_that_of_the_instruction(
    asked: Callable[..., Asked], tmp_path: Path
) -> None:
    run = asked(privacy__adaptive_clip=True)
    phone = phone_of(run.trainer, CLIENT, tmp_path / "home")
    plain = as_client(run.trainer, CLIENT).take_steps(
        run.instruction(), zero_state(run.trainer.layout.size)
    )
    vector = VectorReport.decode(run.ask(phone, joint_clip=0.25)).vector
    np.testing.assert_array_equal(vector, hide_report(plain, 0.25, 0, has_indicator=True).vector)
    other = phone.answer(train_task(run.instruction().encode(), CatchUp(), run.settings))
    assert Refusal.decode(other).code == RefusalCode.FRAME


def test_a_hello_says_nothing_of_the_examples(asked: Callable[..., Asked], tmp_path: Path) -> None:
    run, plain = asked(), asked("none")
    phone = phone_of(run.trainer, CLIENT, tmp_path / "home")
    hidden, shown = (Hello.decode(phone.answer(hello_task(one.settings))) for one in (run, plain))
    assert (hidden.examples, SPLIT_EXAMPLES in json.loads(hidden.facts)) == (0, False)
    assert shown.examples > 0
    assert SPLIT_EXAMPLES in json.loads(shown.facts)
    assert Refusal.decode(phone.answer(hello_task(b"[]"))).code == RefusalCode.SCENARIO


def test_a_gateway_takes_no_privacy_away_by_leaving_the_settings_out(
    asked: Callable[..., Asked], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A phone that does not know a run answers no instruction without settings."""
    run, home = asked(), tmp_path / "home"
    phone = phone_of(run.trainer, CLIENT, home)
    assert kind_of(run.ask(phone)) is Kind.VECTOR_REPORT
    assert kind_of(run.ask(phone, b"", root=5)) is Kind.VECTOR_REPORT
    signed = tmp_path / "signed"
    give(signed, run.config, operator_key(tmp_path))
    phone = phone_of(run.trainer, CLIENT, signed)
    assert Hello.decode(phone.answer(hello_task())).examples == 0
    assert kind_of(run.ask(phone, b"")) is Kind.VECTOR_REPORT
    unknown = phone_of(run.trainer, CLIENT, tmp_path / "unknown")
    assert Hello.decode(unknown.answer(hello_task())).examples == 0
    refused = run.ask(unknown, b""), unknown.answer(evaluate_task(run.evaluation(), CatchUp()))
    assert {Refusal.decode(frame).code for frame in refused} == {RefusalCode.SETTINGS}
    assert "does not know whether its reports must be private" in caplog.text
    plain = asked("none")
    assert Refusal.decode(run.ask(unknown, plain.settings)).code == RefusalCode.SETTINGS
