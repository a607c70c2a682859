"""Notices that tell refused clients the reason, as a code and two numbers."""

import time
from collections.abc import Collection, Mapping, Sequence

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from samara.server.transport.messages import make_message
from samara.shared.errors import SamaraError
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.wire import CLIENTS, RECORD, REFUSED_ACTION

REFUSED_MESSAGE = f"{MessageType.QUERY}.{REFUSED_ACTION}"
"""Flower's message type of a notice."""
REPEAT_SECONDS = 60.0
"""Seconds after which an attached phone gets an equal notice again.

The phone's process may have restarted without having received the first notice.
"""
_NOTICE_SECONDS = 60.0
_NO_TOKEN = bytes(8)


class RefusalNotices:
    """Notices to nodes. Sending them does not wait, and their replies are ignored."""

    def __init__(self) -> None:
        self._unsent: dict[int, Refusal] = {}
        self._sent = _SentNotices()

    def add(self, node: int, client: int, error: SamaraError) -> None:
        """Schedule a notice to a refused node.

        Args:
            node: Flower's id of the node.
            client: client index; 0 if unknown.
            error: reason for the refusal, whose code and numbers the node receives.
        """
        self._unsent[node] = Refusal.of_error(_NO_TOKEN, client, 0, error)

    def send(self, grid: Grid, nodes: Collection[int]) -> None:
        """Send the notices for connected nodes, and discard the replies to earlier notices."""
        messages = [
            _notice(node, notice.encode()) for node, notice in self._unsent.items() if node in nodes
        ]
        self._unsent.clear()
        self._sent.push(grid, messages)


class PhoneNotices:
    """Notices to phones that may not take part, sent through their gateways.

    A refused phone is not a node of the grid and gets no other message.
    """

    def __init__(self) -> None:
        # Last notice and its time, by gateway and by the phone's number.
        self._told: dict[int, dict[int, tuple[bytes, float]]] = {}
        self._sent = _SentNotices()

    def send(self, grid: Grid, gateway: int, errors: Mapping[int, SamaraError]) -> None:
        """Send phones the reasons for their refusal, except notices that were sent recently.

        Args:
            grid: the grid that reaches the gateway.
            gateway: Flower's id of the gateway's node.
            errors: reasons by the gateway's number for the phone, for all its refused phones.
        """
        now = time.monotonic()
        before = self._told.get(gateway, {})
        self._told[gateway] = {}
        due: dict[bytes, list[int]] = {}
        for number, error in errors.items():
            frame = Refusal.of_error(_NO_TOKEN, 0, 0, error).encode()
            told, at = before.get(number, (b"", now))
            is_due = told != frame or now > at + REPEAT_SECONDS
            self._told[gateway][number] = frame, now if is_due else at
            if is_due:
                due.setdefault(frame, []).append(number)
        self._sent.push(grid, [_notice(gateway, frame, due[frame]) for frame in due])

    def forget(self, connected: Collection[int]) -> None:
        """Remove the records of notices through gateways that are no longer connected."""
        self._told = {gateway: told for gateway, told in self._told.items() if gateway in connected}


class _SentNotices:
    """Sent notices whose replies will be discarded."""

    def __init__(self) -> None:
        self._unanswered: set[str] = set()

    def push(self, grid: Grid, messages: Sequence[Message]) -> None:
        """Discard the replies that have arrived, and send notices."""
        if self._unanswered:
            for reply in grid.pull_messages(sorted(self._unanswered)):
                self._unanswered.discard(reply.metadata.reply_to_message_id)
        if messages:
            self._unanswered.update(grid.push_messages(messages))


def _notice(node: int, frame: bytes, phones: Sequence[int] = ()) -> Message:
    """Return a message that carries a notice to a node, or to some phones of a gateway."""
    message = make_message(node, REFUSED_MESSAGE, REFUSED_ACTION, frame, CatchUp(), _NOTICE_SECONDS)
    if phones:
        message.content.config_records[RECORD][CLIENTS] = list(phones)
    return message
