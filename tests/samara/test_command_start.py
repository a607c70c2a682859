"""The command and the Python interface start without the libraries that take seconds to import."""

import subprocess
import sys

import click
import pytest
import typer
from helpers import ROOT

import samara
from samara.command import app

HEAVY = {"torch", "transformers", "flwr", "pydantic", "numpy", "scipy", "pandas", "grpc"}
PRINT_LOADED = "import sys; print(*{name.partition('.')[0] for name in sys.modules})"


def modules_after(code: str) -> set[str]:
    """Return the top-level modules that are loaded after some lines of Python in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{PRINT_LOADED}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return set(done.stdout.splitlines()[-1].split())


def commands() -> list[tuple[str, ...]]:
    """Every command and group of commands, as the words after ``samara``."""

    def below(command: click.Command, words: tuple[str, ...]) -> list[tuple[str, ...]]:
        own = command.commands.items() if isinstance(command, click.Group) else ()
        return [words, *(each for name, sub in own for each in below(sub, (*words, name)))]

    return below(typer.main.get_command(app), ())


def test_the_interface_is_imported_without_heavy_libraries() -> None:
    assert not modules_after("import samara; dir(samara)") & HEAVY


def test_help_of_every_command_needs_no_heavy_library() -> None:
    assert len(commands()) > 30
    code = f"""
import typer.testing
from samara.command import app
for words in {commands()!r}:
    result = typer.testing.CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0 and "Usage: " in result.output, words
    purpose = result.output.split("Usage: ")[1].strip().splitlines()[2].strip()
    assert purpose[:1].isalpha(), words
"""
    assert not modules_after(code) & HEAVY


def test_a_run_begins_without_statistics() -> None:
    modules_after(
        "import sys, samara.simulations.report.terminal; assert 'scipy.stats' not in sys.modules"
    )


def test_every_public_name_is_there_and_documented() -> None:
    assert set(samara.__all__) <= set(dir(samara))
    for name in samara.__all__:
        assert getattr(samara, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        samara.simulat  # noqa: B018


@pytest.mark.parametrize(
    "modules",
    [
        "samara.devices.live.client_supervisor, samara.devices.live.connection.executor, "
        "samara.client.app",
        "samara.devices.live.connection.supernode",
        "samara.devices.live.owner.http_server",
        "samara.devices.live.client_status, samara.devices.live.status_display",
    ],
)
def test_only_a_clients_trainer_loads_what_a_model_needs(modules: str) -> None:
    """`client up` runs for months beside the trainer, so it must not load the model's libraries."""
    needed = {"torch", "transformers", "scipy", "pandas", "numba"}
    assert not modules_after(f"import {modules}") & needed
