"""Hooks of the site generator, which insert generated pages and show doctests as code."""

import re
from collections.abc import Iterator
from html import escape
from typing import Any

from command_pages import commands_page
from error_messages import messages, of_family
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor

COMMANDS = "<!-- commands -->"
MESSAGES = re.compile(r"<!-- messages: (\w+) -->")
CODE = re.compile(r"(?<!<span></span>)<code>[^<]*</code>")
JOINT = re.compile(r"(?<=[A-Za-z][./_])(?=[A-Za-z])")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def on_config(config: Any) -> Any:
    """Return the site's configuration with an extension that shows doctests as code."""
    config.markdown_extensions.append(Doctests())
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page with its markers replaced by all commands, or by the messages of a family."""
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, commands_page())
    return MESSAGES.sub(lambda mark: message_list(mark[1]), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Return a page in which code may break after dots, slashes and underscores.

    Intervals (a ± b) and names of options do not break.
    """
    html = html.replace(" ± ", "&nbsp;±&nbsp;")
    return CODE.sub(lambda code: _with_breaks(code[0]), html)


def _with_breaks(code: str) -> str:
    return OPTION.sub(r'<span class="option">\g<0></span>', JOINT.sub("<wbr>", code))


def message_list(family: str) -> str:
    """Return the messages of a family as a collapsed HTML list."""
    items = "".join(f"<li>{escape(text)}</li>" for text in of_family(family, messages()))
    return f'<details class="messages"><summary>All messages</summary><ul>{items}</ul></details>'


class Doctests(Extension):
    """A Markdown extension that shows doctests as code instead of quotations.

    A doctest reaches from ``>>>`` to the next empty line.
    """

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802  (the library's name)
        """Register the preprocessor so that it runs before the preprocessor of code blocks."""
        md.preprocessors.register(_DoctestPreprocessor(md), "doctests", 35)


class _DoctestPreprocessor(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        return list(_with_fences(lines))


def _with_fences(lines: list[str]) -> Iterator[str]:
    inside = fenced = False
    for line in lines:
        fenced ^= line.lstrip().startswith("```")
        if not inside and not fenced and line.startswith(">>> "):
            inside = True
            yield "```pycon"
        elif inside and not line.strip():
            inside = False
            yield "```"
        yield line
    if inside:
        yield "```"
