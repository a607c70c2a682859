"""The work on one layer in a training step, from the gradient to the changed weights.

The order is compress (accelerator), add and update (host), apply (accelerator), as in LSP-Offload,
algorithm 2. The update schedule decides when and in which thread each part runs. Layers share
no data, so parts of different layers may run in parallel.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from samara.client.offload.host_adam import HostAdam
from samara.client.offload.kernels import add_decompressed, compress
from samara.client.offload.projector_learning import (
    change_of_basis,
    learn_projectors,
    relative_bias,
)
from samara.client.offload.projectors import ProjectorPair

_IDENTITY = ProjectorPair()


@dataclass(frozen=True)
class SubspaceSettings:
    """The hyperparameters of LSP-Offload's subspaces (algorithm 2).

    Attributes:
        size: size s of the subspace.
        nonzeros: number r of nonzeros in each row of a projector.
        threshold: relative bias at or above which projectors are learned again.
        gamma: weight γ of the projectors' norms.
        most_steps: maximum number of learning steps.
        seed: seed of the projectors.
    """

    size: int
    nonzeros: int
    threshold: float
    gamma: float
    most_steps: int
    seed: int


@dataclass(frozen=True)
class ProjectorCheck:
    """The result of a check of a layer's projectors.

    Attributes:
        name: name of the weight.
        bias: relative bias of the layer's projectors at the check.
        learned: relative bias of newly learned projectors; None if the old projectors are kept.
        steps: number of learning steps.
    """

    name: str
    bias: float
    learned: float | None
    steps: int


class LayerUpdate:
    """One weight tensor on the accelerator, with its optimizer on the host.

    Attributes:
        name: name of the weight in the network.
        weight: weight W on the accelerator, float32 or bfloat16 [m, n], or any shape without
            projectors.
        projectors: projectors on the accelerator.
        optimizer: optimizer on the host.
        draws: number of draws of projectors for the layer so far.
    """

    def __init__(
        self, name: str, weight: nn.Parameter, projectors: ProjectorPair = _IDENTITY
    ) -> None:
        self.name, self.weight, self.projectors, self.draws = name, weight, projectors, 1
        self.optimizer = HostAdam(projectors.subspace(tuple(weight.shape)))
        self._sum: Tensor | None = None

    @classmethod
    def in_subspace(cls, name: str, weight: nn.Parameter, settings: SubspaceSettings) -> Self:
        """Return the `LayerUpdate` of a weight matrix that is trained in a random subspace.

        Args:
            name: name of the weight in the network.
            weight: weight matrix, float32 or bfloat16 [m, n].
            settings: hyperparameters of the subspace.
        """
        return cls(name, weight, _draw(name, weight, settings, 0))

    def compress(self, gradient: Tensor) -> Tensor:
        """Return Ĝ = PᵀGQ, the gradient sent to the host; runs on the accelerator.

        Args:
            gradient: gradient of a pass, [m, n].

        Returns:
            float32 [s, s]; the gradient itself if both projectors are the identity.
        """
        return compress(self.projectors, gradient.float())

    def add(self, compressed: Tensor) -> None:
        """Add a pass's compressed gradient to the sum over the step's passes; runs on the host.

        Args:
            compressed: float32 [s, s] on the CPU; the caller must not change it afterwards.
        """
        self._sum = compressed if self._sum is None else self._sum + compressed

    def update(self, learning_rate: float) -> Tensor:
        """Take a step of Adam on the summed gradient and return Δ; runs on the host.

        Args:
            learning_rate: η; Δ includes this factor.

        Returns:
            float32 [s, s] on the CPU.
        """
        assert self._sum is not None, "there is no gradient"
        change = self.optimizer.update(self._sum.contiguous(), learning_rate)
        self._sum = None
        return change

    def apply(self, change: Tensor) -> None:
        """Set W ← W + PΔQᵀ; runs on the accelerator.

        Args:
            change: Δ, float32 [s, s] on the accelerator.
        """
        seed = zlib.crc32(f"{self.name} {self.optimizer.steps}".encode())
        add_decompressed(self.projectors, change, self.weight, seed)

    def check_projectors(self, gradient: Tensor, settings: SubspaceSettings) -> ProjectorCheck:
        """Check the projectors' bias on a gradient, and replace the projectors if it is too large.

        If the bias reaches the threshold, new projectors are learned on the accelerator. If their
        bias is smaller, they replace the old projectors, and Adam's moments are projected to the
        new subspace. The check runs between steps.

        Args:
            gradient: gradient of a sampled batch, float32 [m, n].
            settings: hyperparameters of the subspace.
        """
        old = self.projectors
        bias = relative_bias(old, gradient)
        if bias < settings.threshold:
            return ProjectorCheck(self.name, bias, None, 0)
        drawn = _draw(self.name, self.weight, settings, self.draws)
        self.draws += 1
        learned = learn_projectors(
            drawn, gradient, settings.threshold, settings.gamma, settings.most_steps
        )
        if not learned.bias < bias:
            return ProjectorCheck(self.name, bias, None, learned.steps)
        new = self.projectors = learned.projectors
        left, right = change_of_basis(old.left, new.left), change_of_basis(old.right, new.right)
        self.optimizer.move(*(None if side is None else side.cpu() for side in (left, right)))
        return ProjectorCheck(self.name, bias, learned.bias, learned.steps)


class UpdateSchedule(Protocol):
    """Protocol of schedules, which decide when and in which thread each part of the work runs."""

    def gradient(self, layer: LayerUpdate, gradient: Tensor, learning_rate: float | None) -> None:
        """Accept a layer's gradient as soon as the backward pass has computed it.

        Args:
            layer: layer.
            gradient: gradient of a pass, [m, n], on the accelerator; the schedule takes ownership.
            learning_rate: η in the last pass of the step, after which the layer can be updated;
                None if other passes follow.
        """

    def finish(self) -> None:
        """Wait until all accepted layers are updated."""


class ImmediateSchedule:
    """An update schedule that does all work immediately, in the thread of the backward pass."""

    def gradient(self, layer: LayerUpdate, gradient: Tensor, learning_rate: float | None) -> None:
        """Compress and add a gradient; in the last pass, also compute and apply the update."""
        layer.add(layer.compress(gradient).cpu())
        if learning_rate is not None:
            layer.apply(layer.update(learning_rate).to(gradient.device))

    def finish(self) -> None:
        """Do nothing, because no work is ever pending."""


class GradientHooks:
    """Hooks that pass every layer's gradient to a schedule, and free the gradient.

    Args:
        layers: layers whose weights require gradients.
        schedule: schedule that receives the gradients.

    Attributes:
        schedule: schedule that receives the gradients.
        learning_rate: η in the last pass of a step, None in earlier passes.
    """

    def __init__(self, layers: Sequence[LayerUpdate], schedule: UpdateSchedule) -> None:
        self.schedule = schedule
        self.learning_rate: float | None = None
        self._handles = [
            layer.weight.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                self._hook(layer)
            )
            for layer in layers
        ]

    def _hook(self, layer: LayerUpdate) -> Callable[[Tensor], None]:
        def hand_over(weight: Tensor) -> None:
            gradient, weight.grad = weight.grad, None
            assert gradient is not None
            with torch.no_grad():
                self.schedule.gradient(layer, gradient, self.learning_rate)

        return hand_over

    def remove(self) -> None:
        """Remove the hooks from the weights."""
        for handle in self._handles:
            handle.remove()


def _draw(name: str, weight: nn.Parameter, settings: SubspaceSettings, draw: int) -> ProjectorPair:
    rows, columns = weight.shape
    seed = settings.seed, zlib.crc32(name.encode()), draw
    size, nonzeros = settings.size, settings.nonzeros
    return ProjectorPair.random((rows, columns), size, nonzeros, seed, weight.device)
