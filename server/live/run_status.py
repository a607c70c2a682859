"""The status of a run and of its clients, summed from the run's events."""

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

_KEPT_ROUNDS = 240
"""Number of recent rounds that a status lists; sums cover all rounds."""
_KEPT_MESSAGES = 12
_CLIENT = re.compile(r"\bclient (\d+)\b")
CONNECTED, AWAY, STREAM = "connected", "away", "stream"


@dataclass
class ClientStatus:
    """The status of a client, from the events of its run.

    Attributes:
        name: name of the client's key; empty without a key.
        round: last round whose state the client is known to have. This is the round before the
            round of its last report.
        last_round: round of the client's last report; 0 before the first report.
        last_report_time: time of the last report, UTC, ISO 8601; empty before the first report.
        reports: number of the client's reports in the ledger.
        failures: number of the client's refused or missing replies.
        last_failure: round and reason of the last failure.
        bytes_up: bytes of the frames from the client.
        bytes_down: bytes of the instructions and catch-ups to the client.
        wire: transport of the last report, ``stream`` or ``SuperNode``; empty before the first.
        state: ``resting`` (not sampled, because it keeps failing), ``refused`` (its last hello was
            refused), ``revoked``, ``gateway`` (a gateway, not a client) or empty.
        link: `CONNECTED` or `AWAY`; empty if the state of the client's node is unknown, or if the
            client connects through a gateway.
        cost_rounds: number of reports whose cost the client's owner shares.
        cost_seconds: seconds that the device states for the reports in `cost_rounds`.
        cost_joules: energy of the reports in `cost_rounds`, in joules; 0 if not measured.
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
    link: str = ""
    cost_rounds: int = 0
    cost_seconds: float = 0.0
    cost_joules: float = 0.0

    @property
    def cost(self) -> str:
        """The mean cost of a round on the client's device, as text; empty if not shared."""
        if self.seconds is None:
            return ""
        text = f"{self.seconds:,.1f} s"
        if self.watts is not None:
            text += f", {self.cost_joules / self.cost_rounds:,.1f} J, {self.watts:,.1f} W"
        return text

    @property
    def seconds(self) -> float | None:
        """The mean seconds of a round on the client's device; None if the owner shares none."""
        return self.cost_seconds / self.cost_rounds if self.cost_rounds else None

    @property
    def watts(self) -> float | None:
        """The mean power of the client's device in rounds, watts; None if unknown or not shared."""
        return self.cost_joules / self.cost_seconds if self.cost_joules else None


@dataclass(frozen=True)
class RoundStatus:
    """A round of a run, from its event.

    Attributes:
        round: number of the round.
        loss: weighted mean loss of the round's reports; None without reports.
        learning_rate: learning rate of the round.
        reports, refused, absent: numbers of used reports, refused replies, and clients without a
            reply.
        bytes_up, bytes_down: bytes of all replies and of all messages.
        seconds: time from the start of the ServerApp's process to the end of the round, in seconds.
        time: end of the round, UTC, ISO 8601.
        problem: reason why the round changed nothing or reverted earlier rounds; otherwise empty.
        epsilon: ε of the run up to this round; None without differential privacy.
    """

    round: int
    loss: float | None
    learning_rate: float
    reports: int
    refused: int
    absent: int
    bytes_up: int
    bytes_down: int
    seconds: float
    time: str
    problem: str
    epsilon: float | None

    @classmethod
    def of_event(cls, event: Mapping[str, Any]) -> "RoundStatus":
        """Build the status of a round from the round's event."""
        return cls(
            event["round"],
            event.get("loss"),
            event.get("learning_rate", 0.0),
            event.get("reports", 0),
            len(event.get("refused", {})),
            len(event.get("absent", [])),
            event.get("bytes_up", 0),
            event.get("bytes_down", 0),
            event.get("seconds", 0.0),
            event.get("time", ""),
            event.get("problem", ""),
            event.get("epsilon"),
        )


@dataclass(frozen=True)
class EvaluationStatus:
    """The figures of one column of an evaluation.

    Attributes:
        round: last round before the evaluation.
        split: ``validation`` or ``test``.
        column: evaluated model, such as ``global``.
        accuracy: share of correct predictions over all clients' examples.
        loss: mean cross-entropy.
    """

    round: int
    split: str
    column: str
    accuracy: float
    loss: float

    @property
    def curve(self) -> str:
        """The name of the figures' curve: the column, and the split if it is not validation."""
        return self.column if self.split == "validation" else f"{self.column}, {self.split}"


@dataclass(frozen=True)
class Message:
    """A line of the server's log.

    Attributes:
        time: UTC, ISO 8601.
        level: ``info``, ``warning`` or ``error``.
        text: the line.
    """

    time: str
    level: str
    text: str

    def with_names(self, names: Mapping[int, str]) -> "Message":
        """Return the line with client names in place of indices."""
        return replace(self, text=name_clients(self.text, names))


def name_clients(text: str, names: Mapping[int, str]) -> str:
    """Replace client indices in a line by names."""

    def name(found: re.Match[str]) -> str:
        return f"client {names.get(int(found[1]), found[1])}"

    return _CLIENT.sub(name, text)


