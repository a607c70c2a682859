"""Timelines of schedules as pictures."""

from collections.abc import Mapping
from pathlib import Path

from benchmarks.speed.lanes_plot import Bar, draw_lanes
from samara.client.offload.timeline import LANES, Timeline

_COLOURS = {
    "forward": "#4c72b0",
    "backward": "#55a868",
    "apply": "#c44e52",
    "offload": "#dd8452",
    "update": "#8172b3",
    "upload": "#937860",
}


def draw(timelines: Mapping[str, Timeline], file: Path) -> None:
    """Draw who was busy when, one schedule below the other on one time axis."""
    bars = {}
    for name, timeline in timelines.items():
        begin = min(each.start for each in timeline.intervals)
        bars[name] = [
            Bar(each.lane, each.work, each.start - begin, each.end - begin)
            for each in timeline.intervals
        ]
    draw_lanes(bars, LANES, _COLOURS, "seconds", file)
