"""Tables of shipped scenarios and tasks, and of the runs in a folder."""

import json
from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from samara.shared.results.result import RESULT_FILE
from samara.shared.settings.scenarios import shipped_scenarios
from samara.shared.tasks.catalog import load_task, shipped_tasks
from samara.shared.tasks.kinds import ChoiceTask, ClassificationTask
from samara.simulations.project.drafts import PROJECT_RUN, SCENARIO_FILE

_SHOWN_WORDS = 60


_OF_PEERS = ("decomfl", "fedkseed")
"""Shipped scenarios with the algorithms of other papers, for comparison."""


def scenarios_table() -> Table:
    """Return a table of the shipped scenarios and their first comments.

    The scenarios of `_OF_PEERS` come last.
    """
    table = _table("Scenarios: samara simulate NAME", "name", "description")
    shipped = shipped_scenarios()
    own = [name for name in shipped if name not in _OF_PEERS]
    for name in own:
        table.add_row(name, _description_of(shipped[name]), end_section=name == own[-1])
    table.add_row("", "[italic]For comparison: algorithms of other papers[/]")
    for name in _OF_PEERS:
        table.add_row(name, _description_of(shipped[name]))
    return table


def _description_of(file: Path) -> str:
    return " ".join(_first_comment(file.read_text(encoding="utf-8")))


def tasks_table() -> Table:
    """Return a table of the shipped tasks with their kind, fields of a row, and answers."""
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
    """Return a table of the runs in a folder, and in project folders beside it.

    Args:
        folder: folder whose subfolders are searched. Folders of ``samara new`` beside it are also
            searched; their run is in the subfolder ``run``.
    """
    table = _table("Runs", "folder", "task", "method", "state")
    projects = folder.parent.glob(f"*/{SCENARIO_FILE}")
    for run in sorted([*folder.glob("*"), *(file.parent / PROJECT_RUN for file in projects)]):
        if run.is_dir() and (row := _run_row(run)) is not None:
            table.add_row(str(run), *row)
    return table


def _run_row(run: Path) -> tuple[str, str, str] | None:
    """Return task, method and state of a run; None if the folder holds no run."""
    file = run / RESULT_FILE
    if not file.exists():
        begun = (run / "layout.json").exists() or (run / "tune.json").exists()
        return ("", "", "not finished; repeat the run's command to continue") if begun else None
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
        config = result["config"]
        rounds = f"{result['final_round']} rounds" if "final_round" in result else "tuned"
        return str(config["task"]), str(config["method"]), rounds
    except (OSError, ValueError, KeyError, TypeError):
        return "", "", f"{RESULT_FILE} is damaged"


def _first_comment(text: str) -> Iterator[str]:
    """Yield the words of the comment at the beginning of a file, up to the first full stop."""
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
