"""A picture of who was busy when: lanes of work, several runs below each other on one time axis."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Bar(NamedTuple):
    """A time in which a lane was busy, in the picture's unit of time."""

    lane: str
    work: str
    start: float
    end: float


def draw_lanes(
    runs: Mapping[str, Sequence[Bar]],
    lanes: Sequence[str],
    colours: Mapping[str, str],
    unit: str,
    file: Path,
) -> None:
    """Draw the lanes of several runs, one run below the other.

    Args:
        runs: bars of each run, by its name, in the order of drawing.
        lanes: names of the lanes, from the top down.
        colours: colour of each kind of work.
        unit: unit of time.
        file: picture to be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    figure, axes = plt.subplots(
        len(runs), 1, sharex=True, squeeze=False, figsize=(11, 1.9 * len(runs) + 0.8)
    )
    for axis, (name, bars) in zip(axes[:, 0], runs.items(), strict=True):
        for bar in bars:
            lane = len(lanes) - 1 - lanes.index(bar.lane)
            width, colour = bar.end - bar.start, colours[bar.work]
            axis.barh(
                lane,
                width,
                left=bar.start,
                height=0.8,
                color=colour,
                edgecolor="white",
                linewidth=0.2,
            )
        axis.set_yticks(range(len(lanes)), lanes[::-1])
        axis.set_title(name, loc="left", fontsize=10)
    axes[-1, 0].set_xlabel(unit)
    figure.legend(
        handles=[Patch(color=colour, label=work) for work, colour in colours.items()],
        loc="upper right",
        ncols=len(colours),
        fontsize=8,
    )
    figure.tight_layout(rect=(0, 0, 1, 0.96))
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)
    plt.close(figure)
