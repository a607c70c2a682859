"""Simulation of a training run's schedule on a virtual clock."""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from samara.client.offload.iteration_time import StageSeconds, transition_layer
from samara.client.offload.service_order import Order, ServiceOrder, Stage
from samara.client.offload.timeline import ACCELERATOR, HOST, TO_DEVICE, TO_HOST, Timeline

_LANES = {Stage.OFFLOAD: TO_HOST, Stage.UPDATE: HOST, Stage.UPLOAD: TO_DEVICE}


@dataclass(frozen=True)
class LayerSeconds:
    """Seconds of one layer's stages.

    The accelerator applies the update after its upload.
    """

    forward: float
    backward: float
    offload: float
    update: float
    upload: float
    apply: float = 0.0


def simulate_schedule(
    layers: Sequence[LayerSeconds], order: Order, steps: int, transition: int | None = None
) -> Timeline:
    """Simulate training steps with the service order of the threaded schedule.

    Args:
        layers: seconds of each layer's stages, lowest layer first.
        order: layer-wise or Zero-Offload's order.
        steps: number of steps.
        transition: number of layers served last come, first served; None uses the paper's formula.

    Returns:
        The timeline; its last interval ends when the last layer is updated.
    """
    timeline, service = Timeline(), ServiceOrder(len(layers), order)
    service.transition = (
        transition_layer(total_seconds(layers)) if transition is None else transition
    )
    serving: dict[Stage, int] = {}
    events: list[tuple[float, int, Stage]] = []
    uploaded: deque[int] = deque()
    clock = 0.0

    def start_free_stages() -> None:
        for stage in Stage:
            if stage not in serving and (layer := service.take(stage)) is not None:
                seconds = getattr(layers[layer], stage.work)
                serving[stage] = layer
                heapq.heappush(events, (clock + seconds, layer, stage))
                timeline.record(_LANES[stage], stage.work, layer, clock, clock + seconds)

    def advance(until: float | None) -> None:
        """Advance the clock to a time, and end the stages that are done by then.

        With None, the clock advances to the end of exactly one stage.
        """
        nonlocal clock
        while events and (until is None or events[0][0] <= until):
            clock, layer, stage = heapq.heappop(events)
            del serving[stage]
            if stage is Stage.UPLOAD and layers[layer].apply:
                uploaded.append(layer)
            else:
                service.finish(stage, layer)
            start_free_stages()
            if until is None:
                return
        if until is not None:
            clock = until

    def apply_uploaded() -> None:
        """Apply uploaded updates in the order of their arrival."""
        while uploaded:
            layer = uploaded.popleft()
            compute("apply", layer)
            service.finish(Stage.UPLOAD, layer)

    def compute(work: str, layer: int) -> None:
        seconds = getattr(layers[layer], work)
        timeline.record(ACCELERATOR, work, layer, clock, clock + seconds)
        advance(clock + seconds)

    for _ in range(steps):
        for layer in range(len(layers)):
            apply_uploaded()
            while not service.may_forward(layer):
                advance(None)
                apply_uploaded()
            compute("forward", layer)
        for layer in reversed(range(len(layers))):
            apply_uploaded()
            compute("backward", layer)
            service.submit(layer)
            start_free_stages()
    while not service.idle:
        advance(None)
        apply_uploaded()
    return timeline


def total_seconds(layers: Sequence[LayerSeconds]) -> StageSeconds:
    """Return the stages' seconds summed over the layers."""
    return StageSeconds(
        forward=sum(layer.forward for layer in layers),
        backward=sum(layer.backward for layer in layers),
        offload=sum(layer.offload for layer in layers),
        update=sum(layer.update for layer in layers),
        upload=sum(layer.upload for layer in layers),
        layers=len(layers),
    )
