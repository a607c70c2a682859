"""The start of an adapter: weights with which a federation begins, and their file.

The ledger's state still begins at zero. The start is added when the state becomes weights
(docs/decisions/0021-the-start-belongs-to-the-adapter.md). The file is safetensors with one tensor,
``start`` int64 [d] in units of a state, and its header names the start's model and adapter. `samara
tune` writes it, and a finished federation writes one too.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from samara.shared.errors import ModelError, SamaraError
from samara.shared.protocol.basis import Basis
from samara.shared.protocol.layout import (
    ADAPTER_GROUP,
    LABEL_BIAS_GROUP,
    MAX_ELEMENTS,
    READOUT_GROUP,
    DampingRecipe,
    Layout,
)
from samara.shared.protocol.replay import STATE_BITS
from samara.shared.storage.blob_store import MAX_BLOB_BYTES, BlobStore, resolve_blob
from samara.shared.storage.files import read_safetensors_metadata

START_FILE = "start.safetensors"
FORMAT = "samara start 2"
FORMAT_WITHOUT_LAYOUT = "samara start 1"
"""First format of the file, which identifies the adapter only by `Layout.weights_hash`."""
START_LIMIT = 2**61
"""Limit that the absolute values in a start stay below, in units of a state: 1,024."""
_METADATA_KEY, _TENSOR = "samara", "start"


@dataclass(frozen=True, eq=False)
class Start:
    """The initial weights of a federation's adapter.

    Attributes:
        model_id: model id of the base model, 32 bytes.
        weights_hash: `Layout.weights_hash` of the adapter, 32 bytes.
        values: int64 [d] in units of a state.
        layout: `Layout.weights_layout` of the adapter; None in a file of the first format.
        layers: ``adapter.layers`` of the adapter; empty in a file of the first format.
    """

    model_id: bytes
    weights_hash: bytes
    values: NDArray[np.int64]
    layout: Layout | None = None
    layers: str = ""

    @classmethod
    def from_weights(
        cls, weights: NDArray[np.float32], layout: Layout, model_id: bytes, layers: str
    ) -> "Start":
        """Create a start from an adapter's weights.

        A weight of at least 2⁻²⁸ in absolute value is converted exactly. A smaller one is rounded
        to the nearest unit, 2⁻⁵¹.

        Args:
            weights: float32 [d].
            layout: layout of the adapter.
            model_id: model id of the base model, 32 bytes.
            layers: ``adapter.layers`` of the adapter.

        Raises:
            ModelError: if a weight is not finite, or is 1,024 or more in absolute value.
        """
        exact = np.ldexp(weights.astype(np.float64), STATE_BITS)
        if not np.all(np.abs(exact) < START_LIMIT):
            raise _too_large()
        values = np.rint(exact).astype(np.int64)
        return cls(model_id, layout.weights_hash, values, layout.weights_layout, layers)

    @classmethod
    def from_state(
        cls,
        state: NDArray[np.int64],
        layout: Layout,
        model_id: bytes,
        layers: str,
        start: "Start | None" = None,
        basis: Basis | None = None,
    ) -> "Start":
        """Create a start from a federation's state, with exactly its weights.

        Args:
            state: int64 [size].
            layout: layout of the adapter.
            model_id: model id of the base model, 32 bytes.
            layers: ``adapter.layers`` of the adapter.
            start: start of the federation; None if it began with the base model.
            basis: basis of the adapter; None without one.

        Raises:
            ModelError: if a weight is too large.
            ReplayError: if the state is too large for the basis.
        """
        values = state if basis is None else basis.elements(state)
        if start is not None:
            if np.any(np.abs(values) >= START_LIMIT):
                raise _too_large()
            values = values + start.values
        if np.any(np.abs(values) >= START_LIMIT):
            raise _too_large()
        return cls(model_id, layout.weights_hash, values, layout.weights_layout, layers)

    def encode(self) -> bytes:
        """Encode the start as a file."""
        if self.layout is None:
            adapter = {"format": FORMAT_WITHOUT_LAYOUT, "weights_hash": self.weights_hash.hex()}
        else:
            adapter = {"format": FORMAT, "layout": self.layout.to_json(), "layers": self.layers}
        content = adapter | {"model_id": self.model_id.hex()}
        return save({_TENSOR: self.values}, {_METADATA_KEY: json.dumps(content, sort_keys=True)})

    @classmethod
    def decode(cls, data: bytes) -> "Start":
        """Decode and check the bytes of a start's file.

        Raises:
            ModelError: if the bytes are not a start.
        """
        try:
            content = read_safetensors_metadata(data, _METADATA_KEY)
            layout, layers = None, ""
            if content["format"] == FORMAT_WITHOUT_LAYOUT:
                weights_hash = bytes.fromhex(content["weights_hash"])
            elif content["format"] == FORMAT:
                layout = Layout.from_json(content["layout"])
                layers = str(content["layers"])
                weights_hash = layout.weights_hash
            else:
                raise ValueError(f"format {content['format']!r}")
            model_id = bytes.fromhex(content["model_id"])
            tensors = load(data)
            if set(tensors) != {_TENSOR} or {len(model_id), len(weights_hash)} != {32}:
                raise ValueError(f"tensors {', '.join(sorted(tensors))}")
            values = tensors[_TENSOR]
            if values.dtype != np.int64 or values.ndim != 1 or not 1 <= len(values) <= MAX_ELEMENTS:
                raise ValueError(f"{values.dtype} {values.shape}")
            if np.any((values >= START_LIMIT) | (values <= -START_LIMIT)):
                raise ValueError("a number out of its range")
        except (
            ValueError,
            KeyError,
            TypeError,
            RecursionError,
            SafetensorError,
            SamaraError,
        ) as error:
            raise ModelError(f"not a start: {error}; write it with samara tune") from error
        return cls(model_id, weights_hash, values, layout, layers)

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the start's file, in hexadecimal."""
        return hashlib.sha256(self.encode()).hexdigest()

    def check_origin(self, layout: Layout, model_id: bytes) -> None:
        """Check that the start belongs to this model and adapter.

        Args:
            layout: layout of the adapter.
            model_id: model id of the base model, 32 bytes.

        Raises:
            ModelError: naming the differences.
        """
        for name, origin, expected in (
            ("model", self.model_id, model_id),
            ("adapter", self.weights_hash, layout.weights_hash),
        ):
            if origin != expected:
                differences = list(_differences(self, layout)) if name == "adapter" else []
                raise ModelError(
                    f"adapter.start: the start was trained for {name} {origin.hex()[:12]}, but the "
                    f"run has {expected.hex()[:12]}{': ' if differences else ''}"
                    f"{', '.join(differences)}; {'set them here, or ' if differences else ''}"
                    "train a start with samara tune for the same model and adapter settings"
                )
        if len(self.values) != layout.element_count:
            raise ModelError(
                f"adapter.start: the file has {len(self.values):,} numbers, but the adapter of the "
                f"run has {layout.element_count:,}; create a start for the same adapter with "
                "samara tune"
            )


