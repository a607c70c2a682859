"""Phones with a readout: one pass per example, then steps in numpy that agree with a board's.

Most programs here are graphs of `torch.export`: programs of ExecuTorch take longer to export.
"""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import train_task
from federations import Settings
from helpers import delta_of, history_of, instruction_with
from phones import (
    SHAPES,
    Made,
    Pair,
    assert_same_evaluation,
    assert_same_report,
    calls_of,
    exported,
    exported_once,
    pair_of,
    phone_of,
    run_of,
)
from starts import start_for
from typer.testing import CliRunner

from samara.client.personal.components import train_for_a_round
from samara.client.personal.runtime_learner import RuntimeLearner
from samara.client.training.local_steps import take_local_steps
from samara.client.training.model_runtime import ModelRuntime, load_run
from samara.devices.phone.commands import app
from samara.devices.phone.export import prepare_model
from samara.devices.phone.manifest import Manifest, manifest_file
from samara.devices.phone.reference_client import readout_calls
from samara.devices.phone.reference_client.readout_program import ReadoutProgram, load_program
from samara.devices.phone.reference_client.runtime import PhoneProgram
from samara.shared.errors import ConfigError, DeviceError
from samara.shared.protocol.frames.instructions import SeedPolicy, Split
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.replay import STATE_BITS, digest, quantize, replay, summed, zero_state
from samara.shared.protocol.replay_numpy import NumpyBackend
from samara.shared.settings.config import RunConfig
from samara.shared.tasks.contrasts import contrasts
from samara.shared.tasks.label_scores import evaluation_column
from samara.shared.tasks.profiled_loss import PROFILED
from samara.simulations.exports.damping_file import write_damping


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of programs, each exported once."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def made(
    model_folder: Callable[..., Path],
    data_file: Path,
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Made:
    """Function that makes settings with an automatic adapter, and programs, each exported once.

    Programs of ExecuTorch take seconds for every block, so their models have one block.
    """

    def make(
        family: str = "causal",
        delegate: Any = "torch",
        quantization: Any = "none",
        **adapter: Any,
    ) -> tuple[Settings, Path]:
        embedded, blocks = family == "embedded", 3 if delegate == "torch" else 1
        settings = {
            "model.path": family if embedded else str(model_folder(family, blocks)),
            "model.max-length": SHAPES.sequence,
            "data.path": "messages" if embedded else str(data_file),
            "data.clients": 3,
            "data.partition": "iid",
            "task": "messages" if embedded else "sst2",
            "threads": 1,
            "out": str(programs / "run"),
        } | {f"adapter.{key.replace('_', '-')}": value for key, value in adapter.items()}
        is_orthogonal = settings.get("adapter.distribution") == "orthogonal"
        settings["differences"] = "components" if is_orthogonal else "central"
        if settings.get("adapter.start") == "random":
            own = {key: value for key, value in settings.items() if key != "adapter.start"}
            settings["adapter.start"] = start_for(own, programs)
        file = programs / f"{family}-{delegate}-{quantization}-{adapter}.pte"
        return settings, exported_once(settings, file, delegate, monkeypatch, quantization)

    return make


@pytest.fixture
def pair(made: Made, tmp_path: Path) -> Callable[..., Pair]:
    """A model runtime with a client's data, and a phone with the same model and examples."""

    def make(
        family: str = "causal",
        delegate: str = "torch",
        quantization: str = "none",
        adapter: Settings | None = None,
        **changes: Any,
    ) -> Pair:
        settings, file = made(family, delegate, quantization, **(adapter or {}))
        more = {"model.quantization": "int8"} if quantization == "int8" else {}
        return pair_of(settings | more, file, tmp_path, **changes)

    return make


def state_of(runtime: ModelRuntime) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(1).normal(0, 0.3, runtime.layout.size)
    return (values * 2.0**STATE_BITS).astype(np.int64)


