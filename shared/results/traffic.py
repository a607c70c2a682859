"""A run's traffic compared with that of FedAvg, and its number of scalars per trained number.

Every run ends with this comparison: on the terminal, in a live server's log, in ``result.json`` and
on comparison pages. FedAvg (McMahan et al., 2017) on the same adapter sends d float32 numbers in
each direction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from samara.shared.results.result import RunResult

_FLOAT32_BYTES = 4
_SEGMENT_BYTES, _SEGMENT_HEADERS = 1_448, 66
"""Bytes of payload in a full TCP segment, and bytes of its TCP, IP and Ethernet headers."""
LITTLE, DETERMINED = 0.1, 1.0
"""Two thresholds of the scalar ratio.

Below `LITTLE`, scalars reveal little. From `DETERMINED` on, they determine the mean gradient.
"""
SENDS_UPDATE = (
    "a report has as many components as there are trained numbers, so a client sends its whole "
    "update to the server, as with FedAvg"
)


class Bytes(NamedTuple):
    """Numbers of bytes from clients to the server, and back."""

    up: float
    down: float


OF_AN_EXCHANGE = {"gateway's stream": Bytes(626, 522), "Flower's SuperNode": Bytes(13_045, 4_860)}
"""Overhead of a message and its reply in bytes, by transport.

