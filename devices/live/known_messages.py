"""Log lines without their inserted values, which are found by means of the code's messages.

A log line may quote a text, a label or a path. Only two parts of a line are shown: words from the
source code, and values that the code formats as numbers.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from string import Formatter
from typing import NamedTuple

HIDDEN = "…"
"""Placeholder for every inserted value."""
_PACKAGES = ("samara.client", "samara.devices", "samara.shared")
_LEAST_LETTERS = 12
"""Minimum number of literal letters in a message that can be recognized."""
_DEPTH = 3
"""Maximum nesting depth of messages inserted into one another."""
_LOGGED = {"log", "debug", "info", "warning", "error", "exception"}
_SENTENCES = {"damaged", "unwritable"}
"""Names of the functions in `shared.storage.kept_file` that build sentences."""
_NUMBER = r"([-+]?\d[\d,]*(?:\.\d+)?%?)"
_ANYTHING = "(.*)"
_PERCENT = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?([a-zA-Z%])")
_NUMERIC_FORMAT = re.compile(r"[-+,0-9.]*[dfeg%,]")
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} samara\.[a-z]+: )(.*)", re.DOTALL)
_Piece = tuple[str, bool]
"""A part of a message: literal words (True), or a regular expression for an insertion (False)."""


class _Message(NamedTuple):
    """A message in the source code.

    Attributes:
        words: longest literal part of the message.
        pattern: regular expression for the whole message, with a group for each insertion.
        are_numbers: for each insertion, whether the code formats it as a number.
    """

    words: str
    pattern: re.Pattern[str]
    are_numbers: tuple[bool, ...]


def hide_insertions(line: str) -> str:
    """Return a log line with every insertion hidden, except numbers.

    A line that matches no message is reduced to its length.
    """
    logged = _LINE.fullmatch(line)
    beginning, text = logged.groups() if logged else ("", line)
    shown = _shown(text, _DEPTH)
    return beginning + (f"({len(text)} characters)" if shown is None else shown)


def _shown(text: str, depth: int) -> str | None:
    """Return a text with the inserted values hidden; None if no message in the code matches it."""
    for message in _messages():
        if message.words in text and (match := message.pattern.fullmatch(text)):
            break
    else:
        return None
    parts = list[str]()
    end = 0
    for group, is_number in enumerate(message.are_numbers, 1):
        parts.append(text[end : match.start(group)])
        inner = match[group] if is_number else depth and _shown(match[group], depth - 1)
        parts.append(inner or HIDDEN)
        end = match.end(group)
    return "".join([*parts, text[end:]])


@cache
def _messages() -> tuple[_Message, ...]:
    """Return all messages of the code, sorted so that the longest literal part comes first."""
    found = dict[str, tuple[int, _Message]]()
    for package in _PACKAGES:
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for file in Path(folder).rglob("*.py"):
                for pieces in _messages_in(ast.parse(file.read_text(encoding="utf-8"))):
                    words = [text for text, is_words in pieces if is_words]
                    letters = sum(letter.isalpha() for text in words for letter in text)
                    if letters < _LEAST_LETTERS:
                        continue
                    pattern = "".join(re.escape(t) if is_words else t for t, is_words in pieces)
                    numbers = tuple(t == _NUMBER for t, is_words in pieces if not is_words)
                    compiled = re.compile(pattern, re.DOTALL)
                    found[pattern] = letters, _Message(max(words, key=len), compiled, numbers)
    ordered = sorted(found.values(), key=lambda each: -each[0])
    return tuple(message for _, message in ordered)


def _messages_in(tree: ast.AST) -> Iterator[list[_Piece]]:
    """Yield the messages that a module logs or raises."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(sentence)))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(sentence)))
            ) if name in _SENTENCES:
                yield list(_pieces_of_braces(sentence))
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = node.func
        is_level_first = isinstance(called, ast.Attribute) and called.attr == "log"
        first = node.args[1 if is_level_first and len(node.args) > 1 else 0]
        if isinstance(called, ast.Attribute) and called.attr in _LOGGED:
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield list(_pieces_of_percent(first.value))
        elif isinstance(called, ast.Name) and called.id.endswith("Error"):
            if isinstance(first, ast.JoinedStr):
                yield [_piece_of(value) for value in first.values]
            elif isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield [(first.value, True)]


def _pieces_of_percent(text: str) -> Iterator[_Piece]:
    end = 0
    for match in _PERCENT.finditer(text):
        yield text[end : match.start()], True
        kind = match[1]
        end = match.end()
        yield ("%", True) if kind == "%" else (_NUMBER if kind in "dfeg" else _ANYTHING, False)
    yield text[end:], True


def _pieces_of_braces(text: str) -> Iterator[_Piece]:
    for words, field, *_ in Formatter().parse(text):
        yield words, True
        if field:
            yield _ANYTHING, False


def _piece_of(value: ast.expr) -> _Piece:
    """Return a part of an f-string; an insertion without a number format matches any text."""
    if isinstance(value, ast.Constant):
        return str(value.value), True
    spec = value.format_spec if isinstance(value, ast.FormattedValue) else None
    text = ast.unparse(spec)[2:-1] if spec else ""
    return (_NUMBER if text and _NUMERIC_FORMAT.fullmatch(text) else _ANYTHING), False
