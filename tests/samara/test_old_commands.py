"""Old forms of commands: each is converted to a current command, with a one-line warning."""

import click
import pytest
from command_pages import command_line, leaves
from commands import Run
from documented import SETTINGS, Command, mistake

from samara.old_commands import COMMANDS, OPTIONS, in_new_form

LEAVES = dict(leaves(command_line()))


@pytest.mark.parametrize("old", COMMANDS)
def test_an_old_command_is_one_of_today_and_of_no_help(old: str) -> None:
    words, changes = in_new_form([*old.split(), "--run", "x"])
    assert words == [*COMMANDS[old].split(), "--run", "x"]
    assert len(changes) == 1
    assert mistake(Command("page", tuple(COMMANDS[old].split()), whole=False)) == ""
    assert f"samara {old}" not in LEAVES


@pytest.mark.parametrize("command", OPTIONS)
def test_an_old_option_means_one_of_today(command: str) -> None:
    names = {
        name
        for parameter in LEAVES[f"samara {command}"].params
        if isinstance(parameter, click.Option)
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    for old, form in OPTIONS[command].items():
        assert old not in names
        words, changes = in_new_form([*command.split(), old, *(["7"] if "{}" in form else [])])
        assert {word for word in words if word.startswith("--")} <= names
        assert {word.split("=")[0] for word in words if "=" in word} <= SETTINGS
        assert len(changes) == 1
        if "{}" in form:
            assert in_new_form([*command.split(), f"{old}=7"])[0] == words
            assert any("7" in word for word in words)


def test_an_old_form_is_warned_of_in_one_line_and_works(run: Run) -> None:
    status, printed, errors = run("server", "verify", "no-such-run")
    assert (status, printed) == (1, "")
    warning, error = errors.splitlines()
    assert "`samara server verify` is now `samara server check --replay`" in warning
    assert error.startswith("samara: no-such-run")


def test_an_old_option_does_what_its_setting_does(run: Run) -> None:
    command = ("device", "estimate", "--model", "tinyllama-1.1b", "--json")
    old = run(*command, "--top=2", "--no-checkpointing", "--queries", "4")
    settings = ("adapter.layers=top:2", "offload.checkpointing=off", "queries=4")
    new = run(*command, *(word for each in settings for word in ("--set", each)))
    assert old[:2] == new[:2]
    assert (new[0], new[2]) == (0, "")
    assert old[1] != run(*command)[1]
    assert "--queries is now --set queries=VALUE" in old[2]
    assert len(old[2].splitlines()) == 1


def test_what_stands_behind_two_hyphens_is_left_alone() -> None:
    behind = ["device", "run", "--as", "x", "--", "samara", "tune", "--queries", "2"]
    assert in_new_form(behind) == (behind, [])
    assert in_new_form(["tasks"]) == (
        ["simulate", "--list"],
        ["`samara tasks` is now `samara simulate --list`"],
    )
