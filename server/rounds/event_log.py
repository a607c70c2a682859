"""The event log: it stores a run's rounds and evaluations, and writes a log line for each."""

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
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.frames.round_cost import RoundCost
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.round_delta import RoundDelta
from samara.shared.storage.events import append_in_parts
from samara.shared.storage.files import disk_errors_explained, write_durably

log = logging.getLogger("samara.server")

INTERCEPT = "intercept"
"""Event key of the common intercept, one number per label."""
DEVIATION = "deviation"
"""Event key of the common deviation of private intercepts."""
LOST = "lost"
"""Event key of a lost round, which a restored backup lacks (server/keeping/restoring.py)."""


@dataclass(frozen=True)
class RoundEvent:
    """A round in `metrics.jsonl`; client indices that are JSON keys are strings.

    Attributes:
        round: the round's number.
        loss: weighted mean loss of the reports; None without reports.
        learning_rate: learning rate in the round's instruction.
        reports: number of reports in the round delta.
        refused: reason for not using a client's reply, by client.
        absent: clients that did not answer in time.
        late: number of the round that the client's late report answers, by client.
        resting: clients that the next round leaves out.
        problem: reason why the round does not change the model or reverts earlier rounds; otherwise
            empty.
        back_to: round whose state a revert restores.
        bytes_up, bytes_down: bytes of all replies and of all messages.
        ledger_bytes: bytes that the round added to the ledger.
        clients: loss, examples, number of scalars and bytes of each client's report, and the round
            cost if the client's owner shares the round cost.
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
    """An evaluation in `metrics.jsonl`.

    Attributes:
        round: the round after which the model was evaluated.
        split: the evaluated split.
        columns: figures of `summarize_evaluations`, by column.
        refused: reason for not using a client's reply, by client.
        bytes_up, bytes_down: bytes of all replies and of all messages.
        catch_up_bytes: bytes of the catch-ups in the messages.
    """

    round: int
    split: str
    columns: Mapping[str, Any]
    refused: Mapping[str, str]
    bytes_up: int
    bytes_down: int
    catch_up_bytes: int


class Meter(Protocol):
    """An object that adds fields to round events and to the result, as JSON values by key."""

    def finish_round(self) -> dict[str, Any]:
        """Finish a round and return the additional fields of its event."""

    def finish_run(self, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Finish a run and return the additional fields of its result.

        Args:
            rounds: round events of the run.
        """


class EventLog:
    """A log that writes the events of a run to its folder and to the server's log.

    Args:
        store: the run's folder, whose earlier events are read.
        rounds: number of training rounds; later rounds in the ledger do not train.

    Attributes:
        last: last event written by this process; empty before the first event.
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
        """Number of consecutive rounds, up to the last round, without a used report."""
        self._validated = {event["round"] for event in events if is_global_validation(event)}
        self._restore_round(events)

    def has_validation(self, number: int) -> bool:
        """Return whether the global model was validated after a round."""
        return number in self._validated

    def append_round(self, delta: RoundDelta, event: RoundEvent, **more: Any) -> None:
        """Append a round to the ledger and write its event.

        The event is first written to a separate file. If this process is killed between the write
        of the ledger's record and the write of the event, the next process writes the event from
        this file.

        Args:
            delta: the round's delta.
            event: the round's event; its ``ledger_bytes`` are filled in after the append.
            more: additional JSON fields of the event.

        Raises:
            ReplayError: if the delta does not fit the exact state.
            LedgerError: if the ledger or an event cannot be written.
        """
        content = {"event": "round"} | asdict(event) | more
        with disk_errors_explained(self._next):
            write_durably(self._next, json.dumps(content, sort_keys=True).encode())
        self._record_round(content, self._ledger.append(delta))
        self._delete_next()

    def _restore_round(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Write the event of the ledger's last round if a killed process did not write it."""
        content = self._read_next()
        ledger = self._ledger
        recorded = {event["round"] for event in events if event["event"] == "round"}
        number = ledger.position.round
        if content.get("round") == number and number not in recorded:
            *_, last = read_ledger(ledger.folder)
            self._record_round(content, last.size)
        self._delete_next()

    def _read_next(self) -> dict[str, Any]:
        """Return the prepared event of the next round; empty without a valid event."""
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
        """Log the reason for refusing a client's reply, unless the last one was the same."""
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
        LedgerError: if the file cannot be written. The next opening removes a partly written event.
    """
    with disk_errors_explained(file):
        append_in_parts(file, event)


def describe_event(event: Mapping[str, Any], rounds: float = math.inf) -> str:
    """Return an event as one line of text.

    Args:
        event: the event.
        rounds: number of training rounds; later rounds in the ledger do not train.
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
    """Describe a round that has reports but is not a training step; otherwise empty."""
    if INTERCEPT in event:
        added = ", ".join(f"{number:+.3f}" for number in event[INTERCEPT])
        chosen = f"; common deviation {event[DEVIATION]:g}" if DEVIATION in event else ""
        return f", which adds the common intercept {added}{chosen}"
    measures = event["reports"] and not event["learning_rate"]
    return ", which measures the step size and does not train" if measures else ""


def count_unused_rounds(events: Iterable[Mapping[str, Any]]) -> int:
    """Return the number of consecutive rounds at the end without a used report.

    A round that reverts earlier rounds counts as a round with a used report. Lost rounds, which a
    restored backup lacks, do not count.
    """
    unused = 0
    for event in events:
        if event["event"] == "round" and not event.get(LOST):
            used = event["reports"] or event.get("back_to") is not None
            unused = 0 if used else unused + 1
    return unused


def count_scalars(rounds: Iterable[Mapping[str, Any]]) -> Counter[int]:
    """Count the projected gradients that each client reported in these rounds.

    Args:
        rounds: round events; events of earlier versions without a count add 0.
    """
    scalars: Counter[int] = Counter()
    for event in rounds:
        for client, fields in event["clients"].items():
            scalars[int(client)] += fields.get("scalars", 0)
    return scalars


def describe_refusals(reasons: Mapping[int, str] | Mapping[str, str]) -> str:
    """Return the reasons for refused answers as text, with the clients grouped by reason.

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
    """Return the reasons with string keys for JSON, in the order of the clients."""
    return {str(client): reason for client, reason in sorted(reasons.items())}


def client_fields(
    reports: Mapping[int, Report],
    bytes_up: Mapping[int, int],
    bytes_down: Mapping[int, int],
    costs: Mapping[int, RoundCost],
) -> dict[str, dict[str, Any]]:
    """Return the per-client fields of a round's event."""
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
    """Return the per-client fields of a round whose server sees only sums of reports.

    Args:
        scalars: number of projected gradients that each client has reported.
        clients: the clients.
        bytes_up, bytes_down: bytes from and to each client.
    """
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