@pytest.mark.parametrize(
    ("family", "delegate", "quantization"),
    [
        ("causal", "torch", "none"),
        ("encoder", "torch", "none"),
        ("causal", "torch", "int8"),
        ("causal", "portable", "none"),
        pytest.param("encoder", "portable", "none", marks=pytest.mark.exhaustive),
        pytest.param("causal", "xnnpack", "none", marks=pytest.mark.exhaustive),
        pytest.param("encoder", "xnnpack", "none", marks=pytest.mark.exhaustive),
        pytest.param("causal", "xnnpack", "int8", marks=pytest.mark.exhaustive),
    ],
)
def test_a_phone_reports_the_projected_gradients_of_an_ordinary_client(
    pair: Any, family: str, delegate: str, quantization: str
) -> None:
    runtime, data, phone = pair(family, delegate, quantization)
    assert phone.layout.hash == runtime.layout.hash
    state = state_of(runtime)
    for changes in (
        # neither queries nor examples are multiples of what the program or numpy takes at once
        {"steps": 3, "queries": 19, "batch": 1000, "curvature_every": 2},
        {"batch": 5, "differences": "forward"},
        {"batch": 5, "seed_policy": SeedPolicy.POOL},
    ):
        instruction = instruction_with(layout_hash=runtime.layout.hash, **changes)
        expected = take_local_steps(runtime, data, instruction, state)
        assert_same_report(phone.take_steps(instruction, state), expected)
    assert_same_evaluation(phone, runtime, data, state)


