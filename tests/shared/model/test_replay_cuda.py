"""Replay by Triton on pretended GPUs: it runs on its tensors' device, not the current device."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from accelerator import pretended_gpus

from samara.shared.model.replay_torch import CudaBackend, backend_for, draw_directions
from samara.shared.protocol.directions import Distribution
from samara.shared.protocol.replay_numpy import NumpyBackend

pytest.importorskip("triton", reason="the extra samara-fl[cuda] is not installed")
SEEDS = np.array([5, 2**63 + 1], np.uint64)
SIZE = 300


@pytest.mark.parametrize(
    ("device", "how"),
    [
        ("cuda:1", "gaussian"),
        pytest.param("cuda:1", "rademacher", marks=pytest.mark.exhaustive),
        pytest.param("cuda:0", "gaussian", marks=pytest.mark.exhaustive),
    ],
)
def test_a_gpu_that_is_not_the_current_one_replays(device: str, how: Distribution) -> None:
    state, coefficients = np.arange(SIZE), np.array([3, -(2**40)])
    expected = state.copy()
    NumpyBackend().fold(expected, SEEDS, coefficients, how)
    with pretended_gpus() as gpus:
        backend = backend_for(torch.device(device))
        assert backend.name == "cuda"
        backend.fold(state, SEEDS, coefficients, how)
        copies = [name for name in gpus.launches[torch.device(device)] if "copy" in name]
        assert len(copies) == 4  # the table, seeds and coefficients there, the sum back
        z = draw_directions(backend, SEEDS, SIZE, how, 0, torch.device(device))
        assert z.device == torch.device(device)
        assert {"_fold", "_fill"} <= set(gpus.launches[z.device])
        assert torch.cuda.current_device() == 0
        drawn = z.cpu().numpy()
    np.testing.assert_array_equal(state, expected)
    np.testing.assert_array_equal(drawn, NumpyBackend().directions(SEEDS, SIZE, how))


@pytest.mark.exhaustive
def test_torch_replays_on_a_gpu_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMARA_REPLAY_BACKEND", "torch")
    state = np.arange(SIZE)
    expected = state.copy()
    NumpyBackend().fold(expected, SEEDS, np.array([3, -4]), "gaussian")
    with pretended_gpus():
        backend_for(torch.device("cuda:1")).fold(state, SEEDS, np.array([3, -4]), "gaussian")
    np.testing.assert_array_equal(state, expected)


def by_torch(device: torch.device) -> None:
    """Launch like a backend that does not change the current device."""
    from samara.shared.model import replay_cuda

    backend = CudaBackend(device)
    z = torch.empty((1, 10), dtype=torch.int16, device=device)
    shape = replay_cuda._SHAPES["gaussian"]
    replay_cuda._fill[1, 1](z, backend._bits(SEEDS[:1]), backend._table, 10, 0, **shape)


@pytest.mark.parametrize(("launch", "index"), [(by_torch, 1)])
def test_a_launch_on_another_device_than_the_current_one_is_caught(
    launch: Callable[[torch.device], None], index: int
) -> None:
    with pretended_gpus(), pytest.raises(ValueError, match="Pointer argument cannot be accessed"):
        launch(torch.device("cuda", index))
