"""Who contributed to which round of a recorded run, and whose report came late."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from flwr.app import Message

from server.store import ledger_of
from shared.errors import LedgerError
from shared.ledger.reading import read_ledger
from shared.round_delta import DerivedSeeds, RoundDelta
from shared.step_record import STEP_SIZE_FILE, read_clients

Cohorts = Mapping[int, Mapping[int, int]]
"""By round, its contributors; for each the round whose instruction it answered, which is an
earlier one where its report was late."""


class RecordedCohorts:
    """Has a run use the reports that a recorded one used, each in the same round.

    Args:
        cohorts: of the recorded run.
    """

    def __init__(self, cohorts: Cohorts) -> None:
        self._cohorts = cohorts
        self._held: dict[tuple[int, int], Message] = {}

    @property
    def last(self) -> int:
        """The last round of the recorded run."""
        return max(self._cohorts, default=0)

    def asked(self, number: int) -> list[int]:
        """The clients whose answer to a round's instruction was used, then or later; ascending."""
        return sorted(
            client
            for contributors in self._cohorts.values()
            for client, origin in contributors.items()
            if origin == number
        )

    def due(self, number: int, replies: Iterable[tuple[int, Message]]) -> list[Message]:
        """What was used in a round, of its own replies, by client, and of those held back."""
        self._held |= {(client, number): reply for client, reply in replies}
        contributors = self._cohorts.get(number, {})
        return [self._held.pop(key) for key in contributors.items() if key in self._held]


def read_cohorts(run: Path) -> Cohorts:
    """The cohort history of a run, finished or not.

    Whose reports are in a round is in the ledger. A round that takes earlier ones back, or changes
    nothing, has no contributors there; whose reports decided that is beside the step size.

    Raises:
        LedgerError: if the ledger cannot be read, its first rounds were compacted away, or it is
            not known whose reports a round was decided by.
    """
    ledger = ledger_of(run)
    cohorts = {record.delta.round: origins(record.delta) for record in read_ledger(ledger)}
    if cohorts and min(cohorts) > 1:
        raise LedgerError(
            f"{ledger}: the rounds before {min(cohorts)} are only in a snapshot; "
            "record the run with ledger.snapshot-every=0 to repeat its cohorts"
        )
    heard = read_clients(run / STEP_SIZE_FILE)
    for number in [number for number, contributors in cohorts.items() if not contributors]:
        clients = heard.get(number, [])
        if clients is None:
            raise LedgerError(
                f"{run / STEP_SIZE_FILE}: does not say whose reports decided round {number}, which "
                "is made of none; an older Samara served this run, and it cannot be repeated"
            )
        cohorts[number] = dict.fromkeys(clients, number)
    return cohorts


def origins(delta: RoundDelta) -> dict[int, int]:
    """By contributor, the round that it answered; only reports with own seeds can be late."""
    own = {
        group.source.seed_stream - 1: group.origin
        for group in delta.groups
        if isinstance(group.source, DerivedSeeds) and group.source.seed_stream
    }
    return {c.client: own.get(c.client, delta.round) for c in delta.contributors}
