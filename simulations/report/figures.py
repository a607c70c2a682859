"""Functions that draw the figures of a comparison."""

from collections.abc import Mapping, Sequence

import numpy as np

from samara.shared.terms.columns import GLOBAL, ZERO_SHOT
from samara.simulations.comparison.columns import START
from samara.simulations.comparison.comparison import Comparison, TestedDifference
from samara.simulations.comparison.measure import Measure
from samara.simulations.comparison.statistics import Numbers
from samara.simulations.comparison.variants import Variant
from samara.simulations.report.drawing import (
    DOWN,
    INK,
    MUTED,
    SERIES,
    UP,
    Axes,
    Figure,
    LineCollection,
    MaxNLocator,
    draw_figure,
)

_STYLES = ("-", "--", ":", "-.")
"""The line styles of variants."""
DRAWN_CLIENTS = 300
"""Maximum number of clients in a figure; of more clients, it shows an even selection by rank."""


def figures_of(comparison: Comparison) -> list[Figure]:
    """Return all figures in the order of the page.

    Raises:
        SamaraError: if matplotlib is not installed.
    """
    variants = comparison.runs.variants
    figures = [_slopes(comparison, variant) for variant in variants]
    figures += [_differences(comparison), _distribution(comparison)]
    if any(len(comparison.curve(variant)) > 1 for variant in variants):
        figures += [_learning(comparison), _loss(comparison), _cost(comparison)]
    return figures


def _slopes(comparison: Comparison, variant: Variant) -> Figure:
    measure = comparison.measure
    stops = [name for name in (ZERO_SHOT, START, GLOBAL) if name in variant.conditions]
    stops += variant.personal
    names = [_stop_name(comparison, variant, name) for name in stops]
    values = np.array([variant.conditions[name].quality for name in stops]) * measure.factor
    everywhere = np.concatenate(
        [
            v.conditions[name].quality
            for v in comparison.runs.variants
            for name in stops
            if name in v.conditions
        ]
    )
    chosen = _chosen(values[-1] - values[0])
    gains = (values[-1] - values[-2]) * measure.factor >= 0

    def draw(axes: Axes) -> None:
        places = np.arange(len(stops))
        for better, colour in ((True, UP), (False, DOWN)):
            drawn = [np.column_stack([places, values[:, i]]) for i in chosen if gains[i] == better]
            fade = 0.55 if len(chosen) <= 40 else 0.28
            axes.add_collection(LineCollection(drawn, colors=colour, linewidths=1.3, alpha=fade))
        means = values.mean(axis=1)
        axes.plot(places, means, color=INK, linewidth=2.6, marker="o", markersize=6)
        axes.set_xlim(-0.3, len(stops) - 0.7)
        axes.set_ylim(*_around(everywhere * measure.factor, measure))
        labels = [
            f"{name}\n{_shown(measure, mean / measure.factor)}"
            for name, mean in zip(names, means, strict=True)
        ]
        axes.set_xticks(places, labels, color=INK)
        axes.grid(axis="y")

    of = f": {variant.label}" if len(comparison.runs.variants) > 1 else ""
    thinned = (
        f" {len(chosen)} of {len(gains)} clients are drawn." if len(chosen) < len(gains) else ""
    )
    means = ", ".join(
        f"{name} {_shown(measure, mean / measure.factor)}"
        for name, mean in zip(names, values.mean(axis=1), strict=True)
    )
    return draw_figure(
        f"slopes{variant.label}",
        f"Every client's model by stage{of}",
        f"{_title(measure)}. A line is a client; it is rust if {names[-1]} is worse than "
        f"{names[-2]}. The bold line is the mean.{thinned}",
        f"Slope chart of {measure.name} for {len(gains)} clients. Means: {means}. "
        f"{int((~gains).sum())} clients lose at the last stage.",
        draw,
        3.6,
    )


def _stop_name(comparison: Comparison, variant: Variant, column: str) -> str:
    """Return the displayed name of a column.

    In a comparison of methods, the global model of a personal method is its "shared model", because
    `global` is also a method.
    """
    if comparison.runs.compares_methods and column == GLOBAL and variant.personal:
        return "its shared model"
    return column


def _differences(comparison: Comparison) -> Figure:
    rows = [
        (f"{name}" if len(comparison.by_title()) == 1 else f"{title}\n{name}", tested)
        for title, group in comparison.by_title().items()
        for name, tested in group.items()
    ]

    scale = abs(comparison.measure.factor)

    def draw(axes: Axes) -> None:
        axes.axvline(0, color=MUTED, linewidth=1)
        for place, (_, tested) in enumerate(rows):
            own = tested.quality
            colours = [DOWN if value < 0 else UP for value in own.by_client]
            _dots(axes, own.by_client * scale, place, colours)
            axes.plot([own.low * scale, own.high * scale], [place] * 2, color=INK, linewidth=2.6)
            axes.plot(own.mean * scale, place, "o", color=INK, markersize=6)
        axes.set_yticks(range(len(rows)), [name for name, _ in rows], color=INK)
        axes.set_ylim(len(rows) - 0.45, -0.55)
        axes.grid(axis="x")
        axes.set_xlabel(f"{comparison.measure.gained} (right is better)")

    (title, *more) = comparison.by_title()
    description = "; ".join(_describe(name, tested, comparison.measure) for name, tested in rows)
    return draw_figure(
        "differences",
        "Gains and losses of clients" if more else f"{title[0].upper()}{title[1:]} …",
        "A dot is a client; it is rust if the client loses. Mean and 95 % interval are bold.",
        f"Differences of {comparison.measure.name} by client. {description}.",
        draw,
        1.0 + 0.46 * len(rows),
    )


