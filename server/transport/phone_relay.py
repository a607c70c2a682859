"""The path of a message to a phone or board behind a gateway, and of the answer back.

The relay combines messages with the same frame to phones of one gateway into a single message to
the gateway. The gateway's reply may lack some answers. The relay splits it into one reply per
phone. If a phone moves to another gateway, or if its gateway restarts, the relay sends the message
again through the phone's current gateway. Repeated messages do no harm, because a phone answers a
repeated instruction with its stored report.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from samara.server.live.keys import ClientKeys
from samara.server.transport.messages import LOST
from samara.server.transport.phone_answers import (
    PhonePlace,
    make_reply,
    node_of_key,
    read_answers,
    read_numbers,
)
from samara.shared.flower_compat import ErrorCode
from samara.shared.protocol.wire import CLIENTS, IN_PARTS, PENDING, RECORD, SHARES

_LEAST_SECONDS = 1.0
"""Minimum remaining time to live, in seconds, for sending a message again."""


@dataclass(eq=False)
class _Unanswered:
    """An unanswered message to a phone.

    Attributes:
        message: the message.
        end: end of the message's time to live, monotonic seconds.
        whole: id of the message to the gateway that contains this message; empty before sending.
        gateway: Flower's id of the gateway's node.
        number: number by which the gateway knows the phone.
        lost_at: time at which the gateway was lost, monotonic seconds. The message is sent again
            after the phone's next hello.
    """

    message: Message
    end: float
    whole: str = ""
    gateway: int = 0
    number: int = 0
    lost_at: float = 0.0

    @property
    def node(self) -> int:
        """Node id of the phone."""
        return self.message.metadata.dst_node_id

    @property
    def frame(self) -> bytes:
        """The encoded instruction in the message."""
        frame = self.message.content.config_records[RECORD]["frame"]
        assert isinstance(frame, bytes), "make_message writes the frame as bytes"
        return frame


@dataclass(frozen=True)
class _WholeMessage:
    """A message to a gateway, which combines messages to several of the gateway's phones.

    Attributes:
        gateway: Flower's id of the gateway's node.
        frame: the encoded instruction, equal for all these phones.
        parts: the messages to the phones.
    """

    gateway: int
    frame: bytes
    parts: list[_Unanswered] = field(default_factory=list)


class PhoneRelay:
    """A relay that sends messages to phones through their gateways, and splits the replies.

    Args:
        grid: grid that delivers messages to gateways.
        keys: client keys of the run; None admits all phones.
        warn: function that logs a line about a gateway; its arguments are node id and text.
    """

    def __init__(
        self, grid: Grid, keys: ClientKeys | None, warn: Callable[[int, str], None]
    ) -> None:
        self._grid, self._keys, self._warn = grid, keys, warn
        self._unanswered: dict[str, _Unanswered] = {}  # by message id
        self._whole: dict[str, _WholeMessage] = {}  # by message id

    @property
    def message_ids(self) -> Set[str]:
        """The ids of the unanswered messages."""
        return self._unanswered.keys()

    def add(self, message: Message) -> None:
        """Queue a message to a phone until `advance` sends it; the message must have an id."""
        end = time.monotonic() + message.metadata.ttl
        self._unanswered[message.metadata.message_id] = _Unanswered(message, end)

    def advance(self, phones: Mapping[int, PhonePlace]) -> None:
        """Send the due messages to attached phones, and discard messages past their time to live.

        Args:
            phones: the attached phones, by node id.
        """
        now = time.monotonic()
        self._unanswered = {i: one for i, one in self._unanswered.items() if now < one.end}
        open_ids = {one.whole for one in self._unanswered.values()}
        self._whole = {i: whole for i, whole in self._whole.items() if i in open_ids}
        groups: dict[tuple[int, str, bytes], list[_Unanswered]] = {}
        for one in self._unanswered.values():
            if (phone := phones.get(one.node)) and _is_due(one, phone, now):
                kind = one.message.metadata.message_type
                groups.setdefault((phone.gateway, kind, one.frame), []).append(one)
        for (gateway, _, frame), parts in groups.items():
            for one in parts:
                one.gateway, one.number = gateway, phones[one.node].number
            self._send(_WholeMessage(gateway, frame, parts))

    def lose(self, gateway: int) -> None:
        """Record that a gateway's process has restarted and does not know earlier messages."""
        for one in self._unanswered.values():
            if one.whole and one.gateway == gateway:
                one.whole, one.lost_at = "", time.monotonic()

    def ids_to_pull(self, wanted: Iterable[str]) -> set[str]:
        """Return the ids of the gateway messages whose replies will contain the wanted replies."""
        known = (self._unanswered[i] for i in wanted if i in self._unanswered)
        return {one.whole for one in known if one.whole}

    def is_whole(self, message_id: str) -> bool:
        """Return whether an id belongs to a message that this relay sent to a gateway."""
        return message_id in self._whole

    def split(self, reply: Message) -> list[tuple[Message, float]]:
        """Split a gateway's reply into replies of phones, each with the end of its time to live.

        A phone without an answer gets an error reply, unless the gateway still waits for its
        answer.
        """
        whole_id = reply.metadata.reply_to_message_id
        whole = self._whole.pop(whole_id)
        frames: dict[int, bytes] = {}
        pending: set[int] = set()
        reason, is_lost = "the phone did not answer", False
        if reply.has_error():
            self._warn(whole.gateway, f"it failed: {reply.error.reason}")
            reason = "its gateway failed"
            is_lost = reply.error.code in LOST
        else:
            answers = read_answers(reply, whole.frame, self._keys)
            frames = {node_of_key(key): frame for key, frame in answers.signed.items()}
            # a gateway without a new answer is not asked again, or the requests might never end
            pending = set(read_numbers(reply, PENDING)) if frames else set()
            self._warn(whole.gateway, answers.describe_dropped())
        replies = []
        for one in whole.parts:
            if one.whole != whole_id:
                continue  # another gateway has received this message in the meantime
            if one.node in frames:
                replies.append((make_reply(frames[one.node], one.message), one.end))
            elif is_lost:
                one.whole, one.lost_at = "", time.monotonic()
                continue
            elif one.number in pending:
                one.whole = ""
                continue
            else:
                error = Error(ErrorCode.NODE_UNAVAILABLE, reason)
                replies.append((Message(error, reply_to=one.message), one.end))
            del self._unanswered[one.message.metadata.message_id]
        return replies

    def _send(self, whole: _WholeMessage) -> None:
        """Send messages with the same frame to a gateway's phones as one message.

        The message contains the longest of the phones' catch-ups and the sealed shares for each
        phone. The longest catch-up includes the records of all shorter catch-ups.
        """
        records = [one.message.content.config_records[RECORD] for one in whole.parts]
        longest = max(records, key=lambda r: (len(r["snapshot"]) > 0, len(r["tail"])))  # type: ignore[arg-type]
        numbers = [one.number for one in whole.parts]
        content = ConfigRecord({**longest, CLIENTS: numbers, IN_PARTS: True})
        if SHARES in longest:
            content[SHARES] = [record[SHARES] for record in records]  # type: ignore[assignment]
        first = whole.parts[0].message.metadata
        message = Message(
            RecordDict({RECORD: content}),
            whole.gateway,
            first.message_type,
            ttl=max(one.end for one in whole.parts) - time.monotonic(),
            group_id=first.group_id,
        )
        (whole_id,) = self._grid.push_messages([message])
        if whole_id:
            self._whole[whole_id] = whole
        for one in whole.parts:
            one.whole, one.lost_at = whole_id, 0.0


def _is_due(one: _Unanswered, phone: PhonePlace, now: float) -> bool:
    """Return whether a message should be sent now to its attached phone."""
    if one.whole:
        return phone.gateway != one.gateway
    return phone.introduced > one.lost_at and now + _LEAST_SECONDS < one.end