@pytest.mark.parametrize("batch", [7, 1000])
def test_a_phone_trains_the_profiled_loss_of_an_ordinary_client(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(readout_calls, "EXAMPLES_AT_ONCE", 5)  # fewer than the batch
    settings, file = made()
    runtime, data, phone = pair_of(
        settings | {"objective": PROFILED, "adapter.label-bias": False}, file, tmp_path
    )
    state = state_of(runtime)
    asked = {"steps": 2, "queries": 19, "batch": batch, "curvature_every": 2}
    instruction = instruction_with(layout_hash=runtime.layout.hash, is_profiled=True, **asked)
    expected = take_local_steps(runtime, data, instruction, state)
    assert_same_report(phone.take_steps(instruction, state), expected)
    plain = phone.take_steps(replace(instruction, is_profiled=False), state)
    assert not np.allclose(plain.gradients, expected.gradients, rtol=1e-2)


@pytest.mark.parametrize(
    "delegate", ["torch", pytest.param("portable", marks=pytest.mark.exhaustive)]
)
def test_a_phone_reports_the_components_of_an_ordinary_client(pair: Any, delegate: str) -> None:
    runtime, data, phone = pair(delegate=delegate, adapter={"distribution": "orthogonal"})
    assert phone.layout.hash == runtime.layout.hash
    state, learner = state_of(runtime), RuntimeLearner(runtime, data)
    for batch in (1000, 5):
        instruction = instruction_with(
            layout_hash=runtime.layout.hash,
            steps=1,
            queries=19,
            batch=batch,
            seed_policy=SeedPolicy.SHARED,
            learning_rate=2.0,
            differences="components",
        )
        expected = train_for_a_round(learner, instruction, state, None)
        found = train_for_a_round(phone, instruction, state, None)
        assert (found.token, found.examples) == (expected.token, expected.examples)
        assert found.mean_loss == pytest.approx(expected.mean_loss, abs=1e-5)
        np.testing.assert_allclose(found.gradients, expected.gradients, rtol=1e-3, atol=1e-5)
        coefficients = quantize(instruction.coefficients(expected.gradients[0].astype(float)))
        groups = [(instruction.seeds(0)[0], block) for block in coefficients]
        step = calls_of(phone).begin_step(state, summed(groups))
        np.testing.assert_array_equal(step.state, replay(state, groups, "orthogonal"))


@pytest.mark.parametrize(
    "delegate", ["torch", pytest.param("xnnpack", marks=pytest.mark.exhaustive)]
)
def test_a_4_bit_program_has_scores_and_features_of_its_own(pair: Any, delegate: str) -> None:
    runtime, data, phone = pair("embedded", delegate, "8da4w")
    prompts = data.tokenized(Split.TRAIN).prompts[:64]
    runtime.prepare(prompts)
    scores, features = calls_of(phone).numbers(Split.TRAIN, np.arange(len(prompts)))
    for found, exact in (
        (scores, runtime.forward.base_scores(prompts)),
        (features, runtime.features(prompts)),
    ):
        assert np.abs(found - exact).max() > 1e-4
        assert np.corrcoef(found.ravel(), exact.ravel())[0, 1] > 0.9
    state = state_of(runtime)
    instruction = instruction_with(
        steps=1, queries=64, batch=32, layout_hash=runtime.layout.hash, learning_rate=0.0
    )
    expected = take_local_steps(runtime, data, instruction, state).gradients.ravel()
    found = phone.take_steps(instruction, state).gradients.ravel()
    assert np.corrcoef(found, expected)[0, 1] > 0.9


@pytest.mark.parametrize(
    "adapter",
    [
        {"label_bias": True},
        {"label_bias": True, "start": "random"},
        {"layers": "top:1", "start": "random"},
        {"layers": "top:1", "label_bias": True, "start": "random"},
    ],
    ids=" ".join,
)
def test_a_phone_has_the_label_bias_and_the_start_of_the_run(pair: Any, adapter: Settings) -> None:
    runtime, data, phone = pair(adapter=adapter)
    assert phone.layout.hash == runtime.layout.hash
    state = state_of(runtime) // 4
    changes = {"steps": 3, "queries": 3, "batch": 5, "curvature_every": 2}
    instruction = instruction_with(layout_hash=runtime.layout.hash, **changes)
    expected = take_local_steps(runtime, data, instruction, state)
    assert_same_report(phone.take_steps(instruction, state), expected)
    assert_same_evaluation(phone, runtime, data, state)
    zero = zero_state(runtime.layout.size)
    if "start" in adapter:
        assert runtime.layout.start
        test = data.tokenized(Split.TEST)
        base = evaluation_column("", runtime.base_scores(test.prompts), test.labels)
        assert evaluation_column(
            "global", *phone.score(zero, Split.TEST)
        ).mean_loss != pytest.approx(base.mean_loss)
    assert_same_evaluation(phone, runtime, data, zero)


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        ("", "the initial weights do not have the layout's hash"),
        (
            "?",
            "the initial weights do not have the layout's hash|Only base64|Incorrect padding|"
            "Excess data",
        ),
        (
            base64.b64encode(b"another").decode(),
            "the initial weights do not have the layout's hash",
        ),
    ],
)
def test_a_manifest_with_another_start_is_refused(
    made: Made, tmp_path: Path, start: str, problem: str
) -> None:
    _, file = made(label_bias=True, start="random")
    copy = tmp_path / "model.pte"
    copy.write_bytes(file.read_bytes())
    text = json.loads(manifest_file(file).read_text())
    assert text["start"]
    manifest_file(copy).write_text(json.dumps(text | {"start": start}))
    with pytest.raises(DeviceError, match=problem) as refused:
        load_program(copy)
    assert "export the program again" in str(refused.value)


def test_without_weights_a_phone_evaluates_the_base_model(pair: Any) -> None:
    runtime, data, phone = pair()
    prompts = data.tokenized(Split.VALIDATION)
    base = runtime.forward.base_scores(prompts.prompts)
    column = evaluation_column(
        "global", *phone.score(zero_state(runtime.layout.size), Split.VALIDATION)
    )
    assert column.mean_loss == pytest.approx(
        evaluation_column("", base, prompts.labels).mean_loss, abs=1e-5
    )


def test_every_example_goes_through_the_model_once(pair: Any) -> None:
    runtime, data, phone = pair()
    state, calls = state_of(runtime), calls_of(phone)
    train, test = len(data.tokenized(Split.TRAIN).prompts), len(data.tokenized(Split.TEST).prompts)
    instruction = instruction_with(
        steps=3, queries=4, batch=1000, layout_hash=runtime.layout.hash, curvature_every=1
    )
    first = phone.take_steps(instruction, state)
    assert calls.example_passes == train
    again = phone.take_steps(instruction, state)
    np.testing.assert_array_equal(again.gradients, first.gradients)
    evaluation_column("global", *phone.score(state, Split.TEST))
    evaluation_column("global", *phone.score(zero_state(len(state)), Split.TEST))
    assert calls.example_passes == train + test


