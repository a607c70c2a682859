"""Predicted zeroth-order steps on all parameters: parts, laws, and the command's output."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from samara.client.spaces.space import ACCELERATOR_CHUNK
from samara.command import app
from samara.devices.hardware.full_parameter_estimate import (
    FullParameterEstimate,
    FullParameterWorkload,
    Precision,
    estimate_full_parameters,
)
from samara.devices.hardware.model_shape import model_shape
from samara.devices.hardware.profile import Stream, load_device, shipped_devices
from samara.shared.errors import ConfigError

A100, WORKSTATION = load_device("a100-80gb"), load_device("rtx-4090-workstation")
SMALL, MIDDLE, LARGE = model_shape("opt-1.3b"), model_shape("opt-13b"), model_shape("opt-175b")
BLOCK, OTHER = 12 * 2_048**2, 24 * 13 * 2_048 + 2 * 2_048 + (50_272 + 2_050) * 2_048
WORK = st.builds(
    FullParameterWorkload,
    sequence=st.integers(1, 1024),
    batch=st.integers(1, 16),
    queries=st.integers(1, 8),
    precision=st.sampled_from(["fp32", "fp16"]),
    stream=st.sampled_from(["off", "host", "disk"]),
    in_place=st.booleans(),
    published=st.booleans(),
    autocast=st.booleans(),
    stored_width=st.sampled_from([0, 1, 2, 4]),
)


def test_memory_by_part() -> None:
    resident = estimate_full_parameters(SMALL, A100, FullParameterWorkload(128)).memory
    assert resident.weights == 2 * (24 * BLOCK + OTHER)
    assert resident.copy == 4 * (24 * BLOCK + OTHER)
    assert resident.buffers == 0
    assert resident.directions == ACCELERATOR_CHUNK * (2 + 4 + 4)
    work = FullParameterWorkload(128, stream="host")
    streamed = estimate_full_parameters(SMALL, A100, work)
    assert streamed.memory.weights == 2 * OTHER
    assert streamed.memory.buffers == (3 * 4 + 2) * BLOCK
    assert streamed.stored_bytes == 4 * 24 * BLOCK
    in_place = estimate_full_parameters(SMALL, A100, replace(work, in_place=True))
    assert (in_place.memory.copy, in_place.memory.buffers) == (0, 3 * 2 * BLOCK)
    assert in_place.stored_bytes == 2 * 24 * BLOCK


def test_a_copy_of_13_billion_parameters_takes_three_times_the_weights_in_half_precision() -> None:
    copied, in_place = (
        estimate_full_parameters(MIDDLE, A100, FullParameterWorkload(in_place=in_place)).memory
        for in_place in (False, True)
    )
    assert copied.weights + copied.copy == 3 * in_place.weights
    assert in_place.weights == pytest.approx(25.7e9, rel=0.01)


@pytest.mark.parametrize(("sequence", "is_scores"), [(256, False), (8_192, True)])
def test_the_published_peak_is_at_the_loss_or_in_the_attention(
    sequence: int, is_scores: bool
) -> None:
    shape = replace(SMALL, context=None)
    work = FullParameterWorkload(sequence, precision="fp32", published=True)
    memory = estimate_full_parameters(shape, A100, work).memory
    assert (memory.logits == 0) == is_scores
    if is_scores:
        assert memory.activations == 4 * (2.5 * 32 * sequence**2 + 8 * sequence * 2_048)
    else:
        assert memory.logits == 26 * sequence * 50_272
    assert memory.directions == 3 * 4 * 50_272 * 2_048


def test_transfers_hide_behind_computing_until_they_are_longer() -> None:
    def time(stream: Stream, sequence: int) -> float:
        work = FullParameterWorkload(sequence, stream=stream, in_place=True)
        return estimate_full_parameters(MIDDLE, A100, work).time.total

    assert time("host", 2_048) > time("off", 2_048)
    bytes_of_blocks = 2 * MIDDLE.block_weights
    assert time("host", 2_048) == pytest.approx(bytes_of_blocks / 15e9)
    assert time("disk", 16) == pytest.approx(2 * bytes_of_blocks / 7e9)
    fp32 = FullParameterWorkload(2_048, precision="fp32", stream="host", in_place=True)
    assert estimate_full_parameters(MIDDLE, A100, fp32).time.transfers == 0


@given(WORK, st.sampled_from(["sequence", "batch", "queries"]), st.integers(1, 8))
def test_more_work_takes_no_less(work: FullParameterWorkload, key: str, more: int) -> None:
    shape = replace(SMALL, context=None)
    less = estimate_full_parameters(shape, A100, work)
    greater = estimate_full_parameters(
        shape, A100, replace(work, **{key: getattr(work, key) + more})
    )
    assert greater.time.total >= less.time.total * (1 - 1e-9)
    assert greater.memory.total >= less.memory.total


@given(WORK)
def test_streaming_takes_no_less_time_and_less_memory(work: FullParameterWorkload) -> None:
    shape = replace(MIDDLE, context=None)
    resident = estimate_full_parameters(shape, A100, replace(work, stream="off", queries=1))
    streamed = estimate_full_parameters(shape, A100, replace(work, stream="host", queries=1))
    assert streamed.memory.total < resident.memory.total
    assert streamed.time.total >= resident.time.total * (1 - 1e-9)


def test_what_does_not_fit_names_what_does() -> None:
    result = estimate_full_parameters(MIDDLE, WORKSTATION, FullParameterWorkload())
    assert not result.fits
    assert result.remedies == (
        "--set model.stream=host",
        "--set model.stream=host --set in-place=true",
        "--set model.stream=disk",
        "--set model.stream=disk --set in-place=true",
    )
    work = FullParameterWorkload(stream="host", in_place=True)
    huge = estimate_full_parameters(LARGE, WORKSTATION, work)
    assert huge.memory.total < huge.usable_bytes
    assert not huge.fits  # the host has 252 GB, the blocks take 348
    assert huge.remedies == ("--set model.stream=disk",)


def test_devices_of_one_memory_stream_from_disk_alone() -> None:
    board, work = load_device("orin-nano-8gb"), FullParameterWorkload(stream="host")
    with pytest.raises(ConfigError, match=r"orin-nano-8gb.*\[host\]"):
        estimate_full_parameters(SMALL, board, work)
    for device in shipped_devices():
        for stream in ("off", "host", "disk"):
            if device.has_stream(stream):
                assert estimate_full_parameters(
                    SMALL, device, FullParameterWorkload(stream=stream)
                ).time.total


def command(arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["device", "estimate", *arguments.split()])
    return result.exit_code, result.output + str(result.exception or "")


@pytest.mark.parametrize("optimizer", ["prge", "mezo"])
def test_a_discrete_gpu_streams_from_its_host(optimizer: str) -> None:
    words = f"--device rtx-4090-workstation --model opt-13b --optimizer {optimizer} --json"
    status, text = command(words + " --set model.stream=host")
    assert status == 0, text
    said = json.loads(text)
    assert (said["stream"], said["fits"]) == ("host", True)
    assert json.loads(command(words + " --set model.stream=auto")[1])["stream"] == "host"
    status, text = command(
        f"--device laptop --model opt-1.3b --optimizer {optimizer} --set model.stream=host"
    )
    assert status != 0
    assert "the processors of laptop share one memory" in text


def test_parameters_are_estimated_in_place_as_they_are_tuned() -> None:
    words = "--device rtx-4090-workstation --model opt-6.7b --optimizer mezo --json"
    found = {
        name: json.loads(command(f"{words} --quantization {name}")[1]) for name in ("fp32", "fp16")
    }
    assert {name: one["in_place"] for name, one in found.items()} == {"fp32": True, "fp16": False}
    smaller = "--quantization fp16 --set in-place=true"
    assert smaller in found["fp32"]["would_fit"]
    assert json.loads(command(f"{words} {smaller}")[1])["fits"]
    assert not json.loads(command(f"{words} --quantization fp16")[1])["fits"]


def test_the_command_for_people() -> None:
    status, text = command("--device a100-80gb --model opt-13b --optimizer mezo")
    assert status == 0, text
    assert "tokens/s" in text
    assert "fits:" in text
    status, text = command("--device rtx-4090-workstation --model opt-13b --optimizer mezo")
    assert "model.stream=host" in text
    status, text = command("--model opt-13b --optimizer mezo --quantization nf4")
    assert status != 0
    assert "choose --quantization fp16 or fp32" in text


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_in_half_precision_the_gpu_reaches_another_share_of_its_rate(precision: Precision) -> None:
    kind = A100.timing
    assert kind.share_of_rate(precision) == {"fp32": kind.rate_share, "fp16": 0.48}[precision]
    assert WORKSTATION.timing.share_of_rate(precision) == 0.6


def test_mixed_precision_computes_in_half_and_stores_as_asked() -> None:
    def estimate(**changes: Any) -> FullParameterEstimate:
        work = FullParameterWorkload(2_048, precision="fp32", stream="host", published=True)
        return estimate_full_parameters(MIDDLE, A100, replace(work, **changes))

    float32, float16 = estimate(), estimate(precision="fp16")
    mixed, compressed = estimate(autocast=True), estimate(autocast=True, stored_width=1)
    assert mixed.time.passes == float16.time.passes
    assert mixed.time.directions == float32.time.directions
    assert mixed.memory == float32.memory
    assert mixed.stored_bytes == float32.stored_bytes == 4 * compressed.stored_bytes
    assert mixed.time.transfers > compressed.time.transfers == 0.0
