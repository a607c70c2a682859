"""The informed basis of an adapter: B = U·θ with few coordinates θ, and the file that holds U.

U has k columns, the basis vectors, of d numbers each. They are int8 with one integer scale per
vector, so that B is a function of θ in exact integers (docs/decisions/0016-the-basis.md). The file
is safetensors with two tensors, ``vectors`` int8 [k, d] and ``scales`` int32 [k], and says which
model and which adapter it belongs to.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from samara.shared.blob_store import BlobStore
from samara.shared.blobs import resolve_blob
from samara.shared.errors import ConfigError, ModelError, ReplayError
from samara.shared.files import read_safetensors_metadata
from samara.shared.layout import MAX_BASIS_SIZE, BasisReference
from samara.shared.replay import STATE_BITS

FORMAT = "samara basis 1"
SCALE_BITS = 16
"""A scale's unit is 2⁻¹⁶."""
ROUNDED_BITS = 22
"""The last bits of a coordinate, which are rounded off before it is multiplied."""
MAX_ROW_SUM = 2**23 - 1
"""The largest Σ|u|·scale of an element of B: it bounds the lift of any state below 2⁶³."""
MAX_BYTES = 2**28
"""The most bytes of a file."""
_METADATA_KEY = "samara"
_LIFT_UNIT_BITS = STATE_BITS - ROUNDED_BITS + SCALE_BITS
_AT_ONCE = 2**14


@dataclass(frozen=True)
class BasisOrigin:
    """The model and adapter that a basis belongs to, and how it was measured.

    Attributes:
        model_id: model id (hex) of the base model.
        adapter_hash: `Layout.adapter_hash` (hex) of the adapter.
        task: name of the task whose prompts were around the texts.
        source: origin of the texts: ``random-tokens`` or ``file``.
        texts: number of texts.
        share: share of squared gradients that the basis catches on probe texts, 0 to 1.
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
        origin: model, adapter and measurement that it belongs to.
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
        """Make a basis from float vectors [k, d], each rounded to int8 by its largest number.

        Raises:
            ModelError: if a vector is zero or not finite, or too few elements carry the basis.
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
        """Make a basis and the bytes of its file."""
        metadata = {_METADATA_KEY: json.dumps({"format": FORMAT} | asdict(origin))}
        return cls(origin, vectors, scales, save({"vectors": vectors, "scales": scales}, metadata))

    def with_share(self, share: float) -> "Basis":
        """Return the same basis with the share that was measured."""
        return Basis.of(replace(self.origin, share=share), self.vectors, self.scales)

    @cached_property
    def reference(self) -> BasisReference:
        """The reference to this basis in a layout."""
        return BasisReference(hashlib.sha256(self.encoded).hexdigest(), len(self.scales))

    @classmethod
    def decode(cls, data: bytes) -> "Basis":
        """Read the bytes of a basis's file; every number is checked.

        Raises:
            ModelError: if they are no basis, or one that no state could be multiplied with.
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
        """The number of elements of B that the basis gives, d."""
        return int(self.vectors.shape[1])

    def lift(self, theta: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return B = U·θ in the units of a state, int64 [d], the same bits on every machine.

        A coordinate is first rounded half to even to a multiple of 2²² units (2⁻²⁹). It is then at
        most 2⁴⁰ in absolute value, and with `MAX_ROW_SUM` no sum of products reaches 2⁶³.

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
                "the coordinates leave the range of the adapter (±2,048); lower learning-rate"
            )
        return lifted << np.int64(STATE_BITS - _LIFT_UNIT_BITS)

    def elements(self, state: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the elements of all tensors under a state, whose coordinates come first.

        Raises:
            ReplayError: if an element leaves the range of a state.
        """
        size = len(self.scales)
        return np.concatenate([self.lift(state[:size]), state[size:]])

    def as_float32(self) -> NDArray[np.float32]:
        """Return the basis vectors, float32 [k, d]; a direction in B is z·U."""
        scales = np.ldexp(self.scales.astype(np.float32), -SCALE_BITS)
        vectors: NDArray[np.float32] = self.vectors.astype(np.float32) * scales[:, None]
        return vectors

    def _check_row_sums(self) -> None:
        """Raise an error if the lift of a state could overflow."""
        for start in range(0, self.element_count, _AT_ONCE):
            some = np.abs(self.vectors[:, start : start + _AT_ONCE].astype(np.int64))
            if int((self.scales.astype(np.int64) @ some).max()) > MAX_ROW_SUM:
                raise ModelError(
                    "the basis has an element that too much of it falls on; adapt more elements "
                    "(adapter.layers, adapter.rank), or leave adapter.basis empty"
                )


def read_basis(setting: str) -> Basis:
    """Read the basis that `adapter.basis` names.

    Args:
        setting: path of a file, or ``sha256:HEX`` of a blob in this machine's store.

    Raises:
        MissingBlobError: if the store lacks the blob.
        ModelError: if it cannot be read, or is no basis.
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
    """Return the origin that the header of a safetensors file holds.

    Raises:
        ValueError, KeyError, TypeError: if there is none.
    """
    content = read_safetensors_metadata(data, _METADATA_KEY)
    if content.pop("format") != FORMAT:
        raise ValueError(f"another format than {FORMAT!r}")
    origin = BasisOrigin(**content)
    for name, kind in BasisOrigin.__annotations__.items():
        if not isinstance(getattr(origin, name), kind):
            raise ValueError(f"{name} is no {kind.__name__}")
    return origin


def _round_half_even(numbers: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    """Return numbers / 2^bits, rounded half to even, int64."""
    floor = numbers >> np.int64(bits)
    rest, half = numbers & np.int64(2**bits - 1), np.int64(2 ** (bits - 1))
    rounded: NDArray[np.int64] = floor + (
        (rest > half) | ((rest == half) & (floor & np.int64(1) == 1))
    )
    return rounded