def test_what_does_not_fit_the_limit_is_computed_again_to_the_same_result(pair: Any) -> None:
    runtime, data, whole = pair()
    *_, bounded = pair(kept_bytes=3 * 4 * (2 + 32))  # three examples: two labels, 32 features
    state, train = state_of(runtime), len(data.tokenized(Split.TRAIN).prompts)
    instruction = instruction_with(steps=2, queries=2, batch=1000, layout_hash=runtime.layout.hash)
    expected, found = (phone.take_steps(instruction, state) for phone in (whole, bounded))
    np.testing.assert_allclose(found.gradients, expected.gradients, rtol=1e-4, atol=1e-4)
    calls = calls_of(bounded)
    assert sum(kept.nbytes for kept in calls._kept.values()) == 3 * 4 * (2 + 32)
    assert calls.example_passes == 3 + 2 * (train - 3)


def test_a_phone_catches_up_to_the_digest_of_everybody_and_repeats_its_report(
    pair: Any, tmp_path: Path
) -> None:
    *_, trainer = pair()
    layout, (run_id, settings) = trainer.layout, run_of(trainer)
    history = history_of([delta_of(1), delta_of(2)], layout, run_id)
    phone = phone_of(trainer, 7, tmp_path)
    instruction = instruction_with(
        run_id=run_id, round=3, layout_hash=layout.hash, start_digest=history.digests[2]
    ).encode()
    frame = phone.answer(train_task(instruction, CatchUp(tail=history.tail(0)), settings))
    assert Report.decode(frame).client == 7
    again = phone_of(trainer, 7, tmp_path)
    assert again.answer(train_task(instruction, CatchUp())) == frame


def test_replay_by_the_programs_directions_is_exact(made: Made) -> None:
    program = load_program(made()[1])
    rng = np.random.default_rng(0)
    state = rng.integers(-(2**60), 2**60, program.layout.size)
    seeds = rng.integers(2**64, size=37, dtype=np.uint64)
    coefficients = rng.integers(-(2**41), 2**41, size=37)
    expected = state.copy()
    NumpyBackend().fold(expected, seeds, coefficients, program.layout.distribution)
    np.testing.assert_array_equal(program.replay(state, seeds, coefficients), expected)


def test_the_manifest_describes_the_readout(made: Made) -> None:
    settings, file = made()
    manifest = Manifest.read(file)
    readout = manifest.readout
    assert readout is not None
    assert (readout.labels, readout.features, readout.damping) == (2, 32, "random-tokens")
    np.testing.assert_array_equal(np.array(readout.contrasts, np.float32), contrasts(2))
    assert len(readout.damping_sha256) == 64
    assert len(manifest.check.losses) == 4
    runtime, _ = load_run(RunConfig.of(settings, "test"))
    assert manifest.layout_hash == runtime.layout.hash.hex()


def _without(text: dict[str, Any]) -> None:
    del text["readout"]


def _other(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(text: dict[str, Any]) -> None:
        text["readout"][key] = value

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_without, "has a readout without a description"),
        (_other("labels", 3), "3 labels and 32 features does not match the layout"),
        (_other("features", 31), "2 labels and 31 features does not match the layout"),
        (_other("contrasts", [[1.0, 0.0]]), "contrasts are not 1 orthonormal rows"),
        (_other("contrasts", [["a", "b"]]), "could not convert"),
        (_other("contrasts", [[float("nan"), 0.0]]), "contrasts are not 1 orthonormal rows"),
        (
            _other("damping", "none"),
            "damping 'none' has no hash, or differs from the layout's, 'random-tokens'",
        ),
        (_other("damping_sha256", ""), "has no hash"),
        (_other("more", 1), "unexpected keyword argument"),
    ],
)
def test_a_manifest_that_describes_another_readout_is_refused(
    made: Made, tmp_path: Path, change: Any, problem: str
) -> None:
    _, file = made()
    copy = tmp_path / "model.pte"
    copy.write_bytes(file.read_bytes())
    text = json.loads(manifest_file(file).read_text())
    change(text)
    manifest_file(copy).write_text(json.dumps(text))
    with pytest.raises(DeviceError, match=problem) as refused:
        load_program(copy)
    assert str(manifest_file(copy)) in str(refused.value)
    assert "export the program again" in str(refused.value)


