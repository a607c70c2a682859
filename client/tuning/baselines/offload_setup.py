"""The accelerator and the update schedule that a run's settings name."""

from collections.abc import Sequence

import torch

from samara.client.offload.accelerator import Accelerator, EmulatedAccelerator, accelerator_for
from samara.client.offload.emulated_link import EmulatedTransfer
from samara.client.offload.layer_update import ImmediateSchedule, LayerUpdate
from samara.client.offload.overlapped_schedule import OverlappedSchedule
from samara.client.offload.scheduled_model import scheduled_layers
from samara.client.offload.service_order import Order
from samara.client.tuning.settings import TuneSettings
from samara.shared.model.loading import BaseModel

_ZERO_GRADIENTS = 2
"""Number of layers whose complete gradients are on the accelerator: one layer is computed while the
other is sent."""
_UNLIMITED = 1e15


def make_accelerator(settings: TuneSettings, base: BaseModel) -> Accelerator:
    """Return the accelerator that trains a model, with the model loaded into its memory.

    Raises:
        DeviceError: if the model does not fit into an emulated accelerator's memory.
    """
    offload = settings.offload
    if not offload.emulates:
        return accelerator_for(torch.device(base.network.device))
    rate = offload.bandwidth or _UNLIMITED
    accelerator = EmulatedAccelerator(
        offload.memory or None,
        EmulatedTransfer(rate, rate),
        offload.slowdown,
    )
    accelerator.hold(base.network.parameters())
    accelerator.hold(base.network.buffers())
    return accelerator


def make_schedule(
    settings: TuneSettings, base: BaseModel, updates: Sequence[LayerUpdate], device: Accelerator
) -> ImmediateSchedule | OverlappedSchedule:
    """Return the schedule of the weights' updates."""
    order = _order(settings, base)
    if order is None:
        return ImmediateSchedule()
    most = _ZERO_GRADIENTS if settings.optimizer == "zero-offload" else None
    return OverlappedSchedule(scheduled_layers(base, updates), device, order, most)


def computes_again(settings: TuneSettings) -> bool:
    """Return whether the backward pass recomputes the activations of blocks."""
    if settings.offload.checkpointing != "auto":
        return settings.offload.checkpointing == "on"
    return settings.offload.emulates or settings.model.torch_device != "cpu"


def _order(settings: TuneSettings, base: BaseModel) -> Order | None:
    """Return the order of transfers and updates, or None if nothing overlaps."""
    choice = settings.offload.schedule
    if choice == "none":
        return None
    if choice != "auto":
        return choice
    if base.network.device.type == "cpu" and not settings.offload.emulates:
        return None
    return "zero" if settings.optimizer == "zero-offload" else "layer-wise"
