"""Predicted first-order steps: the paper's formulas and figures, memory, and the command."""

import json
from dataclasses import fields, replace

import pytest
from helpers import ROOT
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from benchmarks.devices.offload_figures import (
    GPT2_1_3B,
    from_shapes_and_profiles,
    from_the_papers_times,
)
from samara.client.offload.iteration_time import (
    StageSeconds,
    layerwise_iteration,
    transition_layer,
    zero_offload_iteration,
)
from samara.command import app
from samara.devices.hardware.model_shape import ModelShape, llama_shape, model_shape
from samara.devices.hardware.offload_estimate import (
    FirstOrderMethod,
    FirstOrderWorkload,
    estimate_first_order,
    estimate_host_memory,
    trained_parameters,
)
from samara.devices.hardware.profile import load_device
from samara.shared.errors import ConfigError

SEVEN = model_shape("llama2-7b")
WORKSTATION, LAPTOP = load_device("rtx-4090-workstation"), load_device("rtx-a1000-laptop")
SECONDS = st.floats(0.001, 10)
STAGES = st.builds(
    StageSeconds, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, layers=st.integers(1, 64)
)


def test_the_table_in_the_documentation_is_what_is_predicted() -> None:
    text = (ROOT / "docs" / "measurements" / "lsp.md").read_text(encoding="utf-8")
    for figure in (*from_the_papers_times(), *from_shapes_and_profiles()):
        assert figure.row in text


def test_equation_1() -> None:
    stages = StageSeconds(1.0, 2.0, offload=3.0, update=5.0, upload=4.0, layers=10)
    assert zero_offload_iteration(stages) == 1 + 3 + 5
    assert layerwise_iteration(stages) == 5
    assert layerwise_iteration(StageSeconds(1.0, 2.0, 0.1, 0.2, 0.3, 10)) == 3 + 0.03 + 0.02


@given(STAGES)
def test_overlap_never_costs_and_never_beats_the_busiest_stage(stages: StageSeconds) -> None:
    busiest = max(stages.compute, stages.offload, stages.update, stages.upload)
    assert busiest <= layerwise_iteration(stages)
    one_after_the_other = stages.compute + stages.offload + stages.update + stages.upload
    assert busiest <= zero_offload_iteration(stages) <= one_after_the_other


def test_the_transition_layer_of_section_4_2() -> None:
    # A layer takes 0.1 + 0.2 + 0.1 s behind the accelerator; (2 − 0.4) / 0.2 = 8 layers are done.
    assert transition_layer(StageSeconds(1.0, 2.0, 1.0, 2.0, 1.0, 10)) == 2
    assert transition_layer(StageSeconds(1.0, 0.1, 1.0, 2.0, 1.0, 10)) == 10
    assert transition_layer(StageSeconds(1.0, 2.0, 0.1, 0.1, 0.1, 10)) == 0
    assert transition_layer(StageSeconds(1.0, 2.0, 0.0, 0.0, 0.0, 10)) == 0


@given(STAGES)
def test_the_transition_layer_is_one_of_the_layers_or_behind_the_last(stages: StageSeconds) -> None:
    assert 0 <= transition_layer(stages) <= stages.layers


@pytest.mark.parametrize("method", ["zero-offload", "lsp", "lora"])
def test_seven_billion_parameters_fit_in_24_gb(method: FirstOrderMethod) -> None:
    work = FirstOrderWorkload(method, sequence=512, batch=4)
    assert estimate_first_order(SEVEN, WORKSTATION, work).fits


def test_what_does_not_fit_names_the_methods_that_do() -> None:
    result = estimate_first_order(SEVEN, WORKSTATION, FirstOrderWorkload("fo-adam"))
    assert not result.fits
    assert result.remedies == ("--optimizer lora", "--optimizer zero-offload", "--optimizer lsp")


def test_1_3_billion_parameters_fit_in_4_gb_with_lsp_only_offloaded() -> None:
    lsp = estimate_first_order(GPT2_1_3B, LAPTOP, FirstOrderWorkload("lsp", sequence=512))
    assert lsp.fits
    assert lsp.memory.weights > 0.6 * LAPTOP.usable_bytes
    assert not estimate_first_order(GPT2_1_3B, LAPTOP, FirstOrderWorkload("fo-adam")).fits


def test_memory_by_part() -> None:
    work = FirstOrderWorkload("lsp", subspace=512, nonzeros=16)
    result = estimate_first_order(SEVEN, WORKSTATION, work)
    numbers = 32 * 7 * 512**2
    assert trained_parameters(SEVEN, work) == numbers
    assert result.memory.optimizer == 0
    assert result.host_memory.gradients == 2 * 4 * 7 * 512**2  # of layers on their way
    assert result.host_memory.optimizer == 2 * 2 * numbers
    rows = 32 * (4 * 2 * 4_096 + 3 * (4_096 + 11_008))
    assert result.memory.added == rows * 16 * (2 + 8)
    small = FirstOrderWorkload("lsp", subspace=100_000)
    assert trained_parameters(SEVEN, small) == SEVEN.block_weights
    assert result.memory.total == sum(
        getattr(result.memory, part.name) for part in fields(result.memory)
    )


