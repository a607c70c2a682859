"""The figures of an emulated fleet: its rounds and stragglers, its days, where its time goes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from shared.result import FleetJob, FleetRound, RunResult
from simulations.report.figures import DOWN, INK, MUTED, SERIES, Figure, drawn
from simulations.report.fleet import HOUR, Kind, Unit, kinds_of, span_of, unit_for, unit_of_parts

DRAWN_DEVICES = 60
"""Of more devices, so many have a line, have_equal_row_counts over the kinds."""
_SHADES = (SERIES[0], SERIES[2], SERIES[3], MUTED)
"""Of kinds of devices; what is left of the series looks like failure."""
_MARKERS = "os^D"
"""Of kinds beyond those that have a colour to themselves."""
_LABEL_LINES = 2
"""That a kind's name takes above its devices."""
_MANY_TIMES = 20
"""By which the longest report takes longer than the shortest where a scale is logarithmic."""


@dataclass(frozen=True)
class _Clock:
    """The axis of virtual time: hours of the day, or what has passed of a short run."""

    origin: float
    unit: Unit
    label: str

    @classmethod
    def of(cls, rounds: Sequence[FleetRound]) -> Self:
        """That of some rounds."""
        begun, unit = rounds[0].begun, unit_for(rounds[-1].ended - rounds[0].begun)
        if unit is HOUR:
            return cls(0.0, unit, "hour, from the first midnight on")
        return cls(begun, unit, f"{unit.name}s after the run began")

    def place(self, second: float) -> float:
        """Where a virtual second is."""
        return (second - self.origin) / self.unit.seconds


def fleet_figures(letter: str, result: RunResult) -> list[Figure]:
    """The figures of a run with a fleet; none of another.

    Args:
        letter: of the run on its page.
        result: of it.
    """
    if result.fleet is None:
        return []
    rounds = [told.fleet for told in result.rounds if told.fleet is not None]
    kinds = kinds_of(result.fleet)
    return [_rounds(letter, rounds, kinds), _days(letter, rounds, kinds), _split(letter, kinds)]


