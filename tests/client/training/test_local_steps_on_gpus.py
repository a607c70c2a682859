"""A client's steps on a pretended GPU give the report of the CPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from accelerator import pretended_gpus
from helpers import instruction_with

from samara.client.training.local_steps import take_local_steps
from samara.client.training.model_runtime import load_run
from samara.shared.model.replay_torch import TorchBackend
from samara.shared.protocol.replay import zero_state
from samara.shared.settings.config import RunConfig


def report(settings: dict[str, Any]) -> bytes:
    runtime, source = load_run(RunConfig.of(settings, "test"))
    state = zero_state(runtime.layout.size)
    instruction = instruction_with(layout_hash=runtime.layout.hash, queries=2, batch=4)
    data = source.share_of(0, 3)
    content: bytes = take_local_steps(runtime, data, instruction, state).encode()
    return content


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"adapter.layers": "readout"}, marks=pytest.mark.exhaustive),
        {"adapter.layers": "readout,top:1"},
        pytest.param({"model.stream": "host"}, marks=pytest.mark.exhaustive),
        pytest.param({"model.quantization": "nf4"}, marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize(
    "family",
    ["causal", *(pytest.param(f, marks=pytest.mark.exhaustive) for f in ("masked", "encoder"))],
)
def test_a_gpu_reports_what_the_cpu_does(
    change: dict[str, str],
    family: str,
    settings: dict[str, Any],
    model_folder: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SAMARA_REPLAY_BACKEND", "torch")

    def leave(*of: object) -> NoReturn:
        pytest.fail("directions left the device that they were drawn on")

    monkeypatch.setattr(TorchBackend, "directions", leave)
    settings |= {"model.path": str(model_folder(family))} | change
    wanted = report(settings)
    with pretended_gpus() as gpus:
        found = report(settings | {"model.torch-device": "cuda:1"})
        assert not gpus.launches[torch.device("cuda:0")]
    assert found == wanted


@pytest.mark.parametrize("is_masked", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_a_state_is_copied_once_a_round(
    is_masked: bool,
    settings: dict[str, Any],
    model_folder: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SAMARA_REPLAY_BACKEND", "torch")
    settings |= {"model.path": str(model_folder("causal")), "model.torch-device": "cuda"}
    settings |= {"adapter.layers": "readout,top:1", "adapter.rank": 256}  # larger than a batch
    with pretended_gpus() as gpus:
        runtime, source = load_run(RunConfig.of(settings, "test"))
        size, data = runtime.layout.size, source.share_of(0, 3)
        instruction = instruction_with(layout_hash=runtime.layout.hash, steps=3, queries=2, batch=4)
        mask = np.arange(size) % 2 == 0 if is_masked else None
        for _ in range(2):  # the first pass checks itself
            gpus.copied.clear()
            take_local_steps(runtime, data, instruction, zero_state(size), mask)
    assert [number for number in gpus.copied if number >= size] == [8 * size, size][: 1 + is_masked]
