"""Timelines of schedules as pictures."""

from collections.abc import Mapping
from pathlib import Path

from client.offload.timeline import LANES, Timeline

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
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    figure, axes = plt.subplots(
        len(timelines), 1, sharex=True, squeeze=False, figsize=(11, 1.9 * len(timelines) + 0.8)
    )
    for axis, (name, timeline) in zip(axes[:, 0], timelines.items(), strict=True):
        begin = min(each.start for each in timeline.intervals)
        for each in timeline.intervals:
            lane = len(LANES) - 1 - LANES.index(each.lane)
            axis.barh(
                lane,
                each.end - each.start,
                left=each.start - begin,
                height=0.8,
                color=_COLOURS[each.work],
                edgecolor="white",
                linewidth=0.2,
            )
        axis.set_yticks(range(len(LANES)), LANES[::-1])
        axis.set_title(name, loc="left", fontsize=10)
    axes[-1, 0].set_xlabel("seconds")
    figure.legend(
        handles=[Patch(color=colour, label=work) for work, colour in _COLOURS.items()],
        loc="upper right",
        ncols=len(_COLOURS),
        fontsize=8,
    )
    figure.tight_layout(rect=(0, 0, 1, 0.96))
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)
    plt.close(figure)
