"""The report: the frame in which a client uploads its projected gradients."""

import struct
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import FrameError
from samara.shared.protocol.wire import MAX_SCALARS, Kind, Reader, check_client_index, pack, unpack

MAX_GRADIENT = 1e6
"""Largest absolute value of a projected gradient or mean loss; reports with larger values are
refused.
"""
MAX_CURVATURE = 1e12
"""Largest absolute value of the curvature; reports with larger values are refused."""


@dataclass(frozen=True, eq=False)
class Report:
    """A client's report for a round: 32 bytes plus 4 bytes per projected gradient.

    Attributes:
        token: token of the answered instruction, 8 bytes.
        client: client index.
        examples: number of the client's training examples.
        mean_loss: loss near the round's start. If every batch holds all of the client's examples,
            the mean is over the first step's perturbations. Otherwise the mean is over the
            perturbations of all steps that began within `samara.shared.protocol.step_size.REACH` of
            the start.
        gradients: projected gradients, float32 [K, q]. With a pool, one sum per used seed in order
            of first use, float32 [n] (`TrainInstruction.sums`).
        summed_steps: K if the gradients are sums, 0 otherwise.
        curvature: float32 mean of (L₊ + L₋ − 2·L₀)/ε² over the directions of the steps that
            computed L₀; None without such steps.
    """

    token: bytes
    client: int
    examples: int
    mean_loss: float
    gradients: NDArray[np.float32]
    summed_steps: int = 0
    curvature: float | None = None

    _CURVATURE: ClassVar[struct.Struct] = struct.Struct("<f")
    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<8sIIHHf")
    _SUMMED_FIELDS: ClassVar[struct.Struct] = struct.Struct("<8sIIHfI")

    @property
    def steps(self) -> int:
        """The number of local steps that the client took."""
        return self.summed_steps or len(self.gradients)

    def encode(self) -> bytes:
        """Encode the report as a frame."""
        curvature = b""
        if self.curvature is not None:  # a value beyond the limit is left to the server to refuse
            within = np.clip(self.curvature, -2 * MAX_CURVATURE, 2 * MAX_CURVATURE)
            curvature = self._CURVATURE.pack(within)
        if self.summed_steps:
            fields = self._SUMMED_FIELDS.pack(
                *(self.token, self.client, self.examples),
                *(self.summed_steps, self.mean_loss, len(self.gradients)),
            )
            sums = self.gradients.astype("<f4").tobytes()
            return pack(Kind.REPORT_OF_SUMS, fields + sums + curvature)
        steps, queries = self.gradients.shape
        fields = self._FIELDS.pack(
            self.token, self.client, self.examples, steps, queries, self.mean_loss
        )
        gradients = self.gradients.astype("<f4").tobytes()
        return pack(Kind.REPORT, fields + gradients + curvature)

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Decode a report from a frame.

        Raises:
            FrameError: if the frame is not a valid report, or a number in it is not finite or
                exceeds `MAX_GRADIENT`.
        """
        body = unpack(frame, Kind.REPORT, Kind.REPORT_OF_SUMS)
        reader = Reader(body)
        shape: tuple[int, ...]
        summed_steps = 0
        if frame[3] == Kind.REPORT_OF_SUMS:
            token, client, examples, summed_steps, mean_loss, count = reader.fields(
                cls._SUMMED_FIELDS
            )
            shape = (count,)
            sound = summed_steps >= 1 and 1 <= count <= MAX_SCALARS
        else:
            token, client, examples, steps, queries, mean_loss = reader.fields(cls._FIELDS)
            shape = (steps, queries)
            count = steps * queries
            sound = 1 <= count <= MAX_SCALARS
        if not sound:
            raise FrameError(f"a report of {count} scalars is out of range")
        gradients = reader.array("<f4", count).reshape(shape)
        (curvature,) = reader.fields(cls._CURVATURE) if reader.left else (None,)
        reader.end()
        check_client_index(client)
        if not (abs(mean_loss) <= MAX_GRADIENT and np.all(np.abs(gradients) <= MAX_GRADIENT)):
            raise FrameError(
                f"a projected gradient or the loss of client {client} is not finite, or "
                f"is over {MAX_GRADIENT:g}"
            )
        if curvature is not None and not abs(curvature) <= MAX_CURVATURE:
            raise FrameError(
                f"the curvature of client {client} is not finite, or is over {MAX_CURVATURE:g}"
            )
        return cls(token, client, examples, mean_loss, gradients, summed_steps, curvature)
