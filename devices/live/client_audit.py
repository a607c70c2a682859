"""The display of a client's log of answers for its owner, as tables and as JSON."""

from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any

from rich.table import Table

from samara.client.limits.answer_log import ANSWERS_FILE, AnswerHistory
from samara.client.limits.logged_answers import AnswerTotals, LoggedAnswer

CLOCK_NOTE = "Times come from this device's clock, which may be wrong."


def describe_history(folder: Path, history: AnswerHistory) -> dict[str, Any]:
    """Describe a client's answers as JSON values.

    Args:
        folder: folder of the client.
        history: log of the client's answers.

    Returns:
        The log's path, the number of unreadable lines, and the totals of all runs together. The
        result also has the totals of each run, and the answers that are still in the file, oldest
        first.
    """
    runs = [
        _totals(totals)
        | {"answers_in_file": [asdict(one) for one in history.answers if one.run == run]}
        for run, totals in history.all_totals.items()
    ]
    return {
        "file": str(folder / ANSWERS_FILE),
        "damaged_lines": history.damaged,
        "runs": runs,
        "total": _totals(_sum(history)),
    }


def make_tables(history: AnswerHistory) -> list[Table]:
    """Return one table of answers per run, and one of the totals."""
    tables = []
    for run, totals in history.all_totals.items():
        answers = [one for one in history.answers if one.run == run]
        if not answers:
            continue
        table = Table("time (UTC)", "round", "asked", "left the device", title=_title(run))
        seen: set[str] = set(history.totals[run].recent) if run in history.totals else set()
        for one in answers:
            table.add_row(_time(one.time), str(one.round), _asked(one), _left(one, seen))
        if (earlier := totals.answers + totals.repeated + totals.refused - len(answers)) > 0:
            table.caption = f"{earlier:,} earlier answers are only in the totals"
        tables.append(table)
    totals_table = Table("run", "from", "to", title="Totals")
    for name in ("answers", "repeated", "refused", "scalars", "losses", "counts", "bytes"):
        totals_table.add_column(name, justify="right")
    totals_table.add_column("scalars and losses per trained number", justify="right")
    rows = list(history.all_totals.values())
    for totals in [*rows, _sum(history)] if len(rows) > 1 else rows:
        figures = [getattr(totals, name) for name in _FIGURES]
        totals_table.add_row(
            totals.run or "none",
            _time(totals.first),
            _time(totals.last),
            *(f"{figure:,}" for figure in figures),
            f"{totals.ratio:.3g}",
        )
    return [*tables, totals_table]


_FIGURES = ("answers", "repeated", "refused", "scalars", "losses", "counts", "sent_bytes")


def _sum(history: AnswerHistory) -> AnswerTotals:
    rows = list(history.all_totals.values())
    return replace(reduce(AnswerTotals.merged, rows), run="all") if rows else AnswerTotals("", 0, 0)


def _totals(totals: AnswerTotals) -> dict[str, Any]:
    return {name: value for name, value in asdict(totals).items() if name != "recent"}


def _title(run: str) -> str:
    return f"Run {run}" if run else "Messages without a run"


def _time(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return str(seconds)


def _asked(one: LoggedAnswer) -> str:
    if one.asked == "train":
        return f"train: K={one.steps}, q={one.queries}, B={one.batch}, ε={one.epsilon:g}"
    if one.asked in ("evaluate", "compare"):
        what = "personal comparison" if one.asked == "compare" else "evaluation"
        return f"{what} on the {one.split} examples"
    return "a message other than an instruction"


def _left(one: LoggedAnswer, seen: set[str]) -> str:
    """Describe the data in an answer; describe a repeated answer by its number of bytes only."""
    if one.refused:
        return f"refused: {one.refused}"
    if one.key in seen:
        return f"the same answer again, {one.sent_bytes:,} bytes"
    seen.add(one.key)
    numbers = {"scalars": one.scalars, "losses": one.losses, "counts": one.counts}
    left = [f"{number:,} {name}" for name, number in numbers.items() if number]
    return ", ".join([*left, f"{one.sent_bytes:,} bytes"])
