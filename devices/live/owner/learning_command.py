"""The command with which an owner teaches examples to a client and deletes them again."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from samara.devices.live.owner.commands import Home, Name

_SHOWN_LETTERS = 60


def learn(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]",
            help="A text; - for JSON lines on standard input; ids with --delete.",
        ),
    ] = None,
    label: Annotated[
        str, typer.Option(help="Label of the text: a value or a word of the task.")
    ] = "",
    name: Name = "",
    home: Home = None,
    show: Annotated[bool, typer.Option("--list", help="List the learned examples.")] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the examples with these ids.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="With --delete: all examples.")] = False,
) -> None:
    """Teach this client an example, used from the next round on, or delete learned examples.

    Earlier effects of a deleted example remain: models trained on it, and scalars sent about it.

    Example: samara client learn "the soup was cold" --label hated --name kitchen-orin
    """
    from samara.client.protocol.joined_runs import latest_data_settings
    from samara.client.training.own_examples import OwnExamples, parse_rows, row_of_text
    from samara.devices.live.client_folder import check_not_moved, client_folder
    from samara.devices.live.settings import ClientSettings
    from samara.shared.errors import ConfigError
    from samara.shared.tasks.catalog import load_task
    from samara.shared.tasks.growing import split_of

    folder = client_folder(name, home)
    config = ClientSettings.read(folder).config
    if show:
        _show(folder)
        return
    if delete:
        _delete(folder, words or [], everything)
        return
    text = words[0] if words and len(words) == 1 else ""
    if not text or (text == "-") == bool(label) or everything:
        raise ConfigError(
            "give one of these: a TEXT with its --label, - for rows on standard input, --list, or "
            "--delete IDS"
        )
    check_not_moved(folder)
    task = load_task(config.task)
    own = OwnExamples(folder)
    rows = parse_rows(sys.stdin.buffer) if text == "-" else [row_of_text(task, text, label)]
    data = latest_data_settings(folder, config)
    for example in own.learn(rows, task):
        splits = {split_of(row, data.seed, data.split) for row in example.rows(task)}
        print(f"example {example.id} is stored, for {_USE[min(splits)]}")


_USE = {"train": "training", "validation": "validation", "test": "test"}


def _delete(folder: Path, ids: Sequence[str], everything: bool) -> None:
    from samara.client.training.own_examples import OwnExamples
    from samara.shared.errors import ConfigError

    if bool(ids) == everything:
        raise ConfigError("--delete: give --all, or the ids of examples from --list")
    deleted = OwnExamples(folder).delete(None if everything else ids)
    print(
        f"{len(deleted)} examples deleted; their effects on models and sent scalars remain "
        "(docs/guides/growing-data.md)"
    )


def _show(folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from samara.client.training.own_examples import OwnExamples

    examples, problems = OwnExamples(folder).read()
    table = Table("id", "learned (UTC)", "row", title=f"{len(examples)} learned examples")
    for one in examples:
        when = datetime.fromtimestamp(one.time, UTC).strftime("%Y-%m-%d %H:%M")
        row = ", ".join(f"{key}: {_cut(str(value))}" for key, value in one.row.items())
        table.add_row(one.id, when, row)
    Console().print(table)
    for problem in problems:
        print(problem)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}…"
