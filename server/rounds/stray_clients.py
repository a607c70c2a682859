"""Clients that have followed another ledger of the same run than this server's.

A server that goes on from a backup lacks the rounds that its clients took after it. They begin
again from what it sends. On a server that was not restored, or of a client that has followed this
ledger before, the same is the sign of a second server.
"""

import logging

from samara.server.restored_run import RestoredRun
from samara.server.transport.roster import RosterEntry

log = logging.getLogger("samara.server")


class StrayClients:
    """Decides from which round on each client is sent the ledger.

    Args:
        restored: the backup that the run goes on from; None if it was not restored.
    """

    def __init__(self, restored: RestoredRun | None) -> None:
        self._restored = restored if restored and not restored.moved else None
        self._followers: set[int] = set()
        self._warned: set[int] = set()

    def round_to_send_from(self, entry: RosterEntry, last_round: int) -> int:
        """Return the round after which a client is sent the ledger; 0 for all that it keeps.

        Args:
            entry: the client.
            last_round: last round in the ledger.
        """
        if entry.follows:
            self._followers.add(entry.client)
        if entry.round <= last_round and entry.follows is not False:
            return entry.round
        restored = self._restored
        known = restored.reached if restored else None
        if restored is None or entry.client in self._followers:
            if entry.round > last_round:
                self._warn(entry, last_round, _TWO_SERVERS)
            return min(entry.round, last_round)
        if known is not None and entry.round > known:
            self._warn(entry, last_round, _MORE_REACHED.format(known))
            return min(entry.round, last_round)
        self._warn(entry, last_round, "this run was restored from a backup that lacks it")
        return 0

    def _warn(self, entry: RosterEntry, last_round: int, why: str) -> None:
        if entry.client not in self._warned:
            self._warned.add(entry.client)
            log.warning(
                "client %d says that it is at round %d, and this ledger ends at %d: %s",
                *(entry.client, entry.round, last_round, why),
            )


_TWO_SERVERS = (
    "another server goes on with this run, or this folder is an older copy of it; end one of them, "
    "or restore the newest backup (docs/guides/moving.md)"
)
_MORE_REACHED = (
    "after round {}, which `samara server restore` was told with --reached. If it is right, more "
    "privacy was spent than is counted: restore again with a larger one"
)
