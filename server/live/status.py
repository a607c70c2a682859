"""The status of a run and of its clients, read from the files of the run."""

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.live.keys import KEYS_FOLDER, ClientKeys
from server.live.server_log import LOG_FILE, REFUSED_EVENT
from server.store import METRICS_FILE, ledger_of
from shared.errors import SamaraError
from shared.events import EventFollower
from shared.ledger.reading import read_ledger


@dataclass
class ClientStatus:
    """The status of a client, from the events of its run.

    Attributes:
        name: name of the client's key; empty without a key.
        round: last round that the client is known to have, the one before that of its last report.
        last_round: round of its last report; 0 before the first.
        last_report_time: UTC, ISO 8601; empty before the first.
        reports: number of its reports in the ledger.
        failures: number of replies that were refused or did not come.
        last_failure: round and reason of the last failure.
        bytes_up: size of its reports' frames.
        bytes_down: size of the instructions and catch-ups that were sent to it.
        wire: ``stream`` or ``SuperNode``, by which its last report came; empty before the first.
        state: ``resting``, ``refused`` when it introduced itself last, ``revoked``, or empty.
        cost_rounds: number of reports whose cost its owner shares; the next figures are of these.
        cost_seconds: seconds that they took on its device, by its own statement.
        cost_joules: energy of the device meanwhile; 0 if it measures none.
    """

    name: str = ""
    round: int = 0
    last_round: int = 0
    last_report_time: str = ""
    reports: int = 0
    failures: int = 0
    last_failure: str = ""
    bytes_up: int = 0
    bytes_down: int = 0
    wire: str = ""
    state: str = ""
    cost_rounds: int = 0
    cost_seconds: float = 0.0
    cost_joules: float = 0.0

    @property
    def cost(self) -> str:
        """The mean cost of a round for the client's device; empty if its owner shares none."""
        if not self.cost_rounds:
            return ""
        text = f"{self.cost_seconds / self.cost_rounds:,.1f} s"
        if self.cost_joules and self.cost_seconds:
            text += f", {self.cost_joules / self.cost_rounds:,.1f} J"
            text += f", {self.cost_joules / self.cost_seconds:,.1f} W"
        return text


@dataclass
class RunStatus:
    """The status of a run.

    Attributes:
        round: last round in the ledger.
        digest: end digest of that round in hex; empty before the first.
        clients: status of the clients by index, ascending.
        bytes_up: size of all frames from clients.
        bytes_down: size of everything that was sent to clients.
        waits_for: what a run that has not begun waits for, a sentence; empty if it has begun.
    """

    round: int
    digest: str
    clients: dict[int, ClientStatus]
    bytes_up: int
    bytes_down: int
    waits_for: str = ""


def read_status(run: Path) -> RunStatus:
    """Read the status of a run, which need not be running, nor have begun.

    Raises:
        SamaraError: if the folder holds no run.
    """
    ledger = ledger_of(run)
    has_begun, keys = ledger.is_dir(), ClientKeys(run / KEYS_FOLDER).read_all()
    if not (has_begun or keys or (run / LOG_FILE).exists()):
        raise SamaraError(f"{run}: there is no run: no ledger, no server's log and no keys")
    records = deque(read_ledger(ledger) if has_begun else (), maxlen=1)
    last = records[0] if records else None
    events = list(EventFollower(run / METRICS_FILE).read_new())
    clients: dict[int, ClientStatus] = {}
    for event in events:
        if event.get("event") == "round":
            _add_round(clients, event)
    for line in _refusals(run):
        if isinstance(line.get("client"), int):
            _add_refusal(clients.setdefault(line["client"], ClientStatus()), line)
    for key in keys:
        client = clients.setdefault(key.client, ClientStatus())
        client.name = key.name
        client.state = "revoked" if key.revoked else client.state
    return RunStatus(
        last.delta.round if last else 0,
        last.end_digest.hex() if last else "",
        dict(sorted(clients.items())),
        sum(event.get("bytes_up", 0) for event in events),
        sum(event.get("bytes_down", 0) for event in events),
        "" if has_begun else _describe_wait(run),
    )


def _describe_wait(run: Path) -> str:
    """Return what a run without a ledger waits for: the last line that its server has logged."""
    lines = [line.get("message", "") for line in EventFollower(run / LOG_FILE).read_new()]
    said = (
        f"; its server's last line: {lines[-1]}" if lines else "; its server has logged nothing yet"
    )
    return f"the run begins when enough clients have introduced themselves{said}"


def _refusals(run: Path) -> list[dict[str, Any]]:
    """Return the lines of the server's log about refused clients."""
    lines = EventFollower(run / LOG_FILE).read_new()
    return [line for line in lines if line.get("event") == REFUSED_EVENT]


def _add_refusal(client: ClientStatus, line: dict[str, Any]) -> None:
    """Add the refusal of a client's hello, a line of the server's log, to its status, in place."""
    client.failures += 1
    if line["time"] > client.last_report_time:
        client.state, client.last_failure = "refused", line["message"]


def _add_round(clients: dict[int, ClientStatus], event: dict[str, Any]) -> None:
    """Add the event of a round to the status of its clients, in place."""
    for index, counts in event["clients"].items():
        client = clients.setdefault(int(index), ClientStatus())
        client.reports += 1
        client.wire = "stream" if int(index) in event.get("by_stream", []) else "SuperNode"
        client.last_round, client.last_report_time = event["round"], event.get("time", "")
        client.round = event.get("late", {}).get(index, event["round"]) - 1
        client.bytes_up += counts["bytes_up"]
        client.bytes_down += counts["bytes_down"]
        if cost := counts.get("cost"):
            client.cost_rounds += 1
            client.cost_seconds += cost["seconds"]
            client.cost_joules += cost["joules"]
    failures = event["refused"] | dict.fromkeys(map(str, event.get("absent", [])), "no answer")
    for index, reason in failures.items():
        client = clients.setdefault(int(index), ClientStatus())
        client.failures += 1
        client.last_failure = f"round {event['round']}: {reason}"
    resting = event.get("resting", [])
    for number, client in clients.items():
        client.state = "resting" if number in resting else ""
