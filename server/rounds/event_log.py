"""The event log: what is recorded of rounds and evaluations, and how it reads in a log line."""

import json
import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from samara.server.rounds.evaluation import is_global_validation
from samara.server.store import METRICS_FILE, NEXT_EVENT_FILE, RunStore
from samara.shared.events import append_in_parts
from samara.shared.files import disk_errors_explained, write_durably
from samara.shared.frames.report import Report
from samara.shared.frames.round_cost import RoundCost
from samara.shared.ledger.reading import read_ledger
from samara.shared.round_delta import RoundDelta

log = logging.getLogger("samara.server")

INTERCEPT = "intercept"
"""The key of a round's event that has the common intercept, one number per label."""
LOST = "lost"
"""The key of a round's event that says that the round was lost (server/keeping/restoring.py)."""


@dataclass(frozen=True)
class RoundEvent:
    """A round as `metrics.jsonl` has it. Clients are text where they are keys of JSON.

    Attributes:
        round: the round's number.
        loss: mean loss of the reports, weighted like the reports; None without any.
        learning_rate: step size of the round's instruction.
        reports: number of reports in the round delta.
        refused: by client, the reason why its reply was not used.
        absent: clients that were asked and did not answer in time.
        late: by client whose report is late, the round that it answers.
        resting: clients that are not asked in the next round.
        problem: reason why the round changes nothing or reverts others; empty otherwise.
        back_to: round whose state a reverting round leads to.
        bytes_up, bytes_down: bytes of all replies and of all messages.
        ledger_bytes: bytes that the round added to the ledger.
        clients: by client, loss, examples, scalars and bytes of its report, and what it has cost
            the client's device if its owner shares that.
    """

    round: int
    loss: float | None = None
    learning_rate: float = 0.0
    reports: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)
    absent: list[int] = field(default_factory=list)
    late: Mapping[str, int] = field(default_factory=dict)
    resting: list[int] = field(default_factory=list)
    problem: str = ""
    back_to: int | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    ledger_bytes: int = 0
    clients: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class EvaluationEvent:
    """An evaluation as `metrics.jsonl` has it.

    Attributes:
        round: the round after which the model was evaluated.
        split: the evaluated split.
        columns: by column, the figures of `summarize_evaluations`.
        refused: by client, the reason why its reply was not used.
        bytes_up, bytes_down: bytes of all replies and of all messages.
        catch_up_bytes: those of the messages that bring clients up to the round.
    """

    round: int
    split: str
    columns: Mapping[str, Any]
    refused: Mapping[str, str]
    bytes_up: int
    bytes_down: int
    catch_up_bytes: int