They were measured over TLS with keys (docs/measurements/live.md): all bytes at a client's interface
in a round, minus the report (160 bytes) and the instruction with records (905 bytes). Most of a
SuperNode's overhead is polling for messages.
"""


@dataclass(frozen=True)
class Traffic:
    """The bytes and scalars of a run.

    Attributes:
        numbers: trained numbers, d.
        client_rounds: number of reports of all clients in all rounds.
        exchanges: number of reports and evaluations of all clients.
        bytes_up: payload of all replies, evaluations included.
        bytes_down: payload of all messages, evaluations included.
        passes: number of rows that went through the model, the mean over clients; None if not
            counted.
        scalar_ratio: mean over clients of the number of scalars per trained number; None if not
            counted.
        is_noised: whether differential privacy covers the scalars.
        sends_update: whether the components of one report are a client's whole update.
    """

    numbers: int
    client_rounds: float
    exchanges: float
    bytes_up: float
    bytes_down: float
    passes: float | None
    scalar_ratio: float | None
    is_noised: bool
    sends_update: bool = False

    @property
    def payload(self) -> Bytes:
        """The bytes of frames and catch-ups in the whole run."""
        return Bytes(self.bytes_up, self.bytes_down)

    @property
    def fed_avg(self) -> Bytes:
        """The payload of FedAvg on the same adapter with the same number of reports."""
        size = _FLOAT32_BYTES * self.numbers * self.client_rounds
        return Bytes(size, size)

    def on(self, wire: str) -> Bytes:
        """Estimate the bytes at the network interfaces, for a transport in `OF_AN_EXCHANGE`."""
        with_headers = 1 + _SEGMENT_HEADERS / _SEGMENT_BYTES
        beside = OF_AN_EXCHANGE[wire]
        return Bytes(
            with_headers * self.bytes_up + self.exchanges * beside.up,
            with_headers * self.bytes_down + self.exchanges * beside.down,
        )

    def per_client_round(self, whole: Bytes) -> Bytes:
        """Divide bytes of the whole run by the number of reports; zeros without reports."""
        count = self.client_rounds or float("inf")
        return Bytes(whole.up / count, whole.down / count)

    @property
    def parts(self) -> dict[str, Bytes]:
        """The rows of the table: bytes of the whole run, by title."""
        return {
            "payload": self.payload,
            **{f"{wire}, about": self.on(wire) for wire in OF_AN_EXCHANGE},
            "FedAvg, same adapter": self.fed_avg,
        }

    def sentences(self) -> list[str]:
        """Return sentences about the passes and the scalar ratio, which the table does not show."""
        said = []
        if self.passes is not None:
            said.append(f"passes: {self.passes:,.0f} per client on average")
        if self.scalar_ratio is not None:
            said.append(
                "scalars (measured numbers) that a client sent, per trained number: "
                f"{self.scalar_ratio:.2g}; {self._meaning()}"
            )
        if self.sends_update:
            said.append(SENDS_UPDATE)
        if self.determines_gradients:
            said.append(
                "from these scalars, the server can compute the mean gradient of a client's "
                "examples (docs/guides/privacy.md)"
            )
        if self.client_rounds and sum(self.payload) > sum(self.fed_avg):
            said.append(
                "FedAvg on the same adapter would send fewer bytes; scalars need fewer bytes than "
                "FedAvg if more numbers are trained"
            )
        return said

    @property
    def determines_gradients(self) -> bool:
        """True if the scalars determine the mean gradient of a client's examples."""
        return not self.is_noised and (self.scalar_ratio or 0.0) >= DETERMINED

    def _meaning(self) -> str:
        if self.is_noised:
            return "they are noised, and ε bounds the information in them"
        return (
            f"below {LITTLE:g} they reveal little of its examples, and from {DETERMINED:g} on they "
            "determine the mean gradient of these; fewer rounds, steps or queries lower this "
            "number, and data.scalar-limit bounds it"
        )

    def table(self) -> list[list[str]]:
        """Return the table as cells: a heading, then the rows of `parts`."""
        rows = [["", "up a round", "down a round", "up, in all", "down, in all"]]
        for title, whole in self.parts.items():
            cells = [*self.per_client_round(whole), *whole]
            rows.append([title, *(f"{cell:,.0f}" for cell in cells)])
        return rows

    def lines(self) -> list[str]:
        """Return table and sentences as lines of text."""
        rows = self.table()
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [self.title]
        for first, *cells in rows:
            shown = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
            lines.append("  ".join([first.ljust(widths[0]), *shown]))
        return [*lines, *self.sentences()]

    @property
    def title(self) -> str:
        """The title of the table."""
        return (
            f"Bytes of a client, and in all: {self.numbers:,} trained numbers, "
            f"{self.client_rounds:,.0f} reports"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the traffic in the form of `result.json`."""
        both = {
            title: {
                "whole": whole._asdict(),
                "per_client_round": self.per_client_round(whole)._asdict(),
            }
            for title, whole in (
                ("payload", self.payload),
                ("by_stream", self.on("gateway's stream")),
                ("by_supernode", self.on("Flower's SuperNode")),
                ("fed_avg", self.fed_avg),
            )
        }
        counts = {"numbers": self.numbers, "client_rounds": self.client_rounds}
        means = {"passes": self.passes, "scalar_ratio": self.scalar_ratio}
        return {**counts, "exchanges": self.exchanges, **both, **means}


def sends_update(config: Mapping[str, Any], numbers: int) -> bool:
    """Return whether the components of one report are a client's whole update.

    Args:
        config: settings by dotted key.
        numbers: number of trained numbers.
    """
    return config.get("differences") == "components" and config["queries"] == numbers


def traffic_of(result: RunResult) -> Traffic:
    """Return the traffic of a finished run."""
    reports = sum(len(entry.clients) for entry in result.rounds)
    evaluations = sum(
        len(set().union(*(column.clients for column in event.columns.values()), event.refused))
        for event in result.evaluations
    )
    ratios = result.scalar_ratios
    return Traffic(
        numbers=result.elements,
        client_rounds=reports,
        exchanges=reports + evaluations,
        bytes_up=result.bytes_up,
        bytes_down=result.bytes_down,
        passes=result.mean_passes,
        scalar_ratio=ratios.mean if ratios and ratios.clients else None,
        is_noised=result.config.get("privacy.mode", "none") != "none",
        sends_update=sends_update(result.config, result.elements),
    )


def mean_traffic(several: Sequence[Traffic]) -> Traffic:
    """Return the mean traffic of repetitions of a run."""

    def mean(name: str) -> float | None:
        values = [value for own in several if (value := getattr(own, name)) is not None]
        return sum(values) / len(values) if values else None

    names = "client_rounds", "exchanges", "bytes_up", "bytes_down", "passes", "scalar_ratio"
    means: dict[str, Any] = {name: mean(name) for name in names}
    return replace(several[0], **means)
