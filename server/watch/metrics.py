"""A run's status as metrics for Prometheus, in its text format or in OpenMetrics."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from samara.server.live.run_status import CONNECTED, ClientStatus, RunStatus

MOST_CLIENTS = 1000
"""Maximum number of clients with per-client metrics; a run with more clients has only sums."""
STATES = "", "refused", "resting", "revoked", "gateway"

Samples = Iterable[tuple[tuple[str, ...], float]]
"""The samples of a metric: label values (without the label ``run``), and a number."""


@dataclass(frozen=True)
class RunMetric:
    """A metric of a run.

    Attributes:
        name: name of the metric; counters end in ``_total``.
        help: description of the metric.
        samples: function that returns the values.
        labels: names of the labels except ``run``.
    """

    name: str
    help: str
    samples: Callable[[RunStatus], Samples]
    labels: tuple[str, ...] = ()

    @property
    def is_counter(self) -> bool:
        """Return whether the metric is a counter."""
        return self.name.endswith("_total")

    def family(self, status: RunStatus) -> Metric:
        """Return the metric with its values for a status, as a Prometheus metric family."""
        kind = CounterMetricFamily if self.is_counter else GaugeMetricFamily
        family = kind(self.name.removesuffix("_total"), self.help, labels=["run", *self.labels])
        for labels, value in self.samples(status):
            family.add_metric([status.name, *labels], value)
        return family


def metrics_text(status: RunStatus, accept: str = "") -> tuple[bytes, str]:
    """Return the metrics of a run and their media type.

    Args:
        status: status of the run.
        accept: Accept header of the request, which decides the format.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(status))
    encode, media_type = choose_encoder(accept)
    return encode(registry), media_type


class _Collector:
    def __init__(self, status: RunStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        for metric in METRICS:
            yield metric.family(self._status)


def _one(value: float | None) -> Samples:
    return [] if value is None else [((), float(value))]


def _last(name: str) -> Callable[[RunStatus], Samples]:
    """Return a function that reads a figure of the last round."""

    def samples(status: RunStatus) -> Samples:
        return _one(getattr(status.last, name)) if status.last else []

    return samples


def _evaluated(name: str) -> Callable[[RunStatus], Samples]:
    def samples(status: RunStatus) -> Samples:
        last = [curve[-1] for curve in status.curves.values()]
        return [((each.split, each.column), getattr(each, name)) for each in last]

    return samples


def _per_client(value: Callable[[ClientStatus], float | None]) -> Callable[[RunStatus], Samples]:
    """Return a function that reads a figure of each client that has this figure."""

    def samples(status: RunStatus) -> Samples:
        if len(status.clients) > MOST_CLIENTS:
            return
        for number, client in status.clients.items():
            if (figure := value(client)) is not None:
                yield (str(number), client.name), float(figure)

    return samples


def _by_state(status: RunStatus) -> Samples:
    states = [client.state for client in status.clients.values()]
    return [((state or "sound",), float(states.count(state))) for state in STATES]


def _unix_time(moment: str) -> float | None:
    return datetime.fromisoformat(moment).timestamp() if moment else None


_CLIENT = "client", "name"
METRICS = (
    RunMetric("samara_run_finished", "1 once the run has a result", lambda s: _one(s.is_finished)),
    RunMetric("samara_round", "last round in the ledger", lambda s: _one(s.round)),
    RunMetric(
        "samara_planned_rounds",
        "rounds of the whole run; 0 before it begins",
        lambda s: _one(s.planned_rounds),
    ),
    RunMetric(
        "samara_round_end_timestamp_seconds",
        "end of the last round, Unix time",
        lambda s: _one(_unix_time(s.last.time)) if s.last else [],
    ),
    RunMetric("samara_round_loss", "loss of the last round; none without reports", _last("loss")),
    RunMetric("samara_round_learning_rate", "η of the last round", _last("learning_rate")),
    RunMetric("samara_round_reports", "reports in the last round", _last("reports")),
    RunMetric("samara_round_refused", "refused replies in the last round", _last("refused")),
    RunMetric(
        "samara_round_absent", "clients without an answer in the last round", _last("absent")
    ),
    RunMetric("samara_epsilon", "ε that the run has spent; none without privacy", _last("epsilon")),
    RunMetric(
        "samara_accuracy",
        "mean accuracy of the clients in the last evaluation of a split and a column",
        _evaluated("accuracy"),
        ("split", "column"),
    ),
    RunMetric(
        "samara_evaluation_loss",
        "cross-entropy in the last evaluation of a split and a column",
        _evaluated("loss"),
        ("split", "column"),
    ),
    RunMetric("samara_reports_total", "reports in the ledger", lambda s: _one(s.reports)),
    RunMetric(
        "samara_failures_total",
        "refused replies, refused hellos, and missing answers",
        lambda s: _one(s.failures),
    ),
    RunMetric(
        "samara_received_bytes_total", "bytes of frames from clients", lambda s: _one(s.bytes_up)
    ),
    RunMetric(
        "samara_sent_bytes_total", "bytes of frames to clients", lambda s: _one(s.bytes_down)
    ),
    RunMetric(
        "samara_connected_nodes",
        "connected nodes, including gateways; none if no server serves the run",
        lambda s: _one(s.connected),
    ),
    RunMetric("samara_clients", "clients and gateways by state", _by_state, ("state",)),
    RunMetric(
        "samara_client_reports_total",
        "reports of a client in the ledger",
        _per_client(lambda c: c.reports),
        _CLIENT,
    ),
    RunMetric(
        "samara_client_failures_total",
        "failures of a client",
        _per_client(lambda c: c.failures),
        _CLIENT,
    ),
    RunMetric(
        "samara_client_last_report_timestamp_seconds",
        "time of a client's last report, Unix time; none before the first report",
        _per_client(lambda c: _unix_time(c.last_report_time)),
        _CLIENT,
    ),
    RunMetric(
        "samara_client_received_bytes_total",
        "bytes of a client's reports",
        _per_client(lambda c: c.bytes_up),
        _CLIENT,
    ),
    RunMetric(
        "samara_client_sent_bytes_total",
        "bytes of instructions and catch-ups to a client",
        _per_client(lambda c: c.bytes_down),
        _CLIENT,
    ),
    RunMetric(
        "samara_client_connected",
        "1 if a client is connected, 0 if it is away; none if unknown",
        _per_client(lambda c: float(c.link == CONNECTED) if c.link else None),
        _CLIENT,
    ),
    RunMetric(
        "samara_client_resting",
        "1 if a client is left out of rounds because it fails repeatedly",
        _per_client(lambda c: float(c.state == "resting")),
        _CLIENT,
    ),
    RunMetric(
        "samara_client_round_seconds",
        "mean seconds of a round on a client's device, if its owner shares them",
        _per_client(lambda c: c.seconds),
        _CLIENT,
    ),
    RunMetric(
        "samara_client_power_watts",
        "mean power of a client's device in rounds, if measured and shared",
        _per_client(lambda c: c.watts),
        _CLIENT,
    ),
)
"""All metrics. Each has the label ``run``, the name of the run's folder."""


def metrics_table() -> str:
    """Return the metrics as a Markdown table."""
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for metric in METRICS:
        kind = "counter" if metric.is_counter else "gauge"
        labels = ", ".join(f"`{name}`" for name in ("run", *metric.labels))
        lines.append(f"| `{metric.name}` | {kind} | {labels} | {metric.help} |")
    return "\n".join(lines)
