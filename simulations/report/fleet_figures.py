"""The figures of a fleet: rounds and stragglers, daily activity, and parts of devices' time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from samara.shared.results.result import FleetJob, FleetRound, RunResult
from samara.shared.terms.columns import GLOBAL
from samara.simulations.report.drawing import DOWN, INK, MUTED, SERIES, Figure, draw_figure
from samara.simulations.report.fleet import (
    HOUR,
    Kind,
    Unit,
    kinds_of,
    span_of,
    unit_for,
    unit_of_parts,
)

DRAWN_DEVICES = 60
"""Maximum number of devices with a line; of more devices, an even selection per kind is drawn."""
_SHADES = (SERIES[0], SERIES[2], SERIES[3], MUTED)
"""Colours of kinds of devices."""
_MARKERS = "os^D"
"""Markers of kinds, which distinguish kinds with the same colour."""
_LABEL_LINES = 2
"""Number of lines for a kind's name above its devices."""
_MANY_TIMES = 20
"""Ratio of the longest to the shortest time of a report above which the scale is logarithmic."""


@dataclass(frozen=True)
class _Clock:
    """The axis of virtual time: hours since the first midnight, or elapsed time of a short run."""

    origin: float
    unit: Unit
    label: str

    @classmethod
    def of(cls, rounds: Sequence[FleetRound]) -> Self:
        """Return the axis that fits the duration of the given rounds."""
        begun = rounds[0].begun
        unit = unit_for(rounds[-1].ended - rounds[0].begun)
        if unit is HOUR:
            return cls(0.0, unit, "hours since the first midnight")
        return cls(begun, unit, f"{unit.name}s after the run began")

    def position(self, second: float) -> float:
        """Return the position on the axis of a virtual time in seconds."""
        return (second - self.origin) / self.unit.seconds


def fleet_figures(letter: str, result: RunResult) -> list[Figure]:
    """Return the figures of a run with a fleet; empty for other runs.

    Args:
        letter: label of the run on its page.
        result: result of the run.
    """
    if result.fleet is None:
        return []
    rounds = [event.fleet for event in result.rounds if event.fleet is not None]
    kinds = kinds_of(result.fleet)
    drawn = [_rounds(letter, rounds, kinds), _days(letter, rounds, kinds), _split(letter, kinds)]
    reached = accuracy_over_time(result)
    return [_accuracy(letter, reached, rounds), *drawn] if len(reached) > 1 else drawn


def accuracy_over_time(result: RunResult) -> list[tuple[float, float]]:
    """Return the virtual time of each validation in seconds, with the clients' mean accuracy.

    A validation after a round without virtual time has the end of the last round before it.
    """
    ends = {event.round: event.fleet.ended for event in result.rounds if event.fleet is not None}
    begun = [event.fleet.begun for event in result.rounds if event.fleet is not None]
    reached = []
    for evaluation in result.evaluations:
        column = evaluation.columns.get(GLOBAL)
        if evaluation.split == "validation" and column is not None and begun:
            past = [end for number, end in ends.items() if number <= evaluation.round]
            reached.append((max(past, default=begun[0]), column.mean_client_accuracy))
    return reached


def _accuracy(
    letter: str, reached: Sequence[tuple[float, float]], rounds: Sequence[FleetRound]
) -> Figure:
    """Draw the accuracy of the global model over virtual time."""
    clock = _Clock.of(rounds)

    def draw(axes: Axes) -> None:
        seconds, accuracy = zip(*reached, strict=True)
        hours = [clock.position(second) for second in seconds]
        axes.plot(hours, [100 * share for share in accuracy], color=INK, marker="o", markersize=5)
        axes.grid(axis="y")
        axes.set_xlabel(clock.label)

    (first, before), (last, after) = reached[0], reached[-1]
    return draw_figure(
        f"reached{letter}",
        "Accuracy of the fleet over time",
        "Accuracy of the global model on validation examples, %, mean over clients. For texts, it "
        "is the accuracy of tokens.",
        f"Validation accuracy over virtual time: from {before:.1%} to {after:.1%} in "
        f"{span_of(last - first)}.",
        draw,
        3.0,
    )


