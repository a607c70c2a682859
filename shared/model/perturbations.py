"""Perturbed adapters: from the state of a ledger to the tensors of a forward pass.

A weight map converts an integer state to the adapter's weights, and directions in the state to
directions in the weights. Perturbations are built from these weights and directions.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor as TorchTensor

from samara.shared.errors import ModelError, ReplayError
from samara.shared.protocol.basis import Basis, read_basis
from samara.shared.protocol.directions import BOTH_SIDES, DIRECTION_BITS
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.replay import STATE_BITS
from samara.shared.protocol.start import Start, read_start
from samara.shared.settings.sections import AdapterSettings

STATE_LIMIT = 2**62
"""Limit that the absolute values of a state or start stay below, in units of a state."""


@dataclass(frozen=True, eq=False)
class WeightMap:
    """The map from a state and its directions to the weights of forward passes.

    A state has `Layout.size` numbers, one for each coordinate. The weights have
    `Layout.element_count` numbers, one for each element of the tensors. Without a basis, these two
    counts are equal.

    Attributes:
        start: initial weights, in units of a state, that are added to every state; None for no
            start.
        basis: basis that lifts the first coordinates to the elements of the adapter inside the
            model; None without a basis.
        torch_device: torch device of the weights and directions; None for the CPU.
    """

    start: Start | None = None
    basis: Basis | None = None
    torch_device: torch.device | None = None

    def weights(self, state: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the adapter weights of a state on the host, float32 [elements]; see `center`."""
        return self.center(torch.tensor(state)).cpu().numpy()  # the state may be read-only

    def center(self, state: TorchTensor) -> TorchTensor:
        """Return the adapter weights of a state on the torch device, float32 [elements].

        Each weight is rounded once. A basis lifts states on the CPU, because GPUs do not multiply
        matrices of integers.

        Args:
            state: int64 [size]; without a start, it is converted on its own device.

        Raises:
            ReplayError: if the state is too large for the start or the basis.
        """
        elements = state
        if self.basis is not None:
            elements = torch.from_numpy(self.basis.elements(state.cpu().numpy()))
        if self._start_values is not None:
            elements = elements.to(self._start_values.device)
            if bool((elements.abs() >= STATE_LIMIT).any()):
                raise ReplayError(
                    "the initial weights cannot be added to the state, because its numbers are too "
                    "large; lower learning-rate"
                )
            elements = elements + self._start_values
        return (elements.to(torch.float32) * 2.0**-STATE_BITS).to(self.torch_device)

    def directions(self, z: NDArray[np.int16] | torch.Tensor) -> torch.Tensor:
        """Convert directions in the state to directions in the weights, on the torch device.

        Args:
            z: int16 [..., size], in units of 2⁻¹¹; a tensor may be on the torch device already.

        Returns:
            Directions in units of 2⁻¹¹: without a basis the same int16 numbers, with a basis
            float32 [..., elements].
        """
        on_device = torch.as_tensor(z).to(self.torch_device)
        if self.basis is None:
            return on_device
        size = len(self._vectors)
        lifted = on_device[..., :size].to(torch.float32) @ self._vectors
        return torch.cat([lifted, on_device[..., size:].to(torch.float32)], dim=-1)

    def gradient(self, elements: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert a gradient of the weights, [elements], to that of the state, float64 [size]."""
        if self.basis is None:
            return elements
        end = self.basis.element_count
        coordinates = self.basis.as_float32().astype(np.float64) @ elements[:end]
        return np.concatenate([coordinates, elements[end:]])

    @cached_property
    def _start_values(self) -> TorchTensor | None:
        if self.start is None:
            return None
        return torch.tensor(self.start.values).to(self.torch_device)

    @cached_property
    def _vectors(self) -> torch.Tensor:
        assert self.basis is not None
        return torch.from_numpy(self.basis.as_float32()).to(self.torch_device)


def read_weight_map(settings: AdapterSettings, layout: Layout) -> WeightMap:
    """Read the basis and the start that a run's settings name, and return its weight map.

    Args:
        settings: settings of the adapter; its basis and start are paths.
        layout: layout of the run.

    Raises:
        ModelError: if the file of the basis or of the start does not match the layout.
        SamaraError: if a file cannot be read.
    """
    basis = read_basis(settings.basis) if settings.basis else None
    start = read_start(settings.start) if settings.start else None
    for key, value, of_run, of_file in (
        ("basis", settings.basis, layout.basis, basis.reference if basis else None),
        ("start", settings.start, layout.start, start.sha256 if start else ""),
    ):
        if of_run != of_file:
            raise ModelError(
                f"adapter.{key}: {value} is not the file that the run was trained with; restore "
                "the original file"
            )
    return WeightMap(start, basis)


class PerturbedAdapters(Protocol):
    """The perturbed adapters of a forward pass, one per perturbation and client."""

    @property
    def layout(self) -> Layout:
        """The names and shapes of the tensors."""

    @property
    def queries(self) -> int:
        """The number of directions, q; 0 for the unperturbed adapter."""

    @property
    def count(self) -> int:
        """The number of perturbations of a client, P = signs · q, or 1 without directions."""

    @property
    def clients(self) -> int:
        """The number of clients that share the pass, C; usually 1."""

    def select(self, signs: slice, queries: slice) -> "PerturbedAdapters":
        """Return the perturbations of some signs and queries."""

    def tensor(self, name: str) -> TorchTensor:
        """Return one tensor of all perturbations, [P·C, rows, columns], clients innermost."""


@dataclass(frozen=True, eq=False)
class Perturbations:
    """Perturbed adapters B + s·ε·z of one client, or of several clients that share a pass.

    Only the unperturbed adapters B and the directions z are stored. Perturbed tensors are computed
    when a layer needs them. The rows of a pass are ordered by sign, then by query, then by client,
    and each combination has the same number of rows. The clients of a pass share W·x and A·x, like
    the queries of a client. Only the small product with B is separate.

    Attributes:
        layout: names and shapes of the tensors.
        center: unperturbed adapter, float32 [d]; [C, d] for C clients.
        directions: z in units of 2⁻¹¹, int16 [q, d], or float32 if they are lifted from a basis;
            [C, q, d] for C clients; None evaluates the center alone.
        epsilon: size of the perturbation, ε.
        signs: the values of s: +1 and −1, or only one of these.
    """

    layout: Layout
    center: TorchTensor
    directions: TorchTensor | None = None
    epsilon: float = 0.0
    signs: tuple[int, ...] = BOTH_SIDES

    @classmethod
    def from_arrays(
        cls,
        layout: Layout,
        center: NDArray[np.float32],
        directions: NDArray[np.int16] | None = None,
        epsilon: float = 0.0,
        device: torch.device | None = None,
        signs: tuple[int, ...] = BOTH_SIDES,
    ) -> Self:
        """Create perturbations from numpy arrays, on a torch device."""
        z = None if directions is None else torch.from_numpy(directions).to(device)
        return cls(layout, torch.from_numpy(center).to(device), z, epsilon, signs)

    @property
    def queries(self) -> int:
        """The number of directions, q; 0 for the unperturbed adapter."""
        return 0 if self.directions is None else self.directions.shape[-2]

    @property
    def count(self) -> int:
        """The number of perturbations of a client, P = signs · q, or 1 without directions."""
        return len(self.signs) * self.queries or 1

    @property
    def clients(self) -> int:
        """The number of clients, C."""
        return len(self.center) if self.center.ndim == 2 else 1

    def select(self, signs: slice, queries: slice) -> Self:
        """Return the perturbations of some signs and queries. Directions are required."""
        assert self.directions is not None
        some = self.directions[..., queries, :]
        return replace(self, directions=some, signs=self.signs[signs])

    def tensor(self, name: str) -> TorchTensor:
        """Compute one tensor of all perturbations, float32 [P·C, rows, columns]."""
        elements, rows = self.layout.tensor_slice(name)
        flat = self.center[..., elements]
        if self.directions is not None:
            step = self.directions[..., elements].movedim(-2, 0).to(torch.float32)
            step = step * (self.epsilon * 2.0**-DIRECTION_BITS)
            flat = torch.cat([torch.add(flat, step, alpha=sign) for sign in self.signs])
        return flat.reshape(self.count * self.clients, rows, -1)
