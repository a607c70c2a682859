"""Training on an emulated accelerator: memory limits, and the estimate of the time."""

from contextlib import ExitStack

import pytest
import torch

from benchmarks.speed.offload import (
    NONZEROS,
    SEQUENCE,
    new_network,
    scheduled_layers,
    training_step,
)
from benchmarks.speed.shapes import SHAPES
from samara.client.offload.accelerator import EmulatedAccelerator
from samara.client.offload.emulated_link import EmulatedTransfer
from samara.client.offload.layer_update import GradientHooks, ImmediateSchedule, UpdateSchedule
from samara.client.offload.overlapped_schedule import OverlappedSchedule
from samara.client.offload.service_order import Order
from samara.devices.hardware.model_shape import llama_shape
from samara.devices.hardware.offload_estimate import (
    FirstOrderMethod,
    FirstOrderWorkload,
    estimate_first_order,
)
from samara.devices.hardware.profile import load_device
from samara.shared.errors import DeviceError

pytestmark = pytest.mark.slow
SHAPE, LIMIT = "llama-small", 16 * 2**20
RUNS: list[tuple[FirstOrderMethod, Order | None, int | None]] = [
    ("fo-adam", None, None),
    ("zero-offload", "zero", None),
    ("zero-offload", "layer-wise", None),
    ("lsp", "layer-wise", 32),
    ("lsp", "layer-wise", 8),
]


def train(
    limit: int | None, order: Order | None, subspace: int | None, batch: int = 1
) -> EmulatedAccelerator:
    """Take two steps; without an order, the optimizer is also on the accelerator."""
    accelerator = EmulatedAccelerator(limit, EmulatedTransfer(1e9, 1e9))
    network = new_network(SHAPE)
    layers = scheduled_layers(network, subspace)
    updates = [update for layer in layers for update in layer.updates]
    accelerator.hold(network.parameters())
    for update in updates:
        for projector in (update.projectors.left, update.projectors.right):
            if projector is not None:
                accelerator.hold([projector.positions, projector.values])
    with ExitStack() as stack:
        schedule: UpdateSchedule
        if order is None:
            accelerator.hold(moment for each in updates for moment in each.optimizer.moments)
            schedule = ImmediateSchedule()
        else:
            accelerator.hold_on_host(
                moment for each in updates for moment in each.optimizer.moments
            )
            schedule = OverlappedSchedule(layers, accelerator, order, None if subspace else 2)
            stack.callback(schedule.close)
        GradientHooks(updates, schedule).learning_rate = 1e-3
        step = training_step(network, accelerator, batch)
        for _ in range(2):
            step()
        schedule.finish()
    return accelerator


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("method", "order", "subspace"), RUNS)
def test_the_peak_is_within_a_tenth_of_the_estimate(
    method: FirstOrderMethod, order: Order | None, subspace: int | None, batch: int
) -> None:
    shape = llama_shape(SHAPE, {"max_position_embeddings": 2_048, **SHAPES[SHAPE]})
    work = FirstOrderWorkload(
        method,
        SEQUENCE,
        batch,
        "fp32",
        subspace=subspace or 1,
        nonzeros=NONZEROS,
        layerwise=order == "layer-wise",
    )
    memory = estimate_first_order(shape, load_device("rtx-4090-workstation"), work).memory
    peak = train(None, order, subspace, batch).memory.peak
    assert peak == pytest.approx(memory.total - memory.runtime, rel=0.1)


def test_the_peak_of_the_host_is_within_a_tenth_of_the_estimate() -> None:
    # In Zero-Offload's order it does not depend on who is how fast.
    shape = llama_shape(SHAPE, {"max_position_embeddings": 2_048, **SHAPES[SHAPE]})
    work = FirstOrderWorkload("zero-offload", SEQUENCE, 1, "fp32")
    estimate = estimate_first_order(shape, load_device("rtx-4090-workstation"), work)
    peak = train(None, "zero", None).host_memory.peak
    assert peak == pytest.approx(estimate.host_memory.total, rel=0.1)
    assert train(None, None, None).host_memory.peak == 0


@pytest.mark.parametrize(("method", "order", "subspace"), RUNS[1:])
def test_what_exceeds_the_memory_trains_with_the_optimizer_on_the_host(
    method: FirstOrderMethod, order: Order | None, subspace: int | None
) -> None:
    assert train(LIMIT, order, subspace).memory.peak <= LIMIT


def test_without_offloading_the_same_memory_is_refused() -> None:
    weights = sum(weight.nbytes for weight in new_network(SHAPE).parameters())
    assert 3 * weights > LIMIT
    with pytest.raises(DeviceError, match=r"16\.0 MiB is too small.*offload"):
        train(LIMIT, None, None)


def test_the_overlap_gives_a_whole_model_the_bits_of_immediate_updates() -> None:
    results = []
    for order in (None, "layer-wise"):
        network = new_network("llama-tiny")
        accelerator = EmulatedAccelerator(None, EmulatedTransfer(1e9, 1e9))
        layers = scheduled_layers(network, 16)
        with ExitStack() as stack:
            schedule: UpdateSchedule = ImmediateSchedule()
            if order is not None:
                schedule = OverlappedSchedule(layers, accelerator, "layer-wise")
                stack.callback(schedule.close)
            updates = [update for layer in layers for update in layer.updates]
            GradientHooks(updates, schedule).learning_rate = 1e-2
            torch.manual_seed(1)
            step = training_step(network, accelerator, 1)
            for _ in range(3):
                step()
            schedule.finish()
        results.append([weight.detach() for weight in network.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
