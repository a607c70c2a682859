"""A comparison on the terminal, within 80 characters, and as CSV."""

import csv
import io
from collections.abc import Iterator, Mapping
from math import isnan

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shared.result import ClientCost
from simulations.comparison.comparison import Comparison, Tested, p_text, percent, points

_NAMED_LOSERS = 5


def printed(comparison: Comparison) -> Iterator[RenderableType]:
    """The answer, then the arms, the differences, the losers and the costs."""
    field = comparison.field
    yield Text(comparison.answer(), style="bold")
    if len(field.variants) > 1 or len(field.variants[0].runs) > 1:
        labels = comparison.labels().items()
        yield Group(*[Text(f"{label}  {what}") for label, what in labels])
    if field.left_out:
        who = "1 client is" if len(field.left_out) == 1 else f"{len(field.left_out)} clients are"
        yield Text(f"{who} left out, for want of some figure")
    clients = len(comparison.field.clients)
    yield _arms(f"On each client's own test examples, mean over {clients} clients", comparison)
    if newcomers := len(comparison.field.newcomers):
        title = f"The same of clients that trained no global model, mean over {newcomers}"
        yield _arms(title, comparison, new=True)
    for title, rows in comparison.grouped().items():
        yield _differences(title, rows)
    yield _notes(comparison)
    yield _costs(comparison)


def csv_of(comparison: Comparison) -> str:
    """A line per variant, client and column; figures and costs are means over seeds."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    columns = ["variant", "runs", "client", "column", "accuracy", "macro_f1"]
    rows.writerow([*columns, *ClientCost._fields])
    for variant in comparison.field.variants:
        runs = " ".join(str(run.folder) for run in variant.runs)
        field = comparison.field
        arms = [(field.clients, arm) for arm in variant.arms.values()]
        for clients, arm in [*arms, *((field.newcomers, arm) for arm in variant.new.values())]:
            figures = zip(clients, arm.accuracy, arm.macro_f1, strict=True)
            for client, accuracy, macro_f1 in figures:
                spent = np.mean([run.result.spent(client) for run in variant.runs], axis=0)
                shown = [variant.label, runs, client, arm.name, accuracy, macro_f1]
                rows.writerow([*shown, *spent.tolist()])
    return text.getvalue()


def _arms(title: str, comparison: Comparison, new: bool = False) -> RenderableType:
    table = _table()
    for heading in (
        "accuracy\n%",
        "95 %\ninterval",
        "worst\ntenth",
        "spread\n± points",
        "macro-F1\n%",
    ):
        table.add_column(heading, justify="right")
    before = ""
    for line in comparison.new_lines if new else comparison.lines:
        if before not in ("", line.arm.variant) and not comparison.field.methods:
            table.add_section()
        before = line.arm.variant
        own = line.accuracy
        table.add_row(
            Text(comparison.named(line.arm)),
            percent(own.mean),
            "" if isnan(own.low) else f"{percent(own.low)} – {percent(own.high)}",
            percent(own.worst),
            percent(own.spread),
            percent(line.macro_f1),
        )
    return Group(Text(title, style="italic"), table)


def _differences(title: str, rows: Mapping[str, Tested]) -> RenderableType:
    """Tested differences; the p-values are corrected over all such tables together."""
    table = _table()
    for heading in (
        "accuracy\n",
        "95 %\ninterval",
        "p\n(Holm)",
        "effect\n−1 … 1",
        "clients\nlosing",
        "worst\ntenth",
        "macro-F1\n",
    ):
        table.add_column(heading, justify="right")
    for name, row in rows.items():
        own = row.accuracy
        table.add_row(
            Text(name),
            points(own.mean),
            "" if isnan(own.low) else f"{points(own.low)} … {points(own.high)}",
            p_text(row.p),
            f"{own.effect:+.2f}".replace("-", "−"),
            f"{own.losing / len(own.own):.0%}",
            points(own.worst),
            points(row.macro_f1),
        )
    return Group(Text(f"{title}, in percentage points", style="italic"), table)


def _notes(comparison: Comparison) -> RenderableType:
    main, clients = comparison.main, comparison.field.clients
    lines = []
    order = main.accuracy.own.argsort(kind="stable")
    losers = [(clients[i], main.accuracy.own[i]) for i in order if main.accuracy.own[i] < 0]
    if losers:
        shown = ", ".join(f"{client} ({points(lost)})" for client, lost in losers[:_NAMED_LOSERS])
        more = f" and {len(losers) - _NAMED_LOSERS} more" if len(losers) > _NAMED_LOSERS else ""
        pair = f"{comparison.named(main.arm)} against {comparison.named(main.against)}"
        lines.append(f"Clients that lose, {pair}: {shown}{more}")
    if comparison.too_few:
        lines.append(
            f"With {len(clients)} clients and {len(comparison.tested)} comparisons no corrected p "
            "can fall below 0.05."
        )
    lines.append(
        "Interval: BCa bootstrap over clients. p: Wilcoxon signed-rank, two-sided, corrected by "
        "Holm. Effect: matched-pairs rank-biserial correlation. Every client counts once."
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
    for variant in comparison.field.variants:
        cost = comparison.cost(variant)
        table.add_row(
            variant.label if len(comparison.field.variants) > 1 else "",
            f"{cost.bytes_up:,.0f}",
            f"{cost.bytes_down:,.0f}",
            f"{cost.steps:,}",
            f"{cost.private_steps:,}",
            f"{cost.passes:,}",
            f"{cost.seconds:,.0f}",
        )
    return Group(Text("What it costs a client", style="italic"), table)


def _table() -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("", no_wrap=True)
    return table
