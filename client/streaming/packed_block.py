"""A block's tensors side by side in one piece of memory (ZO2, section 5.3)."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes; where torch's own allocator begins a tensor."""


@dataclass(frozen=True)
class Part:
    """A tensor of a block.

    Attributes:
        name: inside the block.
        dtype: as it is stored and travels.
        shape: its shape.
        phase: where between two multiples of `ALIGNMENT` it begins. A product's last bits depend
            on it on a CPU, and a resident model's tensors lie as they do in the mapped checkpoint.
        first: its first byte in the bucket.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    phase: int
    first: int

    @property
    def bytes(self) -> int:
        """How many it takes."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class PackedBlock:
    """How a block lies in memory.

    Attributes:
        parts: its tensors, in their order in the model.
        bytes: of all of them.
    """

    parts: tuple[Part, ...]
    bytes: int

    @classmethod
    def lay_out(
        cls, tensors: Iterable[tuple[str, torch.dtype, tuple[int, ...], int]]
    ) -> "PackedBlock":
        """Lay tensors out: name, type, shape and phase of each."""
        parts, end = list[Part](), 0
        for name, dtype, shape, phase in tensors:
            part = Part(name, dtype, shape, phase, end + phase)
            parts.append(part)
            end = -(-(part.first + part.bytes) // ALIGNMENT) * ALIGNMENT
        return cls(tuple(parts), end)

    def with_dtype(self, dtype: torch.dtype | None) -> "PackedBlock":
        """The same with all floats in another type; None leaves them."""
        if dtype is None:
            return self
        return PackedBlock.lay_out(
            (
                part.name,
                dtype if part.dtype.is_floating_point else part.dtype,
                part.shape,
                part.phase,
            )
            for part in self.parts
        )

    def views(self, memory: Tensor) -> dict[str, Tensor]:
        """The tensors in a piece of memory, uint8 [bytes or more]."""
        return {
            part.name: memory[part.first : part.first + part.bytes]
            .view(part.dtype)
            .view(part.shape)
            for part in self.parts
        }
