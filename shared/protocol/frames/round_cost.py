"""The round cost: the frame in which a client states the time and energy that a report took.

A client sends it beside the report, if the device's owner allows it. Training does not use it.
"""

import struct
from dataclasses import dataclass
from typing import ClassVar, Self

from samara.shared.errors import FrameError
from samara.shared.protocol.wire import Kind, Reader, check_client_index, pack, unpack

MAX_COST_SECONDS = 1e7
MAX_COST_JOULES = 1e9
"""Largest duration in seconds and largest energy in joules that a valid round cost may state."""


@dataclass(frozen=True)
class RoundCost:
    """The cost of answering a train instruction.

    Attributes:
        token: token of the instruction, 8 bytes.
        client: client index.
        seconds: duration of the work on the answer in seconds, pauses included, a float32.
        paused: total duration of the pauses in seconds, a float32.
        joules: energy of the whole machine during that time, a float32; 0 if not measured.
    """

    token: bytes
    client: int
    seconds: float
    paused: float
    joules: float

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<8sIfff")

    def encode(self) -> bytes:
        """Encode the round cost as a frame."""
        numbers = self.seconds, self.paused, self.joules
        return pack(Kind.ROUND_COST, self._FIELDS.pack(self.token, self.client, *numbers))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Decode a round cost from a frame.

        Raises:
            FrameError: if the frame is not a valid round cost, or a number in it is out of range.
        """
        reader = Reader(unpack(frame, Kind.ROUND_COST))
        cost = cls(*reader.fields(cls._FIELDS))
        reader.end()
        check_client_index(cost.client)
        if not (
            0 <= cost.paused <= cost.seconds <= MAX_COST_SECONDS
            and 0 <= cost.joules <= MAX_COST_JOULES
        ):
            raise FrameError(f"the cost of client {cost.client} is out of range")
        return cost
