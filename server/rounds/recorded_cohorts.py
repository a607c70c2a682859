"""Cohorts of a recorded run, late reports included, from which the run can be repeated."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from flwr.app import Message

from samara.server.store import ledger_of
from samara.server.transport.roster import Roster
from samara.shared.errors import LedgerError
from samara.shared.ledger.reading import read_ledger
from samara.shared.step_size import STEP_SIZE_FILE, read_observed_clients

CohortHistory = Mapping[int, Mapping[int, int]]
"""The rounds whose instructions were answered, by round and contributor; a late report answers an
earlier round."""


class RecordedCohorts:
    """Has a run use the reports that a recorded one used, each in the same round.

    Args:
        history: contributors to the rounds of the recorded run.
    """

    def __init__(self, history: CohortHistory) -> None:
        self._history = history
        self._pending: dict[tuple[int, int], Message] = {}

    @property
    def last_round(self) -> int:
        """The last round of the recorded run."""
        return max(self._history, default=0)

    def clients_of(self, number: int) -> list[int]:
        """Return the clients whose report on a round was used, then or later; ascending."""
        return sorted(
            client
            for contributors in self._history.values()
            for client, origin in contributors.items()
            if origin == number
        )

    def take_replies(
        self, number: int, replies: Iterable[Message], roster: Roster
    ) -> list[Message]:
        """Return the replies that the recorded run used in a round; keep the others for later.

        Args:
            number: number of the round.
            replies: replies to the round's instruction.
            roster: clients of the run.
        """
        for reply in replies:
            client = roster.entries[reply.metadata.src_node_id].client
            self._pending[client, number] = reply
        contributors = self._history.get(number, {})
        return [self._pending.pop(key) for key in contributors.items() if key in self._pending]


def read_cohorts(run: Path) -> CohortHistory:
    """Read the cohort history of a run, finished or not.

    The ledger names the contributors of a round. A round that reverts earlier ones, or changes
    nothing, has none there; the clients whose reports decided it are in the step-size file.

    Raises:
        LedgerError: if the ledger cannot be read, its first rounds were compacted away, or the
            step-size file does not name the clients.
    """
    ledger = ledger_of(run)
    cohorts = {record.delta.round: record.delta.origins for record in read_ledger(ledger)}
    if cohorts and min(cohorts) > 1:
        raise LedgerError(
            f"{ledger}: the rounds before {min(cohorts)} are only in a snapshot; "
            "record the run with ledger.snapshot-every=0 to repeat its cohorts"
        )
    observed_clients = read_observed_clients(run / STEP_SIZE_FILE)
    for number in [number for number, contributors in cohorts.items() if not contributors]:
        clients = observed_clients.get(number, [])
        if clients is None:
            raise LedgerError(
                f"{run / STEP_SIZE_FILE}: does not say whose reports decided round {number}, which "
                "is made of none; an older Samara served this run, and it cannot be repeated"
            )
        cohorts[number] = dict.fromkeys(clients, number)
    return cohorts
