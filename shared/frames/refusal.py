"""The refusal: the frame with which a client declines an instruction."""

import struct
from dataclasses import dataclass
from typing import ClassVar, Self

from shared.wire import Kind, Reader, pack, text_bytes, unpack


@dataclass(frozen=True)
class Refusal:
    """Why a client does not do what it was asked.

    Attributes:
        token: of the instruction it answers, 8 bytes.
        client: client index.
        round: the last round in the client's state, so that the server can send what is missing.
        reason: for the operator.
    """

    token: bytes
    client: int
    round: int
    reason: str

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<8sII")

    def encode(self) -> bytes:
        """The refusal as a frame."""
        fields = self._FIELDS.pack(self.token, self.client, self.round)
        return pack(Kind.REFUSAL, fields + text_bytes(self.reason))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Read a refusal.

        Raises:
            FrameError: if the frame is not a sound refusal.
        """
        reader = Reader(unpack(frame, Kind.REFUSAL))
        token, client, last_round = reader.fields(cls._FIELDS)
        refusal = cls(token, client, last_round, reader.text())
        reader.end()
        return refusal
