import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asking import evaluate_task, train_task
from helpers import ROOT, delta_of, history_of, instruction_with
from phone_courses import compiled, course, eager
from phones import assert_same_evaluation, assert_same_report, exported, phone_of, run_of
from typer.testing import CliRunner

from samara.client.limits.answer_limits import AnswerLimits
from samara.client.limits.answer_log import read_answers
from samara.client.protocol.session import Session
from samara.client.training.client_data import ClientData
from samara.client.training.local_steps import take_local_steps
from samara.client.training.model_runtime import ModelRuntime, load_run
from samara.devices.live.keys import create_key
from samara.devices.phone import quantization as phone_quantization
from samara.devices.phone.commands import app
from samara.devices.phone.lowering import Method, lower_to_executorch
from samara.devices.phone.manifest import Manifest, manifest_file
from samara.devices.phone.reference_client.examples import read_examples
from samara.devices.phone.reference_client.phone_learner import PhoneLearner
from samara.devices.phone.reference_client.runtime import (
    PhoneProgram,
    ProgramBackend,
    load_module,
    run_method,
)
from samara.devices.phone.tokenization import examples_as_jsonl, write_examples
from samara.shared.errors import ConfigError, DataError, DeviceError, RefusalCode
from samara.shared.model.dual_forwarding import DualForwarding
from samara.shared.model.replay_torch import directions as directions_in_graph
from samara.shared.protocol.directions import directions
from samara.shared.protocol.frames.evaluation import Evaluation
from samara.shared.protocol.frames.instructions import EvaluateInstruction, SeedPolicy, Split
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.ledger.records import CatchUp, LedgerHeader
from samara.shared.protocol.normal_table import NORMAL_TABLE
from samara.shared.protocol.replay import zero_state
from samara.shared.protocol.wire import Kind, kind_of
from samara.shared.settings.config import RunConfig

GOLDEN = ROOT / "tests" / "golden" / "directions.json"


class _Directions(torch.nn.Module):
    """Directions as a program draws them."""

    table: torch.Tensor

    def __init__(self, count: int, distribution: Any) -> None:
        super().__init__()
        self.count, self.distribution = count, distribution
        self.register_buffer("table", torch.from_numpy(NORMAL_TABLE.copy()))

    def forward(self, seeds: torch.Tensor) -> torch.Tensor:
        z = directions_in_graph(seeds, self.table, self.count, self.distribution)
        return z.to(torch.int64)


def draw_by_a_program(
    seeds: np.ndarray[Any, Any], count: int, distribution: Any, file: Path
) -> np.ndarray[Any, Any]:
    example = torch.from_numpy(seeds.view(np.int64).copy())
    method = Method(_Directions(count, distribution), (example,))
    file.write_bytes(lower_to_executorch({"forward": method}, "portable"))
    module = load_module(file)  # its memory is what the output lies in
    (z,) = run_method(module, "forward", [seeds.view(np.int64)])
    return np.asarray(z.numpy().copy())


@pytest.mark.parametrize(
    "distribution", ["gaussian", pytest.param("rademacher", marks=pytest.mark.exhaustive)]
)
def test_a_program_draws_the_directions_of_the_golden_file(
    distribution: Any, tmp_path: Path
) -> None:
    pytest.importorskip("executorch", reason="pip install 'samara-fl[phone]' to make programs")
    cases = [c for c in json.loads(GOLDEN.read_text()) if c["distribution"] == distribution]
    seeds = np.array([int(case["seed"], 16) for case in cases], np.uint64)
    found = draw_by_a_program(seeds, 9000, distribution, tmp_path / "directions.pte")
    np.testing.assert_array_equal(found[:, :64], [case["head"] for case in cases])
    np.testing.assert_array_equal(found, directions(seeds, 9000, distribution))


