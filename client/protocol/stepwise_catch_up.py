"""A live client's catch-up, which can pause between slices and stores its state after each step.

The length of the server's records determines the time of a replay. The records are at most as long
as the state, because a server sends the state instead of longer records. Servers of earlier
versions always sent records of up to 64 KiB, and all records before a common intercept.
"""

import logging
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from samara.client.forward.turns import forward_pass
from samara.client.protocol.session import Reach, Session
from samara.shared.errors import CatchUpError
from samara.shared.protocol.directions import Distribution
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.ledger.records import CatchUp, LedgerHeader
from samara.shared.protocol.message_sizes import most_record_bytes
from samara.shared.protocol.replay import Backend

log = logging.getLogger("samara.client")

SLICE_ELEMENTS = 2**27
"""Approximate maximum number of direction elements between two pauses; replaying them takes about
0.1 s on one core."""


class SlicedBackend:
    """A replay backend that takes a turn for every slice of directions, as if for a forward pass.

    Args:
        backend: the backend that computes.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @property
    def name(self) -> str:
        """Name of the backend that computes."""
        return self._backend.name

    def fold(
        self,
        state: NDArray[np.int64],
        seeds: NDArray[np.uint64],
        coefficients: NDArray[np.int64],
        distribution: Distribution,
    ) -> None:
        """Add Σ c·z(seed) to a state in place; see `Backend.fold`."""
        count = max(1, SLICE_ELEMENTS // max(1, len(state)))
        for first in range(0, len(seeds), count):
            part = slice(first, first + count)
            with forward_pass():
                self._backend.fold(state, seeds[part], coefficients[part], distribution)

    def directions(
        self, seeds: NDArray[np.uint64], count: int, distribution: Distribution, first: int = 0
    ) -> NDArray[np.int16]:
        """Return directions, int16 [n, count]; see `Backend.directions`."""
        return self._backend.directions(seeds, count, distribution, first)


def reach_in_steps(
    keep: Callable[[Session], None], is_late: Callable[[], bool], has_intercept: bool
) -> Reach:
    """Return a function that brings a session to the server's round step by step.

    Args:
        keep: function that stores the session on disk after a step.
        is_late: function that returns whether the server no longer waits.
        has_intercept: whether the run's last round is a common intercept.
    """

    def reach(
        session: Session,
        catch_up: CatchUp,
        header: LedgerHeader,
        layout: Layout,
        goal_round: int,
        goal_digest: bytes,
        backend: Backend | None = None,
    ) -> Session:
        """Return the session at the server's round; see `Session.catch_up`.

        Raises:
            CatchUpError: if `Session.catch_up` raises it, the records are longer than allowed, or
                the server no longer waits. The rounds replayed so far are kept, and the server
                sends the remaining rounds later.
        """
        before = session.position
        most = most_record_bytes(layout.size, has_intercept)
        if len(catch_up.tail) > most:
            raise CatchUpError(
                f"the server sent {len(catch_up.tail)} bytes of records, but the limit for a state "
                f"of {layout.size} elements is {most} bytes",
                (goal_round, before.round),
            )
        sliced = SlicedBackend(backend) if backend else None
        goal = header, layout, goal_round, goal_digest, sliced
        reached = session
        for reached in session.steps_to(catch_up, *goal):
            number = reached.position.round
            if reached.position == before or number in (0, goal_round):
                continue  # already stored, or without a round, or left to the caller
            keep(reached)
            if is_late():
                raise CatchUpError(
                    "catching up took so long that the server no longer waits; the next catch-up "
                    f"continues after round {number}",
                    (goal_round, number),
                )
        return reached

    return reach
