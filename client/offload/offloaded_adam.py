"""Adam on the host for weights on the accelerator.

The gradients arrive whole (Zero-Offload) or compressed (LSP-Offload). A checkpoint stores the
moments and all projectors.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from samara.client.offload.accelerator import Accelerator
from samara.client.offload.host_adam import MOMENTS
from samara.client.offload.layer_update import (
    GradientHooks,
    LayerUpdate,
    ProjectorCheck,
    SubspaceSettings,
    UpdateSchedule,
)
from samara.client.offload.projectors import ProjectorPair, SparseProjector
from samara.client.offload.stored_tensors import stored_moments, stored_projector, stored_tensor


class _ProjectorChecks:
    """A schedule that checks every layer's projectors instead of updating the layer.

    Args:
        subspace: hyperparameters of the subspaces.
        passes: number of backward passes; the last pass checks the sum of all gradients.
    """

    def __init__(self, subspace: SubspaceSettings, passes: int) -> None:
        self._subspace, self._passes, self.results = subspace, passes, list[ProjectorCheck]()
        self._sums: dict[str, tuple[Tensor, int]] = {}

    def gradient(self, layer: LayerUpdate, gradient: Tensor, learning_rate: float | None) -> None:
        """Add a layer's gradient; in the last pass, check the layer's projectors."""
        gradient = gradient.float()
        if layer.name in self._sums:
            sum_before, seen = self._sums.pop(layer.name)
            gradient, seen = sum_before.add_(gradient), seen + 1
        else:
            seen = 1
        if seen < self._passes:
            self._sums[layer.name] = gradient, seen
        else:
            self.results.append(layer.check_projectors(gradient, self._subspace))

    def finish(self) -> None:
        """Do nothing, because no work is ever pending."""


class OffloadedAdam:
    """An optimizer that receives every layer's gradient during the backward pass.

    Args:
        layers: trained layers.
        schedule: schedule of the work on the layers.
        subspace: hyperparameters of the subspaces; None for full gradients.
    """

    def __init__(
        self,
        layers: Sequence[LayerUpdate],
        schedule: UpdateSchedule,
        subspace: SubspaceSettings | None = None,
    ) -> None:
        self._layers, self._schedule, self._subspace = layers, schedule, subspace
        self._hooks = GradientHooks(layers, schedule)

    def begin_pass(self, learning_rate: float | None) -> None:
        """Prepare for a backward pass.

        Args:
            learning_rate: η in the last pass of the step, otherwise None.
        """
        self._hooks.schedule, self._hooks.learning_rate = self._schedule, learning_rate

    def finish_step(self, learning_rate: float) -> None:
        """Do nothing, because the schedule already has all gradients.

        The next forward pass waits until the weights that it needs are updated.

        Args:
            learning_rate: η, as passed to `begin_pass`.
        """

    @contextmanager
    def checking(self, passes: int = 1) -> Iterator[list[ProjectorCheck]]:
        """Check every layer's projectors in the backward passes inside the context.

        Args:
            passes: number of backward passes. The projectors are checked on the sum of their
                gradients.

        Yields:
            The results of the checks, in the order of the backward pass.
        """
        assert self._subspace is not None
        self._hooks.schedule = checks = _ProjectorChecks(self._subspace, passes)
        yield checks.results

    def tensors(self) -> dict[str, Tensor]:
        """Return Adam's moments and the projectors, by their names in a checkpoint."""
        found: dict[str, Tensor] = {}
        for layer in self._layers:
            if layer.optimizer.steps:
                moments = zip(MOMENTS, layer.optimizer.moments, strict=True)
                found |= {f"{moment}.{layer.name}": tensor for moment, tensor in moments}
            if self._subspace is None:
                continue
            found[f"draws.{layer.name}"] = torch.tensor(layer.draws)
            for side, projector in _sides(layer.projectors):
                found[f"{side}.positions.{layer.name}"] = projector.positions.int()
                found[f"{side}.values.{layer.name}"] = projector.values
        return found

    def restore(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Restore the tensors of a checkpoint.

        Args:
            tensors: tensors by name, as returned by `tensors`.
            steps: number of steps taken before the checkpoint.

        Raises:
            ValueError: if a tensor is missing or has another shape or dtype.
        """
        for layer in self._layers:
            shape = tuple(layer.optimizer.moments[0].shape)
            moments = stored_moments(tensors, layer.name, shape)
            if moments is not None:
                layer.optimizer.moments, layer.optimizer.steps = moments, steps
            if self._subspace is not None:
                draws = stored_tensor(tensors, f"draws.{layer.name}", (), torch.int64)
                layer.draws = int(draws)
                sides = {
                    side: stored_projector(tensors, side, layer.name, projector)
                    for side, projector in _sides(layer.projectors)
                }
                layer.projectors = ProjectorPair(**sides)

    def hold(self, accelerator: Accelerator) -> None:
        """Register the moments in host memory, and the projectors in the accelerator's memory.

        Raises:
            DeviceError: if the projectors do not fit into an emulated accelerator's memory.
        """
        for layer in self._layers:
            accelerator.hold_on_host(layer.optimizer.moments)
            for _, projector in _sides(layer.projectors):
                accelerator.hold([projector.positions, projector.values])


def _sides(projectors: ProjectorPair) -> Iterator[tuple[str, SparseProjector]]:
    """Yield (``left`` or ``right``, projector) for each side that has a projector."""
    for side in ("left", "right"):
        projector: SparseProjector | None = getattr(projectors, side)
        if projector is not None:
            yield side, projector
