"""Simulated clients of a process replay once what the server sends to all of them."""

import threading
from collections.abc import Callable
from dataclasses import replace

from samara.client.protocol.session import Session
from samara.shared.layout import Layout
from samara.shared.ledger.records import CatchUp, LedgerHeader, Position
from samara.shared.replay import Backend

Reach = Callable[[Session, CatchUp, LedgerHeader, Layout, int, bytes, Backend | None], Session]
"""Brings a session to the server's round, as `Session.catch_up` does."""
_LEDGERS = 16
"""Ledgers of which the latest replay is kept; a run with clusters has several."""
_Given = tuple[Position, bytes, CatchUp, int, bytes]


class SharedCatchUp:
    """Replays the same records, from the same state, once for all sessions of a process.

    With independent seeds a round has as many directions as all of its clients have tried, so that
    the time of a simulation would otherwise grow with the square of the number of clients.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: dict[LedgerHeader, tuple[_Given, Session]] = {}

    def reach(
        self,
        session: Session,
        catch_up: CatchUp,
        header: LedgerHeader,
        layout: Layout,
        goal_round: int,
        goal_digest: bytes,
        backend: Backend | None = None,
    ) -> Session:
        """Return the session at the server's round (see `Session.catch_up`, also for errors)."""
        if not len(catch_up):
            return session.catch_up(catch_up, header, layout, goal_round, goal_digest, backend)
        given = session.position, session.digest, catch_up, goal_round, goal_digest
        with self._lock:
            known = self._latest.get(header)
            if known is None or known[0] != given:
                reached = session.catch_up(
                    catch_up, header, layout, goal_round, goal_digest, backend
                )
                if header not in self._latest and len(self._latest) == _LEDGERS:
                    del self._latest[next(iter(self._latest))]
                known = given, reached
                self._latest[header] = known
        return replace(known[1], token=session.token, report=session.report)
