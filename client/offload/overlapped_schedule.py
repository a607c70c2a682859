"""A threaded update schedule: LSP-Offload's algorithm 3 or Zero-Offload's algorithm 1.

Each stage has a thread: the transfer to the host, the update on the host, and the transfer back,
which also changes the weights. The training thread computes and hands over gradients. Before a
layer's forward pass, the training thread waits until the last step's update has reached the layer's
weights.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from samara.client.offload.accelerator import Accelerator
from samara.client.offload.iteration_time import StageSeconds, transition_layer
from samara.client.offload.layer_update import LayerUpdate
from samara.client.offload.service_order import Order, ServiceOrder, Stage
from samara.client.offload.timeline import TO_DEVICE, TO_HOST


@dataclass(frozen=True, eq=False)
class ScheduledLayer:
    """A layer of the schedule: a module, and the weights that its forward pass waits for.

    Attributes:
        module: module whose forward pass waits.
        updates: work on each of the module's weights.
    """

    module: nn.Module
    updates: Sequence[LayerUpdate]


@dataclass
class _Job:
    """A layer's work on its way through the stages.

    Attributes:
        learning_rate: η; None if the host only adds the gradients.
        updates: work on the weights with gradients.
        tensors: compressed gradients, later updates, on the side where the last stage left them.
        event: end of the accelerator's work that computed the gradients.
    """

    learning_rate: float | None
    updates: list[LayerUpdate] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    event: Any = None


class OverlappedSchedule:
    """An update schedule whose transfers and updates run in parallel with the computation.

    Its results are bit for bit those of `ImmediateSchedule`: layers share no data, each layer's
    work runs in order, and no forward pass sees weights with a pending update. The caller must
    call `close` at the end.

    Args:
        layers: layers in the order of the forward pass. A weight shared by several modules belongs
            to the first of them.
        accelerator: accelerator for the computation.
        order: the layer-wise order of LSP-Offload, or the order of Zero-Offload.
        device_gradients: maximum number of layers with gradients on the accelerator at a time,
            including the layer being computed; None for no limit. At the limit, the backward pass
            waits for the link.

    Attributes:
        seconds: measured seconds of the last pass's stages; None before the second pass.
    """

    def __init__(
        self,
        layers: Sequence[ScheduledLayer],
        accelerator: Accelerator,
        order: Order,
        device_gradients: int | None = None,
    ) -> None:
        self.seconds: StageSeconds | None = None
        self._accelerator, self._device_gradients = accelerator, device_gradients
        self._layers = layers
        self._layer_of = {
            id(update): index for index, layer in enumerate(layers) for update in layer.updates
        }
        self._order = ServiceOrder(len(layers), order)
        self._collected: dict[int, _Job] = {}
        self._jobs: dict[int, _Job] = {}
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._closed = False
        self._measured: dict[Stage, float] = defaultdict(float)
        self._ready_at: list[float] = []
        self._hooks = [
            layer.module.register_forward_pre_hook(self._before_forward(index))
            for index, layer in enumerate(layers)
        ]
        self._threads = [
            threading.Thread(
                target=self._serve,
                args=(stage, serve),
                name=f"offload-{stage.work}",
                daemon=True,
            )
            for stage, serve in (
                (Stage.OFFLOAD, self._offload),
                (Stage.UPDATE, self._update),
                (Stage.UPLOAD, self._upload),
            )
        ]
        for thread in self._threads:
            thread.start()

    def gradient(self, layer: LayerUpdate, gradient: Tensor, learning_rate: float | None) -> None:
        """Compress a gradient; after a layer's last gradient, start its transfer to the host.

        Raises:
            ValueError: if the weight does not belong to any of the layers.
        """
        if id(layer) not in self._layer_of:
            raise ValueError(f"{layer.name}: belongs to none of the schedule's layers")
        index = self._layer_of[id(layer)]
        job = self._collected.setdefault(index, _Job(learning_rate))
        job.updates.append(layer)
        job.tensors.append(layer.compress(gradient))
        if len(job.updates) == len(self._layers[index].updates):
            self._submit(index)
            self._accelerator.switch("backward", max(index - 1, 0))

    def finish(self) -> None:
        """Wait until all accepted layers are updated.

        Raises:
            BaseException: the error raised by a stage.
        """
        self._end_pass()
        with self._accelerator.pausing(), self._changed:
            self._wait_until(lambda: self._order.idle)

    def close(self) -> None:
        """End the threads, remove the hooks, and discard unfinished work."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        for hook in self._hooks:
            hook.remove()

    def _before_forward(self, index: int) -> Callable[[nn.Module, Any], None]:
        def wait(module: nn.Module, inputs: Any) -> None:
            # Checkpointing repeats the forward pass in the backward pass, with the same weights.
            if torch._C._current_graph_task_id() != -1:
                self._accelerator.switch("backward", index)
                return
            self._end_pass()
            with self._changed:
                ready = self._order.may_forward(index)
            if not ready:
                with self._accelerator.pausing(), self._changed:
                    self._wait_until(lambda: self._order.may_forward(index))
            self._accelerator.switch("forward", index)

        return wait

    def _end_pass(self) -> None:
        """Submit layers of which only some weights received gradients in the pass."""
        for index in sorted(self._collected, reverse=True):
            self._submit(index)
        with self._changed:
            self._order.end_pass()
            self._changed.notify_all()

    def _submit(self, index: int) -> None:
        job = self._collected.pop(index)
        job.event = self._accelerator.transfer.record_event()
        if index == len(self._layers) - 1:
            self._measure_pass()
        if job.event is None:
            self._ready_at.append(self._accelerator.clock.now())
        with self._changed:
            self._raise_error()
            self._jobs[index] = job
            self._order.submit(index)
            self._changed.notify_all()
            on_device = self._order.gradients_on_device
        # Gradients of the next layer need memory in addition to gradients waiting for the link.
        if self._device_gradients is not None and on_device > (most := self._device_gradients - 1):
            with self._accelerator.pausing(), self._changed:
                self._wait_until(lambda: self._order.gradients_on_device <= most)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true; the caller holds the lock."""
        while not condition():
            self._raise_error()
            self._changed.wait()
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _serve(self, stage: Stage, serve: Callable[[int, _Job], None]) -> None:
        """Serve a stage, in its thread, until the schedule is closed or any stage fails."""
        while True:
            with self._changed:
                while (index := None if self._stopped else self._order.take(stage)) is None:
                    if self._stopped:
                        return
                    self._changed.wait()
                job = self._jobs[index]
            try:
                serve(index, job)
            except BaseException as error:
                with self._changed:
                    self._error = self._error or error
                    self._changed.notify_all()
                return
            with self._changed:
                self._order.finish(stage, index, returns=job.learning_rate is not None)
                self._changed.notify_all()

    @property
    def _stopped(self) -> bool:
        return self._closed or self._error is not None

    def _offload(self, index: int, job: _Job) -> None:
        if job.event is not None:
            job.event.synchronize()
            self._ready_at.append(self._accelerator.clock.now())
        start = self._accelerator.clock.now()
        job.tensors = self._accelerator.to_host(job.tensors, job.event)
        self._record(Stage.OFFLOAD, TO_HOST, index, start)

    def _update(self, index: int, job: _Job) -> None:
        start = self._accelerator.clock.now()
        with self._accelerator.updating(index):
            for update, tensor in zip(job.updates, job.tensors, strict=True):
                update.add(tensor)
            if job.learning_rate is not None:
                job.tensors = [update.update(job.learning_rate) for update in job.updates]
            else:
                job.tensors = []
        self._measured[Stage.UPDATE] += self._accelerator.clock.now() - start

    def _upload(self, index: int, job: _Job) -> None:
        start = self._accelerator.clock.now()
        changes = self._accelerator.to_device(job.tensors)
        self._record(Stage.UPLOAD, TO_DEVICE, index, start)
        with self._accelerator.computing("apply", index):
            for update, change in zip(job.updates, changes, strict=True):
                update.apply(change)
        job.tensors = []

    def _record(self, stage: Stage, lane: str, index: int, start: float) -> None:
        end = self._accelerator.clock.now()
        self._measured[stage] += end - start
        self._accelerator.timeline.record(lane, stage.work, index, start, end)

    def _measure_pass(self) -> None:
        """Set the transition layer from the measured seconds of the previous pass (section 4.2)."""
        ready, count = self._ready_at, len(self._layers)
        if len(ready) == count > 1:
            self.seconds = StageSeconds(
                forward=0.0,
                backward=(ready[-1] - ready[0]) * count / (count - 1),
                offload=self._measured[Stage.OFFLOAD],
                update=self._measured[Stage.UPDATE],
                upload=self._measured[Stage.UPLOAD],
                layers=count,
            )
            with self._changed:
                self._order.transition = transition_layer(self.seconds)
        self._ready_at = []
        self._measured.clear()
