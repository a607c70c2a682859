"""Notices by which refused clients hear why: a code and two numbers, as in refusals of theirs."""

from collections.abc import Collection

from flwr.app import MessageType
from flwr.serverapp import Grid

from server.transport.messages import make_message
from shared.errors import SamaraError
from shared.frames.refusal import Refusal
from shared.ledger.catch_up import CatchUp
from shared.wire import REFUSED_ACTION

REFUSED_MESSAGE = f"{MessageType.QUERY}.{REFUSED_ACTION}"
"""Flower's message type of a notice."""
_NOTICE_SECONDS = 60.0
_NO_TOKEN = bytes(8)


class RefusalNotices:
    """Notices to nodes; nothing is waited for, and replies mean nothing."""

    def __init__(self) -> None:
        self._unsent: dict[int, Refusal] = {}
        self._unanswered: set[str] = set()

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
        if self._unanswered:
            for reply in grid.pull_messages(sorted(self._unanswered)):
                self._unanswered.discard(reply.metadata.reply_to_message_id)
        messages = [
            make_message(
                node, REFUSED_MESSAGE, REFUSED_ACTION, notice.encode(), CatchUp(), _NOTICE_SECONDS
            )
            for node, notice in self._unsent.items()
            if node in nodes
        ]
        self._unsent.clear()
        if messages:
            self._unanswered.update(message_id for message_id in grid.push_messages(messages))
