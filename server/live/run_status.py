"""The status of a run and of its clients as values, added up from the run's events. Pure."""

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

_KEPT_ROUNDS = 240
"""Number of rounds whose figures a status has; the sums count all of them."""
_KEPT_MESSAGES = 12
_CLIENT = re.compile(r"\bclient (\d+)\b")
CONNECTED, AWAY, STREAM = "connected", "away", "stream"


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
        state: ``resting``, ``refused`` when it introduced itself last, ``revoked``, ``gateway`` for
            one that is no client itself, or empty.
        link: whether its node is `CONNECTED` or `AWAY`; empty if nobody has noted it, or it is
            connected through a gateway.
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
    link: str = ""
    cost_rounds: int = 0
    cost_seconds: float = 0.0
    cost_joules: float = 0.0

    @property
    def cost(self) -> str:
        """The mean cost of a round for the client's device; empty if its owner shares none."""
        if self.seconds is None:
            return ""
        text = f"{self.seconds:,.1f} s"
        if self.watts is not None:
            text += f", {self.cost_joules / self.cost_rounds:,.1f} J, {self.watts:,.1f} W"
        return text

    @property
    def seconds(self) -> float | None:
        """The mean seconds of a round on its device; None if its owner shares none."""
        return self.cost_seconds / self.cost_rounds if self.cost_rounds else None

    @property
    def watts(self) -> float | None:
        """The mean power of its device in rounds; None if it is not measured or not shared."""
        return self.cost_joules / self.cost_seconds if self.cost_joules else None


@dataclass(frozen=True)
class RoundStatus:
    """A round of a run, as its event tells.

    Attributes:
        round: its number.
        loss: weighted mean loss of its reports; None without any.
        learning_rate: its step size.
        reports, refused, absent: number of clients whose report was used, whose reply was
            refused, and who did not answer.
        bytes_up, bytes_down: bytes of all replies and of all messages.
        seconds: seconds since the process that recorded it began.
        time: when it ended: UTC, ISO 8601.
        problem: reason why it changed nothing or reverted others; empty otherwise.
        epsilon: ε of the run with this round; None without privacy.
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
        """Return the status of a round with this event."""
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
    """The figures of one way of serving in an evaluation.

    Attributes:
        round: last round before it.
        split: ``validation`` or ``test``.
        column: way of serving, such as ``global``.
        accuracy: share of correct predictions of all clients together.
        loss: mean cross-entropy.
    """

    round: int
    split: str
    column: str
    accuracy: float
    loss: float

    @property
    def curve(self) -> str:
        """Name of the curve that it belongs to: its column, and its split but for validation."""
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
        """Return it with the names of clients in place of their indices."""
        return replace(self, text=name_clients(self.text, names))


def name_clients(text: str, names: Mapping[int, str]) -> str:
    """Return a line with the names of clients in place of their indices. Pure."""

    def name(found: re.Match[str]) -> str:
        return f"client {names.get(int(found[1]), found[1])}"

    return _CLIENT.sub(name, text)


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
        name: name of the run's folder.
        planned_rounds: number of rounds of the run; 0 before it has begun.
        is_finished: whether the run has a result.
        connected: number of connected nodes; None if no server has noted it lately.
        reports, failures: number of reports and of failures of all clients.
        rounds: the last rounds, oldest first.
        evaluations: all evaluations, oldest first.
        messages: the last lines of the server's log but for rounds and evaluations, oldest first.
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
        """Return a sentence where no server serves the run; empty while one does."""
        if self.is_finished:
            return "the run is finished"
        if self.connected is not None:
            return ""
        return (
            "no server has been seen in the last minute; the command that began the run goes on "
            "with it"
        )

    @property
    def last(self) -> RoundStatus | None:
        """The last round; None before it."""
        return self.rounds[-1] if self.rounds else None

    @property
    def epsilon(self) -> float | None:
        """ε that the run has spent; None without privacy."""
        return self.last.epsilon if self.last else None

    @property
    def curves(self) -> dict[str, list[EvaluationStatus]]:
        """The evaluations of each split and column, by the name of their curve."""
        found: dict[str, list[EvaluationStatus]] = {}
        for each in self.evaluations:
            found.setdefault(each.curve, []).append(each)
        return found


@dataclass
class EventSums:
    """The sums of a run's events, added one after another.

    Attributes:
        clients: status of the clients by index, without what the log and the keys tell of them.
        rounds, evaluations, messages: as of `RunStatus`.
        bytes_up, bytes_down: as of `RunStatus`.
        refusals: last line of the log by refused client, and how many there were.
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
            refused_event: kind of event of a line that tells of a refused client.
        """
        kind, client = line.get("event"), line.get("client")
        if kind not in ("round", "evaluation"):
            texts = (str(line.get(key, "")) for key in ("time", "level", "message"))
            self.messages.append(Message(*texts))
        if kind == refused_event and isinstance(client, int):
            count, _ = self.refusals.get(client, (0, line))
            self.refusals[client] = count + 1, line

    def client_status(self) -> dict[int, ClientStatus]:
        """Return the status of the clients by index, with what the log tells of them."""
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
