"""The vector report: the frame in which a client uploads a round clipped as a whole."""

import struct
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from shared.client_index import check_client_index
from shared.errors import FrameError
from shared.frames.report import Report
from shared.privacy.vector import OTHERS, encode_vector, is_within_sensitivity
from shared.wire import MAX_SCALARS, Kind, Reader, pack, unpack


@dataclass(frozen=True, eq=False)
class VectorReport:
    """A client's report on a round of a run with differential privacy.

    It has no number of examples, and its norm is bounded: nothing else in it tells of the client.

    Attributes:
        token: token of the instruction that it answers, 8 bytes.
        client: client index.
        vector: int32 [K · q + 3], of a norm of at most `shared.privacy.vector.SENSITIVITY`.
    """

    token: bytes
    client: int
    vector: NDArray[np.int32]

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<8sII")

    @classmethod
    def of(cls, report: Report, clip: float) -> Self:
        """Return a report clipped as a whole.

        Args:
            report: report of all K steps.
            clip: largest norm of its projected gradients.
        """
        vector = encode_vector(report.gradients, report.mean_loss, report.curvature, clip)
        return cls(report.token, report.client, vector)

    @property
    def scalars(self) -> int:
        """The number of projected gradients in the vector."""
        return len(self.vector) - OTHERS

    def encode(self) -> bytes:
        """Return the report as a frame."""
        fields = self._FIELDS.pack(self.token, self.client, len(self.vector))
        return pack(Kind.VECTOR_REPORT, fields + self.vector.astype("<i4").tobytes())

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Read a report.

        Raises:
            FrameError: if the frame is not a sound report, or longer than the sensitivity.
        """
        reader = Reader(unpack(frame, Kind.VECTOR_REPORT))
        token, client, count = reader.fields(cls._FIELDS)
        if not OTHERS < count <= MAX_SCALARS + OTHERS:
            raise FrameError(f"a vector report of {count} numbers is out of range")
        vector = reader.array("<i4", count)
        reader.end()
        check_client_index(client)
        if not is_within_sensitivity(vector):
            raise FrameError(f"the vector of client {client} is longer than it may be")
        return cls(token, client, vector)
