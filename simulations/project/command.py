"""The command `samara new`, which writes a scenario and a task file for the user's data."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def new(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder to create; empty or missing.")
    ],
    data: Annotated[
        str | None,
        typer.Option(help="File, folder, data set on the hub, or messages (generated)."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model folder, or model name on the hub.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="Shipped task with suitable wording (samara simulate --list)."),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="classification, choice, or generation (tune only).")
    ] = None,
    label: Annotated[str | None, typer.Option(help="Column with the right answer.")] = None,
    text: Annotated[
        str | None, typer.Option(help="Columns with texts, separated by commas.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="Column with the user of a row; none for no column.")
    ] = None,
    candidates: Annotated[
        str | None,
        typer.Option(help="Columns with the candidates of a choice, separated by commas."),
    ] = None,
    words: Annotated[
        str | None,
        typer.Option(help="One word per label, in the labels' order, separated by commas."),
    ] = None,
) -> None:
    """Analyze your data, and write a scenario and a task file for them.

    In a terminal, the command asks for missing options. The files are checked and tested on some
    rows before they are written.

    Example: samara new reviews --data reviews.csv --model MODEL --words bad,good
    """
    from rich.console import Console

    from samara.simulations.progress.progress import stoppable
    from samara.simulations.project.answers import Answers
    from samara.simulations.project.project import check_folder, choose, write_project

    options = {
        "data": data,
        "model": model,
        "task": task,
        "kind": kind,
        "label": label,
        "text": text,
        "user": user,
        "candidates": candidates,
        "words": words,
    }
    given = {option: value for option, value in options.items() if value is not None}
    answers = Answers(given, asks=not given and sys.stdin.isatty())
    console = Console()

    def say(line: str) -> None:
        style = "yellow" if line.startswith("note:") else None
        console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)

    with stoppable("samara: stopped; no file is written"):
        check_folder(folder)
        say(f"reading {data}" if data else "reading the data")
        choices, task_text = choose(answers, folder, say)
        if answers.asks:
            say(f"the same command without questions: {answers.command(str(folder))}")
        say("loading and testing the model")
        from samara.simulations.project.check import checked_files

        files, command = checked_files(choices, task_text, folder.absolute(), say)
        write_project(folder, files)
    say(f"written: {', '.join(str(folder / name) for name in files)}")
    say(f"next: {command}")