def _rounds(letter: str, rounds: Sequence[FleetRound], kinds: Sequence[Kind]) -> Figure:
    """Draw the time of each report, measured from the start of its round."""
    colours = _colours(kinds)
    jobs = [(event, number, job) for event in rounds for number, job in event.devices.items()]
    in_time = [entry for entry in jobs if entry[2].outcome == "reported"]
    late = [entry for entry in jobs if entry[2].outcome == "late"]
    times = [job.ended - event.begun for event, _, job in (*in_time, *late)]
    longest = max((event.ended - event.begun for event in rounds), default=0.0)
    unit = unit_for(longest)
    clock = _Clock.of(rounds)

    def draw(axes: Axes) -> None:
        for index, kind in enumerate(kinds):
            own = [entry for entry in in_time if entry[1] in kind.numbers]
            axes.plot(
                [clock.position(event.begun) for event, _, _ in own],
                [(job.ended - event.begun) / unit.seconds for event, _, job in own],
                _MARKERS[index // len(_SHADES) % len(_MARKERS)],
                color=colours[kind.name],
                markersize=4,
                alpha=0.6,
                markeredgewidth=0,
                label=kind.name,
            )
        axes.plot(
            [clock.position(event.begun) for event, _, _ in late],
            [min(job.ended - event.begun, 1.25 * longest) / unit.seconds for event, _, job in late],
            "x",
            color=DOWN,
            markersize=5,
            label="late",
        )
        axes.plot(
            [clock.position(event.begun) for event in rounds],
            [(event.ended - event.begun) / unit.seconds for event in rounds],
            "_",
            color=INK,
            markersize=7,
            label="end of the round",
        )
        if times and max(times) > _MANY_TIMES * min(times):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.minorticks_off()
        else:
            axes.set_ylim(bottom=0)
        axes.grid(axis="y")
        axes.set_xlabel(clock.label)
        axes.set_ylabel(f"{unit.name}s after the round began")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False, fontsize=9)

    return draw_figure(
        f"rounds{letter}",
        "Rounds and stragglers",
        "A dot is a report, in the colour of its kind of device. A cross is a report after the end "
        "of its round; a much later report is at the upper edge. A stroke is the end of a round.",
        f"Durations of reports in {len(rounds)} rounds: {len(in_time)} in time, "
        f"{len(late)} late; the longest round took {span_of(longest)}.",
        draw,
        3.8 + 0.18 * len(kinds),
    )


