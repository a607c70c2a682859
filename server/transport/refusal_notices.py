"""Notices by which refused clients hear why: a code and two numbers, as in refusals of theirs."""

import time
from collections.abc import Collection, Mapping, Sequence

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from samara.server.transport.messages import make_message
from samara.shared.errors import SamaraError
from samara.shared.frames.refusal import Refusal
from samara.shared.ledger.records import CatchUp
from samara.shared.wire import CLIENTS, RECORD, REFUSED_ACTION

REFUSED_MESSAGE = f"{MessageType.QUERY}.{REFUSED_ACTION}"
"""Flower's message type of a notice."""
REPEAT_SECONDS = 60.0
"""Time after which a phone that is still attached is told the same again: it may be a new process,
which has heard nothing."""
_NOTICE_SECONDS = 60.0
_NO_TOKEN = bytes(8)


class RefusalNotices:
    """Notices to nodes; nothing is waited for, and replies mean nothing."""

    def __init__(self) -> None:
        self._unsent: dict[int, Refusal] = {}
        self._sent = _SentNotices()

    def add(self, node: int, client: int, error: SamaraError) -> None:
        """Have a node be told why it is refused.

        Args:
            node: Flower's id of the node.
            client: client index; 0 if it is not known.
            error: the reason, of which the node gets code and numbers.
        """
        self._unsent[node] = Refusal.of_error(_NO_TOKEN, client, 0, error)

    def send(self, grid: Grid, nodes: Collection[int]) -> None:
        """Send the notices to those of the nodes that are connected, and discard old replies."""
        messages = [
            _notice(node, notice.encode()) for node, notice in self._unsent.items() if node in nodes
        ]
        self._unsent.clear()
        self._sent.push(grid, messages)


class PhoneNotices:
    """Notices to phones that may not take part, by way of their gateways.

    Such a phone is no node, so that nobody else would tell it.
    """

    def __init__(self) -> None:
        # By gateway and the phone's number there: the notice, and when it was sent.
        self._told: dict[int, dict[int, tuple[bytes, float]]] = {}
        self._sent = _SentNotices()

    def send(self, grid: Grid, gateway: int, errors: Mapping[int, SamaraError]) -> None:
        """Tell phones why they are refused, unless they were told the same a moment ago.

        Args:
            grid: the grid that reaches the gateway.
            gateway: Flower's id of the gateway's node.
            errors: the reasons by the phone's number, of all that are refused there now.
        """
        now, before = time.monotonic(), self._told.get(gateway, {})
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
        """Forget what was sent by gateways that are no longer connected."""
        self._told = {gateway: told for gateway, told in self._told.items() if gateway in connected}


class _SentNotices:
    """Notices that were sent, whose replies are discarded."""

    def __init__(self) -> None:
        self._unanswered: set[str] = set()

    def push(self, grid: Grid, messages: Sequence[Message]) -> None:
        """Discard the replies that have come, and send further notices."""
        if self._unanswered:
            for reply in grid.pull_messages(sorted(self._unanswered)):
                self._unanswered.discard(reply.metadata.reply_to_message_id)
        if messages:
            self._unanswered.update(grid.push_messages(messages))


def _notice(node: int, frame: bytes, phones: Sequence[int] = ()) -> Message:
    """Return a notice to a node, or to some phones of a gateway."""
    message = make_message(node, REFUSED_MESSAGE, REFUSED_ACTION, frame, CatchUp(), _NOTICE_SECONDS)
    if phones:
        message.content.config_records[RECORD][CLIENTS] = list(phones)
    return message