def _rounds(letter: str, rounds: Sequence[FleetRound], kinds: Sequence[Kind]) -> Figure:
    """When each report came, counted from the beginning of its round."""
    colours = _colours(kinds)
    jobs = [(told, number, job) for told in rounds for number, job in told.devices.items()]
    in_time = [found for found in jobs if found[2].outcome == "reported"]
    late = [found for found in jobs if found[2].outcome == "late"]
    times = [job.ended - told.begun for told, _, job in (*in_time, *late)]
    longest = max((told.ended - told.begun for told in rounds), default=0.0)
    unit, clock = unit_for(longest), _Clock.of(rounds)

    def draw(axes: Axes) -> None:
        for index, kind in enumerate(kinds):
            own = [found for found in in_time if found[1] in kind.numbers]
            axes.plot(
                [clock.place(told.begun) for told, _, _ in own],
                [(job.ended - told.begun) / unit.seconds for told, _, job in own],
                _MARKERS[index // len(_SHADES) % len(_MARKERS)],
                color=colours[kind.name],
                markersize=4,
                alpha=0.6,
                markeredgewidth=0,
                label=kind.name,
            )
        axes.plot(
            [clock.place(told.begun) for told, _, _ in late],
            [min(job.ended - told.begun, 1.25 * longest) / unit.seconds for told, _, job in late],
            "x",
            color=DOWN,
            markersize=5,
            label="late",
        )
        axes.plot(
            [clock.place(told.begun) for told in rounds],
            [(told.ended - told.begun) / unit.seconds for told in rounds],
            "_",
            color=INK,
            markersize=7,
            label="the round ends",
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

    return drawn(
        f"rounds{letter}",
        "Rounds and stragglers",
        "A dot is a report, in the colour of its kind of device; a cross came after the round, "
        "at the upper edge if much later. A stroke is when a round ended.",
        f"Reports by the time they took, in {len(rounds)} rounds: {len(in_time)} in time, "
        f"{len(late)} late; the longest round took {span_of(longest)}.",
        draw,
        3.8 + 0.18 * len(kinds),
    )


def _days(letter: str, rounds: Sequence[FleetRound], kinds: Sequence[Kind]) -> Figure:
    """A line per device, with its work on it."""
    colours = _colours(kinds)
    lines = [(kind, number) for kind in kinds for number in _some(kind, kinds)]
    place = {
        number: index + _LABEL_LINES * (1 + kinds.index(kind))
        for index, (kind, number) in enumerate(lines)
    }
    clock = _Clock.of(rounds)
    colour = {number: colours[kind.name] for kind in kinds for number in kind.numbers}
    jobs = [
        (number, job) for told in rounds for number, job in told.devices.items() if number in place
    ]

    def bars(chosen: Sequence[tuple[int, FleetJob]], shade: Sequence[str]) -> LineCollection:
        drawn_lines = [
            [
                (clock.place(job.begun), place[number]),
                (clock.place(max(job.ended, job.begun)), place[number]),
            ]
            for number, job in chosen
        ]
        return LineCollection(drawn_lines, colors=list(shade), linewidths=2.4)

    def draw(axes: Axes) -> None:
        good = [found for found in jobs if found[1].outcome == "reported"]
        bad = [found for found in jobs if found[1].outcome != "reported"]
        axes.add_collection(bars(good, [colour[number] for number, _ in good]))
        axes.add_collection(bars(bad, [DOWN] * len(bad)))
        dots = {shade: [found for found in good if colour[found[0]] == shade] for shade in _SHADES}
        for shade, found in (*dots.items(), (DOWN, bad)):
            axes.plot(
                [clock.place(job.begun) for _, job in found],
                [place[number] for number, _ in found],
                "x" if found is bad else ".",
                color=shade,
                markersize=3.0,
            )
        for kind in kinds:
            first = min(place[number] for number in kind.numbers if number in place)
            axes.annotate(
                kind.name,
                (0, first - 0.7),
                xycoords=("axes fraction", "data"),
                color=colours[kind.name],
                fontsize=8.5,
                va="bottom",
            )
        axes.set_xlim(clock.place(rounds[0].begun), clock.place(rounds[-1].ended))
        axes.set_ylim(max(place.values()) + 1, -0.5)
        axes.set_yticks([])
        axes.grid(axis="x")
        axes.set_xlabel(clock.label)

    thinned = len(lines) < sum(kind.count for kind in kinds)
    return drawn(
        f"days{letter}",
        "When devices were at work",
        "A line is a device; a dot is when it was asked, a bar reaches to its report. A cross is "
        "where it failed or came late." + (f" {len(lines)} devices are drawn." if thinned else ""),
        f"Timeline of {len(lines)} devices over {len(rounds)} rounds.",
        draw,
        1.6 + 0.075 * (len(lines) + _LABEL_LINES * len(kinds)),
    )


def _split(letter: str, kinds: Sequence[Kind]) -> Figure:
    """Where the time of a device goes, by kind."""
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

    told = "; ".join(
        f"{kind.name}: " + ", ".join(f"{name} {own[index]:.1f}" for name, own in parts.items())
        for index, kind in enumerate(kinds)
    )
    return drawn(
        f"split{letter}",
        "Where a device's time goes",
        "Mean over the devices of a kind. Waiting is for the link, and for others once a report "
        "is in.",
        f"{unit.name.capitalize()}s of a device by kind. {told}.",
        draw,
        1.4 + 0.5 * len(kinds),
    )


def _colours(kinds: Sequence[Kind]) -> dict[str, str]:
    return {kind.name: _SHADES[index % len(_SHADES)] for index, kind in enumerate(kinds)}


def _some(kind: Kind, kinds: Sequence[Kind]) -> list[int]:
    """Devices of a kind that have a line: a share like the kind's own, at least one."""
    whole = sum(other.count for other in kinds)
    wanted = max(1, round(kind.count * min(1.0, DRAWN_DEVICES / whole)))
    chosen = np.linspace(0, kind.count - 1, wanted).astype(int)
    return [kind.numbers[index] for index in chosen]
