"""Sending and receiving without waiting for those who are late.

Flower's `Grid.send_and_receive` asks every 3 s for what is missing and, when the time is over,
forgets what it asked for: a reply that comes later is never fetched. Here the time between two
looks can be chosen, a round ends as soon as the strategy has enough, and replies of earlier rounds
are fetched along with those of later ones.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from server.transport.clock import Clock, SystemClock
from server.transport.delegating_grid import DelegatingGrid
from server.transport.phone_grid import PhoneGrid
from shared.flower_compat import HttpGrid, http_grid, pull_objects

log = logging.getLogger("samara.server")

_PULL_SECONDS = 10.0
"""For the parts of a reply that was announced. Flower waits 180 s for whoever stops in the middle
of sending one, and everybody with it."""


class DeadlineGrid(DelegatingGrid):
    """A grid that keeps to deadlines and remembers whom it asked.

    Args:
        grid: delivers the messages; over a network, also those of phones behind gateways.
        patience: in how many later exchanges a reply to a train message is still fetched.
        enough: whether these replies suffice to end the exchange.
        clock: whose time it is; the real one by default.
    """

    def __init__(
        self,
        grid: Grid,
        patience: int,
        enough: Callable[[Sequence[Message]], bool] = lambda replies: False,
        clock: Clock | None = None,
    ) -> None:
        self.enough = enough
        if isinstance(grid, HttpGrid):
            http_grid.pull_objects = partial(pull_objects, max_time=_PULL_SECONDS)  # type: ignore[attr-defined]
            grid = PhoneGrid(grid)
        self.clock: Clock = clock or SystemClock()
        super().__init__(grid)
        self._patience = patience
        self._awaited: list[set[str]] = []

    def connected_nodes(self) -> dict[int, bytes]:
        """The nodes that are there, with their public keys (PEM), empty where they have none."""
        if isinstance(self._grid, PhoneGrid):
            return self._grid.connected_nodes()
        return dict.fromkeys(self._grid.get_node_ids(), b"")

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for replies: until all are there, enough, or the time is over.

        Returns:
            The replies, and those to train messages of earlier exchanges that came meanwhile.
        """
        messages = list(messages)
        trains = bool(messages) and messages[0].metadata.message_type == MessageType.TRAIN
        awaited = {i for i in self._grid.push_messages(messages) if i} if messages else set()
        late = set().union(*self._awaited) if trains else set()
        end = inf if timeout is None else self.clock.now() + timeout
        replies: list[Message] = []
        while awaited or late:
            for reply in self._grid.pull_messages(awaited | late):
                answered = reply.metadata.reply_to_message_id
                if answered in awaited or not reply.has_error():
                    replies.append(reply)
                awaited.discard(answered)
                late.discard(answered)
            if not awaited or (trains and self.enough(replies)):
                break
            left = end - self.clock.now()
            if left <= 0:
                break
            self.clock.wait(left)
        if trains:
            earlier = [asked & late for asked in self._awaited]
            self._awaited = [*earlier, awaited][-self._patience :]
        return replies
