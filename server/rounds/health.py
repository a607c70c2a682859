"""Clients that are left out for some rounds because they keep failing. Pure."""

from dataclasses import dataclass

_MOST_ROUNDS = 64


@dataclass
class _Record:
    failures: int = 0
    last_resting_round: int = 0


class ClientHealth:
    """Failures in a row, by client; every failure beyond the patience doubles the rest.

    Args:
        patience: failures in a row after which a client rests.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._records: dict[int, _Record] = {}

    def record_failure(self, client: int, round_number: int) -> int:
        """Count a failure; return for how many rounds the client rests, 0 for none."""
        record = self._records.setdefault(client, _Record())
        record.failures += 1
        beyond = record.failures - self._patience
        rounds = min(2**beyond, _MOST_ROUNDS) if beyond >= 0 else 0
        record.last_resting_round = round_number + rounds
        return rounds

    def record_success(self, client: int) -> None:
        """Forget a client's failures."""
        self._records.pop(client, None)

    def is_resting(self, client: int, round_number: int) -> bool:
        """Return whether a client is left out of a round."""
        record = self._records.get(client)
        return record is not None and round_number <= record.last_resting_round

    def resting_clients(self, round_number: int) -> list[int]:
        """Return the clients that are left out of a round, ascending."""
        return sorted(client for client in self._records if self.is_resting(client, round_number))
