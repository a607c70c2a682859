"""The start of an adapter: weights that a federation begins with, and the file that holds them.

The ledger's state begins at zero all the same; the start is added to it where it becomes weights
(docs/decisions/0018-the-start-belongs-to-the-adapter.md). The file is safetensors with one tensor,
``start`` int64 [d] in units of a state, and says which model and which adapter it belongs to.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from shared.blob_store import MAX_BLOB_BYTES, BlobStore
from shared.blobs import resolve_blob
from shared.errors import ModelError
from shared.files import read_safetensors_metadata
from shared.layout import MAX_ELEMENTS, Layout
from shared.replay import STATE_BITS

START_FILE = "start.safetensors"
FORMAT = "samara start 1"
START_LIMIT = 2**61
"""The absolute value that the numbers of a start stay below, in units of a state: 1,024."""
_METADATA_KEY, _TENSOR = "samara", "start"


@dataclass(frozen=True, eq=False)
class Start:
    """The weights that a federation begins with.

    Attributes:
        model_id: model id of the base model, 32 bytes.
        weights_hash: `Layout.weights_hash` of the adapter, 32 bytes.
        values: int64 [d] in units of a state.
    """

    model_id: bytes
    weights_hash: bytes
    values: NDArray[np.int64]

    @classmethod
    def from_weights(cls, weights: NDArray[np.float32], layout: Layout, model_id: bytes) -> "Start":
        """Make the start that has an adapter's weights.

        A weight of at least 2⁻²⁸ in absolute value is converted exactly, a smaller one to the
        nearest unit, 2⁻⁵¹.

        Args:
            weights: float32 [d].
            layout: layout of the adapter.
            model_id: model id of the base model, 32 bytes.

        Raises:
            ModelError: if a weight is not finite, or too large.
        """
        exact = np.ldexp(weights.astype(np.float64), STATE_BITS)
        if not np.all(np.abs(exact) < START_LIMIT):
            limit = START_LIMIT >> STATE_BITS
            raise ModelError(
                f"a weight of the adapter is not finite, or not below {limit:,}; lower "
                "learning-rate"
            )
        return cls(model_id, layout.weights_hash, np.rint(exact).astype(np.int64))

    def encode(self) -> bytes:
        """Return the bytes of the start's file."""
        content = {
            "format": FORMAT,
            "model_id": self.model_id.hex(),
            "weights_hash": self.weights_hash.hex(),
        }
        return save({_TENSOR: self.values}, {_METADATA_KEY: json.dumps(content, sort_keys=True)})

    @classmethod
    def decode(cls, data: bytes) -> "Start":
        """Read the bytes of a start's file; every number is checked.

        Raises:
            ModelError: if they are no start.
        """
        try:
            content = read_safetensors_metadata(data, _METADATA_KEY)
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']!r}")
            hashes = [bytes.fromhex(content[key]) for key in ("model_id", "weights_hash")]
            tensors = load(data)
            if set(tensors) != {_TENSOR} or any(len(value) != 32 for value in hashes):
                raise ValueError(f"tensors {', '.join(sorted(tensors))}")
            values = tensors[_TENSOR]
            if values.dtype != np.int64 or values.ndim != 1 or not 1 <= len(values) <= MAX_ELEMENTS:
                raise ValueError(f"{values.dtype} {values.shape}")
            if np.any((values >= START_LIMIT) | (values <= -START_LIMIT)):
                raise ValueError("a number out of its range")
        except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
            raise ModelError(f"not a start: {error}; write it with samara tune") from error
        return cls(hashes[0], hashes[1], values)

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the start's file, in hexadecimal."""
        return hashlib.sha256(self.encode()).hexdigest()

    def check_origin(self, layout: Layout, model_id: bytes) -> None:
        """Raise an error if the start belongs to another model or adapter.

        Args:
            layout: layout of the adapter.
            model_id: model id of the base model, 32 bytes.

        Raises:
            ModelError: naming what differs.
        """
        for name, origin, expected in (
            ("model", self.model_id, model_id),
            ("adapter", self.weights_hash, layout.weights_hash),
        ):
            if origin != expected:
                raise ModelError(
                    f"adapter.start: it was trained for {name} {origin.hex()[:12]} and the run has "
                    f"{expected.hex()[:12]}; train one with samara tune for the same model and "
                    "adapter settings"
                )
        if len(self.values) != layout.element_count:
            raise ModelError(
                f"adapter.start: it has {len(self.values):,} numbers and the adapter has "
                f"{layout.element_count:,}; train one with samara tune"
            )


def read_start(value: str, store: BlobStore | None = None) -> Start:
    """Read the start that `adapter.start` names.

    Args:
        value: a path, or ``sha256:HEX``.
        store: store in which hashes are looked up; this machine's by default.

    Raises:
        ConfigError: if there is no such file.
        MissingBlobError: if the store lacks the blob.
        ModelError: if it cannot be read, or is no start.
    """
    path = resolve_blob(value, store or BlobStore(), "adapter.start")
    try:
        if path.stat().st_size > MAX_BLOB_BYTES:
            raise ModelError(f"larger than {MAX_BLOB_BYTES:,} bytes")
        data = path.read_bytes()
        start = Start.decode(data)
        if start.encode() != data:
            raise ModelError("not a start as samara tune writes it; train one again")
    except OSError as error:
        raise ModelError(f"adapter.start: {path}: cannot be read: {error.strerror}") from error
    except ModelError as error:
        raise ModelError(f"adapter.start: {path}: {error}") from error
    return start
