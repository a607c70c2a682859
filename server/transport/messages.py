"""Flower messages that carry one Samara frame."""

import logging
from collections.abc import Callable
from typing import TypeVar

from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from samara.shared.errors import FrameError, RefusalCode, SamaraError
from samara.shared.flower_compat import ErrorCode
from samara.shared.protocol.frames.hello import Hello
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.wire import BLOB_ACTION, COST, RECORD, Kind, kind_of

log = logging.getLogger("samara.server")

Content = TypeVar("Content", bytes, str)
Decoded = TypeVar("Decoded")
BLOB_MESSAGE = f"{MessageType.QUERY}.{BLOB_ACTION}"
"""Flower's message type for blob parts."""
LOST = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)
"""Codes of Flower's error replies for undelivered messages."""
_REPORTS = (
    Kind.REPORT,
    Kind.REPORT_OF_SUMS,
    Kind.VECTOR_REPORT,
    Kind.NOISED_VECTOR_REPORT,
    Kind.MASKED_REPORT,
)
_TOKEN = slice(8, 16)
MAX_FOREIGN_TEXT = 500
"""Maximum length of a client's text in a log or a file, in characters."""


def cut_foreign_text(text: str) -> str:
    """Return a client's text as one line of at most `MAX_FOREIGN_TEXT` printable characters.

    Every text from a client must pass through this function before it is logged or written.
    """
    line = " ".join(text[: 4 * MAX_FOREIGN_TEXT].split())
    line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= MAX_FOREIGN_TEXT else line[: MAX_FOREIGN_TEXT - 1] + "…"


def decode_foreign(decode: Callable[[Content], Decoded], content: Content) -> Decoded:
    """Decode data from a client, and turn any failure into a `SamaraError`.

    A bug in a decoder therefore does not end the run.

    Args:
        decode: the decoder.
        content: bytes or text.

    Raises:
        SamaraError: if the content cannot be decoded.
    """
    try:
        return decode(content)
    except SamaraError:
        raise
    except Exception as error:
        log.exception("a decoder failed")
        raise FrameError(f"its answer cannot be decoded: {type(error).__name__}") from error


def make_message(
    node: int, message_type: str, group: str, frame: bytes, catch_up: CatchUp, seconds: float
) -> Message:
    """Return a message to a node with a frame and the ledger records that the node lacks.

    Args:
        node: Flower's id of the node.
        message_type: Flower's message type `train`, `evaluate` or `query`, with an optional action.
        group: Flower's group id, which appears only in logs.
        frame: the frame; empty in a request for a hello.
        catch_up: snapshot and ledger records that the node lacks.
        seconds: time to live in seconds, after which Flower delivers neither the message nor its
            reply.
    """
    parts = ConfigRecord({"frame": frame, "snapshot": catch_up.snapshot, "tail": catch_up.tail})
    return Message(RecordDict({RECORD: parts}), node, message_type, ttl=seconds, group_id=group)


def read_frame(reply: Message) -> bytes:
    """Return the frame in a reply.

    Raises:
        FrameError: if the ClientApp failed or the reply holds no frame.
    """
    if reply.has_error():
        reason = (reply.error.reason or "").strip().splitlines()
        last_line = reason[-1] if reason else "no reason given"
        raise FrameError(cut_foreign_text(f"the client app failed: {last_line}"))
    frame = _record_of(reply).get("frame")
    if not isinstance(frame, bytes):
        raise FrameError("the reply holds no frame")
    return frame


def report_token(reply: Message) -> bytes | None:
    """Return the token of the instruction that a reply's report answers; None without a report."""
    try:
        frame = read_frame(reply)
        return frame[_TOKEN] if kind_of(frame) in _REPORTS else None
    except SamaraError:
        return None


def read_cost(reply: Message) -> bytes:
    """Return the encoded round cost beside the frame in a reply; empty without a round cost."""
    cost = _record_of(reply).get(COST)
    return cost if isinstance(cost, bytes) else b""


def _record_of(reply: Message) -> ConfigRecord:
    """Return the record that holds a reply's frame; an empty record if there is none."""
    record = reply.content.get(RECORD)
    return record if isinstance(record, ConfigRecord) else ConfigRecord()


def client_of_hello(frame: bytes) -> int:
    """Return the client index in a hello, or in a refusal that names a missing blob.

    Raises:
        FrameError: if the frame is neither a hello nor such a refusal.
    """
    if kind_of(frame) is Kind.REFUSAL:
        refusal = Refusal.decode(frame)
        if refusal.code == RefusalCode.MISSING_BLOB:
            return refusal.client
        raise FrameError(f"client {refusal.client}: {refusal.description}")
    return Hello.decode(frame).client
