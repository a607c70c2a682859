"""The status of a client on a terminal: one renderable for `client status` and the dashboard."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from samara.client.limits.work_costs import WorkCost
from samara.client.personal.few_examples import QualityByExamples
from samara.client.training.growing_data import DataFacts
from samara.devices.live.client_status import NOT_RUNNING, ClientStatus, RunProgress
from samara.devices.live.pause_log import Pause
from samara.shared.tasks.sources import SPLITS

SHARES_ENERGY = "owner.share-energy: the server gets the seconds, pauses and joules of each report"
_SHOWN_PROBLEMS = 20
_SHOWN_PAUSES = 5


def render_status(status: ClientStatus, messages: Sequence[str] = ()) -> RenderableType:
    """Return the display of a client's status, the most important facts first.

    Args:
        status: status of the client.
        messages: latest messages of the client, shown after the first line.
    """
    first = f"{status.name}: client {status.client}, {status.trainer}"
    lines = [first, _describe_connection(status), *status.checks, status.model_in_use]
    parts: list[RenderableType] = [*_texts(lines), *_texts(messages, "dim")]
    if not status.runs:
        parts += _texts(["no run yet: a run begins when the server first asks this client"])
    else:
        parts += [_runs_table(status.runs), *_texts(_refusals(status.runs))]
    if status.personal:
        parts += [_personal_table(status.personal)]
    if status.by_examples:
        parts += [_by_examples_table(status.by_examples)]
    if any(run.cost.rounds or run.cost.seconds for run in status.runs):
        parts += [_costs_table(status.runs)]
    if status.pauses:
        parts += [_pauses_table(status.pauses)]
    if status.examples is None:
        parts += _texts([f"the examples cannot be read: {status.problem}"])
    else:
        parts += [_examples_table(status.examples), *_texts(_notes_on_examples(status.examples))]
    if status.sent:
        parts += [_sent_table(status)]
    limit = f"data.scalar-limit = {status.scalar_limit:g}"
    limit += "" if status.scalar_limit else ": no limit"
    limit += " (docs/guides/privacy.md)"
    parts += _texts([limit, status.privacy, *status.scenarios])
    parts += _texts([SHARES_ENERGY if status.shares_energy else ""])
    return Group(*parts)


def _describe_connection(status: ClientStatus) -> str:
    """Describe the client's connection and any problem with it."""
    if status.server or status.trainer == NOT_RUNNING:
        return ": ".join(filter(None, (status.wire, status.server)))
    return f"{status.wire}, which answers"


def _runs_table(runs: Iterable[RunProgress]) -> Table:
    table = Table(title="Runs")
    table.add_column("run", no_wrap=True)
    table.add_column("round", justify="right")
    table.add_column("digest", no_wrap=True)
    table.add_column("last report", justify="right", no_wrap=True)
    table.add_column("passes", justify="right", no_wrap=True)
    for run in runs:
        number = "-" if run.round is None else f"{run.round:,}"
        number += f" of {run.rounds:,}" if run.rounds else ""
        report = f"round {run.report.round:,},\n{_time(run.report.time)}" if run.report else "-"
        cells = run.run, number, run.digest[:16], report, f"{run.passes:,}"
        table.add_row(*map(Text, cells))
    return table


def _refusals(runs: Iterable[RunProgress]) -> list[str]:
    """Return a line for each run whose latest answer was a refusal."""
    return [
        f"run {run.run} refused last: round {run.refusal.round:,}: {run.refusal.refused}"
        for run in runs
        if run.refusal
    ]


def _personal_table(rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title="Private rounds: accuracy on this client's validation examples")
    table.add_column("run", no_wrap=True)
    for column in ("done", "from round", "before", "after", "running or waiting, from round"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _by_examples_table(by_examples: Iterable[QualityByExamples]) -> Table:
    table = Table(title="Model in use, with a private part fitted to fewer training examples")
    table.add_column("training examples", justify="right")
    table.add_column("validation accuracy", justify="right")
    table.add_column("validation loss", justify="right")
    for one in by_examples:
        table.add_row(f"{one.examples:,}", f"{one.accuracy:.1%}", f"{one.loss:.3f}")
    return table


def _costs_table(runs: Iterable[RunProgress]) -> Table:
    table = Table(title="What the work has cost this device")
    table.add_column("run", no_wrap=True)
    for column in ("rounds", "seconds", "paused", "joules", "per round", "watts"):
        table.add_column(column, justify="right")
    for run in runs:
        table.add_row(run.run, *_describe_cost(run.cost))
    return table


def _describe_cost(cost: WorkCost) -> tuple[str, ...]:
    energy = ("not measured", "", "")
    if cost.joules:
        per_round = f"{cost.joules / cost.rounds:,.1f}" if cost.rounds else ""
        energy = f"{cost.joules:,.0f}", per_round, f"{cost.joules / cost.seconds:.1f}"
    return f"{cost.rounds:,}", f"{cost.seconds:,.1f}", f"{cost.paused:,.1f}", *energy


def _pauses_table(pauses: Sequence[Pause]) -> Table:
    title = "Pauses of this device"
    if (earlier := len(pauses) - _SHOWN_PAUSES) > 0:
        title += f", without {earlier:,} earlier pauses"
    table = Table(title=title)
    table.add_column("from (UTC)", no_wrap=True)
    table.add_column("seconds")
    table.add_column("because")
    for pause in pauses[-_SHOWN_PAUSES:]:
        seconds = "no end recorded" if pause.seconds is None else f"{pause.seconds:,.0f}"
        table.add_row(_time(pause.begun), seconds, Text(pause.reason))
    return table


def _examples_table(facts: DataFacts) -> Table:
    table = Table("examples", *SPLITS, title="Examples")
    for source in dict.fromkeys(source for source, _ in facts.counts):
        counts = [facts.counts.get((source, split), 0) for split in SPLITS]
        table.add_row(source, *(f"{count:,}" for count in counts))
    return table


def _notes_on_examples(facts: DataFacts) -> list[str]:
    """Return notes on the newest added example and on unused rows."""
    lines = [f"the newest example was added at {_time(facts.newest)} UTC"] if facts.newest else []
    lines += [f"not used: {problem}" for problem in facts.problems[:_SHOWN_PROBLEMS]]
    if (hidden := len(facts.problems) - _SHOWN_PROBLEMS) > 0:
        lines.append(f"and {hidden:,} more unused rows")
    return lines


def _sent_table(status: ClientStatus) -> Table:
    table = Table("came together", "layout", title="Scalars sent, over all runs")
    for column in ("trained numbers", "scalars", "scalar ratio"):
        table.add_column(column, justify="right")
    for examples, by_layout in status.sent.items():
        for layout, count in by_layout.items():
            figures = f"{count.size:,}", f"{count.sent:,}", f"{count.ratio:.3g}"
            table.add_row(examples[:12], layout[:12], *figures)
        if len(by_layout) > 1:
            sent = sum(count.sent for count in by_layout.values())
            ratio = sum(count.ratio for count in by_layout.values())
            table.add_row(examples[:12], "all", "", f"{sent:,}", f"{ratio:.3g}")
    return table


def _texts(lines: Iterable[str], style: str = "") -> list[Text]:
    return [Text(line, style, overflow="fold") for line in lines if line]


def _time(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.0f}"
