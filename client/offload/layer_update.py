"""The work on one layer in a training step: where its gradient goes and how its update comes back.

The order is compress, on the accelerator; add and update, on the host; apply, on the accelerator
(LSP-Offload, algorithm 2). Who does which part when is the update schedule's affair; layers share
nothing, so parts of different layers may run at the same time.
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
        nonzeros: nonzeros r of a projector's row.
        threshold: relative bias from which on projectors are learned anew.
        gamma: weight γ of the projectors' norms.
        most_steps: most steps of learning.
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
        bias: relative bias that was found.
        learned: relative bias of the projectors that were learned; None if the old ones are kept.
        steps: steps of learning.
    """

    name: str
    bias: float
    learned: float | None
    steps: int


class LayerUpdate:
    """One weight tensor on the accelerator, with its optimizer on the host.

    Attributes:
        name: name of the weight in the network.
        weight: weight W on the accelerator, float32 [m, n], or any shape without projectors.
        projectors: projectors on the accelerator.
        optimizer: optimizer on the host.
        draws: number of times that projectors were drawn for the layer.
    """

    def __init__(
        self, name: str, weight: nn.Parameter, projectors: ProjectorPair = _IDENTITY
    ) -> None:
        self.name, self.weight, self.projectors, self.draws = name, weight, projectors, 1
        self.optimizer = HostAdam(projectors.subspace(tuple(weight.shape)))
        self._sum: Tensor | None = None

    @classmethod
    def in_subspace(cls, name: str, weight: nn.Parameter, settings: SubspaceSettings) -> Self:
        """Return the work on a weight matrix that is trained in a random subspace.

        Args:
            name: name of the weight in the network.
            weight: weight matrix, float32 [m, n].
            settings: hyperparameters of the subspace.
        """
        return cls(name, weight, _draw(name, weight, settings, 0))

    def compress(self, gradient: Tensor) -> Tensor:
        """Return Ĝ = PᵀGQ, what travels to the host; runs on the accelerator.

        Args:
            gradient: gradient of a pass, float32 [m, n].

        Returns:
            float32 [s, s]; the gradient itself without projectors.
        """
        return compress(self.projectors, gradient)

    def add(self, compressed: Tensor) -> None:
        """Add the compressed gradient of a pass to those of the step; runs on the host.

        Args:
            compressed: float32 [s, s] on the CPU; it is kept, so it may not change afterwards.
        """
        self._sum = compressed if self._sum is None else self._sum + compressed

    def update(self, learning_rate: float) -> Tensor:
        """Take a step of Adam on the sum and return Δ, what travels back; runs on the host.

        Args:
            learning_rate: η, which Δ contains.

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
        add_decompressed(self.projectors, change, self.weight)

    def check_projectors(self, gradient: Tensor, settings: SubspaceSettings) -> ProjectorCheck:
        """Learn other projectors if the bias is not under the threshold, and project the moments.

        Runs on the accelerator, between steps. What was learned is dropped if it is not better.

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
    """The decision when each part of the work on layers is done, and where."""

    def gradient(self, layer: LayerUpdate, gradient: Tensor, learning_rate: float | None) -> None:
        """Accept the gradient of a layer as soon as the backward pass has it.

        Args:
            layer: layer.
            gradient: gradient of a pass, float32 [m, n], on the accelerator; the schedule owns it.
            learning_rate: η if this is the last pass of the step, so the layer can be updated; None
                if gradients of other passes follow.
        """

    def finish(self) -> None:
        """Wait until all accepted layers are updated."""


class ImmediateSchedule:
    """An update schedule that does all work at once, in the thread of the backward pass."""

    def gradient(self, layer: LayerUpdate, gradient: Tensor, learning_rate: float | None) -> None:
        """Compress, and if it is the last pass update and apply."""
        layer.add(layer.compress(gradient).cpu())
        if learning_rate is not None:
            layer.apply(layer.update(learning_rate).to(gradient.device))

    def finish(self) -> None:
        """Do nothing, since nothing is left to do."""


class GradientHooks:
    """Hooks that hand every layer's gradient to a schedule and free it.

    Args:
        layers: layers whose weights require gradients.
        schedule: schedule that accepts the gradients.

    Attributes:
        schedule: schedule that accepts the gradients.
        learning_rate: η in the last pass of a step, None in the passes before it.
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
