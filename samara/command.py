"""The command ``samara``, which combines the commands of all packages."""

import errno
import os
import signal
import sys
from itertools import takewhile
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from samara.devices.gateway import commands as gateway
from samara.devices.hardware import commands as device
from samara.devices.live import commands as client
from samara.devices.phone import commands as phone
from samara.old_commands import in_new_form
from samara.server import commands as server
from samara.shared.errors import SamaraError
from samara.shared.network.proxies import exempt_this_machine
from samara.simulations import commands
from samara.simulations.experiments import tune_command
from samara.simulations.exports import commands as adapter_commands
from samara.simulations.privacy import command as privacy_command
from samara.simulations.project import command as new_command
from samara.simulations.rehearsal import command as rehearse_command

_RIGHTS = "give a path for which you have permission, or change its permissions"
_ROOM = "free space on this disk, or give a path on another disk"
_REMEDIES = {
    errno.ENOENT: "correct the path, or restore the file",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EEXIST: "give another path",
    errno.ENAMETOOLONG: "give a shorter path",
    errno.ELOOP: "symbolic links refer to each other in a circle; give another path",
    errno.ENOTDIR: "a part of the path is a file; give another path",
}
"""Remedies for the user after system errors in commands that write files, by errno."""
_OF_READING = {
    errno.EISDIR: "give a file",
}
"""Further remedies by errno, for system errors whose message is a `SamaraError`'s."""

_DEVICES = "Devices, phones, and rehearsals with them"
"""Name of the help panel for commands about devices."""
_MODELS = "Models of runs, and privacy"
"""Name of the help panel for commands about models."""


class CommandLine(TyperGroup):
    """The group of all commands, which also accepts commands in old forms."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse a command line, and warn on standard error if it has an old form."""
        words, changes = in_new_form(args)
        if changes and not ctx.resilient_parsing:  # true for completions
            print(
                f"samara: {'; '.join(changes)} (the next version refuses old forms)",
                file=sys.stderr,
            )
        return super().parse_args(ctx, _for_help_alone(words))


def _for_help_alone(words: list[str]) -> list[str]:
    """Return a command line without its other options if one of them asks for help.

    An option would otherwise take the word ``--help`` as its value.
    """
    if {"--help", "-h"}.isdisjoint(takewhile("--".__ne__, words)):
        return words
    return [*takewhile(lambda word: not word.startswith("-"), words), "--help"]


app = typer.Typer(
    cls=CommandLine,
    no_args_is_help=True,
    suggest_commands=False,  # shared/command_group.py makes suggestions
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(commands.demo)
app.command()(new_command.new)
app.command()(commands.simulate)
app.command()(commands.compare)
app.add_typer(server.app, name="server")
app.add_typer(client.app, name="client")
app.command()(tune_command.tune)
app.add_typer(device.app, name="device", rich_help_panel=_DEVICES)
app.add_typer(gateway.app, name="gateway", rich_help_panel=_DEVICES)
app.add_typer(phone.app, name="phone", rich_help_panel=_DEVICES)
app.command(rich_help_panel=_DEVICES)(rehearse_command.rehearse)
app.add_typer(adapter_commands.app, name="adapter", rich_help_panel=_MODELS)
app.command(rich_help_panel=_MODELS)(privacy_command.privacy)


def _print_version(wanted: bool) -> None:
    if wanted:
        from samara.shared import DISTRIBUTION
        from samara.shared.machine.installed_code import samara_version

        print(f"{DISTRIBUTION} {samara_version()}")
        raise typer.Exit


@app.callback()
def samara(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Federated personalization of language models, in which devices send only scalars."""


def run(commands: typer.Typer) -> None:
    """Run the command line; print an error as a message, and set the exit status."""
    try:
        commands()
    except SamaraError as error:
        print(f"samara: {_with_remedy(error)}", file=sys.stderr)
        sys.exit(error.exit_status)
    except OSError as error:
        if error.errno not in _REMEDIES:
            raise
        where = error.filename or "a file"
        print(f"samara: {where}: {error.strerror}; {_REMEDIES[error.errno]}", file=sys.stderr)
        sys.exit(1)
    except RuntimeError as error:  # Path.resolve before Python 3.13
        if not str(error).startswith("Symlink loop"):
            raise
        print(f"samara: {error}; {_REMEDIES[errno.ELOOP]}", file=sys.stderr)
        sys.exit(1)


def _with_remedy(error: SamaraError) -> str:
    """Return an error's message, with a remedy if it ends with a system error."""
    text, cause = str(error), error.__cause__
    if isinstance(cause, OSError) and cause.strerror and text.endswith(cause.strerror):
        remedy = (_REMEDIES | _OF_READING).get(cause.errno or 0)
        return f"{text}; {remedy}" if remedy else text
    return text


def main() -> None:
    """Run ``samara``. SIGTERM ends the command and its child processes, like Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    exempt_this_machine()
    try:
        os.getcwd()
    except FileNotFoundError:
        sys.exit("samara: the current folder was deleted; change to another folder")
    run(app)