@pytest.mark.parametrize("count", [pytest.param(128, marks=pytest.mark.exhaustive), 1541])
def test_a_program_draws_orthogonal_directions(count: int, tmp_path: Path) -> None:
    pytest.importorskip("executorch", reason="pip install 'samara-fl[phone]' to make programs")
    keys = np.array([0, 5, 2**39 + 1, 2**40 - 1], np.uint64) << np.uint64(24)
    seeds = keys + np.array([0, 7, count - 1, 2**24 - 1], np.uint64)
    found = draw_by_a_program(seeds, count, "orthogonal", tmp_path / "directions.pte")
    np.testing.assert_array_equal(found, directions(seeds, count, "orthogonal"))


@pytest.mark.parametrize(
    "command",
    [
        ["export", "--queries", "1", "--batch", "1", "--seq", "8", "--out", "model.pte"],
        ["check", "P"],
        [
            "up",
            "--program",
            "P",
            "--rows",
            "r",
            "--gateway",
            "h:1",
            "--key",
            "K",
            "--home",
            "H",
        ],
    ],
)
def test_without_the_extra_every_command_says_what_to_install(
    command: list[str], made: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    places = {"K": str(tmp_path / "phone.key"), "P": str(made()[1]), "H": str(tmp_path / "home")}
    monkeypatch.setitem(sys.modules, "executorch", None)
    create_key(tmp_path / "phone.key")
    words = [places.get(word, word) for word in command]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, DeviceError)
    assert "pip install 'samara-fl[phone]'" in str(result.exception)


@pytest.fixture(scope="module")
def made(
    model_folder: Callable[..., Path], data_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Any]:
    """Function that makes settings of a run, and programs of its model, each exported once.

    An export takes seconds for every block, so the model has only blocks with adapters.
    """
    pytest.importorskip("executorch", reason="pip install 'samara-fl[phone]' to run programs")
    folder = tmp_path_factory.mktemp("programs")
    settings = {
        "model.path": str(model_folder("causal", 2)),
        "data.path": str(data_file),
        "data.clients": 3,
        "data.partition": "iid",
        "task": "sst2",
        "adapter.layers": "top:2",
        "adapter.rank": 4,
        "threads": 1,
        "out": str(folder / "run"),
    }
    done: dict[tuple[str, str], Path] = {}

    def make(delegate: Any = "xnnpack", quantization: Any = "none") -> tuple[dict[str, Any], Path]:
        key = delegate, quantization
        if key not in done:
            out = folder / f"{delegate}-{quantization}.pte"
            done[key] = exported(settings, out, delegate, quantization)
        return settings, done[key]

    return make


@pytest.fixture
def pair(made: Any, tmp_path: Path) -> Callable[..., tuple[ModelRuntime, ClientData, PhoneLearner]]:
    """A model runtime with a client's data, and a phone with the same model and examples."""

    def make(delegate: str = "xnnpack", quantization: str = "none") -> Any:
        settings, file = made(delegate, quantization)
        more = {"model.quantization": "int8"} if quantization == "int8" else {}
        runtime, source = load_run(RunConfig.of(settings | more, "test"))
        data = source.share_of(0, 3)
        rows = tmp_path / "rows.jsonl"
        rows.write_text(examples_as_jsonl(data))
        program = PhoneProgram(file)
        program.check()
        return runtime, data, PhoneLearner(program, read_examples(rows, program.manifest))

    return make


@pytest.mark.parametrize(
    ("delegate", "quantization"),
    [
        ("xnnpack", "none"),
        pytest.param("portable", "none", marks=pytest.mark.exhaustive),
        pytest.param("xnnpack", "int8", marks=pytest.mark.exhaustive),
    ],
)
def test_a_phone_reports_what_an_eager_client_does(
    pair: Any, delegate: str, quantization: str
) -> None:
    runtime, data, phone = pair(delegate, quantization)
    assert phone.layout.hash == runtime.layout.hash
    state = zero_state(runtime.layout.size)
    # neither queries nor rows are multiples of the program's
    instruction = instruction_with(
        steps=3, queries=5, batch=3, layout_hash=runtime.layout.hash, curvature_every=2
    )
    expected = take_local_steps(runtime, data, instruction, state)
    assert_same_report(phone.take_steps(instruction, state), expected)
    assert_same_evaluation(phone, runtime, data, state)


