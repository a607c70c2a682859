"""The informed basis of an adapter: B = U·θ with few coordinates θ, and the file that holds U.

U has k columns, the basis vectors, of d numbers each. They are int8 with one integer scale per
vector, so that B is computed from θ in exact integers (docs/decisions/0016-the-basis.md). The file
is safetensors with two tensors, ``vectors`` int8 [k, d] and ``scales`` int32 [k]. Its header names
the model and the adapter of the basis.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from samara.shared.errors import ConfigError, ModelError, ReplayError
from samara.shared.protocol.layout import MAX_BASIS_SIZE, BasisReference
from samara.shared.protocol.replay import STATE_BITS
from samara.shared.storage.blob_store import BlobStore, resolve_blob
from samara.shared.storage.files import read_safetensors_metadata

FORMAT = "samara basis 1"
SCALE_BITS = 16
"""Fractional bits of a scale: its unit is 2⁻¹⁶."""
ROUNDED_BITS = 22
"""Number of low bits of a coordinate that `Basis.lift` rounds away before the product."""
MAX_ROW_SUM = 2**23 - 1
"""Largest Σ|u|·scale over the vectors for an element of B; larger sums could overflow in a lift."""
MAX_BYTES = 2**28
"""Largest size of a basis file in bytes."""
_METADATA_KEY = "samara"
_LIFT_UNIT_BITS = STATE_BITS - ROUNDED_BITS + SCALE_BITS
_AT_ONCE = 2**14


@dataclass(frozen=True)
class BasisOrigin:
    """The model and adapter that a basis belongs to, and how it was measured.

    Attributes:
        model_id: model id (hex) of the base model.
        adapter_hash: `Layout.adapter_hash` (hex) of the adapter.
        task: name of the task in whose prompts the texts were measured.
        source: origin of the texts: ``random-tokens`` or ``file``.
        texts: number of texts.
        share: fraction of the squared gradient norm that lies in the span of the basis, from 0 to
            1, measured on probe texts.
    """

    model_id: str
    adapter_hash: str
    task: str
    source: str
    texts: int
    share: float


@dataclass(frozen=True, eq=False)
class Basis:
    """An informed basis U.

    Attributes:
        origin: model and adapter of the basis, and its measurement.
        vectors: basis vectors in units of their scales, int8 [k, d].
        scales: scale of each vector in units of 2⁻¹⁶, int32 [k].
        encoded: bytes of the basis's file.
    """

    origin: BasisOrigin
    vectors: NDArray[np.int8]
    scales: NDArray[np.int32]
    encoded: bytes

    @classmethod
    def quantize(cls, origin: BasisOrigin, vectors: NDArray[np.float64]) -> "Basis":
        """Create a basis from float vectors [k, d], each scaled by its largest number to int8.

        Raises:
            ModelError: if a vector is zero or not finite, or the lift of a state could overflow.
        """
        peaks = np.abs(vectors).max(axis=1)
        if not np.all(np.isfinite(peaks) & (peaks > 0)):
            raise ModelError("the basis has a vector that is zero or not finite")
        scales = np.clip(np.rint(np.ldexp(peaks / 127, SCALE_BITS)), 1, MAX_ROW_SUM)
        rounded = np.rint(np.ldexp(vectors, SCALE_BITS) / scales[:, None])
        basis = cls.of(origin, np.clip(rounded, -127, 127).astype(np.int8), scales.astype(np.int32))
        basis._check_row_sums()
        return basis

    @classmethod
    def of(
        cls, origin: BasisOrigin, vectors: NDArray[np.int8], scales: NDArray[np.int32]
    ) -> "Basis":
        """Create a basis from its parts, and encode its file."""
        metadata = {_METADATA_KEY: json.dumps({"format": FORMAT} | asdict(origin))}
        return cls(origin, vectors, scales, save({"vectors": vectors, "scales": scales}, metadata))

    def with_share(self, share: float) -> "Basis":
        """Return a copy of the basis with a measured `BasisOrigin.share`."""
        return Basis.of(replace(self.origin, share=share), self.vectors, self.scales)

    @cached_property
    def reference(self) -> BasisReference:
        """The reference to this basis in a layout."""
        return BasisReference(hashlib.sha256(self.encoded).hexdigest(), len(self.scales))

    @classmethod
    def decode(cls, data: bytes) -> "Basis":
        """Decode and check the bytes of a basis file.

        Raises:
            ModelError: if the bytes are not a basis, or the lift of a state could overflow.
        """
        try:
            if len(data) > MAX_BYTES:
                raise ValueError(f"{len(data):,} bytes, more than {MAX_BYTES:,}")
            origin = _read_origin(data)
            tensors = load(data)
            if set(tensors) != {"vectors", "scales"}:
                raise ValueError(f"tensors {', '.join(sorted(tensors))}")
            vectors, scales = tensors["vectors"], tensors["scales"]
            if (
                (str(vectors.dtype), str(scales.dtype)) != ("int8", "int32")
                or vectors.ndim != 2
                or scales.shape != vectors.shape[:1]
                or not 1 <= len(scales) <= min(MAX_BASIS_SIZE, vectors.shape[1])
                or not np.all((scales >= 1) & (scales <= MAX_ROW_SUM))
            ):
                raise ValueError(f"vectors {vectors.dtype} {vectors.shape}, scales {scales.shape}")
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
            SafetensorError,
        ) as error:
            raise ModelError(f"not a basis: {error}; write it with samara adapter basis") from error
        basis = cls(origin, vectors, scales, data)
        basis._check_row_sums()
        return basis

    @property
    def element_count(self) -> int:
        """Number of elements of B, d."""
        return int(self.vectors.shape[1])

    def lift(self, theta: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return B = U·θ in the units of a state, int64 [d], with the same bits on every machine.

        Each coordinate is first rounded half to even to a multiple of 2²² units (2⁻²⁹). In units of
        2⁻²⁹ its absolute value is at most 2⁴⁰. `MAX_ROW_SUM` therefore keeps all sums of products
        below 2⁶³.

        Args:
            theta: coordinates, int64 [k], below 2⁶² in absolute value.

        Raises:
            ReplayError: if an element leaves the range of a state.
        """
        weights = _round_half_even(theta, ROUNDED_BITS) * self.scales
        lifted = np.empty(self.element_count, np.int64)
        for start in range(0, len(lifted), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            lifted[some] = weights @ self.vectors[:, some].astype(np.int64)
        limit = 2 ** (62 - STATE_BITS + _LIFT_UNIT_BITS)
        if np.any((lifted >= limit) | (lifted <= -limit)):
            raise ReplayError(
                "an element of the adapter is outside its range of ±2,048; lower learning-rate"
            )
        return lifted << np.int64(STATE_BITS - _LIFT_UNIT_BITS)

    def elements(self, state: NDArray[np.int64]) -> NDArray[np.int64]:
        """Lift the coordinates at the beginning of a state, and return the elements of all tensors.

        Args:
            state: k coordinates, and then the elements outside the basis, int64 [size].

        Raises:
            ReplayError: if an element leaves the range of a state.
        """
        size = len(self.scales)
        return np.concatenate([self.lift(state[:size]), state[size:]])

    def as_float32(self) -> NDArray[np.float32]:
        """Return the basis vectors as the rows of a matrix, float32 [k, d].

        A direction in the k coordinates, multiplied by this matrix, is a direction in the d
        elements.
        """
        scales = np.ldexp(self.scales.astype(np.float32), -SCALE_BITS)
        vectors: NDArray[np.float32] = self.vectors.astype(np.float32) * scales[:, None]
        return vectors

    def _check_row_sums(self) -> None:
        """Check that the lift of a state cannot overflow."""
        for start in range(0, self.element_count, _AT_ONCE):
            some = np.abs(self.vectors[:, start : start + _AT_ONCE].astype(np.int64))
            if int((self.scales.astype(np.int64) @ some).max()) > MAX_ROW_SUM:
                raise ModelError(
                    "an element of the adapter could overflow, because its numbers in the basis "
                    "vectors are too large; adapt more elements (adapter.layers, adapter.rank), or "
                    "leave adapter.basis empty"
                )


def read_basis(setting: str) -> Basis:
    """Read the basis that `adapter.basis` names.

    Args:
        setting: path of a file, or ``sha256:HEX`` of a blob in this machine's store.

    Raises:
        MissingBlobError: if the store lacks the blob.
        ModelError: if the file cannot be read or is not a basis.
    """
    try:
        path = resolve_blob(setting, BlobStore(), "adapter.basis")
        if path.stat().st_size > MAX_BYTES:
            raise ModelError(f"larger than {MAX_BYTES:,} bytes")
        return Basis.decode(path.read_bytes())
    except ConfigError as error:
        raise ModelError(f"{error}; write one with samara adapter basis") from error
    except OSError as error:
        raise ModelError(
            f"adapter.basis: {path}: cannot be read: {error.strerror}; write one with "
            "samara adapter basis"
        ) from error
    except ModelError as error:
        raise ModelError(f"adapter.basis: {path}: {error}") from error


def _read_origin(data: bytes) -> BasisOrigin:
    """Return the origin in the header of a safetensors file.

    Raises:
        ValueError, KeyError, TypeError: if the header has none.
    """
    content = read_safetensors_metadata(data, _METADATA_KEY)
    if content.pop("format") != FORMAT:
        raise ValueError(f"the format is not {FORMAT!r}")
    origin = BasisOrigin(**content)
    for name, kind in BasisOrigin.__annotations__.items():
        if not isinstance(getattr(origin, name), kind):
            raise ValueError(f"{name} is not of type {kind.__name__}")
    return origin


def _round_half_even(numbers: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    """Return numbers / 2^bits, rounded half to even, int64."""
    floor = numbers >> np.int64(bits)
    rest = numbers & np.int64(2**bits - 1)
    half = np.int64(2 ** (bits - 1))
    rounded: NDArray[np.int64] = floor + (
        (rest > half) | ((rest == half) & (floor & np.int64(1) == 1))
    )
    return rounded
