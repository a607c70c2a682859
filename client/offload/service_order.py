"""The order in which layers pass through the stages after the backward pass.

The stages are the transfer to the host, the update on the host, and the transfer back. Each stage
serves one layer at a time. This module uses no threads or clocks. `OverlappedSchedule` uses it in
threads, and `simulate_schedule` on a virtual clock.
"""

from collections import deque
from enum import IntEnum
from typing import Literal

Order = Literal["layer-wise", "zero"]
"""Name of the service order: LSP-Offload's (algorithm 3) or Zero-Offload's (algorithm 1)."""


class Stage(IntEnum):
    """A stage after the backward pass."""

    OFFLOAD = 0
    UPDATE = 1
    UPLOAD = 2

    @property
    def work(self) -> str:
        """Name of the stage in a `Timeline`, and name of its field in `LayerSeconds`."""
        return self.name.lower()


class ServiceOrder:
    """The queues of the three stages.

    In layer-wise order (LSP-Offload, algorithm 3), a layer enters the next stage as soon as that
    stage is free, and a layer's forward pass waits for that layer alone. A layer below the
    transition goes to the front of each queue, because the next forward pass needs it earlier than
    the layers ahead of it. In Zero-Offload's order, updates begin when the last gradient is on the
    host, and the forward pass waits for all layers.

    Args:
        layers: number of layers.
        order: layer-wise or Zero-Offload's order.

    Attributes:
        transition: number of lowest layers served last come, first served.
    """

    def __init__(self, layers: int, order: Order) -> None:
        self.transition = 0
        self._layers, self._order = layers, order
        self._queues: dict[Stage, deque[int]] = {stage: deque() for stage in Stage}
        self._in_flight: set[int] = set()
        self._on_device: set[int] = set()
        self._submitted: set[int] = set()
        self._pass_ended = True

    def submit(self, layer: int) -> None:
        """Accept a layer after the backward pass has computed its gradient.

        Raises:
            ValueError: if the layer is still in a stage.
        """
        if layer in self._in_flight:
            raise ValueError(f"layer {layer} is submitted before its last update has ended")
        if self._pass_ended or layer in self._submitted:
            self._submitted.clear()
        self._pass_ended = False
        self._submitted.add(layer)
        self._in_flight.add(layer)
        self._on_device.add(layer)
        self._enqueue(Stage.OFFLOAD, layer)
        if len(self._submitted) == self._layers:
            self._pass_ended = True

    def end_pass(self) -> None:
        """Mark the end of a backward pass, after all its layers have been submitted."""
        self._pass_ended = True

    def take(self, stage: Stage) -> int | None:
        """Return the layer that a stage serves next, or None if the stage has to wait."""
        waits = stage is Stage.UPDATE and self._order == "zero"
        if waits and (self._on_device or not self._pass_ended):
            return None
        queue = self._queues[stage]
        return queue.popleft() if queue else None

    def finish(self, stage: Stage, layer: int, returns: bool = True) -> None:
        """Move a layer from a stage that has served it to the next stage.

        Args:
            stage: stage that has served the layer.
            layer: layer returned by `take`.
            returns: whether an update is transferred back; false if the host only adds gradients.
        """
        if stage is Stage.OFFLOAD:
            self._on_device.discard(layer)
        if stage is Stage.UPLOAD or (stage is Stage.UPDATE and not returns):
            self._in_flight.discard(layer)
        else:
            self._enqueue(Stage(stage + 1), layer)

    def may_forward(self, layer: int) -> bool:
        """Return whether a layer's next forward pass may begin."""
        return not self._in_flight if self._order == "zero" else layer not in self._in_flight

    @property
    def idle(self) -> bool:
        """Return whether no layer is in a stage."""
        return not self._in_flight

    @property
    def gradients_on_device(self) -> int:
        """Number of layers whose gradients are not yet on the host."""
        return len(self._on_device)

    def _enqueue(self, stage: Stage, layer: int) -> None:
        queue = self._queues[stage]
        if self._order == "layer-wise" and layer < self.transition:
            queue.appendleft(layer)
        else:
            queue.append(layer)
