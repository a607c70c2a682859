"""The layout of a block's tensors in one contiguous memory buffer (ZO2, section 5.3)."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

ALIGNMENT = 64
"""Alignment of tensors in bytes, equal to the alignment of torch's allocator."""


@dataclass(frozen=True)
class PackedTensor:
    """A tensor's place inside a packed block.

    Attributes:
        name: name of the tensor in its block.
        dtype: dtype for storing and transferring the tensor.
        shape: shape of the tensor.
        misalignment: bytes between the preceding multiple of `ALIGNMENT` and the tensor's first
            byte. The last bits of a CPU matrix product depend on this number. It is therefore
            copied from the memory-mapped checkpoint, whose alignment a resident model has.
        offset: position of the tensor's first byte in the packed block.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    misalignment: int
    offset: int

    @property
    def bytes(self) -> int:
        """Size of the tensor, in bytes."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class PackedBlock:
    """The layout of a block in memory.

    Attributes:
        tensors: tensors of the block, in their order in the model.
        bytes: size of the whole block, in bytes.
    """

    tensors: tuple[PackedTensor, ...]
    bytes: int

    @classmethod
    def lay_out(
        cls, tensors: Iterable[tuple[str, torch.dtype, tuple[int, ...], int]]
    ) -> "PackedBlock":
        """Return a layout with the tensors one after another.

        Args:
            tensors: name, dtype, shape and misalignment of each tensor.
        """
        packed, end = list[PackedTensor](), 0
        for name, dtype, shape, misalignment in tensors:
            tensor = PackedTensor(name, dtype, shape, misalignment, end + misalignment)
            packed.append(tensor)
            end = -(-(tensor.offset + tensor.bytes) // ALIGNMENT) * ALIGNMENT
        return cls(tuple(packed), end)

    def with_dtype(self, dtype: torch.dtype | None) -> "PackedBlock":
        """Return the layout with floating-point tensors in another dtype; unchanged for None."""
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
        """Return views of a buffer as the block's tensors, by name.

        Args:
            memory: uint8, at least `bytes` long.
        """
        return {
            tensor.name: memory[tensor.offset : tensor.offset + tensor.bytes]
            .view(tensor.dtype)
            .view(tensor.shape)
            for tensor in self.tensors
        }
