"""Vector reports: the frames in which a client uploads a round clipped as a whole."""

import struct
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import FrameError
from samara.shared.frames.report import Report
from samara.shared.privacy.discrete_gaussian import Noise, sample_noise
from samara.shared.privacy.vector import (
    NOISED_LIMIT,
    OTHERS,
    add_noise,
    curvature_root,
    encode_vector,
    is_within_sensitivity,
)
from samara.shared.wire import MAX_SCALARS, Kind, Reader, check_client_index, pack, unpack

_FIELDS = struct.Struct("<8sII")


@dataclass(frozen=True, eq=False)
class VectorReport:
    """A client's report on a round of a run in which the server adds the noise.

    It has no number of examples, and its norm is bounded: nothing else in it tells of the client.

    Attributes:
        token: token of the instruction that it answers, 8 bytes.
        client: client index.
        vector: int32 [K · q + 3 or 4], of a norm of at most
        `samara.shared.privacy.vector.SENSITIVITY`.
    """

    token: bytes
    client: int
    vector: NDArray[np.int32]

    KIND: ClassVar = Kind.VECTOR_REPORT

    @classmethod
    def of(cls, report: Report, clip: float, has_indicator: bool = False) -> Self:
        """Return a report clipped as a whole.

        Args:
            report: report of all K steps.
            clip: largest norm of its projected gradients.
            has_indicator: whether it says if their norm is within the clip.
        """
        loss, curvature = report.mean_loss, report.curvature
        vector = encode_vector(report.gradients, loss, curvature, clip, has_indicator)
        return cls(report.token, report.client, vector)

    def encode(self) -> bytes:
        """Return the report as a frame."""
        return _encode(self.KIND, self.token, self.client, self.vector.astype("<i4"))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Read a report.

        Raises:
            FrameError: if the frame is not a sound report, or longer than the sensitivity.
        """
        token, client, vector = _decode(frame, cls.KIND, "<i4")
        if not is_within_sensitivity(vector):
            raise FrameError(f"the vector of client {client} is longer than it may be")
        return cls(token, client, vector)


@dataclass(frozen=True, eq=False)
class NoisedVectorReport:
    """A client's report on a round of a run in which clients add the noise.

    Attributes:
        token: token of the instruction that it answers, 8 bytes.
        client: client index.
        vector: int64 [K · q + 3 or 4], of which none is farther from 0 than
            `samara.shared.privacy.vector.NOISED_LIMIT`.
    """

    token: bytes
    client: int
    vector: NDArray[np.int64]

    KIND: ClassVar = Kind.NOISED_VECTOR_REPORT

    @classmethod
    def of(cls, report: VectorReport, sigma: int, noise: Noise = sample_noise) -> Self:
        """Return a report with noise of the client's own.

        Args:
            report: report clipped as a whole.
            sigma: σ of the discrete Gaussian noise on every number.
            noise: source of noise; the operating system's randomness by default.
        """
        return cls(report.token, report.client, add_noise(report.vector, sigma, noise))

    def encode(self) -> bytes:
        """Return the report as a frame."""
        return _encode(self.KIND, self.token, self.client, self.vector.astype("<i8"))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Read a report.

        Raises:
            FrameError: if the frame is not a sound report, or a number is out of its range.
        """
        token, client, vector = _decode(frame, cls.KIND, "<i8")
        if vector.min() < -NOISED_LIMIT or vector.max() > NOISED_LIMIT:
            raise FrameError(f"a number in the vector of client {client} is out of its range")
        return cls(token, client, vector)


@dataclass(frozen=True, eq=False)
class MaskedReport:
    """A client's report on a round of a run with secure aggregation, under masks.

    Attributes:
        token: token of the instruction that it answers, 8 bytes.
        client: client index.
        vector: uint64 [K · q + 3 or 4], modulo 2⁶⁴.
    """

    token: bytes
    client: int
    vector: NDArray[np.uint64]

    KIND: ClassVar = Kind.MASKED_REPORT

    def encode(self) -> bytes:
        """Return the report as a frame."""
        return _encode(self.KIND, self.token, self.client, self.vector.astype("<u8"))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Read a report.

        Raises:
            FrameError: if the frame is not a sound report; nothing else can be known of it.
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
    """Return a report clipped as a whole, with noise of the client's own where it adds some.

    In the place of the curvature it has the `curvature_root`.

    Args:
        report: report of all K steps.
        clip: largest norm of its projected gradients.
        sigma: σ of the noise on every number; 0 if the server adds it.
        noise: source of noise; the operating system's randomness by default.
        has_indicator: whether it says if their norm is within the clip.
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
        FrameError: if the frame is not of the kind, or one of them is not sound.
    """
    reader = Reader(unpack(frame, kind))
    token, client, count = reader.fields(_FIELDS)
    if not OTHERS < count <= MAX_SCALARS + OTHERS + 1:
        raise FrameError(f"a vector report of {count} numbers is out of range")
    vector = reader.array(dtype, count)
    reader.end()
    check_client_index(client)
    return token, client, vector
