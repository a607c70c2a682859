"""Who contributed to which round of a recorded run, and whose report came late."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from flwr.app import Message

from server.store import ledger_of
from shared.errors import LedgerError
from shared.ledger.reading import read_ledger
from shared.round_delta import DerivedSeeds, RoundDelta

Cohorts = Mapping[int, Mapping[int, int]]
"""By round, its contributors; for each the round whose instruction it answered, which is an
earlier one where its report was late."""


class RepeatedCohorts:
    """Has a run use the reports that a recorded one used, each in the same round.

    Args:
        cohorts: of the recorded run.
    """

    def __init__(self, cohorts: Cohorts) -> None:
        self._cohorts = cohorts
        self._held: dict[tuple[int, int], Message] = {}

    def asked(self, number: int) -> list[int]:
        """The devices whose answer to a round's instruction was used, then or later; ascending."""
        return sorted(
            device
            for contributors in self._cohorts.values()
            for device, origin in contributors.items()
            if origin == number
        )

    def due(self, number: int, replies: Iterable[tuple[int, Message]]) -> list[Message]:
        """What was used in a round, of its own replies, by device, and of those held back."""
        self._held |= {(device, number): reply for device, reply in replies}
        contributors = self._cohorts.get(number, {})
        return [self._held.pop(key) for key in contributors.items() if key in self._held]


def read_cohorts(run: Path) -> Cohorts:
    """The cohort history in the ledger of a run, finished or not.

    Raises:
        LedgerError: if the ledger cannot be read, or its first rounds were compacted away.
    """
    ledger = ledger_of(run)
    cohorts = {record.delta.round: origins(record.delta) for record in read_ledger(ledger)}
    if cohorts and min(cohorts) > 1:
        raise LedgerError(
            f"{ledger}: the rounds before {min(cohorts)} are only in a snapshot; "
            "record the run with ledger.snapshot-every=0 to repeat its cohorts"
        )
    return cohorts


def origins(delta: RoundDelta) -> dict[int, int]:
    """By contributor, the round that it answered; only reports with own seeds can be late."""
    own = {
        group.source.client - 1: group.origin
        for group in delta.groups
        if isinstance(group.source, DerivedSeeds) and group.source.client
    }
    return {c.device: own.get(c.device, delta.round) for c in delta.contributors}
