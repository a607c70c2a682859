"""Cohorts and late reports of a recorded run, so that another run can repeat its rounds."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from flwr.app import Message

from samara.server.store import ledger_of
from samara.server.transport.roster import Roster
from samara.shared.errors import LedgerError
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.step_size import STEP_SIZE_FILE, read_observed_clients

CohortHistory = Mapping[int, Mapping[int, int]]
"""Contributors by round; the value of each contributor is the round that its report answers.

A late report answers an earlier round than the round to which it contributes.
"""


class RecordedCohorts:
    """Selects the replies to each round so that a run uses the same reports as a recorded run.

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
        """Return the clients whose reports for a round were used, ascending.

        The run may have used a report in a later round.
        """
        return sorted(
            client
            for contributors in self._history.values()
            for client, origin in contributors.items()
            if origin == number
        )

    def take_replies(
        self, number: int, replies: Iterable[Message], roster: Roster
    ) -> list[Message]:
        """Return the replies that the recorded run used in a round; keep other replies for later.

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

    The ledger names the contributors of a round, unless the round reverts earlier rounds or does
    not change the model. In these cases the step-size file names the clients whose reports decided
    the round.

    Raises:
        LedgerError: if the ledger cannot be read, its first rounds were compacted away, or the
            step-size file does not name the clients.
    """
    ledger = ledger_of(run)
    cohorts = {record.delta.round: record.delta.origins for record in read_ledger(ledger)}
    if cohorts and min(cohorts) > 1:
        raise LedgerError(
            f"{ledger}: the rounds before {min(cohorts)} are only in a snapshot; to repeat a run's "
            "cohorts, record the run with ledger.snapshot-every=0"
        )
    observed_clients = read_observed_clients(run / STEP_SIZE_FILE)
    for number in [number for number, contributors in cohorts.items() if not contributors]:
        clients = observed_clients.get(number, [])
        if clients is None:
            raise LedgerError(
                f"{run / STEP_SIZE_FILE}: does not name the clients whose reports decided round "
                f"{number}, because an earlier version of Samara served the run. The run cannot be "
                "repeated; record another run"
            )
        cohorts[number] = dict.fromkeys(clients, number)
    return cohorts