def _describe(name: str, tested: TestedDifference, measure: Measure) -> str:
    own = tested.quality
    return (
        f"{name}: {measure.gain(own.mean)} {measure.gap}, {own.losing} of {len(own.by_client)} lose"
    )


def _distribution(comparison: Comparison) -> Figure:
    lines = comparison.summaries
    measure = comparison.measure

    def draw(axes: Axes) -> None:
        for place, line in enumerate(lines):
            colour = _series(comparison, line.condition.variant)
            own = line.condition.quality * measure.factor
            _dots(axes, own, place, [colour] * len(own))
            mean = line.quality.mean * measure.factor
            axes.plot([mean, mean], [place - 0.3, place + 0.3], color=INK, linewidth=2.6)
        names = [comparison.name_of(line.condition) for line in lines]
        axes.set_yticks(range(len(lines)), names, color=INK)
        axes.set_ylim(len(lines) - 0.45, -0.55)
        axes.grid(axis="x")
        axes.set_xlabel(measure.heading)

    description = "; ".join(
        f"{comparison.name_of(line.condition)}: mean {_shown(measure, line.quality.mean)}, "
        f"worst tenth {_shown(measure, line.quality.worst)}"
        for line in lines
    )
    return draw_figure(
        "distribution",
        "Distribution over clients",
        "A dot is a client; the bold mark is the mean over clients.",
        f"Distribution of {measure.name} over clients. {description}.",
        draw,
        1.0 + 0.4 * len(lines),
    )


def _learning(comparison: Comparison) -> Figure:
    measure = comparison.measure

    def draw(axes: Axes) -> None:
        ends = {}
        for variant in comparison.runs.variants:
            curve = comparison.curve(variant)
            rounds = [moment.round for moment in curve]
            colour = _series(comparison, variant.label)
            if len(comparison.runs.variants) == 1:
                own = np.array([moment.quality for moment in curve]) * measure.factor
                drawn = [np.column_stack([rounds, own[:, i]]) for i in _chosen(own[-1])]
                axes.add_collection(LineCollection(drawn, colors=colour, linewidths=1, alpha=0.3))
            means = [moment.quality.mean() * measure.factor for moment in curve]
            axes.plot(rounds, means, _style(comparison, variant.label), color=colour, linewidth=2.6)
            if len(rounds) > 1:
                ends[variant.label] = float(rounds[-1]), float(means[-1])
        _label_ends(axes, comparison, ends, -1)
        axes.grid(axis="y")
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
        axes.margins(x=0.02)

    description = "; ".join(
        f"{variant.label}: from {_shown(measure, curve[0].quality.mean())} to "
        f"{_shown(measure, curve[-1].quality.mean())}"
        for variant in comparison.runs.variants
        if (curve := comparison.curve(variant))
    )
    alone = len(comparison.runs.variants) == 1
    return draw_figure(
        "learning",
        "The global model by round",
        f"{_title(measure)} on validation examples, mean over clients"
        + ("; thin lines are clients." if alone else "."),
        f"Validation {measure.name} of the global model by round. {description}.",
        draw,
        3.0,
    )


def _title(measure: Measure) -> str:
    """Return the heading of a measure with a capital letter, as a title."""
    return measure.heading[0].upper() + measure.heading[1:]


def _shown(measure: Measure, quality: float) -> str:
    """Format a quality with its unit."""
    return measure.level(quality) + measure.unit


def _or_nan(loss: float | None) -> float:
    """Return a round's loss, or NaN for a round without reports."""
    return np.nan if loss is None else loss


def _loss(comparison: Comparison) -> Figure:
    curves = {
        variant.label: np.mean(
            [[_or_nan(entry.loss) for entry in run.result.rounds] for run in variant.runs], axis=0
        )
        for variant in comparison.runs.variants
        if len({len(run.result.rounds) for run in variant.runs}) == 1 and variant.first.rounds
    }

    def draw(axes: Axes) -> None:
        ends = {}
        for label, losses in curves.items():
            colour = _series(comparison, label)
            known = np.flatnonzero(np.isfinite(losses))
            if len(known):
                style = _style(comparison, label)
                axes.plot(known + 1, losses[known], style, color=colour, linewidth=1.8)
                ends[label] = float(known[-1] + 1), float(losses[known[-1]])
        _label_ends(axes, comparison, ends, 1)
        axes.grid(axis="y")
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
        axes.margins(x=0.02)

    description = "; ".join(
        f"{label}: from {losses[0]:.3f} to {losses[-1]:.3f}" for label, losses in curves.items()
    )
    return draw_figure(
        "loss",
        "Training loss",
        "Mean over the clients of a round, on the clients' batches.",
        f"Training loss by round. {description}.",
        draw,
        3.0,
    )