def _days(letter: str, rounds: Sequence[FleetRound], kinds: Sequence[Kind]) -> Figure:
    """Draw a line per device with the device's rounds."""
    colours = _colours(kinds)
    lines = [(kind, number) for kind in kinds for number in _some(kind, kinds)]
    line_of = {
        number: index + _LABEL_LINES * (1 + kinds.index(kind))
        for index, (kind, number) in enumerate(lines)
    }
    clock = _Clock.of(rounds)
    colour = {number: colours[kind.name] for kind in kinds for number in kind.numbers}
    jobs = [
        (number, job)
        for event in rounds
        for number, job in event.devices.items()
        if number in line_of
    ]

    def bars(chosen: Sequence[tuple[int, FleetJob]], shade: Sequence[str]) -> LineCollection:
        drawn_lines = [
            [
                (clock.position(job.begun), line_of[number]),
                (clock.position(max(job.ended, job.begun)), line_of[number]),
            ]
            for number, job in chosen
        ]
        return LineCollection(drawn_lines, colors=list(shade), linewidths=2.4)

    def draw(axes: Axes) -> None:
        good = [entry for entry in jobs if entry[1].outcome == "reported"]
        bad = [entry for entry in jobs if entry[1].outcome != "reported"]
        axes.add_collection(bars(good, [colour[number] for number, _ in good]))
        axes.add_collection(bars(bad, [DOWN] * len(bad)))
        dots = {shade: [entry for entry in good if colour[entry[0]] == shade] for shade in _SHADES}
        for shade, entry in (*dots.items(), (DOWN, bad)):
            axes.plot(
                [clock.position(job.begun) for _, job in entry],
                [line_of[number] for number, _ in entry],
                "x" if entry is bad else ".",
                color=shade,
                markersize=3.0,
            )
        for kind in kinds:
            first = min(line_of[number] for number in kind.numbers if number in line_of)
            axes.annotate(
                kind.name,
                (0, first - 0.7),
                xycoords=("axes fraction", "data"),
                color=colours[kind.name],
                fontsize=8.5,
                va="bottom",
            )
        axes.set_xlim(clock.position(rounds[0].begun), clock.position(rounds[-1].ended))
        axes.set_ylim(max(line_of.values()) + 1, -0.5)
        axes.set_yticks([])
        axes.grid(axis="x")
        axes.set_xlabel(clock.label)

    thinned = len(lines) < sum(kind.count for kind in kinds)
    return draw_figure(
        f"days{letter}",
        "Activity of devices",
        "A line is a device. A dot is the time of an instruction, and a bar extends to the report. "
        "A cross is a failure or a late report."
        + (f" {len(lines)} devices are drawn." if thinned else ""),
        f"Timeline of {len(lines)} devices over {len(rounds)} rounds.",
        draw,
        1.6 + 0.075 * (len(lines) + _LABEL_LINES * len(kinds)),
    )


def _split(letter: str, kinds: Sequence[Kind]) -> Figure:
    """Draw the parts of the devices' time, by kind of device."""
    unit = unit_of_parts(kinds)
    parts = {
        "computing": [kind.compute_seconds / unit.seconds for kind in kinds],
        "transfer": [kind.transfer_seconds / unit.seconds for kind in kinds],
        "waiting": [kind.waiting_seconds / unit.seconds for kind in kinds],
    }

    def draw(axes: Axes) -> None:
        begin = np.zeros(len(kinds))
        shades = (SERIES[0], SERIES[1], MUTED)
        for (name, times), shade in zip(parts.items(), shades, strict=True):
            axes.barh(range(len(kinds)), times, 0.55, left=begin, color=shade, label=name)
            begin += times
        axes.set_yticks(range(len(kinds)), [k.name.replace(", ", "\n", 1) for k in kinds])
        axes.tick_params(axis="y", labelsize=9)
        axes.set_ylim(len(kinds) - 0.45, -0.55)
        axes.grid(axis="x")
        axes.set_xlabel(f"{unit.name}s of a device in the whole run")
        axes.legend(
            loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=10
        )

    event = "; ".join(
        f"{kind.name}: " + ", ".join(f"{name} {own[index]:.1f}" for name, own in parts.items())
        for index, kind in enumerate(kinds)
    )
    return draw_figure(
        f"split{letter}",
        "Parts of a device's time",
        "Mean over the devices of a kind. Waiting is waiting for the link, and for other devices "
        "after the report.",
        f"{unit.name.capitalize()}s of a device by kind. {event}.",
        draw,
        1.4 + 0.5 * len(kinds),
    )


def _colours(kinds: Sequence[Kind]) -> dict[str, str]:
    return {kind.name: _SHADES[index % len(_SHADES)] for index, kind in enumerate(kinds)}


def _some(kind: Kind, kinds: Sequence[Kind]) -> list[int]:
    """Return the devices of a kind that are drawn: a proportional share, and at least one."""
    whole = sum(other.count for other in kinds)
    wanted = max(1, round(kind.count * min(1.0, DRAWN_DEVICES / whole)))
    chosen = np.linspace(0, kind.count - 1, wanted).astype(int)
    return [kind.numbers[index] for index in chosen]
