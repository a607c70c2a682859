"""Tables of scenarios and tasks that come with Samara, and of the runs in a folder."""

import json
from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from samara.shared.result import RESULT_FILE
from samara.shared.scenarios import shipped_scenarios
from samara.shared.tasks.catalog import load_task, shipped_tasks
from samara.shared.tasks.kinds import ChoiceTask, ClassificationTask

_SHOWN_WORDS = 60


def scenarios_table() -> Table:
    """Return a table of the shipped scenarios, each with its first comment."""
    table = _table("Scenarios: samara simulate NAME", "name", "what it runs")
    for name, file in shipped_scenarios().items():
        table.add_row(name, " ".join(_first_comment(file.read_text(encoding="utf-8"))))
    return table


def tasks_table() -> Table:
    """Return a table of the shipped tasks: kind, fields of a row, answers."""
    table = _table("Tasks: --task NAME or --set task=NAME", "name", "kind", "reads", "answers")
    for name in sorted(shipped_tasks()):
        task = load_task(name)
        answers = "text"
        if isinstance(task, ClassificationTask):
            answers = ", ".join(task.words)
        elif isinstance(task, ChoiceTask):
            answers = "the row's candidates"
        if len(answers) > _SHOWN_WORDS:
            answers = answers[: _SHOWN_WORDS - 1] + "…"
        table.add_row(name, task.kind, ", ".join(task.fields), answers)
    return table


def runs_table(folder: Path) -> Table:
    """Return a table of the runs in a folder: finished ones of federations and of tuning, others.

    Args:
        folder: folder whose folders are looked at.
    """
    title = f"Runs in {folder.absolute()}"
    table = _table(title, "folder", "task", "method", "state")
    for run in sorted(path for path in folder.glob("*") if path.is_dir()):
        if (row := _run_row(run)) is not None:
            table.add_row(run.name, *row)
    return table


def _run_row(run: Path) -> tuple[str, str, str] | None:
    """Return task, method and state of a run; None for a folder that is none."""
    file = run / RESULT_FILE
    if not file.exists():
        begun = (run / "layout.json").exists() or (run / "tune.json").exists()
        return ("", "", "not finished: repeat its command") if begun else None
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
        config = result["config"]
        rounds = f"{result['final_round']} rounds" if "final_round" in result else "tuned"
        return str(config["task"]), str(config["method"]), rounds
    except (OSError, ValueError, KeyError, TypeError):
        return "", "", f"{RESULT_FILE} is damaged"


def _first_comment(text: str) -> Iterator[str]:
    """Yield the words of the comment that a file begins with, up to its first full stop."""
    for line in text.splitlines():
        if not line.startswith("#"):
            return
        for word in line.removeprefix("#").split():
            yield word
            if word.endswith("."):
                return


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=column in ("name", "kind", "folder"))
    return table
