"""Exact gradients: the limit of differences, in federations and in `tune`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import Settings, config_of, ledger_of, state_of
from helpers import instruction_with
from numpy.typing import NDArray

from samara.client.training.client_data import ClientDataSource
from samara.client.training.local_steps import take_local_steps, take_local_steps_together
from samara.client.training.model_runtime import ModelRuntime, load_run
from samara.shared.errors import ConfigError
from samara.shared.protocol.frames.instructions import TrainInstruction
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.replay import digest
from samara.shared.results.result import read_result
from samara.simulations.simulate import simulate

ModelFolder = Callable[[str], Path]
ROUNDING = 10.0
"""|Δg|·ε/u allowed of central differences, as in test_grouping_gradients.py."""


def instruction_of(runtime: ModelRuntime, state: NDArray[np.int64], **changes: Any) -> Any:
    layout_hash = runtime.layout.hash
    return instruction_with(
        layout_hash=layout_hash, start_digest=digest(layout_hash, state), steps=1, **changes
    )


def gradients_of(
    run: tuple[ModelRuntime, ClientDataSource],
    instruction: TrainInstruction,
    mask: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]:
    runtime, data = run
    report = take_local_steps(runtime, data.share_of(0, 3), instruction, state_of(runtime), mask)
    return report.gradients.astype(np.float64)


def assert_is_the_limit(settings: Settings, masked: bool = False, factor: float = 1.0) -> None:
    """Compare with Richardson's extrapolation of central differences at ε and 2·ε to zero."""
    by_losses = load_run(config_of(settings))
    exact = by_losses.under(config_of(settings, gradients="exact"))
    mask = np.arange(exact.runtime.layout.size) % 3 == 0 if masked else None
    state, epsilon = state_of(exact.runtime), 0.0025

    def instruction(epsilon: float) -> TrainInstruction:
        return instruction_of(exact.runtime, state, epsilon=epsilon)  # type: ignore[no-any-return]

    once, twice = (gradients_of(by_losses, instruction(e), mask) for e in (epsilon, 2 * epsilon))
    limit = once - (twice - once) / 3
    found = gradients_of(exact, instruction(epsilon), mask)
    allowed = factor * 1.5 * ROUNDING * torch.finfo(torch.float32).eps / 2 / epsilon
    assert np.abs(limit).min() > 5 * allowed
    np.testing.assert_allclose(found, limit, rtol=0, atol=allowed)


@pytest.mark.parametrize(
    ("family", "layers"),
    [
        ("causal", "all"),
        ("encoder", "top:1"),
        pytest.param("masked", "top:1", marks=pytest.mark.exhaustive),
        pytest.param("masked", "all", marks=pytest.mark.exhaustive),
        pytest.param("causal", "top:1", marks=pytest.mark.exhaustive),
        pytest.param("encoder", "all", marks=pytest.mark.exhaustive),
    ],
)
def test_they_are_the_limit_of_central_differences(
    family: str, layers: str, settings: Settings, model_folder: ModelFolder
) -> None:
    own = {"model.path": str(model_folder(family)), "adapter.layers": layers}
    # A cosine is divided by a temperature of 0.05, and its rounding with it.
    assert_is_the_limit(settings | own, factor=20 if family == "encoder" else 1)


def test_masked_numbers_are_not_perturbed(settings: Settings) -> None:
    assert_is_the_limit(settings | {"adapter.label-bias": True}, masked=True)


@pytest.mark.parametrize("quantization", ["int8", "nf4"])
def test_quantized_weights_have_gradients_too(quantization: str, settings: Settings) -> None:
    pytest.importorskip("bitsandbytes")
    assert_is_the_limit(settings | {"model.quantization": quantization})


def test_clients_that_share_passes_report_what_they_report_alone(settings: Settings) -> None:
    runtime, source = load_run(config_of(settings, gradients="exact", micro_batch=3))
    state = state_of(runtime)
    instruction = instruction_of(runtime, state, learning_rate=0.1, curvature_every=1)
    clients = [source.share_of(client, 3) for client in (2, 0, 1)]
    together = take_local_steps_together(runtime, clients, instruction, state)
    for data, found in zip(clients, together, strict=True):
        alone = take_local_steps(runtime, data, instruction, state)
        assert isinstance(found, Report)
        np.testing.assert_allclose(found.gradients, alone.gradients, rtol=0, atol=1e-5)
        assert found.mean_loss == pytest.approx(alone.mean_loss, abs=1e-5)
        assert found.curvature == pytest.approx(alone.curvature, abs=0.05)


def test_a_federation_learns_from_them_and_repeats_its_ledger(
    settings: Settings, tmp_path: Path
) -> None:
    own = settings | {"gradients": "exact", "personal.rounds": 1, "rounds": 2}
    first = simulate(config_of(own))
    second = simulate(config_of(own, out=str(tmp_path / "second")))
    assert ledger_of(first) == ledger_of(second)
    by_losses = simulate(config_of(own, gradients="differences", out=str(tmp_path / "losses")))
    assert ledger_of(first) != ledger_of(by_losses)
    exact, estimated = read_result(first), read_result(by_losses)
    assert exact["run_id"] != estimated["run_id"]
    sizes = [[event["bytes_up"] for event in result["rounds"]] for result in (exact, estimated)]
    assert sizes[0] == sizes[1]


def test_streamed_models_are_refused(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="needs all blocks at once"):
        config_of(settings, gradients="exact", model__stream="disk")
