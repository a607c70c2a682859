"""The common form of every package's group of commands."""

import typer


def command_group(text: str) -> typer.Typer:
    """Return an empty group of commands that shows its help if called without a command.

    Click suggests a command for a misspelt one. Typer's own suggestion is switched off, because it
    would repeat Click's on the same line.

    Args:
        text: purpose of the commands, one line of the help.
    """
    return typer.Typer(help=text, no_args_is_help=True, suggest_commands=False)