def test_features_that_differ_from_the_models_are_found(made: Made, tmp_path: Path) -> None:
    _, file = made()
    program = load_program(file)
    assert isinstance(program, ReadoutProgram)
    represent = program.represent
    program.represent = lambda *batch: (represent(*batch)[0], 1.1 * represent(*batch)[1])  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match=r"losses differ by up to .*export it again"):
        program.check()
    program.represent = represent  # type: ignore[method-assign]
    program.contrasts = -program.contrasts
    with pytest.raises(DeviceError, match="losses differ by up to"):
        program.check()


def test_a_program_of_the_other_kind_is_refused(made: Made) -> None:
    with pytest.raises(DeviceError, match=r"has a readout, but a program with adapters"):
        PhoneProgram(made()[1])


def test_a_damping_from_a_file_is_part_of_the_program(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, file = made()
    damping = tmp_path / "damping.safetensors"
    write_damping(RunConfig.of(settings, "test"), None, 40, damping)
    config = RunConfig.of(settings | {"adapter.damping": str(damping)}, "test")
    ready = prepare_model(config, "none")
    description = ready.parts.description  # type: ignore[union-attr]
    assert description.damping == "file"
    assert description.damping_sha256 != Manifest.read(file).readout.damping_sha256  # type: ignore[union-attr]
    runtime, _ = load_run(config)
    assert ready.layout.hash == runtime.layout.hash


def test_algorithm_1_has_no_readout(made: Made, tmp_path: Path) -> None:
    settings, _ = made()
    with pytest.raises(ConfigError, match="--form algorithm-1 perturbs adapters inside"):
        exported(settings, tmp_path / "stateful.pte", form="algorithm-1")
    assert not list(tmp_path.iterdir())


def test_models_and_adapters_without_a_program_are_refused(
    made: Made, model_folder: Callable[[str], Path]
) -> None:
    settings, _ = made()
    masked = settings | {"model.path": str(model_folder("masked"))}
    with pytest.raises(ConfigError, match="family must be causal or encoder"):
        prepare_model(RunConfig.of(masked, "test"), "none")
    encoder = {"model.path": str(model_folder("encoder")), "adapter.layers": "top:1"}
    with pytest.raises(ConfigError, match="family must be causal, and"):
        prepare_model(RunConfig.of(settings | encoder, "test"), "none")
    both = settings | {"adapter.layers": "readout,top:1"}
    with pytest.raises(ConfigError, match=r"set adapter\.layers to readout or top:1"):
        prepare_model(RunConfig.of(both, "test"), "none")


def test_the_check_command_runs_a_readouts_self_check(made: Made) -> None:
    result = CliRunner().invoke(app, ["check", str(made()[1])])
    assert result.exit_code == 0, result.exception
    assert "replay is exact" in result.output


def test_a_round_of_a_phone_leads_to_the_state_that_everybody_replays(pair: Any) -> None:
    runtime, _, phone = pair()
    state = zero_state(runtime.layout.size)
    instruction = instruction_with(
        steps=2, queries=3, batch=1000, layout_hash=runtime.layout.hash, learning_rate=0.5
    )
    report = phone.take_steps(instruction, state)
    groups = [
        (seeds, block)
        for seeds, gradients in zip(instruction.seeds(0), report.gradients, strict=True)
        for block in quantize(instruction.coefficients(instruction.clipped(gradients)))
    ]
    expected = replay(state, groups, phone.layout.distribution)
    step = calls_of(phone).begin_step(state, summed(groups))
    assert digest(phone.layout.hash, step.state) == digest(phone.layout.hash, expected)
    before = evaluation_column("global", *phone.score(state, Split.TRAIN)).mean_loss
    assert evaluation_column("global", *phone.score(expected, Split.TRAIN)).mean_loss < before