@dataclass
class RunStatus:
    """The status of a run.

    Attributes:
        round: last round in the ledger.
        digest: end digest of the last round, in hex; empty before the first round.
        clients: status of the clients by index, ascending.
        bytes_up: bytes of all frames from clients.
        bytes_down: bytes of all messages to clients.
        waits_for: sentence about the wait before the run begins; empty once the run has begun.
        name: name of the run's folder.
        planned_rounds: number of rounds of the run; 0 before it has begun.
        is_finished: whether the run has a result.
        connected: number of connected nodes; None without a recent record.
        reports, failures: numbers of reports and of failures of all clients together.
        rounds: the last rounds, oldest first.
        evaluations: all evaluations, oldest first.
        messages: last lines of the server's log, without rounds and evaluations, oldest first.
    """

    round: int
    digest: str
    clients: dict[int, ClientStatus]
    bytes_up: int
    bytes_down: int
    waits_for: str = ""
    name: str = ""
    planned_rounds: int = 0
    is_finished: bool = False
    connected: int | None = None
    reports: int = 0
    failures: int = 0
    rounds: tuple[RoundStatus, ...] = ()
    evaluations: tuple[EvaluationStatus, ...] = ()
    messages: tuple[Message, ...] = ()

    @property
    def state(self) -> str:
        """One of ``waiting``, ``finished`` and ``running``."""
        if self.is_finished:
            return "finished"
        return "waiting" if self.waits_for else "running"

    def describe_server(self) -> str:
        """Return the reason why no server serves the run, in words; empty if one serves it."""
        if self.is_finished:
            return "the run is finished"
        if self.connected is not None:
            return ""
        return (
            "no server has served this run in the last minute; to continue the run, repeat the "
            "command that began it"
        )

    @property
    def last(self) -> RoundStatus | None:
        """The last round; None before the first round."""
        return self.rounds[-1] if self.rounds else None

    @property
    def epsilon(self) -> float | None:
        """The ε spent so far; None without differential privacy."""
        return self.last.epsilon if self.last else None

    @property
    def curves(self) -> dict[str, list[EvaluationStatus]]:
        """The evaluations of each split and column, by curve name."""
        found: dict[str, list[EvaluationStatus]] = {}
        for each in self.evaluations:
            found.setdefault(each.curve, []).append(each)
        return found


@dataclass
class EventSums:
    """Running sums of a run's events.

    Attributes:
        clients: status of the clients by index, without information from the log and the keys.
        rounds, evaluations, messages: as in `RunStatus`.
        bytes_up, bytes_down: as in `RunStatus`.
        refusals: last log line and number of refusals, by refused client.
    """

    clients: dict[int, ClientStatus] = field(default_factory=dict)
    rounds: deque[RoundStatus] = field(default_factory=lambda: deque(maxlen=_KEPT_ROUNDS))
    evaluations: list[EvaluationStatus] = field(default_factory=list)
    messages: deque[Message] = field(default_factory=lambda: deque(maxlen=_KEPT_MESSAGES))
    bytes_up: int = 0
    bytes_down: int = 0
    refusals: dict[int, tuple[int, Mapping[str, Any]]] = field(default_factory=dict)

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Add a round or an evaluation."""
        self.bytes_up += event.get("bytes_up", 0)
        self.bytes_down += event.get("bytes_down", 0)
        if event.get("event") == "round":
            self.rounds.append(RoundStatus.of_event(event))
            _add_round(self.clients, event)
        elif event.get("event") == "evaluation":
            for column, figures in event["columns"].items():
                accuracy, loss = figures["mean_client_accuracy"], figures["loss"]
                evaluated = EvaluationStatus(event["round"], event["split"], column, accuracy, loss)
                self.evaluations.append(evaluated)

    def add_line(self, line: Mapping[str, Any], refused_event: str) -> None:
        """Add a line of the server's log.

        Args:
            line: the line.
            refused_event: event kind of lines about a refused client.
        """
        kind, client = line.get("event"), line.get("client")
        if kind not in ("round", "evaluation"):
            texts = (str(line.get(key, "")) for key in ("time", "level", "message"))
            self.messages.append(Message(*texts))
        if kind == refused_event and isinstance(client, int):
            count, _ = self.refusals.get(client, (0, line))
            self.refusals[client] = count + 1, line

    def client_status(self) -> dict[int, ClientStatus]:
        """Return the status of the clients by index, completed from the log."""
        clients = {number: replace(client) for number, client in self.clients.items()}
        for number, (count, line) in self.refusals.items():
            client = clients.setdefault(number, ClientStatus())
            client.failures += count
            if line["time"] > client.last_report_time:
                client.state, client.last_failure = "refused", line["message"]
        return clients


def _add_round(clients: dict[int, ClientStatus], event: Mapping[str, Any]) -> None:
    """Add the event of a round to the status of its clients, in place."""
    by_stream, resting = set(event.get("by_stream", [])), set(event.get("resting", []))
    for index, counts in event["clients"].items():
        client = clients.setdefault(int(index), ClientStatus())
        client.reports += 1
        client.wire = STREAM if int(index) in by_stream else "SuperNode"
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
    for number, client in clients.items():
        client.state = "resting" if number in resting else ""
