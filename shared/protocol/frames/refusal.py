"""The refusal: the frame in which a client declines an instruction, by a code and two numbers."""

import struct
from dataclasses import dataclass
from typing import ClassVar, Self

from samara.shared.errors import RefusalCode, SamaraError
from samara.shared.protocol.wire import Kind, Reader, check_client_index, pack, unpack

_SENTENCES: dict[int, str] = {
    RefusalCode.UNKNOWN: "it cannot carry out the instruction",
    RefusalCode.SETTINGS: "it cannot use the run's settings",
    RefusalCode.DATA: "its data cannot be used",
    RefusalCode.TASK: "the task does not fit its model",
    RefusalCode.MODEL: "its model cannot be used",
    RefusalCode.FRAME: "it received a damaged or unexpected frame",
    RefusalCode.RANGE: "coefficients do not fit the exact range of its state",
    RefusalCode.FILE: "one of its files is damaged, belongs to another run, or is in use",
    RefusalCode.CATCH_UP: "it cannot catch up",
    RefusalCode.LAYOUT: "its layout is not the run's",
    RefusalCode.TRAINING: "a step of its training failed",
    RefusalCode.TRAINER: "its resident trainer cannot be reached",
    RefusalCode.DEVICE: "its device cannot take part",
    RefusalCode.PAUSED: "it is paused by its owner's limits",
    RefusalCode.CODE: "its version of Samara lacks a feature that the server asks for",
    RefusalCode.MISSING_BLOB: "it lacks a file that the run needs",
    RefusalCode.SCALARS: "it has sent as many scalars about its examples as its owner allows",
    RefusalCode.SCENARIO: "no scenario signed by the operator covers the server's request",
    RefusalCode.BATCH: "an answer would use fewer of its examples than its owner allows",
    RefusalCode.EVALUATION: "it does not evaluate training examples, and evaluates its personal "
    "model only once in a run",
    RefusalCode.KEY: "its key is not valid in this run",
    RefusalCode.INDEX: "another node is the same client",
    RefusalCode.REVOKED: "its key was revoked",
    RefusalCode.BUDGET: "its owner's privacy budget does not allow the round",
    RefusalCode.MASKING: "a request for secure aggregation, a key or a share is invalid",
    RefusalCode.DISK: "its disk refuses writes",
    RefusalCode.HIDDEN: "it gives no reason, because the run has differential privacy",
}
_SENTENCES_WITH_NUMBERS: dict[int, str] = {
    RefusalCode.CATCH_UP: "it cannot catch up to the end of round {0}: it reached round {1}",
    RefusalCode.LAYOUT: "its layout {0:08x} is not the run's {1:08x}",
    RefusalCode.TRAINING: "its local step {0} failed",
    RefusalCode.DISK: "its disk refuses writes (problem {0})",
    RefusalCode.MISSING_BLOB: "it lacks blob {0:08x} of the run, of which it has {1} bytes",
    RefusalCode.SCALARS: "its owner's limit leaves {1} scalars, and the instruction asks for {0}",
    RefusalCode.BATCH: "an answer would use {0} of its examples, and its owner allows no "
    "fewer than {1}",
}
_DISK_SENTENCES: dict[int, str] = {
    1: "its disk is full: no space left on device",
    2: "its disk quota is exceeded",
    3: "one of its files exceeds the size limit of its system",
    4: "its disk can only be read",
    5: "its disk fails: input/output error",
}

_BY_THE_SERVER: dict[int, str] = {
    RefusalCode.SETTINGS: "the run's settings exclude this client; ask the operator",
    RefusalCode.MODEL: "this client's base model is not the run's; set --model to the run's",
    RefusalCode.FRAME: "this client's hello cannot be read; install the server's version of Samara",
    RefusalCode.LAYOUT: "this client's layout is not the run's; set --model, --task and the "
    "adapter settings to those of the run",
    RefusalCode.MISSING_BLOB: "the server lacks the file that this client needs, or has already "
    "sent too many parts of it; ask the operator",
    RefusalCode.KEY: "this client's key is not registered in this run, was revoked, or is another "
    "client's; ask the operator for a key (samara server keys create)",
    RefusalCode.INDEX: "another node is connected as the same client; stop that node, or give this "
    "client its own key",
    RefusalCode.REVOKED: "this client's key was revoked; ask the operator to register another one "
    "(samara server keys)",
}


def describe_servers_refusal(code: int) -> str:
    """Return the reason for a server's refusal as a sentence for the client's log."""
    reason = _BY_THE_SERVER.get(code, "the reason is in the server's log; ask the operator")
    return f"the server refuses this client: {reason} (code {code})"


def describe_refusal(code: int, numbers: tuple[int, int]) -> str:
    """Return a refusal's reason as a sentence for a server's log and result.

    The sentence shows the number of an unknown code.
    """
    sentence = _SENTENCES.get(code, _SENTENCES[RefusalCode.UNKNOWN])
    if code == RefusalCode.DISK and numbers[0] in _DISK_SENTENCES:
        sentence = _DISK_SENTENCES[numbers[0]]
    elif any(numbers):
        sentence = _SENTENCES_WITH_NUMBERS.get(code, sentence).format(*numbers)
    return f"{sentence} (code {code}); the reason is in the client's own log"


@dataclass(frozen=True)
class Refusal:
    """A client's refusal to carry out an instruction.

    A refusal holds no text, because an error message may name paths or quote the client's data.

    Attributes:
        token: token of the refused instruction, 8 bytes.
        client: client index.
        round: last round in the client's state, so that the server can send missing records.
        code: a `RefusalCode`, or the number of a code that only a newer version knows.
        numbers: two numbers that belong to the code (docs/reference/wire.md), uint32 each.
    """

    token: bytes
    client: int
    round: int
    code: int
    numbers: tuple[int, int] = (0, 0)

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<8sIIHII")

    @classmethod
    def of_error(cls, token: bytes, client: int, round_number: int, error: SamaraError) -> Self:
        """Return the refusal that reports an error by its code and numbers, without its message."""
        return cls(token, client, round_number, error.refusal_code, error.numbers)

    @property
    def description(self) -> str:
        """The refusal as a sentence about the client, for a server's log and result."""
        return describe_refusal(self.code, self.numbers)

    def encode(self) -> bytes:
        """Encode the refusal as a frame."""
        fields = self._FIELDS.pack(self.token, self.client, self.round, self.code, *self.numbers)
        return pack(Kind.REFUSAL, fields)

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Decode a refusal from a frame.

        Raises:
            FrameError: if the frame is not a valid refusal.
        """
        reader = Reader(unpack(frame, Kind.REFUSAL))
        token, client, last_round, code, *numbers = reader.fields(cls._FIELDS)
        reader.end()
        check_client_index(client)
        return cls(token, client, last_round, code, (numbers[0], numbers[1]))
