"""A grid that stops waiting at a deadline but still fetches replies that arrive later.

Flower's `Grid.send_and_receive` polls every 3 s. At the timeout it drops the ids of unanswered
messages, so that a late reply is never fetched. In this grid an exchange ends as soon as the
strategy has enough replies. Later exchanges fetch late replies to train messages. A clock decides
the pauses between polls: the system's clock, or the virtual clock of a fleet.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Protocol

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from samara.server.live.keys import ClientKeys
from samara.server.transport.delegating_grid import DelegatingGrid
from samara.server.transport.guarded_grid import GuardedGrid
from samara.server.transport.phone_grid import PhoneGrid
from samara.shared.network.polling import pause_before_asking

_POLL_SECONDS = 1.0


class Clock(Protocol):
    """The clock of a run, which also knows which nodes are reachable."""

    def now(self) -> float:
        """Return the time in seconds, on a clock that never goes backward."""

    def wait(self, max_seconds: float, waited: float = inf) -> None:
        """Wait until there may be a new reply, for at most `max_seconds`.

        Args:
            max_seconds: maximum time to wait, in seconds.
            waited: time already spent waiting for replies, in seconds.
        """

    def is_reachable(self, node: int) -> bool:
        """Return whether a connected node can receive a message now."""


class SystemClock:
    """The system's monotonic clock; every connected node is reachable."""

    def now(self) -> float:
        """Return the monotonic time, in seconds."""
        return time.monotonic()

    def wait(self, max_seconds: float, waited: float = inf) -> None:
        """Sleep for at most `max_seconds` and at most one second; less if `waited` is small."""
        time.sleep(min(pause_before_asking(waited, _POLL_SECONDS), max_seconds))

    def is_reachable(self, node: int) -> bool:
        """Return true, because every connected node is reachable."""
        return True


class DeadlineGrid(DelegatingGrid):
    """A grid whose exchanges end at a deadline; later exchanges fetch late replies.

    Args:
        grid: grid that delivers the messages.
        late_exchanges: number of later exchanges that still fetch a late reply to a train message.
        has_enough_replies: function that returns whether a train exchange may end with the replies
            so far.
        clock: clock of the deadlines; by default the system's clock.

    Attributes:
        while_waiting: callback before each wait for replies; it must return soon.
    """

    def __init__(
        self,
        grid: Grid,
        late_exchanges: int,
        has_enough_replies: Callable[[Sequence[Message]], bool] = lambda replies: False,
        clock: Clock | None = None,
    ) -> None:
        self.has_enough_replies = has_enough_replies
        self.clock: Clock = clock or SystemClock()
        self.while_waiting: Callable[[], None] = lambda: None
        super().__init__(grid)
        self._late_exchanges = late_exchanges
        self._unanswered: list[set[str]] = []  # ids of train messages, by exchange

    def connected_nodes(self) -> dict[int, bytes]:
        """Return the public key (PEM) of every connected node, by node id; empty without a key."""
        if isinstance(self._grid, PhoneGrid):
            return self._grid.connected_nodes()
        return dict.fromkeys(self._grid.get_node_ids(), b"")

    def is_by_stream(self, node: int) -> bool:
        """Return whether a node is a phone or board that is attached to a gateway."""
        return isinstance(self._grid, PhoneGrid) and self._grid.is_attached(node)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages; wait for enough replies or all replies, but at most until the timeout.

        Args:
            messages: messages of one type.
            timeout: timeout in seconds; None waits forever.

        Returns:
            The replies, including late replies to the train messages of earlier exchanges.
        """
        messages = list(messages)
        is_training = bool(messages) and messages[0].metadata.message_type == MessageType.TRAIN
        missing = {i for i in self._grid.push_messages(messages) if i} if messages else set()
        late = set().union(*self._unanswered) if is_training else set()
        begun = self.clock.now()
        end = inf if timeout is None else begun + timeout
        replies: list[Message] = []
        while missing or late:
            for reply in self._grid.pull_messages(missing | late):
                message_id = reply.metadata.reply_to_message_id
                if message_id in missing or not reply.has_error():
                    replies.append(reply)
                missing.discard(message_id)
                late.discard(message_id)
            if not missing or (is_training and self.has_enough_replies(replies)):
                break
            now = self.clock.now()
            if now >= end:
                break
            self.while_waiting()
            self.clock.wait(end - now, now - begun)
        if is_training:
            earlier = [ids & late for ids in self._unanswered]
            self._unanswered = [*earlier, missing][-self._late_exchanges :]
        return replies


def prepare_grid(grid: Grid, keys: ClientKeys | None = None) -> Grid:
    """Wrap Flower's grid of a live run in a `GuardedGrid` and a `PhoneGrid`.

    Other grids, such as a simulation's, are returned unchanged.

    Args:
        grid: Flower's grid.
        keys: client keys of the run; None lets any client join or be a gateway.
    """
    # a late import: the module imports Flower's databases, which simulations do not need
    from samara.shared.flower_compat import HttpGrid, transfer_parts_together

    if not isinstance(grid, HttpGrid):
        return grid
    transfer_parts_together()
    return PhoneGrid(GuardedGrid(grid), keys)