def test_forward_differences_and_pools_are_reported_as_by_an_eager_client(pair: Any) -> None:
    runtime, data, phone = pair()
    state = zero_state(runtime.layout.size)
    for changes in ({"differences": "forward"}, {"seed_policy": SeedPolicy.POOL}):
        instruction = instruction_with(layout_hash=runtime.layout.hash, **changes)
        expected = take_local_steps(runtime, data, instruction, state)
        found = phone.take_steps(instruction, state)
        assert found.summed_steps == expected.summed_steps
        np.testing.assert_allclose(found.gradients, expected.gradients, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize(
    "delegate", ["xnnpack", pytest.param("portable", marks=pytest.mark.exhaustive)]
)
def test_a_program_fed_the_eager_gradients_stays_where_the_eager_engine_is(
    made: Any, delegate: str, tmp_path: Path
) -> None:
    settings, file = made(delegate)
    (runtime, source), program = load_run(RunConfig.of(settings, "test")), PhoneProgram(file)
    lines, size = tmp_path / "rows.jsonl", runtime.layout.size
    data = source.share_of(0, 3)
    lines.write_text(examples_as_jsonl(data))
    rows = read_examples(lines, program.manifest)[Split.TRAIN]
    asked = instruction_with(steps=8, queries=2, batch=2, layout_hash=runtime.layout.hash)
    expected = course(eager(runtime, data.tokenized(Split.TRAIN)), size, asked, rows.labels)
    fed = course(compiled(program, rows), size, asked, rows.labels, expected.estimates)
    assert np.any(expected.state)
    np.testing.assert_array_equal(fed.state, expected.state)
    np.testing.assert_allclose(fed.losses, expected.losses, atol=1e-5)
    own = course(compiled(program, rows), size, asked, rows.labels)
    np.testing.assert_allclose(own.losses, expected.losses, atol=1e-3)


@pytest.mark.parametrize(
    "delegate", ["xnnpack", pytest.param("portable", marks=pytest.mark.exhaustive)]
)
def test_the_program_replays_to_the_digest_of_everybody(made: Any, delegate: str) -> None:
    _, file = made(delegate)
    program = PhoneProgram(file)
    layout = program.layout
    history = history_of([delta_of(1), delta_of(2), delta_of(3)], layout)
    header = LedgerHeader(0, history.header.run_id, layout.hash)
    goal = 3, history.digests[3]
    for catch_up in (
        CatchUp(tail=history.tail(0)),
        CatchUp(history.snapshot(2), history.tail(2)),
        CatchUp(history.snapshot(3)),
    ):
        begun = Session.begin(header, layout)
        session = begun.catch_up(catch_up, header, layout, *goal, ProgramBackend(program))
        np.testing.assert_array_equal(session.state, history.states[3])
        assert session.digest == history.digests[3]


def test_what_a_step_applies_first_is_an_exact_replay(made: Any) -> None:
    _, file = made("xnnpack")
    program = PhoneProgram(file)
    rng = np.random.default_rng(0)
    state = rng.integers(-(2**60), 2**60, program.layout.size)
    seeds = rng.integers(2**64, size=2, dtype=np.uint64)
    coefficients = rng.integers(-(2**41), 2**41, size=2)
    check = program.manifest.check
    batch = np.array(check.ids), np.array(check.positions), np.array(check.labels)
    _, _, after = program.step(state, *batch, (seeds, coefficients), seeds, 0.01)
    expected = state.copy()
    for seed, coefficient in zip(seeds, coefficients, strict=True):
        z = directions(np.array([seed]), program.layout.size, "gaussian")[0]
        expected += coefficient * z.astype(np.int64)
    np.testing.assert_array_equal(after, expected)


def test_a_phone_answers_frames_and_repeats_its_report(
    pair: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    *_, trainer = pair()
    layout = trainer.layout
    phone = phone_of(trainer, 7, tmp_path)
    run_id, settings = run_of(trainer)
    history = history_of([delta_of(1)], layout, run_id)
    asked_of = {"run_id": run_id, "round": 2, "start_digest": history.digests[1]}
    instruction = instruction_with(layout_hash=layout.hash, **asked_of).encode()
    refusal = phone.answer(train_task(instruction, CatchUp(), settings))
    refused = Refusal.decode(refusal)
    assert (refused.client, refused.code, refused.numbers) == (7, RefusalCode.CATCH_UP, (1, 0))
    assert "send the rounds after 0" in caplog.text
    frame = phone.answer(train_task(instruction, CatchUp(tail=history.tail(0)), settings))
    assert Report.decode(frame).client == 7
    again = phone_of(trainer, 7, tmp_path)
    assert again.answer(train_task(instruction, CatchUp())) == frame
    asked = EvaluateInstruction(
        history.header.run_id, 1, 0, Split.TEST, layout.hash, history.digests[1]
    )
    answer = Evaluation.decode(again.answer(evaluate_task(asked.encode(), CatchUp())))
    assert answer.columns[0].counts.sum() > 0
    other = instruction_with(layout_hash=bytes(32), run_id=run_id).encode()
    assert Refusal.decode(again.answer(train_task(other, CatchUp()))).code == RefusalCode.LAYOUT
    for split, code in ((Split.TRAIN, RefusalCode.EVALUATION), (Split.TEST, None)):
        asked = replace(asked, split=split)
        reply = again.answer(evaluate_task(asked.encode(), CatchUp()))
        assert kind_of(reply) is (Kind.EVALUATION if code is None else Kind.REFUSAL)
        assert code is None or Refusal.decode(reply).code == code
    careful = phone_of(trainer, 7, tmp_path, AnswerLimits(least_batch=9))
    small = instruction_with(layout_hash=layout.hash, root=5, **asked_of)
    assert (
        Refusal.decode(careful.answer(train_task(small.encode(), CatchUp()))).code
        == RefusalCode.BATCH
    )
    answers = read_answers(tmp_path).answers
    assert [(one.asked, bool(one.refused)) for one in answers] == [
        ("train", True),
        ("train", False),
        ("train", False),
        ("evaluate", False),
        ("train", True),
        ("evaluate", True),
        ("evaluate", False),
        ("train", True),
    ]
    assert "for a phone, export its program with these settings" in caplog.text


@pytest.mark.exhaustive
def test_a_scale_that_is_dropped_is_found(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, file = made("xnnpack", "int8")
    PhoneProgram(file).check()

    def without_scale(layer: Any, x: torch.Tensor) -> torch.Tensor:
        weight = layer.codes.to(layer.dtype) / 127
        flat = x.clone(memory_format=torch.contiguous_format).view(1, -1, layer.in_features)
        return torch.bmm(flat, weight.t()[None]).view(*x.shape[:-1], layer.out_features)

    expected = Manifest.read(file).check.losses
    monkeypatch.setattr(phone_quantization, "_batched", without_scale)
    broken = exported(settings, tmp_path / "broken.pte", "xnnpack", "int8")
    text = json.loads(manifest_file(broken).read_text())
    text["check"]["losses"] = expected
    manifest_file(broken).write_text(json.dumps(text))
    with pytest.raises(DeviceError, match="differ by up to"):
        PhoneProgram(broken).check()


def test_files_that_do_not_belong_together_are_refused(made: Any, tmp_path: Path) -> None:
    _, file = made()
    copy = tmp_path / "model.pte"
    copy.write_bytes(file.read_bytes()[:-1] + b"?")
    manifest_file(copy).write_bytes(manifest_file(file).read_bytes())
    with pytest.raises(DeviceError, match="not the program that"):
        PhoneProgram(copy)
    manifest_file(copy).write_text("{}")
    with pytest.raises(DeviceError, match="not a manifest"):
        PhoneProgram(copy)


def test_rows_are_of_all_users_unless_a_client_is_named(
    made: Any, data_file: Path, tmp_path: Path
) -> None:
    settings, program = made()
    config, out = RunConfig.of(settings, "test"), tmp_path / "rows.jsonl"
    shares = [write_examples(config, program, client, out) for client in range(3)]
    count = write_examples(config, program, None, out)
    assert count == sum(shares) == len(data_file.read_text().splitlines())
    assert count == len(out.read_text().splitlines())


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 1"),
        ('{"ids": [], "label": 0, "split": "train"}', "0 ids"),
        ('{"ids": [1], "label": 2, "split": "train"}', "label 2"),
        ('{"ids": [-1], "label": 0, "split": "train"}', "token ids"),
        ('{"ids": [1], "label": 0, "split": "other"}', "OTHER"),
        ('{"ids": [1], "label": 0, "split": "test"}', "no training example"),
    ],
)
def test_bad_rows_are_named(made: Any, tmp_path: Path, line: str, problem: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(DataError, match=problem):
        read_examples(file, Manifest.read(made()[1]))


def test_summed_coefficients_beyond_one_pass_are_replayed(made: Any) -> None:
    program = PhoneProgram(made()[1])
    seeds = np.arange(40, dtype=np.uint64)
    coefficients = np.full(40, 2**41 + 1, np.int64)
    found = program.replay(zero_state(program.layout.size), seeds, coefficients)
    expected = zero_state(program.layout.size)
    for z in directions(seeds, program.layout.size, "gaussian"):
        expected += (2**41 + 1) * z.astype(np.int64)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "delegate", ["portable", pytest.param("xnnpack", marks=pytest.mark.exhaustive)]
)
def test_algorithm_1_keeps_its_adapters_as_the_eager_module_does(
    made: Any, model_folder: Callable[..., Path], delegate: Any, tmp_path: Path
) -> None:
    one_block = {"model.path": str(model_folder("causal", 1)), "adapter.layers": "top:1"}
    settings = made()[0] | one_block
    file = exported(settings, tmp_path / "stateful.pte", delegate, form="algorithm-1")
    with pytest.raises(DeviceError, match="cannot join a run"):
        PhoneProgram(file)
    runtime, source = load_run(RunConfig.of(settings, "test"))
    layout, module = runtime.layout, load_module(file)
    share = source.share_of(0, 3).tokenized(Split.TRAIN)
    prompts, labels = share.prompts[:2], share.labels[:2]
    ids, positions = np.zeros((2, 16), np.int64), np.zeros(2, np.int64)
    for row, prompt in enumerate(prompts):
        tokens = prompt.sequences[0]
        ids[row, : len(tokens)], positions[row] = tokens, len(tokens) - 1
    epsilon, rate = np.array([0.01], np.float32), np.array([0.5], np.float32)
    gradients, kept = np.zeros(2, np.float32), None
    for step in range(4):
        seeds = np.array([2 * step, 2 * step + 1], np.uint64)
        z = directions(seeds, layout.size, "gaussian")
        if kept is None:
            center = np.zeros(layout.size, np.float32)
            kept = DualForwarding.begin(layout, center, z, 0.01)
        else:
            kept = kept.advanced(gradients, 0.5, 0.01, z)
        expected = runtime.forward.scores(kept, prompts)
        inputs = [ids, positions, labels, gradients, rate, epsilon, seeds.view(np.int64)]
        scores, losses = (output.numpy().copy() for output in run_method(module, "forward", inputs))
        np.testing.assert_allclose(scores, expected, atol=2e-4)
        plus, minus = losses.mean(1).reshape(2, 2)
        gradients = (plus - minus) / np.float32(0.02)


@pytest.mark.exhaustive
def test_four_bit_weights_are_smaller_and_near(made: Any, tmp_path: Path) -> None:
    settings, _ = made()
    with pytest.raises(ConfigError, match="48 inputs, which is not a multiple of 32"):
        exported(settings, tmp_path / "none.pte", "xnnpack", "8da4w")
    embedded = {"model.path": "embedded", "task": "messages", "adapter.layers": "top:1"}
    file = exported(embedded, tmp_path / "model.pte", "xnnpack", "8da4w")
    PhoneProgram(file).check()
    weights = 4 * 4 * (4 * 128 * 128 + 3 * 128 * 384)  # of the blocks, in float32
    assert file.stat().st_size < weights
