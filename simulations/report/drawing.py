"""Drawing of figures with one pair of axes, as inline SVG with the page's colours and fonts."""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

from samara.shared.errors import SamaraError

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes as Axes
    from matplotlib.collections import LineCollection as LineCollection
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import MaxNLocator as MaxNLocator
except ImportError as missing:
    raise SamaraError(
        "a report needs matplotlib; install it with: pip install 'samara-fl[report]'"
    ) from missing

_WIDTH = 5.2  # inches of 72 units, so that letters of 11.5 units are legible on a phone
# Placeholders for the page's light or dark colours.
_COLOURS = {
    "ink": "#010101",
    "muted": "#020202",
    "rule": "#030303",
    "paper": "#040404",
    "up": "#050505",
    "down": "#060606",
    "series0": "#070707",
    "series1": "#080808",
    "series2": "#090909",
    "series3": "#0a0a0a",
}
INK = _COLOURS["ink"]
MUTED = _COLOURS["muted"]
_RULE = _COLOURS["rule"]
UP = _COLOURS["up"]
DOWN = _COLOURS["down"]
SERIES = [colour for name, colour in _COLOURS.items() if name.startswith("series")]
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "samara",
    "text.parse_math": False,
    "font.size": 11.5,
    "text.color": INK,
    "axes.edgecolor": _RULE,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 11.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "grid.color": _RULE,
    "grid.linewidth": 0.8,
    "lines.solid_capstyle": "round",
}


@dataclass(frozen=True)
class Figure:
    """A figure of the page.

    Attributes:
        name: identifier, unique on the page.
        title: title of the figure.
        caption: explanation of the figure.
        svg: inline SVG element with an accessible name.
    """

    name: str
    title: str
    caption: str
    svg: str


def draw_figure(
    name: str,
    title: str,
    caption: str,
    description: str,
    draw: Callable[[Axes], None],
    height: float,
) -> Figure:
    """Draw a figure with one pair of axes.

    Args:
        name: identifier, unique on the page.
        title: title of the figure.
        caption: explanation of the figure.
        description: accessible name for readers who cannot see the figure.
        draw: function that draws on the axes.
        height: height in inches.
    """
    with mpl.rc_context(_STYLE):
        canvas = Canvas(figsize=(_WIDTH, height), layout="constrained")
        draw(canvas.subplots())
        drawing = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        canvas.savefig(drawing, format="svg", transparent=True, metadata=nothing)
    return Figure(name, title, caption, _inline(drawing.getvalue(), name, description))


def _inline(svg: str, name: str, description: str) -> str:
    """Return an SVG file as a page element, with unique ids and an accessible name."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    for variable, colour in _COLOURS.items():
        svg = svg.replace(colour, f"var(--{variable})")
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None, "matplotlib writes a viewBox"
    begin = f'<svg role="img" aria-label="{escape(description)}" {box[0]} '
    begin += 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    return begin + svg[svg.index(">") + 1 :]
