"""Predicted steps: published cells, parts, memory, and the command's output."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from samara.client.estimators import prge
from samara.client.estimators.prge import LossRequest, run_estimator
from samara.client.forward import readout
from samara.client.forward.grouping import GROUPINGS, perturbations_per_pass, split_by_grouping
from samara.command import app
from samara.devices.hardware import estimate
from samara.devices.hardware.built_in_shapes import BUILT_IN
from samara.devices.hardware.estimate import estimate_readout, estimate_step
from samara.devices.hardware.memory_footprint import memory_footprint
from samara.devices.hardware.model_shape import Linear, model_shape, shape_of_config
from samara.devices.hardware.profile import load_device
from samara.devices.hardware.roofline import (
    LOGIT_TILE_BYTES,
    Grouping,
    Workload,
    base_pass_time,
    step_time,
)
from samara.shared.errors import ConfigError, ModelError
from samara.shared.model.head import VOCABULARY_TILE_BYTES
from samara.shared.model.perturbations import Perturbations
from samara.shared.protocol.directions import Differences
from samara.shared.protocol.layout import ADAPTER_GROUP, Layout, Tensor

ORIN = load_device("orin-nano-8gb")
TINY = model_shape("tinyllama-1.1b")
LAYOUT = Layout((Tensor("b", 1, 1, ADAPTER_GROUP),), 1, 1.0, 0, "gaussian")


def test_the_stored_residuals_are_those_of_the_model() -> None:
    for name in ("orin-nano-8gb", "oneplus-12"):
        device = load_device(name)
        assert device.fit is not None
        assert device.fit.leave_one_out <= 0.08
        for cell in device.fit.cells:
            work = Workload(
                sequence=cell.sequence,
                batch=cell.batch,
                grouping=cell.grouping,
                quantization=cell.quantization,
                tiled=False,
            )
            predicted = step_time(model_shape(cell.model), device, work).total
            assert predicted / cell.seconds - 1 == pytest.approx(cell.residual, abs=2e-3)


def test_what_the_client_has_too_is_the_same() -> None:
    assert get_args(Grouping) == GROUPINGS
    assert LOGIT_TILE_BYTES == VOCABULARY_TILE_BYTES
    for grouping in get_args(Grouping):
        assert Workload(
            grouping=grouping, queries=3
        ).perturbations_per_pass == perturbations_per_pass(grouping, 3)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("tinyllama-1.1b", "LlamaConfig"),
        ("opt-1.3b", "OPTConfig"),
        ("qwen3-1.7b", "Qwen3Config"),
        ("qwen3-8b", "Qwen3Config"),
    ],
)
def test_a_built_in_shape_is_what_transformers_builds(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    sizes = dict(BUILT_IN[name], num_hidden_layers=2)
    monkeypatch.setitem(BUILT_IN, name, sizes)
    config = getattr(transformers, kind)(**sizes)
    assert shape_of_config(config, Path(name), "causal") == model_shape(name)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("tinyllama-1.1b", 1.1e9),
        ("opt-1.3b", 1.316e9),
        ("opt-13b", 12.85e9),
        ("opt-175b", 174.6e9),
        ("qwen3-1.7b", 1.72e9),
        ("qwen3-32b", 32.8e9),
    ],
)
def test_built_in_shapes_have_as_many_parameters_as_is_published(
    name: str, parameters: float
) -> None:
    shape = model_shape(name)
    assert shape.block_weights + shape.other_weights == pytest.approx(parameters, rel=2e-3)


@pytest.mark.parametrize("kind", ["causal", "encoder", "gpt2"])
def test_shapes_of_real_folders(
    kind: str, tmp_path: Path, model_folder: Callable[[str], Path]
) -> None:
    folder = _gpt2(tmp_path) if kind == "gpt2" else model_folder(kind)
    shape = model_shape(str(folder / "config.json"))
    assert sum(linear.adapted for block in shape.blocks for linear in block) >= len(shape.blocks)
    assert (shape.vocabulary == 0) == (kind == "encoder")
    assert step_time(shape, ORIN, Workload(sequence=8)).total > 0


def test_nothing_but_a_configuration_is_needed(tmp_path: Path) -> None:
    folder = _gpt2(tmp_path)
    assert [file.name for file in folder.iterdir()] == ["config.json"]
    assert Linear(64, 192, adapted=True, positionwise=False) in model_shape(str(folder)).blocks[0]


def _gpt2(folder: Path) -> Path:
    import transformers

    config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=2, vocab_size=100)
    config.architectures = ["GPT2LMHeadModel"]
    config.save_pretrained(folder)
    return folder


def test_experts_are_refused(tmp_path: Path) -> None:
    config = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="8 experts"):
        model_shape(str(tmp_path))


@pytest.mark.parametrize("text", ["{", "[]", '{"model_type": "no such", "architectures": ["X"]}'])
def test_a_bad_configuration_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=str(tmp_path)):
        model_shape(str(tmp_path))


def test_grouping_reads_the_weights_less_often() -> None:
    work = Workload(queries=4, quantization="nf4")
    times = {
        grouping: step_time(TINY, ORIN, replace(work, grouping=grouping))
        for grouping in get_args(Grouping)
    }
    assert times["sequential"].dequantization == pytest.approx(8 * times["both"].dequantization)
    assert times["inner"].dequantization == pytest.approx(4 * times["both"].dequantization)
    assert times["outer"].dequantization == pytest.approx(2 * times["both"].dequantization)


@pytest.mark.parametrize("grouping", get_args(Grouping))
@pytest.mark.parametrize("differences", ["central", "forward"])
@pytest.mark.parametrize("curvature", [False, True])
def test_passes_are_those_of_the_client(
    grouping: Grouping, differences: Differences, curvature: bool
) -> None:
    """The predicted passes equal the estimator's requests, grouped by the client's engine."""
    found: Counter[int] = Counter()

    def losses_of(request: LossRequest) -> Any:
        z = torch.zeros(len(request.seeds), 1) if len(request.seeds) else None
        perturbations = Perturbations(LAYOUT, torch.zeros(1), z, request.epsilon, request.signs)
        found.update(
            len(places) * len(request.batch)
            for places, _ in split_by_grouping(perturbations, grouping)
        )
        return np.zeros(perturbations.count)

    seeds, batch = np.arange(3, dtype=np.uint64), np.arange(4)
    run_estimator(prge.prge_estimator(seeds, batch, 0.01, curvature, differences), losses_of)
    work = Workload(
        batch=4, queries=3, grouping=grouping, differences=differences, curvature=curvature
    )
    expected: Counter[int] = Counter()
    for rows, passes in work.passes:
        expected[rows] += passes
    assert expected == found


def test_forward_differences_take_less_time_and_memory() -> None:
    work = Workload(queries=4, batch=4)
    forward = replace(work, differences="forward")
    times = [step_time(TINY, ORIN, each) for each in (work, forward)]
    assert 4 / 8 < times[1].products / times[0].products <= 5 / 8
    peaks = [memory_footprint(TINY, ORIN, each) for each in (work, forward)]
    assert peaks[1].activations == peaks[0].activations // 2
    measured = replace(forward, curvature=True)
    assert memory_footprint(TINY, ORIN, measured) == peaks[0]
    assert step_time(TINY, ORIN, measured).total > times[0].total


def test_blocks_below_the_adapters_run_once_per_example() -> None:
    work = Workload(queries=4, batch=4, grouping="both")
    whole, top = step_time(TINY, ORIN, work), step_time(TINY, ORIN, replace(work, top=2))
    assert top.products < whole.products / 3
    few, all_ = (memory_footprint(TINY, ORIN, replace(work, top=top)).adapters for top in (2, 0))
    assert few * 11 == all_


def test_a_readout_pays_for_the_model_once() -> None:
    work = Workload(batch=8, queries=32, quantization="fp16", supervised=1)
    inside = estimate_step(TINY, ORIN, work)
    kept = estimate_readout(TINY, ORIN, work, labels=2, examples=800)
    assert kept.first_pass is not None
    assert kept.time.total < inside.time.total / 100
    assert inside.time.total < kept.first_pass.total
    assert kept.first_pass.total == pytest.approx(100 * base_pass_time(TINY, ORIN, work).total)
    assert kept.memory.total < inside.memory.total
    assert kept.as_json()["first_pass_seconds"] == kept.first_pass.total
    assert "first_pass_seconds" not in inside.as_json()
    more = estimate_readout(TINY, ORIN, replace(work, queries=64), labels=2, examples=800)
    assert more.first_pass == kept.first_pass
    assert more.time.total >= kept.time.total
    streamed = estimate_readout(TINY, ORIN, replace(work, stream="disk"), 2, 800)
    assert streamed.first_pass is not None
    assert streamed.first_pass.total >= kept.first_pass.total
    assert streamed.time == kept.time


def test_memory_by_part() -> None:
    memory = memory_footprint(TINY, ORIN, Workload(quantization="nf4"))
    assert memory.blocks == pytest.approx(968_884_224 * 4.5 / 8)
    tables = 2 * 32_000 * 2048  # with 8 bits each
    assert memory.others == tables + 2 * (TINY.other_weights - tables)
    assert memory.dequantized == 2 * 2048 * 5632
    assert memory_footprint(TINY, ORIN, Workload(quantization="fp16")).dequantized == 0


def test_clients_that_train_together_share_libraries_and_weights() -> None:
    memory = memory_footprint(TINY, ORIN, Workload())
    shared = memory.runtime + memory.others
    assert memory.of_clients(1, streamed=False) == memory.total
    own = memory.of_clients(2, streamed=False) - memory.total
    assert own == memory.total - shared - memory.blocks
    assert memory.of_clients(2, streamed=True) - memory.total == own + memory.blocks


def test_what_does_not_fit_says_what_would() -> None:
    device = load_device("orin-nano-4gb")
    result = estimate_step(model_shape("llama2-7b"), device, Workload(quantization="fp16"))
    assert not result.fits
    tiny = estimate_step(
        TINY, device, Workload(quantization="fp32", sequence=512, batch=8, queries=4)
    )
    assert not tiny.fits
    assert any("nf4" in remedy for remedy in tiny.remedies)
    command = "device estimate --device orin-nano-4gb --model tinyllama-1.1b --seq 512 --json"
    given = [*command.split(), *["--quantization", "fp32", "--batch", "8", "--set", "queries=4"]]
    assert not json.loads(CliRunner().invoke(app, given).output)["fits"]
    for remedy in tiny.remedies:
        assert json.loads(CliRunner().invoke(app, [*given, *remedy.split()]).output)["fits"]


def test_a_sequence_beyond_the_context_is_refused() -> None:
    with pytest.raises(ConfigError, match="2048 tokens"):
        estimate_step(TINY, ORIN, Workload(sequence=4096))


def test_units_are_those_of_the_client() -> None:
    assert estimate.UNIT == readout.UNIT


def test_the_command_prints_one_object() -> None:
    arguments = "device estimate --device orin-nano-8gb --model tinyllama-1.1b --quantization nf4"
    result = CliRunner().invoke(app, [*arguments.split(), "--set", "grouping=inner", "--json"])
    assert result.exit_code == 0, result.output
    said = json.loads(result.output)
    assert said["step_seconds"] == pytest.approx(sum(said["step_parts_seconds"].values()))
    assert said["peak_memory_bytes"] == sum(said["peak_memory_parts_bytes"].values())
    assert said["energy_joules"] == pytest.approx(15 * said["step_seconds"])
    assert said["fits"] is True
    arguments += " --set differences=forward --set queries=4"
    result = CliRunner().invoke(app, [*arguments.split(), "--json"])
    assert json.loads(result.output)["differences"] == "forward"


def test_the_commands_for_people() -> None:
    listed = CliRunner().invoke(app, ["device", "estimate", "--list"])
    assert listed.exit_code == 0, listed.output
    assert "orin-nano-8gb" in listed.output
    arguments = "device estimate --device orin-nano-4gb --model llama2-7b --power 7W"
    told = CliRunner().invoke(app, arguments.split())
    assert told.exit_code == 0, told.output
    assert "does not fit" in told.output
