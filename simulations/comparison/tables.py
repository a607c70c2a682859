"""The tables of a comparison, for terminals of 80 characters and as CSV."""

import csv
import io
from collections.abc import Iterator, Mapping
from math import isnan

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from samara.shared.results.result import ClientCost
from samara.simulations.comparison.columns import explain_columns
from samara.simulations.comparison.comparison import (
    Comparison,
    TestedDifference,
    format_p,
)
from samara.simulations.comparison.measure import ACCURACY, BITS_PER_BYTE, Measure

CSV_KIND = b"variant,runs,client,column,"
"""Mark of every CSV file, for `write_requested`."""
_NAMED_LOSERS = 5


def render_comparison(comparison: Comparison) -> Iterator[RenderableType]:
    """Yield the answer, the conditions, the differences, the losing clients, and the costs."""
    runs = comparison.runs
    yield Text(comparison.answer(), style="bold")
    for warning in comparison.warnings():
        yield Text(warning, style="yellow")
    if len(runs.variants) > 1 or len(runs.variants[0].runs) > 1:
        labels = comparison.labels().items()
        yield Group(*[Text(f"{label}  {what}") for label, what in labels])
    yield Group(*[Text(line) for line in comparison.splits()])
    if runs.left_out:
        who = "1 client is" if len(runs.left_out) == 1 else f"{len(runs.left_out)} clients are"
        yield Text(f"{who} left out, because a metric is missing")
    clients = len(comparison.runs.clients)
    yield _conditions(
        f"On each client's own test examples, mean over {clients} clients", comparison
    )
    if newcomers := len(comparison.runs.newcomers):
        title = f"Mean over {newcomers} newcomers, which never trained the global model"
        yield _conditions(title, comparison, new=True)
    for title, rows in comparison.by_title().items():
        yield _differences(title, rows, comparison.measure)
    yield _notes(comparison)
    yield _costs(comparison)


def csv_of(comparison: Comparison) -> str:
    """Return CSV with one line per variant, client and column, averaged over seeds."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    figures_shown = ["accuracy", "macro_f1", "auc"]
    if comparison.measure is BITS_PER_BYTE:
        figures_shown = ["bits_per_byte", "perplexity"]
    sign = -1 if comparison.measure is BITS_PER_BYTE else 1
    columns = ["variant", "runs", "client", "column", *figures_shown]
    rows.writerow([*columns, *ClientCost._fields])
    for variant in comparison.runs.variants:
        folders = " ".join(str(run.folder) for run in variant.runs)
        runs = comparison.runs
        conditions = [(runs.clients, condition) for condition in variant.conditions.values()]
        for clients, condition in [
            *conditions,
            *((runs.newcomers, condition) for condition in variant.newcomer_conditions.values()),
        ]:
            levels = sign * condition.quality
            figures = zip(clients, levels, condition.second, condition.auc, strict=True)
            for client, level, second, auc in figures:
                spent = np.mean([run.result.training_cost(client) for run in variant.runs], axis=0)
                who = comparison.client_name(client)
                shown = [variant.label, folders, who, condition.name, level, second]
                if comparison.measure is ACCURACY:
                    shown.append("" if isnan(auc) else auc)
                rows.writerow([*shown, *spent.tolist()])
    return text.getvalue()


def _conditions(title: str, comparison: Comparison, new: bool = False) -> RenderableType:
    table = _table()
    measure = comparison.measure
    for heading in (
        measure.heading.replace(", ", "\n"),
        "95 %\ninterval",
        "worst\ntenth",
        "spread\n± points" if measure is ACCURACY else "spread\n±",
        measure.second_heading.replace(", ", "\n"),
        *(["AUC"] if comparison.has_auc else []),
    ):
        table.add_column(heading, justify="right")
    before = ""
    for line in comparison.newcomer_summaries if new else comparison.summaries:
        if before not in ("", line.condition.variant) and not comparison.runs.compares_methods:
            table.add_section()
        before = line.condition.variant
        own = line.quality
        table.add_row(
            Text(comparison.name_of(line.condition)),
            measure.level(own.mean),
            "" if isnan(own.low) else measure.interval(own.low, own.high),
            measure.level(own.worst),
            measure.size(own.spread),
            measure.second_level(line.second),
            *([] if line.auc is None else [f"{line.auc:.3f}"]),
        )
    return Group(Text(title, style="italic"), table)


def _differences(
    title: str, rows: Mapping[str, TestedDifference], measure: Measure
) -> RenderableType:
    """Return a table of tested differences, whose p-values are corrected over all tables."""
    unit = "percentage points" if measure is ACCURACY else measure.gap
    table = _table()
    for heading in (
        f"{measure.name if measure is ACCURACY else 'saved'}\n",
        "95 %\ninterval",
        "p\n(Holm)",
        "effect\n−1 … 1",
        "clients\nlosing",
        "worst\ntenth",
        f"{measure.second}\n",
    ):
        table.add_column(heading, justify="right")
    for name, row in rows.items():
        own = row.quality
        table.add_row(
            Text(name),
            measure.gain(own.mean),
            "" if isnan(own.low) else f"{measure.gain(own.low)} … {measure.gain(own.high)}",
            format_p(row.p),
            f"{own.effect:+.2f}".replace("-", "−"),
            f"{own.losing / len(own.by_client):.0%}",
            measure.gain(own.worst),
            measure.second_gain(row.second),
        )
    return Group(Text(f"{title}, in {unit}", style="italic"), table)


def _notes(comparison: Comparison) -> RenderableType:
    main = comparison.main
    clients = comparison.runs.clients
    lines = []
    order = main.quality.by_client.argsort(kind="stable")
    losers = [
        (clients[i], main.quality.by_client[i]) for i in order if main.quality.by_client[i] < 0
    ]
    if losers:
        shown = ", ".join(
            f"{comparison.client_name(client)} ({comparison.measure.gain(lost)})"
            for client, lost in losers[:_NAMED_LOSERS]
        )
        more = f" and {len(losers) - _NAMED_LOSERS} more" if len(losers) > _NAMED_LOSERS else ""
        pair = f"{comparison.name_of(main.condition)} against {comparison.name_of(main.against)}"
        lines.append(f"Clients that lose with {pair}: {shown}{more}")
    if comparison.too_few:
        lines.append(
            f"With {len(clients)} clients and {len(comparison.tested)} comparisons, no corrected p "
            "can be below 0.05."
        )
    names = dict.fromkeys(line.condition.name for line in comparison.summaries)
    lines.append(f"{explain_columns(names)}.")
    lines.append(
        "Interval: BCa bootstrap over clients. p: two-sided Wilcoxon signed-rank test with Holm's "
        "correction. Effect: matched-pairs rank-biserial correlation. All clients have equal "
        "weight."
    )
    return Group(*[Text(line, style="dim") for line in lines])


def _costs(comparison: Comparison) -> RenderableType:
    table = _table()
    for heading in (
        "bytes\nup",
        "bytes\ndown",
        "steps",
        "private\nsteps",
        "passes",
        "run\nseconds",
    ):
        table.add_column(heading, justify="right")
    for variant in comparison.runs.variants:
        cost = comparison.cost(variant)
        table.add_row(
            variant.label if len(comparison.runs.variants) > 1 else "",
            f"{cost.bytes_up:,.0f}",
            f"{cost.bytes_down:,.0f}",
            f"{cost.steps:,}",
            f"{cost.private_steps:,}",
            "?" if cost.passes is None else f"{cost.passes:,}",
            f"{cost.seconds:,.0f}",
        )
    return Group(Text("Costs of a client", style="italic"), table)


def _table() -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("", no_wrap=True)
    return table
