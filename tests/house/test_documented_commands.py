"""The commands that documents show are commands of `samara`: names, options, values, settings."""

import re
from pathlib import Path

import click
import pytest
from command_pages import command_line, commands_page, leaves
from documented import PAGES, PYTHON_RUN, Command, command_lines, commands, mistake, samara_words
from helpers import ROOT


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_documented_commands_are_commands(page: Path) -> None:
    wrong = [f"{command}: {why}" for command in commands(page) if (why := mistake(command))]
    assert wrong == []


def test_the_python_of_every_page_is_run_by_a_test() -> None:
    block = re.compile(r"^ *```(py|python|pycon)\b", re.MULTILINE)
    having = {page for page in PAGES if block.search(page.read_text(encoding="utf-8"))}
    assert {page.relative_to(ROOT).as_posix() for page in having} == set(PYTHON_RUN)
    for page, test in PYTHON_RUN.items():
        assert any(name in (ROOT / test).read_text() for name in (page, "PYTHON_RUN"))


def test_commands_are_found_at_all() -> None:
    found = [command for page in PAGES for command in commands(page)]
    assert sum(command.whole for command in found) > 70
    assert {command.words[0] for command in found if command.words} > {
        "simulate",
        "server",
        "client",
    }


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("simulate", "sst2", "--datta", "x"), "--datta"),
        (("simulates",), "simulates"),
        (("simulate", "sst2", "--set", "round=3"), "no such setting"),
        (("demo", "--seed", "many"), "many"),
        (("server", "up"), "missing"),
        (("compare",), "missing"),
    ],
)
def test_a_command_that_is_none_is_found(words: tuple[str, ...], why: str) -> None:
    assert why in mistake(Command("page", words, whole=True))
    assert mistake(Command("page", ("simulate", "sst2", "--data", "DATA"), whole=True)) == ""


def test_a_block_is_read_as_a_shell_reads_it() -> None:
    block = (
        "for seed in 0 1; do samara demo --seed $seed; done   # twice\n"
        "A=1 /usr/bin/time -v samara compare a \\\n    b > table.txt && samara simulate --list\n"
        "pip install samara\n"
    )
    found = [words for line in command_lines(block) if (words := samara_words(line)) is not None]
    assert found == [["demo", "--seed", "$seed"], ["compare", "a", "b"], ["simulate", "--list"]]


def test_the_page_of_commands_has_all_of_them_with_their_options() -> None:
    page = commands_page()
    for path, command in leaves(command_line()):
        assert f"# {path}\n" in page
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert f"`{parameter.opts[0]}`" in page
