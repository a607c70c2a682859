"""Phones personalize like boards: private rounds, private fits and the personal comparison.

The programs are graphs of `torch.export`, which torch runs. The same code runs programs of
ExecuTorch.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from asking import evaluate_task, train_task
from federations import Settings, config_of
from helpers import History, delta_of, history_of
from numpy.typing import NDArray
from personalizers import runtime_personalizer
from phones import as_client, assert_same_report, exported, phone_of, use_torch_as_runtime
from typer.testing import CliRunner

from samara.client.forward.turns import checked_passes
from samara.client.personal.columns import evaluate_personal_model
from samara.client.personal.personalizations import read_personalizations
from samara.client.personal.personalizer import Personalizer
from samara.client.personal.private_fit import intercept_for_training
from samara.client.personal.private_rounds import personal_ledger
from samara.client.personal.runtime_learner import RuntimeLearner
from samara.client.trainer.idle_work import InterruptionError
from samara.client.training.client_data import ClientData
from samara.client.training.local_steps import take_local_steps
from samara.client.training.model_runtime import ModelRuntime, load_run
from samara.devices.phone.commands import app
from samara.devices.phone.reference_client.examples import read_examples
from samara.devices.phone.reference_client.phone import Phone
from samara.devices.phone.reference_client.phone_learner import PhoneLearner
from samara.devices.phone.reference_client.readout_program import load_program
from samara.devices.phone.reference_client.run_settings import SETTINGS_FILE
from samara.devices.phone.tokenization import examples_as_jsonl
from samara.shared.errors import ConfigError, RefusalCode
from samara.shared.protocol.frames.evaluation import Evaluation
from samara.shared.protocol.frames.instructions import EvaluateInstruction, Split
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.protocol.replay import to_float32, zero_state
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import identity_bytes, run_id_of

CLIENT = 0


class Pair(NamedTuple):
    """A board and a phone with the same model, settings and examples."""

    config: RunConfig
    runtime: ModelRuntime
    data: ClientData
    trainer: PhoneLearner

    @property
    def run_id(self) -> bytes:
        return run_id_of(self.config, self.runtime.layout, self.runtime.model_id)

    def board(self) -> Personalizer:
        return runtime_personalizer(self.runtime, self.data, self.config, self.run_id)

    def phone(self, folder: Path) -> Personalizer:
        learner = as_client(self.trainer, CLIENT)
        return Personalizer(learner, self.config.terms, self.run_id, folder, 1000)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of programs, each exported once."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def pair(
    settings: Settings, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Pair]:
    def make(**changes: Any) -> Pair:
        own = {"adapter.layers": "readout", "personal.rounds": 3, "rounds": 4, "queries": 4}
        own["evaluate.best"] = False
        more = {key.replace("__", ".").replace("_", "-"): value for key, value in changes.items()}
        config = config_of(settings | own | more, out=str(tmp_path / "board"))
        use_torch_as_runtime(monkeypatch)
        kind = f"{config.adapter.layers} {config.adapter.label_bias}"
        file = programs / f"{kind}.pte"
        if not file.exists():
            exported(config.flat(), file)
        runtime, source = load_run(config)
        data = source.share_of(CLIENT, 3)
        rows = tmp_path / "rows.jsonl"
        rows.write_text(examples_as_jsonl(data))
        program = load_program(file)
        trainer = PhoneLearner(program, read_examples(rows, program.manifest))
        assert trainer.layout.hash == runtime.layout.hash
        return Pair(config, runtime, data, trainer)

    return make


def moved_state(size: int) -> NDArray[np.int64]:
    return (np.random.default_rng(1).normal(0, 0.1, size) * 2.0**51).astype(np.int64)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"personal__learning_rate": 0.3},
        {"method": "ditto"},
        {"method": "mixture", "personal__learning_rate": 0.3},
        {"adapter__label_bias": True, "personal__learning_rate": 0.3},
        {"adapter__layers": "top:1", "personal__learning_rate": 0.1},
        {"method": "readout", "adapter__label_bias": True},
        {"method": "readout", "adapter__label_bias": True, "adapter__layers": "top:1"},
    ],
    ids=str,
)
def test_a_phones_private_ledger_is_a_boards_but_for_the_rounding_of_losses(
    pair: Callable[..., Pair], changes: dict[str, Any], tmp_path: Path
) -> None:
    both = pair(**changes)
    w, folder = moved_state(both.runtime.layout.size), tmp_path / "phone"
    board = both.board().recorded_private_state(w)
    phone = both.phone(folder).recorded_private_state(w)
    expected, found = (
        list(read_ledger(personal_ledger(place)))
        for place in (Path(both.config.out) / "clients" / "0", folder)
    )
    assert len(found) == len(expected) == (1 if both.config.method == "readout" else len(found))
    for one, other in zip(found, expected, strict=True):
        assert (one.delta.round, one.delta.track) == (other.delta.round, other.delta.track)
        assert one.delta.contributors == other.delta.contributors or one.delta.round > 1
    *_, last = verify_ledger(personal_ledger(folder), both.trainer.layout)
    np.testing.assert_array_equal(last.state, phone)
    assert np.any(phone)
    difference = np.linalg.norm(to_float32(phone - board)) / np.linalg.norm(to_float32(board))
    assert difference < 2e-3


def test_with_a_boards_gradients_a_phones_private_ledger_has_its_digest(
    pair: Callable[..., Pair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = pair(personal__learning_rate=0.3)
    w, reports = zero_state(both.runtime.layout.size), list[Report]()
    plain = RuntimeLearner.take_steps

    def kept(*arguments: Any) -> Report:
        reports.append(plain(*arguments))
        return reports[-1]

    monkeypatch.setattr(RuntimeLearner, "take_steps", kept)
    both.board().recorded_private_state(w)
    given = iter(reports)
    monkeypatch.setattr(PhoneLearner, "take_steps", lambda *_: next(given))
    folder = tmp_path / "phone"
    both.phone(folder).recorded_private_state(w)
    files = [
        (place / "0000000001.seg").read_bytes()
        for place in (
            personal_ledger(folder),
            personal_ledger(Path(both.config.out) / "clients" / "0"),
        )
    ]
    assert files[0] == files[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"personal__learning_rate": 0.3},
        {"method": "readout", "adapter__label_bias": True},
        {"adapter__layers": "top:1", "personal__learning_rate": 0.1},
    ],
    ids=str,
)
def test_a_phone_compares_every_model_that_a_board_does(
    pair: Callable[..., Pair], changes: dict[str, Any]
) -> None:
    both = pair(**changes)
    terms, w = both.config.terms, moved_state(both.runtime.layout.size)
    private = both.board().recorded_private_state(w)
    for split in (Split.TEST, Split.VALIDATION):
        expected, found = (
            evaluate_personal_model(learner, terms, w, private, split)
            for learner in (
                RuntimeLearner(both.runtime, both.data),
                as_client(both.trainer, CLIENT),
            )
        )
        assert [column.name for column in found] == [column.name for column in expected]
        for one, other in zip(found, expected, strict=True):
            assert one.mean_loss == pytest.approx(other.mean_loss, abs=2e-3)
            assert np.abs(one.counts - other.counts).sum() <= 2


class Asked(NamedTuple):
    """A made-up history of a pair's run, and a gateway's requests in it."""

    both: Pair
    history: History

    @property
    def settings(self) -> bytes:
        return identity_bytes(self.both.config)

    def evaluation(self, number: int, split: Split = Split.TEST) -> bytes:
        layout, digest_ = self.history.layout, self.history.digests[number]
        return EvaluateInstruction(
            self.both.run_id, number, 0, split, layout.hash, digest_
        ).encode()

    def catch_up(self, number: int) -> CatchUp:
        return CatchUp(tail=self.history.tail(0, number))

    def phone(self, home: Path) -> Phone:
        return phone_of(self.both.trainer, CLIENT, home)


@pytest.fixture
def asked(pair: Callable[..., Pair]) -> Callable[..., Asked]:
    def make(**changes: Any) -> Asked:
        both = pair(**changes)
        deltas = [delta_of(number) for number in range(1, 5)]
        return Asked(both, history_of(deltas, both.runtime.layout, both.run_id))

    return make


def columns_of(frame: bytes) -> list[str]:
    return [column.name for column in Evaluation.decode(frame).columns]


def finished(asked: Asked, home: Path) -> list[int]:
    folder = home / "runs" / asked.both.run_id.hex() / "clients" / str(CLIENT)
    return [one.global_round for one in read_personalizations(folder)]


def test_a_phone_takes_private_rounds_after_the_last_round_and_answers_the_comparison(
    asked: Callable[..., Asked], tmp_path: Path
) -> None:
    run, home = asked(rounds=4), tmp_path / "home"
    phone = run.phone(home)
    validation = run.evaluation(4, Split.VALIDATION)
    assert columns_of(phone.answer(evaluate_task(validation, run.catch_up(4), run.settings))) == [
        "global"
    ]
    assert finished(run, home) == []
    run.phone(home).take_private_rounds()  # a phone that was started again, before any message
    assert finished(run, home) == [4]
    compared = phone.answer(evaluate_task(run.evaluation(4), run.catch_up(4), run.settings, True))
    names = ["base rate", "zero-shot", "label bias", "local-only", "global", "personalized"]
    assert columns_of(compared) == names
    assert finished(run, home) == [4]
    assert phone.answer(evaluate_task(run.evaluation(4), CatchUp(), run.settings, True)) == compared


def test_a_phone_that_was_not_idle_takes_them_when_it_is_asked(
    asked: Callable[..., Asked], tmp_path: Path
) -> None:
    run, home = asked(rounds=4), tmp_path / "home"
    frame = run.phone(home).answer(
        evaluate_task(run.evaluation(4), run.catch_up(4), run.settings, True)
    )
    assert columns_of(frame)[-1] == "personalized"
    assert finished(run, home) == [4]


def test_private_rounds_every_two_rounds_are_taken_between_messages(
    asked: Callable[..., Asked], tmp_path: Path
) -> None:
    run, home = asked(rounds=4, personal__when="every 2 rounds"), tmp_path / "home"
    phone = run.phone(home)
    for number in range(1, 5):
        frame = run.evaluation(number, Split.VALIDATION)
        phone.answer(evaluate_task(frame, run.catch_up(number), run.settings))
        phone.take_private_rounds()
    assert finished(run, home) == [2, 4]


def test_the_owner_of_a_phone_decides_when_its_private_rounds_are_taken(
    asked: Callable[..., Asked], tmp_path: Path
) -> None:
    run, home = asked(rounds=4), tmp_path / "home"
    owned = phone_of(run.both.trainer, CLIENT, home, owners={"personal.when": "always"})
    for number in range(1, 4):
        frame = run.evaluation(number, Split.VALIDATION)
        assert columns_of(
            owned.answer(evaluate_task(frame, run.catch_up(number), run.settings))
        ) == ["global"]
        owned.take_private_rounds()
    assert finished(run, home) == [1, 2, 3]
    assert (home / "runs" / run.both.run_id.hex() / SETTINGS_FILE).read_bytes() == run.settings


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("rounds=3", "of a phone cannot set rounds; --set accepts only personal.when and"),
        ("personal.when=every day", "phone up: 1 mistake"),
        ("personal.wen=end", "personal.wen"),
    ],
)
def test_what_the_owner_of_a_phone_may_not_decide_is_refused(assignment: str, said: str) -> None:
    required = [f"--{name}=x" for name in ("program", "rows", "gateway", "key", "home")]
    called = CliRunner().invoke(app, ["up", *required, "--set", assignment])
    assert isinstance(called.exception, ConfigError)
    assert said in str(called.exception)


def test_a_message_interrupts_private_rounds_and_no_finished_step_is_repeated(
    asked: Callable[..., Asked], tmp_path: Path
) -> None:
    run, home = asked(rounds=4), tmp_path / "home"
    phone = run.phone(home)
    phone.answer(evaluate_task(run.evaluation(4, Split.VALIDATION), run.catch_up(4), run.settings))
    passes = [0]

    def stop_now_and_then() -> None:
        passes[0] += 1
        if passes[0] % 5 == 0:
            raise InterruptionError

    interruptions = 0
    with checked_passes(stop_now_and_then):
        while not finished(run, home):
            try:
                phone.take_private_rounds()
            except InterruptionError:
                interruptions += 1
            assert interruptions < 100
    assert interruptions > 3
    undisturbed = run.both.phone(tmp_path / "undisturbed")
    private = undisturbed.recorded_private_state(run.history.states[4])
    folder = home / "runs" / run.both.run_id.hex() / "clients" / str(CLIENT)
    *_, last = verify_ledger(personal_ledger(folder), run.history.layout)
    np.testing.assert_array_equal(last.state, private)


def test_the_intercept_of_the_method_readout_is_there_while_a_phone_trains(
    asked: Callable[..., Asked], tmp_path: Path
) -> None:
    run = asked(method="readout", adapter__label_bias=True)
    both, layout = run.both, run.history.layout
    instruction = both.config.terms.instruction(
        both.run_id,
        *(1, layout.hash, run.history.digests[0]),
        **{"learning_rate": 0.1, "clip": 0.0, "curvature_every": 0},
    )
    phone = run.phone(tmp_path / "home")
    report = Report.decode(phone.answer(train_task(instruction.encode(), CatchUp(), run.settings)))
    state = zero_state(layout.size)
    private = intercept_for_training(RuntimeLearner(both.runtime, both.data), state)
    expected = take_local_steps(both.runtime, both.data, instruction, state + private)
    assert_same_report(report, expected)
    without = take_local_steps(both.runtime, both.data, instruction, state)
    assert not np.allclose(without.gradients, report.gradients)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"{", RefusalCode.SCENARIO),
        (b"[" * 60_000, RefusalCode.SCENARIO),
        (b"[]", RefusalCode.SCENARIO),
        (b" " * 70_000, RefusalCode.SETTINGS),
        ({"personal.rounds": 9}, RefusalCode.SETTINGS),
        ({"personal.when": "every x rounds"}, RefusalCode.SCENARIO),
    ],
    ids=lambda value: str(value)[:30],
)
def test_settings_that_are_not_the_runs_are_refused(
    asked: Callable[..., Asked],
    tmp_path: Path,
    sent: bytes | dict[str, Any],
    code: RefusalCode,
) -> None:
    run, home = asked(), tmp_path / "home"
    if isinstance(sent, dict):
        sent = json.dumps(json.loads(run.settings) | sent, sort_keys=True).encode()
    phone = run.phone(home)
    answer = phone.answer(evaluate_task(run.evaluation(4), run.catch_up(4), sent, True))
    assert Refusal.decode(answer).code == code
    assert not list(home.glob(f"runs/*/{SETTINGS_FILE}"))
    sound = phone.answer(evaluate_task(run.evaluation(4), run.catch_up(4), run.settings))
    assert columns_of(sound) == ["global"]


def test_a_phone_refuses_partial_and_runs_that_it_knows_nothing_of(
    asked: Callable[..., Asked], tmp_path: Path
) -> None:
    run = asked(rounds=4, adapter__label_bias=True)
    phone = run.phone(tmp_path / "home")
    comparison = phone.answer(evaluate_task(run.evaluation(4), run.catch_up(4), b"", True))
    assert Refusal.decode(comparison).code == RefusalCode.SETTINGS
    both = run.both
    partial = both._replace(config=both.config.model_copy(update={"method": "partial"}))
    history = history_of([delta_of(1)], both.runtime.layout, partial.run_id)
    other = Asked(partial, history)
    answer = phone.answer(evaluate_task(other.evaluation(1), other.catch_up(1), other.settings))
    assert Refusal.decode(answer).code == RefusalCode.SETTINGS
