"""The optimizer's tensors in a checkpoint, checked before a run goes on with them."""

from collections.abc import Mapping

import torch
from torch import Tensor

from samara.client.offload.host_adam import MOMENTS
from samara.client.offload.projectors import SparseProjector


def stored_tensor(
    tensors: Mapping[str, Tensor],
    name: str,
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return a tensor of a checkpoint.

    Args:
        tensors: tensors by name.
        name: name of the tensor.
        shape: shape that it must have.
        dtype: type that it must have.

    Raises:
        ValueError: if it is missing, or of another shape or type.
    """
    if name not in tensors:
        raise ValueError(f"no tensor {name}")
    found = tensors[name]
    if tuple(found.shape) != shape or found.dtype != dtype:
        raise ValueError(f"{name} is {found.dtype} {tuple(found.shape)}, not {dtype} {shape}")
    return found


def stored_moments(
    tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]
) -> tuple[Tensor, Tensor] | None:
    """Return Adam's moments of a weight, float32 [shape]; None if there has been no step.

    Raises:
        ValueError: if only one of them is there, or one is of another shape or type.
    """
    first, second = (f"{moment}.{name}" for moment in MOMENTS)
    if first not in tensors and second not in tensors:
        return None
    return stored_tensor(tensors, first, shape), stored_tensor(tensors, second, shape)


def stored_projector(
    tensors: Mapping[str, Tensor], side: str, name: str, like: SparseProjector
) -> SparseProjector:
    """Return a projector of a weight.

    Args:
        tensors: tensors by name.
        side: ``left`` or ``right``.
        name: name of the weight.
        like: projector of the same shape, on the device where it is needed.

    Raises:
        ValueError: if a part is missing or of another shape or type, or a nonzero is in no column.
    """
    shape, device = tuple(like.values.shape), like.values.device
    positions = stored_tensor(tensors, f"{side}.positions.{name}", shape, torch.int32)
    values = stored_tensor(tensors, f"{side}.values.{name}", shape)
    if bool(((positions < 0) | (positions >= like.size)).any()):
        raise ValueError(f"{side}.positions.{name} are not all from 0 to {like.size - 1}")
    return SparseProjector(positions.long().to(device), values.to(device), like.size)
