"""A group of commands, as every package mounts them."""

import typer


def command_group(text: str) -> typer.Typer:
    """Return an empty group of commands; without a command it shows its help.

    A misspelt command is answered by click, which suggests a near one; typer's own suggestion
    would be a second one in the same line.

    Args:
        text: what the commands are for, one line of the help.
    """
    return typer.Typer(help=text, no_args_is_help=True, suggest_commands=False)