def _cost(comparison: Comparison) -> Figure:
    variants = comparison.runs.variants
    measure = comparison.measure
    adapter = comparison.cost(variants[0]).adapter_bytes / 1024

    def draw(axes: Axes) -> None:
        ends = {}
        for variant in variants:
            curve = comparison.curve(variant)
            spent = [moment.bytes / 1024 for moment in curve]
            means = [moment.quality.mean() * measure.factor for moment in curve]
            colour = _series(comparison, variant.label)
            style = _style(comparison, variant.label)
            axes.plot(spent, means, style, color=colour, linewidth=2.2, marker="o", markersize=5)
            if len(spent) > 1:
                ends[variant.label] = float(spent[-1]), float(means[-1])
        _label_ends(axes, comparison, ends, -1)
        axes.axvline(adapter, color=MUTED, linewidth=1, linestyle=(0, (3, 3)))
        axes.annotate(
            "one adapter",
            (adapter, 1),
            (0, 3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            color=MUTED,
            ha="center",
            va="bottom",
            fontsize=10.5,
        )
        axes.grid(axis="y")
        axes.set_xlabel("KiB per client, sent and received")
        axes.margins(x=0.04)

    description = "; ".join(
        f"{variant.label}: {_shown(measure, curve[-1].quality.mean())} for "
        f"{curve[-1].bytes / 1024:.1f} KiB"
        for variant in variants
        if (curve := comparison.curve(variant))
    )
    return draw_figure(
        "cost",
        f"{measure.name[0].upper()}{measure.name[1:]} by traffic",
        f"Validation {measure.heading}, against traffic in training. "
        "The dashed line is the size of one transfer of the adapter.",
        f"Validation {measure.name} of the global model against bytes per client. {description}.",
        draw,
        3.0,
    )


def _dots(axes: Axes, values: Numbers, place: float, colours: Sequence[str]) -> None:
    """Draw one dot per client around a horizontal line, scattered with a fixed seed."""
    chosen = _chosen(values)
    lift = np.random.default_rng(0).uniform(-0.24, 0.24, len(chosen))
    for colour in dict.fromkeys(colours):
        own = [i for i, client in enumerate(chosen) if colours[client] == colour]
        axes.plot(
            values[[chosen[i] for i in own]],
            place + lift[own],
            "o",
            color=colour,
            markersize=4.5,
            alpha=0.6,
            markeredgewidth=0,
        )


def _label_ends(
    axes: Axes, comparison: Comparison, ends: Mapping[str, tuple[float, float]], side: int
) -> None:
    """Write the variants' labels at the ends of their lines; equal ends share one label.

    Args:
        axes: axes of the figure.
        comparison: comparison; without several variants, no label is written.
        ends: coordinates x and y of the end of each line, by variant.
        side: position of labels at ends before the last x: 1 above the line, −1 below it.
    """
    if len(comparison.runs.variants) == 1:
        return
    shared: dict[tuple[float, float], list[str]] = {}
    for label, end in ends.items():
        shared.setdefault(end, []).append(label)
    last = max((x for x, _ in shared), default=0.0)
    for (x, y), labels in shared.items():
        away = (6, 0) if x == last else (3, 9 * side)
        colour = _series(comparison, labels[0])
        text = ", ".join(labels)
        axes.annotate(text, (x, y), away, textcoords="offset points", color=colour, va="center")


def _series(comparison: Comparison, label: str) -> str:
    labels = [variant.label for variant in comparison.runs.variants]
    return SERIES[labels.index(label) % len(SERIES)]


def _style(comparison: Comparison, label: str) -> str:
    """Return the line style of a variant; styles differ so that overlapping curves are visible."""
    labels = [variant.label for variant in comparison.runs.variants]
    return _STYLES[labels.index(label) % len(_STYLES)]


def _chosen(values: Numbers) -> list[int]:
    """Return the indices of the clients to draw: all clients, or an even selection by rank."""
    order = np.argsort(values, kind="stable")
    count = min(len(values), DRAWN_CLIENTS)
    return sorted(order[np.linspace(0, len(values) - 1, count).astype(int)].tolist())


def _around(values: Numbers, measure: Measure) -> tuple[float, float]:
    room = max(0.02 * abs(measure.factor), 0.06 * float(np.ptp(values)))
    most = 100.0 if measure.factor > 0 else np.inf
    return max(0.0, float(values.min()) - room), min(most, float(values.max()) + room)
