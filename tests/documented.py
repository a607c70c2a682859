"""The content of documents: commands in code blocks and in lines of text, links and headings."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click
from command_pages import command_line
from helpers import ROOT

from samara.client.tuning.settings import TuneSettings
from samara.devices.hardware.estimate_settings import StepSettings
from samara.devices.live.settings import OWNER_KEYS
from samara.shared.settings.config import RunConfig

PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
        *(ROOT / "docs").rglob("*.md"),
    ]
)
FENCED = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^(?: {4}|\t).*\n?)+", re.MULTILINE)
INLINE = re.compile(r"(?<!`)`(samara [^`]+)`(?!`)")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
PYTHON_RUN = {
    "docs/reference/python.md": "tests/e2e/test_documented_runs.py",
    "docs/concepts/mezo.md": "tests/house/test_documented_loop.py",
    "docs/reference/phones.md": "tests/e2e/test_documented_phone.py",
}
"""The pages whose Python code is run as written, and the test that runs each."""
SHELLS = {"sh", "bash", "console"}
PARTS = {";", "&", "&&", "|", "||", "(", ")", "do", "done", "then", "fi"}
OMITTED = {"…", "..."}


class Command(NamedTuple):
    """A command line of `samara` in a document.

    Attributes:
        page: path of the document under the repository.
        words: its words, without `samara`.
        whole: whether the command is in a block, complete and ready to be typed.
    """

    page: str
    words: tuple[str, ...]
    whole: bool

    def __str__(self) -> str:
        return f"{self.page}: samara {shlex.join(self.words)}"


def without_comments(text: str) -> str:
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def blocks(text: str) -> Iterator[str]:
    """Yield the shell blocks of a page: fenced blocks, and indented blocks with commands."""
    for match in FENCED.finditer(text):
        if match[2] in SHELLS:
            yield match[3]
    for match in INDENTED.finditer(FENCED.sub("\n", text)):
        if re.search(
            r"^\s+(\S+=\S+ |/usr/bin/time -v |for .* do )?samara ", match[0], re.MULTILINE
        ):
            yield match[0]


def command_lines(block: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell block; redirections are left out."""
    joined = re.sub(r"\\\n\s*", " ", block)
    for line in joined.splitlines():
        words: list[str] = []
        lexer = shlex.shlex(
            line.strip().removeprefix("$ "), posix=True, punctuation_chars=";&|()<>"
        )
        lexer.whitespace_split = True
        skip = False
        for word in lexer:
            if skip:
                skip = False
            elif word in PARTS:
                yield words
                words = []
            elif set(word) <= {"<", ">"}:
                skip = True
            else:
                words.append(word)
        yield words


def samara_words(words: list[str]) -> list[str] | None:
    """Return the words after `samara` if a command line runs this program; otherwise None."""
    while words and (re.fullmatch(r"\w+=\S*", words[0]) or words[0] in ("/usr/bin/time", "-v")):
        words = words[1:]
    return words[1:] if words and words[0].split("/")[-1] == "samara" else None


def commands(page: Path) -> list[Command]:
    """Return the commands of `samara` in a page; commands in blocks come first."""
    text = without_comments(page.read_text(encoding="utf-8"))
    name = page.relative_to(ROOT).as_posix()
    found = []
    for block in blocks(text):
        for line in command_lines(block):
            words = samara_words(line)
            if words is not None:
                kept = tuple(word for word in words if word not in OMITTED)
                found.append(Command(name, kept, whole=len(kept) == len(words)))
    for match in INLINE.finditer(FENCED.sub("\n", text)):
        inline = re.sub(r"[\[\]]", "", " ".join(match[1].split()))  # optional parts are in brackets
        for words in filter(None, map(samara_words, command_lines(inline))):
            found.append(Command(name, tuple(w for w in words if w not in OMITTED), whole=False))
    return found


def headings(text: str) -> set[str]:
    """Return the anchors of a page's headings, as the site generator makes them."""
    from pymdownx.slugs import slugify

    slug = slugify(case="lower")
    plain = FENCED.sub("\n", text)
    found: set[str] = set()
    for title in re.findall(r"^#+ +(.*?) *$", plain, re.MULTILINE):
        words = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", lambda m: m[1] or "", title)
        anchor, count = slug(words, "-"), 0
        while anchor in found:
            count += 1
            anchor = f"{slug(words, '-')}_{count}"
        found.add(anchor)
    return found


def links(page: Path) -> Iterator[str]:
    """Yield the targets of a page's links and images inside the repository."""
    text = FENCED.sub("\n", without_comments(page.read_text(encoding="utf-8")))
    for match in LINK.finditer(re.sub(r"`[^`]*`", "", text)):
        target = match[1] or match[2]
        if not re.match(r"[a-z]+:", target):
            yield target


HISTORY = "docs/decisions/0015-rooms.md"


PLACEHOLDER = re.compile(r"'[A-Z]+'")


NO_COMMANDS = {
    "docs/reference/phones.md": ("1", "answer"),
    "docs/reference/wire.md": ("report", "scenario"),  # what signatures begin with
    "docs/reference/commands.md": ("COMMAND",),
}


SETTINGS = {*RunConfig().flat(), *TuneSettings().flat(), *StepSettings().flat(), *OWNER_KEYS}


def mistake(command: Command) -> str:
    """Return the mistake in a command line; empty if it has none."""
    below, words = command_line(), list(command.words)
    while isinstance(below, click.Group) and words and words[0] in below.commands:
        below = below.commands[words.pop(0)]
    if isinstance(below, click.Group) and words and not words[0].startswith("-"):
        known = words[0] in NO_COMMANDS.get(command.page, ()) or command.page == HISTORY
        return "" if known else f"{words[0]}: no such command"
    try:
        name = below.name or "samara"
        context = below.make_context(name, words, **command_line().context_settings)
    except (click.MissingParameter, click.exceptions.NoArgsIsHelpError):
        return "an argument is missing" if command.whole else ""
    except click.exceptions.Exit:
        return ""  # --help and --version
    except click.UsageError as error:
        open_end = not command.whole and "requires an argument" in error.message
        placeholder = PLACEHOLDER.search(error.message)
        return "" if placeholder or open_end else error.message
    given = context.params.get("settings") or ()
    unknown = [pair for pair in given if "=" in pair and pair.split("=")[0] not in SETTINGS]
    return f"--set {', '.join(unknown)}: no such setting" if unknown else ""


@cache
def names_in(file: Path) -> frozenset[str]:
    """Names of the test functions of a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


@cache
def all_tests() -> frozenset[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    return frozenset(name for file in files for name in names_in(file))
