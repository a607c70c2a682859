"""The command ``samara``: mounts the commands of each package and prints errors as one message."""

import errno
import signal
import sys
from typing import Annotated

import typer

import devices.commands
import devices.live.commands
import devices.phone.commands
import server.commands
import simulations.adapter_commands
import simulations.commands
import simulations.new_command
import simulations.privacy_commands
import simulations.rehearse_command
import simulations.tune_command
from shared.errors import SamaraError
from shared.proxies import exempt_this_machine

_RIGHTS = "give a path that you may use, or change its rights"
_ROOM = "free space there, or give a path on another disk"
_REMEDIES = {
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EEXIST: "it is in the way; give another path",
    errno.ENOTDIR: "a file is in the way; give another path",
}
"""Remedies of what any command may meet where it writes, by number of the system's error."""

app = typer.Typer(
    no_args_is_help=True,
    suggest_commands=False,  # click does: shared/command_group.py
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(simulations.commands.demo)
app.command()(simulations.new_command.new)
app.command()(simulations.commands.simulate)
app.command()(simulations.rehearse_command.rehearse)
app.command()(simulations.commands.compare)
app.command()(simulations.tune_command.tune)
app.command()(simulations.commands.tasks)
app.add_typer(simulations.adapter_commands.app, name="adapter")
app.add_typer(simulations.privacy_commands.app, name="privacy")
app.add_typer(server.commands.app, name="server")
app.add_typer(devices.live.commands.app, name="client")
app.add_typer(devices.phone.commands.gateway, name="gateway")
app.add_typer(devices.phone.commands.app, name="phone")
app.add_typer(devices.commands.app, name="device")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        from shared import DISTRIBUTION

        print(f"{DISTRIBUTION} {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def samara(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and end."
        ),
    ] = False,
) -> None:
    """Federated personalization of language models: devices send scalars, nothing else."""


def run(commands: typer.Typer) -> None:
    """Run a command line; an error becomes a message and an exit status."""
    try:
        commands()
    except SamaraError as error:
        print(f"samara: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except OSError as error:
        if error.errno not in _REMEDIES:
            raise
        where = error.filename or "a file"
        print(f"samara: {where}: {error.strerror}; {_REMEDIES[error.errno]}", file=sys.stderr)
        sys.exit(1)


def main() -> None:
    """Run ``samara``; SIGTERM ends it as Ctrl-C does, with the processes that it has started."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    exempt_this_machine()
    run(app)
