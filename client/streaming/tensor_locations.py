"""Byte ranges of tensors in safetensors files, for reading blocks into existing buffers.

The safetensors library cannot do this: it returns new tensors or maps the file into memory. If a
mapped file is truncated later, a signal ends the process. Here every problem with a file raises an
error that names the file.
"""

import json
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from samara.shared.errors import ModelError

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000
"""Maximum size of a header in bytes, as in the safetensors library."""
DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}


@dataclass(frozen=True)
class TensorLocation:
    """A tensor's byte range in a file, with its dtype and shape.

    Attributes:
        file: file that holds the tensor.
        offset: position of the tensor's first byte in the file.
        dtype: type of the elements.
        shape: shape of the tensor.
    """

    file: Path
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Size of the tensor, in bytes."""
        return prod(self.shape) * self.dtype.itemsize


def tensor_locations(file: Path) -> dict[str, TensorLocation]:
    """Read the header of a safetensors file, and return the location of every tensor by name.

    Raises:
        ModelError: if the file is missing, truncated or damaged, or a tensor has a type that torch
            lacks.
    """
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            header = stream.read(length) if length <= _MAX_HEADER_BYTES else b""
        size = os.stat(file).st_size
    except OSError as error:
        raise ModelError(
            f"{file}: cannot be read: {error.strerror}; put it back, or load the model again"
        ) from error
    if len(header) != length or not length:
        raise ModelError(f"{file}: is not a complete safetensors file; get the file again")
    try:
        entries: dict[str, dict[str, Any]] = json.loads(header)
        locations = {
            name: _location(file, _LENGTH_BYTES + length, name, entry)
            for name, entry in entries.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{file}: the header is damaged: {error!r}; get the file again") from error
    end = max((location.offset + location.bytes for location in locations.values()), default=0)
    if size < end:
        raise ModelError(
            f"{file}: is truncated: it has {size:,} bytes, but its tensors need {end:,}; get the "
            "file again"
        )
    return locations


def _location(file: Path, data_offset: int, name: str, entry: dict[str, Any]) -> TensorLocation:
    begin, end = (int(offset) for offset in entry["data_offsets"])
    shape = tuple(int(size) for size in entry["shape"])
    dtype = DTYPES.get(str(entry["dtype"]))
    if dtype is None:
        raise ModelError(
            f"{file}: {name} is stored as {entry['dtype']}, which cannot be read; save the model "
            "as float32, bfloat16 or float16"
        )
    location = TensorLocation(file, data_offset + begin, dtype, shape)
    if min(begin, *shape, 0) < 0 or location.bytes != end - begin:
        raise ValueError(f"size, type and shape contradict each other: {entry}")
    return location
