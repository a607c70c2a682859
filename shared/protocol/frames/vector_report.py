"""Vector reports: frames with a client's report as one vector that is clipped as a whole."""

import struct
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import FrameError
from samara.shared.privacy.discrete_gaussian import Noise, sample_noise
from samara.shared.privacy.vector import (
    NOISED_LIMIT,
    OTHERS,
    add_noise,
    curvature_root,
    encode_vector,
    is_within_sensitivity,
)
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.wire import MAX_SCALARS, Kind, Reader, check_client_index, pack, unpack

_FIELDS = struct.Struct("<8sII")


@dataclass(frozen=True, eq=False)
class VectorReport:
    """A client's report in a run in which the server adds the noise.

    Unlike a `Report`, the frame does not state the number of examples. Besides token and client
    index it holds only a vector of bounded norm.

    Attributes:
        token: token of the answered instruction, 8 bytes.
        client: client index.
        vector: int32 [K · q + 3 or 4], with a norm of at most
            `samara.shared.privacy.vector.SENSITIVITY`.
    """

    token: bytes
    client: int
    vector: NDArray[np.int32]

    KIND: ClassVar = Kind.VECTOR_REPORT

    @classmethod
    def of(cls, report: Report, clip: float, has_indicator: bool = False) -> Self:
        """Convert a report to a vector; gradients with a norm above `clip` are scaled down to it.

        Args:
            report: report of all K steps.
            clip: largest norm of its projected gradients.
            has_indicator: whether to include the indicator.
        """
        loss, curvature = report.mean_loss, report.curvature
        vector = encode_vector(report.gradients, loss, curvature, clip, has_indicator)
        return cls(report.token, report.client, vector)

    def encode(self) -> bytes:
        """Encode the vector report as a frame."""
        return _encode(self.KIND, self.token, self.client, self.vector.astype("<i4"))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Decode a vector report from a frame.

        Raises:
            FrameError: if the frame is not a valid report, or its norm exceeds the sensitivity.
        """
        token, client, vector = _decode(frame, cls.KIND, "<i4")
        if not is_within_sensitivity(vector):
            raise FrameError(f"the vector of client {client} exceeds the limit of its norm")
        return cls(token, client, vector)


@dataclass(frozen=True, eq=False)
class NoisedVectorReport:
    """A client's report in a run in which clients add the noise.

    Attributes:
        token: token of the answered instruction, 8 bytes.
        client: client index.
        vector: int64 [K · q + 3 or 4], limited to ±`samara.shared.privacy.vector.NOISED_LIMIT`.
    """

    token: bytes
    client: int
    vector: NDArray[np.int64]

    KIND: ClassVar = Kind.NOISED_VECTOR_REPORT

    @classmethod
    def of(cls, report: VectorReport, sigma: int, noise: Noise = sample_noise) -> Self:
        """Add the client's noise to a clipped report.

        Args:
            report: report clipped as a whole.
            sigma: σ of the discrete Gaussian noise on every number.
            noise: source of noise; the operating system's randomness by default.
        """
        return cls(report.token, report.client, add_noise(report.vector, sigma, noise))

    def encode(self) -> bytes:
        """Encode the noised vector report as a frame."""
        return _encode(self.KIND, self.token, self.client, self.vector.astype("<i8"))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Decode a noised vector report from a frame.

        Raises:
            FrameError: if the frame is not a valid report, or a number is out of range.
        """
        token, client, vector = _decode(frame, cls.KIND, "<i8")
        if vector.min() < -NOISED_LIMIT or vector.max() > NOISED_LIMIT:
            raise FrameError(f"a number in the vector of client {client} is out of its range")
        return cls(token, client, vector)


@dataclass(frozen=True, eq=False)
class MaskedReport:
    """A client's masked report in a run with secure aggregation.

    Attributes:
        token: token of the answered instruction, 8 bytes.
        client: client index.
        vector: uint64 [K · q + 3 or 4], modulo 2⁶⁴.
    """

    token: bytes
    client: int
    vector: NDArray[np.uint64]

    KIND: ClassVar = Kind.MASKED_REPORT

    def encode(self) -> bytes:
        """Encode the masked report as a frame."""
        return _encode(self.KIND, self.token, self.client, self.vector.astype("<u8"))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Decode a masked report from a frame.

        Raises:
            FrameError: if the frame is not a masked report. Masked numbers cannot be checked.
        """
        return cls(*_decode(frame, cls.KIND, "<u8"))


AnyVectorReport = VectorReport | NoisedVectorReport


def hide_report(
    report: Report,
    clip: float,
    sigma: int,
    noise: Noise = sample_noise,
    has_indicator: bool = False,
) -> AnyVectorReport:
    """Clip a report as a whole, and add noise unless the server adds it.

    The resulting vector holds the `curvature_root` of the curvature.

    Args:
        report: report of all K steps.
        clip: largest norm of its projected gradients.
        sigma: σ of the noise on every number; 0 if the server adds it.
        noise: source of noise; the operating system's randomness by default.
        has_indicator: whether to include the indicator.
    """
    if report.curvature is not None:
        report = replace(report, curvature=curvature_root(report.curvature))
    vector = VectorReport.of(report, clip, has_indicator)
    return NoisedVectorReport.of(vector, sigma, noise) if sigma else vector


def _encode(kind: Kind, token: bytes, client: int, vector: NDArray[Any]) -> bytes:
    return pack(kind, _FIELDS.pack(token, client, len(vector)) + vector.tobytes())


def _decode(frame: bytes, kind: Kind, dtype: str) -> tuple[bytes, int, NDArray[Any]]:
    """Read token, client and numbers.

    Raises:
        FrameError: if the frame is of another kind, or one of the fields is invalid.
    """
    reader = Reader(unpack(frame, kind))
    token, client, count = reader.fields(_FIELDS)
    if not OTHERS < count <= MAX_SCALARS + OTHERS + 1:
        raise FrameError(f"a vector report of {count} numbers is out of range")
    vector = reader.array(dtype, count)
    reader.end()
    check_client_index(client)
    return token, client, vector