def _differences(start: Start, run: Layout) -> Iterator[str]:
    """Describe each setting that makes the tensors of a start differ from the tensors of a run."""
    trained = start.layout
    if trained is None:
        return
    if _tensor_names(trained) != _tensor_names(run):
        names = [" and ".join(_tensor_names(layout)) or "none" for layout in (trained, run)]
        yield (
            f"adapter.layers is {start.layers} in the start, and its tensors are {names[0]}, here "
            f"{names[1]}"
        )
    for name, of_start, of_run in (
        ("adapter.rank", trained.rank, run.rank),
        ("adapter.alpha", trained.alpha, run.alpha),
        ("adapter.seed", trained.a_seed, run.a_seed),
        ("adapter.label-bias", *(bool(own.group(LABEL_BIAS_GROUP)) for own in (trained, run))),
        ("the number of labels", _label_count(trained), _label_count(run)),
        ("adapter.damping", _describe(trained.damping), _describe(run.damping)),
    ):
        if of_start != of_run and None not in (of_start, of_run):
            yield f"{name} is {str(of_start).lower()} in the start and {str(of_run).lower()} here"


def _tensor_names(layout: Layout) -> list[str]:
    tensors = layout.group(ADAPTER_GROUP) + layout.group(READOUT_GROUP)
    return [tensor.name for tensor in tensors]


def _label_count(layout: Layout) -> int | None:
    """Return the number of labels of a layout's tensors; None if unknown."""
    for tensor in layout.group(LABEL_BIAS_GROUP):
        return tensor.rows
    for tensor in layout.group(READOUT_GROUP):
        return tensor.rows + 1
    return None


def _describe(damping: DampingRecipe | None) -> str | None:
    if damping is None:
        return None
    return f"the file {damping.sha256[:12]}" if damping.sha256 else damping.source


def _too_large() -> ModelError:
    limit = START_LIMIT >> STATE_BITS
    return ModelError(
        f"a weight of the adapter is not finite, or not below {limit:,}; lower learning-rate"
    )


def read_start(value: str, store: BlobStore | None = None) -> Start:
    """Read the start that `adapter.start` names.

    Args:
        value: a path, or ``sha256:HEX``.
        store: store in which hashes are looked up; this machine's by default.

    Raises:
        ConfigError: if there is no such file.
        MissingBlobError: if the store lacks the blob.
        ModelError: if the file cannot be read, or is not a start.
    """
    path = resolve_blob(value, store or BlobStore(), "adapter.start")
    try:
        if path.stat().st_size > MAX_BLOB_BYTES:
            raise ModelError(f"larger than {MAX_BLOB_BYTES:,} bytes")
        data = path.read_bytes()
        start = Start.decode(data)
        if start.encode() != data:
            raise ModelError("not a start written by samara tune; train a start again")
    except OSError as error:
        raise ModelError(f"adapter.start: {path}: cannot be read: {error.strerror}") from error
    except ModelError as error:
        raise ModelError(f"adapter.start: {path}: {error}") from error
    return start