def small_shape(vocabulary: int) -> ModelShape:
    sizes = {"hidden_size": 8, "intermediate_size": 20, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    more = {"vocab_size": vocabulary, "max_position_embeddings": 4096}
    return llama_shape("small", sizes | heads | more)


BLOCK = 4 * 8 * 8 + 3 * 8 * 20


@pytest.mark.parametrize(
    ("method", "layerwise", "vocabulary", "tokens", "activations", "gradients"),
    [
        # The logits: inputs of three blocks, three vectors of the head, three times the logits.
        ("zero-offload", False, 1000, 100, 100 * (3 * 8 + 3 * 8 + 3 * 1000), 0),
        # The head's gradient, beside that of the logits.
        ("fo-adam", False, 1000, 1, 3 * 8 + 3 * 8 + 1000, 8 * 1000),
        # A block, where gate and up projection and the product of both have gradients.
        ("lsp", False, 10, 100, 100 * (3 * 8 + 11 * 8 + 3 * 20 + 3 * 20), 8 * 20),
        ("zero-offload", False, 10, 100, 100 * (3 * 8 + 11 * 8 + 6 * 20), BLOCK + 8 * 20),
        ("zero-offload", True, 10, 100, 100 * (3 * 8 + 11 * 8 + 6 * 20), 2 * BLOCK + 8 * 20),
        # A block's end, before the attention; another block's gradients wait for the link.
        ("zero-offload", False, 10, 1, 3 * 8 + 6 * 8, 2 * BLOCK),
        # The embedding, when the lowest layer's gradients, at most as many, wait.
        ("zero-offload", False, 1000, 1, 8, 2 * 8 * 1000),
    ],
)
def test_memory_at_the_moment_when_most_is_alive(
    method: FirstOrderMethod,
    layerwise: bool,
    vocabulary: int,
    tokens: int,
    activations: int,
    gradients: int,
) -> None:
    work = FirstOrderWorkload(method, tokens, 1, "fp32", layerwise=layerwise)
    memory = estimate_first_order(small_shape(vocabulary), WORKSTATION, work).memory
    assert (memory.activations, memory.gradients) == (4 * activations, 4 * gradients)


@pytest.mark.parametrize(("subspace", "rows"), [(4, 3 * (11 * 8 + 3 * 20)), (8, 3 * 3 * 20)])
def test_sides_that_are_not_longer_than_the_subspace_have_no_projector(
    subspace: int, rows: int
) -> None:
    work = FirstOrderWorkload("lsp", 1, 1, "fp32", subspace=subspace, nonzeros=16)
    memory = estimate_first_order(small_shape(10), WORKSTATION, work).memory
    assert memory.added == rows * subspace * (4 + 8)  # no more nonzeros than dimensions


def test_gradients_wait_on_the_host() -> None:
    numbers = trained_parameters(SEVEN, FirstOrderWorkload("zero-offload"))
    layer = 4 * 4_096**2 + 3 * 4_096 * 11_008
    stages = StageSeconds(1.0, 2.0, 1.0, 4.0, 1.0, 32)

    def waiting(layerwise: bool, seconds: StageSeconds) -> int:
        work = FirstOrderWorkload("zero-offload", layerwise=layerwise)
        memory = estimate_host_memory(SEVEN, work, seconds)
        assert memory.optimizer == 2 * 2 * numbers
        return memory.gradients

    assert waiting(False, stages) == 2 * (numbers + layer)
    # When the backward pass ends, the host has updated half of what has arrived.
    assert waiting(True, stages) == pytest.approx(2 * (numbers / 2 + 2 * layer))
    assert waiting(True, replace(stages, update=1.0)) == 2 * 4 * layer
    assert estimate_host_memory(SEVEN, FirstOrderWorkload("lora"), stages).total == 0


def test_offloading_needs_a_host() -> None:
    with pytest.raises(ConfigError, match=r"orin-nano-8gb.*\[host\]"):
        estimate_first_order(SEVEN, load_device("orin-nano-8gb"), FirstOrderWorkload("lsp"))
    lora = estimate_first_order(SEVEN, load_device("orin-nano-8gb"), FirstOrderWorkload("lora"))
    assert not lora.fits
    assert lora.remedies == ()


def test_a_sequence_beyond_the_context_is_refused() -> None:
    with pytest.raises(ConfigError, match="4096 tokens"):
        estimate_first_order(SEVEN, WORKSTATION, FirstOrderWorkload("lsp", sequence=8_192))


def command(arguments: str) -> tuple[int, str]:
    words = "device estimate --device rtx-4090-workstation --model llama2-7b " + arguments
    result = CliRunner().invoke(app, words.split())
    return result.exit_code, result.output + str(result.exception or "")


def test_the_command_prints_one_object() -> None:
    status, text = command(
        "--optimizer zero-offload --set offload.schedule=layer-wise --seq 512 --batch 4 --json"
    )
    assert status == 0, text
    said = json.loads(text)
    assert said["fits"] is True
    plain = json.loads(command("--optimizer zero-offload --seq 512 --batch 4 --json")[1])
    assert said["step_seconds"] < plain["step_seconds"]
    assert said["peak_memory_bytes"] == sum(said["peak_memory_parts_bytes"].values())


def test_the_command_for_people() -> None:
    status, text = command("--optimizer fo-adam --seq 512")
    assert status == 0, text
    assert "does not fit" in text
    assert "--optimizer lsp" in text
    assert "fits:" in command("--optimizer lsp")[1]


@pytest.mark.parametrize(
    "wrong", ["--quantization nf4", "--set model.stream=disk", "--set readout-labels=2"]
)
def test_settings_of_other_methods_are_refused(wrong: str) -> None:
    status, text = command(f"--optimizer lsp {wrong}")
    assert status != 0
    assert "leave out readout-labels and model.stream" in text
