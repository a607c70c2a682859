"""Where the tensors of a safetensors file lie, so that a block can be read into a given place.

The file's own reader hands out tensors of its own or maps the file; a mapped file that becomes
shorter ends the process with a signal. Here bytes are read into buffers that are there already, and
whatever is wrong with a file is an error that names it.
"""

import json
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from shared.errors import ModelError

_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000
"""As safetensors has it."""
DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I8": torch.int8,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
}


@dataclass(frozen=True)
class TensorLocation:
    """A tensor on disk.

    Attributes:
        file: that holds it.
        first: its first byte in the file.
        dtype: its type.
        shape: its shape.
    """

    file: Path
    first: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """How many it takes."""
        return prod(self.shape) * self.dtype.itemsize


def tensor_locations(file: Path) -> dict[str, TensorLocation]:
    """Every tensor of a safetensors file by its name.

    Raises:
        ModelError: if the file is missing, ends too early, is damaged or holds unknown types.
    """
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            header = stream.read(length) if length <= _LONGEST_HEADER else b""
        size = os.stat(file).st_size
    except OSError as error:
        raise ModelError(
            f"{file}: cannot be read: {error.strerror}; put it back, or load the model again"
        ) from error
    if len(header) != length or not length:
        raise ModelError(f"{file}: is no whole safetensors file; get it again")
    try:
        entries: dict[str, dict[str, Any]] = json.loads(header)
        found = {
            name: _place(file, _LENGTH_BYTES + length, entry)
            for name, entry in entries.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{file}: its header is damaged: {error!r}; get it again") from error
    end = max((place.first + place.bytes for place in found.values()), default=0)
    if size < end:
        raise ModelError(
            f"{file}: is truncated: {size:,} bytes, and its tensors need {end:,}; get it again"
        )
    return found


def _place(file: Path, data: int, entry: dict[str, Any]) -> TensorLocation:
    begin, end = (int(offset) for offset in entry["data_offsets"])
    shape = tuple(int(size) for size in entry["shape"])
    place = TensorLocation(file, data + begin, DTYPES[str(entry["dtype"])], shape)
    if min(begin, *shape, 0) < 0 or place.bytes != end - begin:
        raise ValueError(f"{entry} does not add up")
    return place
