"""Checked reading of the optimizer's tensors from a checkpoint."""

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
    """Return a tensor of a checkpoint, after checking it.

    Args:
        tensors: tensors by name.
        name: name of the tensor.
        shape: expected shape.
        dtype: expected type.

    Raises:
        ValueError: if the tensor is missing, or has another shape or type.
    """
    if name not in tensors:
        raise ValueError(f"it lacks the tensor {name}")
    found = tensors[name]
    if tuple(found.shape) != shape or found.dtype != dtype:
        raise ValueError(f"{name} is {found.dtype} {tuple(found.shape)}, not {dtype} {shape}")
    return found


def stored_moments(
    tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]
) -> tuple[Tensor, Tensor] | None:
    """Return a weight's Adam moments, float32 [shape]; None before the first step.

    Raises:
        ValueError: if only one of the two moments exists, or a moment has another shape or type.
    """
    first, second = (f"{moment}.{name}" for moment in MOMENTS)
    if first not in tensors and second not in tensors:
        return None
    return stored_tensor(tensors, first, shape), stored_tensor(tensors, second, shape)


def stored_projector(
    tensors: Mapping[str, Tensor], side: str, name: str, like: SparseProjector
) -> SparseProjector:
    """Return a weight's projector, after checking it.

    Args:
        tensors: tensors by name.
        side: ``left`` or ``right``.
        name: name of the weight.
        like: projector of the same shape, on the target device.

    Raises:
        ValueError: if a part is missing or has another shape or type, or a nonzero's column does
            not exist.
    """
    shape, device = tuple(like.values.shape), like.values.device
    positions = stored_tensor(tensors, f"{side}.positions.{name}", shape, torch.int32)
    values = stored_tensor(tensors, f"{side}.values.{name}", shape)
    if bool(((positions < 0) | (positions >= like.size)).any()):
        raise ValueError(
            f"{side}.positions.{name} has values that are not from 0 to {like.size - 1}"
        )
    return SparseProjector(positions.long().to(device), values.to(device), like.size)
