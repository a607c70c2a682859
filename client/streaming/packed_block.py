"""The layout of a block's tensors in one contiguous piece of memory (ZO2, section 5.3)."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes; torch's own allocator places tensors at multiples of it."""


@dataclass(frozen=True)
class PackedTensor:
    """A tensor inside a packed block.

    Attributes:
        name: name inside the block.
        dtype: type that the tensor is stored and transferred in.
        shape: shape of the tensor.
        misalignment: bytes between the last multiple of `ALIGNMENT` and the tensor's first byte.
            The last bits of a CPU matrix product depend on it, and the tensors of a resident model
            have the alignment that they have in the memory-mapped checkpoint.
        offset: position of the tensor's first byte in the packed block.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    misalignment: int
    offset: int

    @property
    def bytes(self) -> int:
        """The number of bytes of the tensor."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class PackedBlock:
    """The layout of a block in memory.

    Attributes:
        tensors: tensors of the block, in their order in the model.
        bytes: size of the whole block.
    """

    tensors: tuple[PackedTensor, ...]
    bytes: int

    @classmethod
    def lay_out(
        cls, tensors: Iterable[tuple[str, torch.dtype, tuple[int, ...], int]]
    ) -> "PackedBlock":
        """Lay tensors out one after the other.

        Args:
            tensors: name, type, shape and misalignment of each tensor.
        """
        packed, end = list[PackedTensor](), 0
        for name, dtype, shape, misalignment in tensors:
            tensor = PackedTensor(name, dtype, shape, misalignment, end + misalignment)
            packed.append(tensor)
            end = -(-(tensor.offset + tensor.bytes) // ALIGNMENT) * ALIGNMENT
        return cls(tuple(packed), end)

    def with_dtype(self, dtype: torch.dtype | None) -> "PackedBlock":
        """Return the layout with all floating-point tensors in another type; None keeps theirs."""
        if dtype is None:
            return self
        return PackedBlock.lay_out(
            (
                tensor.name,
                dtype if tensor.dtype.is_floating_point else tensor.dtype,
                tensor.shape,
                tensor.misalignment,
            )
            for tensor in self.tensors
        )

    def views(self, memory: Tensor) -> dict[str, Tensor]:
        """Return the block's tensors as views of a piece of memory, uint8 [bytes or more]."""
        return {
            tensor.name: memory[tensor.offset : tensor.offset + tensor.bytes]
            .view(tensor.dtype)
            .view(tensor.shape)
            for tensor in self.tensors
        }
