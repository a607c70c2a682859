"""Messages to phones and boards behind gateways, from when they are sent until they are answered.

The messages with one frame to the phones of one gateway are sent as one message, and its reply,
which need not have all answers yet, is split into one reply per phone. A message is to a phone, not
to a gateway: if the gateway is lost with it, or the phone comes back at another one, it is sent
again there, which is harmless, since a phone answers a repeated instruction with its stored report.
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
from samara.shared.wire import CLIENTS, IN_PARTS, PENDING, RECORD, SHARES

_LEAST_SECONDS = 1.0
"""Time to live that a message must have left to be sent again."""


@dataclass(eq=False)
class _Unanswered:
    """A message to a phone that is not answered yet.

    Attributes:
        message: the message.
        end: end of its time to live, monotonic seconds.
        whole: id of the message to a gateway that it is part of; empty if it is to be sent.
        gateway: Flower's id of that gateway's node.
        number: the number by which that gateway knows the phone.
        lost_at: when its gateway was lost with it, monotonic seconds; it waits until the phone
            introduces itself again.
    """

    message: Message
    end: float
    whole: str = ""
    gateway: int = 0
    number: int = 0
    lost_at: float = 0.0

    @property
    def node(self) -> int:
        """The phone's node id."""
        return self.message.metadata.dst_node_id

    @property
    def frame(self) -> bytes:
        """The instruction."""
        frame = self.message.content.config_records[RECORD]["frame"]
        assert isinstance(frame, bytes), "make_message puts bytes there"
        return frame


@dataclass(frozen=True)
class _WholeMessage:
    """A message to a gateway that stands for the messages to several of its phones.

    Attributes:
        gateway: Flower's id of the gateway's node.
        frame: the instruction, the same for all of the phones.
        parts: the messages to the phones.
    """

    gateway: int
    frame: bytes
    parts: list[_Unanswered] = field(default_factory=list)


class PhoneRelay:
    """Sends messages to phones through their gateways, and splits the replies.

    Args:
        grid: delivers messages to gateways.
        keys: client keys of the run; None admits all phones.
        warn: logs a line about a gateway, given by Flower's id of its node.
    """

    def __init__(
        self, grid: Grid, keys: ClientKeys | None, warn: Callable[[int, str], None]
    ) -> None:
        self._grid, self._keys, self._warn = grid, keys, warn
        self._unanswered: dict[str, _Unanswered] = {}  # by message id
        self._whole: dict[str, _WholeMessage] = {}  # by message id

    @property
    def message_ids(self) -> Set[str]:
        """The ids of the messages that are not answered."""
        return self._unanswered.keys()

    def add(self, message: Message) -> None:
        """Take a message to a phone, which has an id; `advance` sends it."""
        end = time.monotonic() + message.metadata.ttl
        self._unanswered[message.metadata.message_id] = _Unanswered(message, end)

    def advance(self, phones: Mapping[int, PhonePlace]) -> None:
        """Send what is to be sent to phones that are attached, by their node ids.

        What can no longer be answered is discarded.
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
        """Note that a gateway's process is another one, which knows of no earlier message."""
        for one in self._unanswered.values():
            if one.whole and one.gateway == gateway:
                one.whole, one.lost_at = "", time.monotonic()

    def ids_to_pull(self, wanted: Iterable[str]) -> set[str]:
        """Return the ids of the messages to gateways whose replies hold those to these messages."""
        known = (self._unanswered[i] for i in wanted if i in self._unanswered)
        return {one.whole for one in known if one.whole}

    def is_whole(self, message_id: str) -> bool:
        """Return whether a message was sent to a gateway from here."""
        return message_id in self._whole

    def split(self, reply: Message) -> list[tuple[Message, float]]:
        """Return the replies of phones in a gateway's reply, each with the end of its time.

        A phone that has not answered counts as absent, unless it may yet answer.
        """
        whole_id = reply.metadata.reply_to_message_id
        whole = self._whole.pop(whole_id)
        frames: dict[int, bytes] = {}
        pending: set[int] = set()
        reason, is_lost = "the phone did not answer", False
        if reply.has_error():
            self._warn(whole.gateway, f"it failed: {reply.error.reason}")
            reason, is_lost = "its gateway failed", reply.error.code in LOST
        else:
            answers = read_answers(reply, whole.frame, self._keys)
            frames = {node_of_key(key): frame for key, frame in answers.signed.items()}
            # a gateway that brings nothing is not asked again and again
            pending = set(read_numbers(reply, PENDING)) if frames else set()
            self._warn(whole.gateway, answers.describe_dropped())
        replies = []
        for one in whole.parts:
            if one.whole != whole_id:
                continue  # it has been sent elsewhere since
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
        """Send messages with the same frame to phones of a gateway as one message.

        It carries the longest catch-up of them, which contains what the other phones lack, and the
        sealed shares for each phone.
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
    """Return whether a message is to be sent to its phone, which is attached, now."""
    if one.whole:
        return phone.gateway != one.gateway
    return phone.introduced > one.lost_at and now + _LEAST_SECONDS < one.end
