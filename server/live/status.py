"""Where a run and its clients stand, read off the run's folder; nothing need be running."""

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.live.keys import KEYS_FOLDER, Keys
from server.store import METRICS_FILE, ledger_of
from shared.errors import SamaraError
from shared.events import EventFollower
from shared.ledger.reading import read_ledger


@dataclass
class ClientStatus:
    """What the events of a run say of a client.

    Attributes:
        name: of its key; empty without one.
        position: the last round that it certainly has: the one before its last report's.
        last_round: of its last report; 0 before the first.
        last_seen: UTC, ISO 8601; empty before the first.
        reports: of it that are in the ledger.
        failures: answers that were refused or did not come.
        last_failure: why.
        bytes_up: of its reports' frames.
        bytes_down: of the instructions and catch-ups sent to it.
        state: ``resting``, ``revoked``, or empty.
    """

    name: str = ""
    position: int = 0
    last_round: int = 0
    last_seen: str = ""
    reports: int = 0
    failures: int = 0
    last_failure: str = ""
    bytes_up: int = 0
    bytes_down: int = 0
    state: str = ""


@dataclass
class RunStatus:
    """Where a run stands: the last round of its ledger, its end digest, and its clients."""

    round: int
    digest: str
    clients: dict[int, ClientStatus]
    bytes_up: int
    bytes_down: int


def status_of(run: Path) -> RunStatus:
    """Read the status of a run.

    Raises:
        SamaraError: if the folder holds no run.
    """
    ledger = ledger_of(run)
    if not ledger.is_dir():
        raise SamaraError(f"{run}: there is no ledger; has a client introduced itself yet?")
    records = deque(read_ledger(ledger), maxlen=1)
    last = records[0] if records else None
    events = list(EventFollower(run / METRICS_FILE).read_new())
    clients: dict[int, ClientStatus] = {}
    for event in events:
        if event.get("event") == "round":
            _count(clients, event)
    for key in Keys(run / KEYS_FOLDER).all():
        client = clients.setdefault(key.client, ClientStatus())
        client.name = key.name
        client.state = "revoked" if key.revoked else client.state
    return RunStatus(
        last.delta.round if last else 0,
        last.end_digest.hex() if last else "",
        dict(sorted(clients.items())),
        sum(event.get("bytes_up", 0) for event in events),
        sum(event.get("bytes_down", 0) for event in events),
    )


def _count(clients: dict[int, ClientStatus], event: dict[str, Any]) -> None:
    for text, figures in event["clients"].items():
        client = clients.setdefault(int(text), ClientStatus())
        client.reports += 1
        client.last_round, client.last_seen = event["round"], event.get("time", "")
        client.position = event.get("late", {}).get(text, event["round"]) - 1
        client.bytes_up += figures["bytes_up"]
        client.bytes_down += figures["bytes_down"]
    failures = event["refused"] | dict.fromkeys(map(str, event.get("absent", [])), "no answer")
    for text, reason in failures.items():
        client = clients.setdefault(int(text), ClientStatus())
        client.failures += 1
        client.last_failure = f"round {event['round']}: {reason}"
    resting = event.get("resting", [])
    for number, client in clients.items():
        client.state = "resting" if number in resting else ""