class Meter(Protocol):
    """Counts that events of rounds and the result of a run have besides: JSON values by key."""

    def finish_round(self) -> dict[str, Any]:
        """Finish a round and return what its event holds besides."""

    def finish_run(self, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Finish a run with these round events and return what its result holds besides."""


class EventLog:
    """Writes the events of a run to its folder and to the log.

    Args:
        store: the run's folder, whose earlier events are read.
        rounds: rounds of the run; later ones of its ledger finish the model, and train nothing.

    Attributes:
        last: last event that this process has written; empty before the first.
    """

    def __init__(self, store: RunStore, rounds: float = math.inf) -> None:
        self.last: dict[str, Any] = {}
        self._rounds = rounds
        self._ledger, self._file = store.ledger, store.folder / METRICS_FILE
        self._next = store.folder / NEXT_EVENT_FILE
        self._started = time.monotonic()
        self._reasons: dict[int, str] = {}
        events = store.events()
        self.unused_rounds = count_unused_rounds(events)
        """Number of rounds in a row, up to the last one, that used no report."""
        self._validated = {event["round"] for event in events if is_global_validation(event)}
        self._restore_round(events)

    def has_validation(self, number: int) -> bool:
        """Return whether the global model was validated after a round."""
        return number in self._validated

    def append_round(self, delta: RoundDelta, event: RoundEvent, **more: Any) -> None:
        """Append a round to the ledger, and write its event.

        The event is in a file of its own before, from which the next process writes it if this one
        is killed between both.

        Args:
            delta: the round's delta.
            event: the round; the size of its record is not known yet.
            more: JSON by key, what the event has besides.

        Raises:
            ReplayError, LedgerError: those of `Ledger.append`.
            LedgerError: if an event cannot be written.
        """
        content = {"event": "round"} | asdict(event) | more
        with disk_errors_explained(self._next):
            write_durably(self._next, json.dumps(content, sort_keys=True).encode())
        self._record_round(content, self._ledger.append(delta))
        self._delete_next()

    def _restore_round(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Write the event of the ledger's last round if a process was killed before it wrote it."""
        content, ledger = self._read_next(), self._ledger
        recorded = {event["round"] for event in events if event["event"] == "round"}
        number = ledger.position.round
        if content.get("round") == number and number not in recorded:
            *_, last = read_ledger(ledger.folder)
            self._record_round(content, last.size)
        self._delete_next()

    def _read_next(self) -> dict[str, Any]:
        """Return the event of the round that was about to be appended; empty if none is sound."""
        try:
            event = json.loads(self._next.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return event if isinstance(event, dict) else {}

    def _delete_next(self) -> None:
        with disk_errors_explained(self._next):
            self._next.unlink(missing_ok=True)

    def _record_round(self, content: dict[str, Any], ledger_bytes: int) -> None:
        """Write the event of the ledger's last round."""
        used = content["reports"] or content["back_to"] is not None
        self.unused_rounds = 0 if used else self.unused_rounds + 1
        digest = self._ledger.digest.hex()
        self._record(content | {"digest": digest, "ledger_bytes": ledger_bytes})

    def record_evaluation(self, event: EvaluationEvent) -> None:
        """Write an evaluation."""
        fields = {"event": "evaluation"} | asdict(event)
        if is_global_validation(fields):
            self._validated.add(event.round)
        self._record(fields)

    def log_refusal(self, client: int, reason: str) -> None:
        """Log why a reply of a client is not used, but not the same reason twice in a row."""
        if self._reasons.get(client) != reason:
            log.warning("client %d: %s", client, reason)
        self._reasons[client] = reason

    def _record(self, event: dict[str, Any]) -> None:
        event["seconds"] = time.monotonic() - self._started
        event["time"] = datetime.now(UTC).isoformat(timespec="seconds")
        write_event(self._file, event)
        self.last = event
        log.info(describe_event(event, self._rounds), extra={"event": event})


def write_event(file: Path, event: dict[str, Any]) -> None:
    """Append an event to a metrics file.

    Raises:
        LedgerError: if the disk refuses; a partly written event is cut off at the next opening.
    """
    with disk_errors_explained(file):
        append_in_parts(file, event)


def describe_event(event: Mapping[str, Any], rounds: float = math.inf) -> str:
    """Return an event as one line of text.

    Args:
        event: the event.
        rounds: rounds of the run, after which the ledger's go on where the model is finished.
    """
    when = f"round {event['round']}" if event["round"] <= rounds else "after the last round"
    if event["event"] == "round":
        loss = "" if event["loss"] is None else f"loss {event['loss']:.4f}, "
        return (
            f"{when}: {loss}learning rate {event['learning_rate']:.3g}, "
            f"{event['reports']} reports, "
            f"{event['bytes_up']} bytes up, {event['bytes_down']} bytes down"
            + (f", {event['problem']}" if event["problem"] else _describe_else(event))
        )
    figures = ", ".join(
        f"{name} {column['mean_client_accuracy']:.2%}" for name, column in event["columns"].items()
    )
    return (
        f"{when}: {event['split']} accuracy, mean of the clients: {figures}, "
        f"{event['bytes_up']} bytes up, {event['bytes_down']} bytes down"
    )


def _describe_else(event: Mapping[str, Any]) -> str:
    """Return what else a round with reports does but a step; empty if it is one."""
    if INTERCEPT in event:
        added = ", ".join(f"{number:+.3f}" for number in event[INTERCEPT])
        return f", which adds the common intercept {added}"
    measures = event["reports"] and not event["learning_rate"]
    return ", which measures the step size and trains nothing" if measures else ""


def count_unused_rounds(events: Iterable[Mapping[str, Any]]) -> int:
    """Return how many of the last rounds in a row used no report.

    A round that reverts others counts as one that used some; one that was lost with the server that
    the run was restored from asked for none.
    """
    unused = 0
    for event in events:
        if event["event"] == "round" and not event.get(LOST):
            used = event["reports"] or event.get("back_to") is not None
            unused = 0 if used else unused + 1
    return unused


def count_scalars(rounds: Iterable[Mapping[str, Any]]) -> Counter[int]:
    """Return by client how many projected gradients its reports in these rounds hold.

    Args:
        rounds: events of rounds; those of versions that did not count scalars add none.
    """
    scalars: Counter[int] = Counter()
    for event in rounds:
        for client, fields in event["clients"].items():
            scalars[int(client)] += fields.get("scalars", 0)
    return scalars


def describe_refusals(reasons: Mapping[int, str] | Mapping[str, str]) -> str:
    """Return why answers were refused, with all clients of a reason together.

    >>> describe_refusals({0: "no data", 1: "no task", 2: "no data"})
    'clients 0, 2: no data; client 1: no task'
    """
    clients: dict[str, list[int]] = {}
    for client, reason in sorted((int(client), reason) for client, reason in reasons.items()):
        clients.setdefault(reason, []).append(client)
    return "; ".join(
        f"client{'s' * (len(who) > 1)} {', '.join(map(str, who))}: {reason}"
        for reason, who in clients.items()
    )


def reasons_by_text(reasons: Mapping[int, str]) -> dict[str, str]:
    """Return reasons by client as JSON has them, in the order of the clients."""
    return {str(client): reason for client, reason in sorted(reasons.items())}


def client_fields(
    reports: Mapping[int, Report],
    bytes_up: Mapping[int, int],
    bytes_down: Mapping[int, int],
    costs: Mapping[int, RoundCost],
) -> dict[str, dict[str, Any]]:
    """Return what a round's event says of each client with a report."""
    return {
        str(client): {
            "loss": report.mean_loss,
            "examples": report.examples,
            "scalars": report.gradients.size,
            "bytes_up": bytes_up[client],
            "bytes_down": bytes_down.get(client, 0),
        }
        | _cost_fields(costs.get(client))
        for client, report in sorted(reports.items())
    }


def hidden_client_fields(
    scalars: int, clients: Iterable[int], bytes_up: Mapping[int, int], bytes_down: Mapping[int, int]
) -> dict[str, dict[str, Any]]:
    """Return what a round's event says of each client whose vector only a sum may tell of."""
    return {
        str(client): {
            "scalars": scalars,
            "bytes_up": bytes_up[client],
            "bytes_down": bytes_down.get(client, 0),
        }
        for client in sorted(clients)
    }


def _cost_fields(cost: RoundCost | None) -> dict[str, dict[str, float]]:
    if cost is None:
        return {}
    return {"cost": {"seconds": cost.seconds, "paused": cost.paused, "joules": cost.joules}}
