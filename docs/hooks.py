"""What the site generator fills in when it builds: the pages that are made of the code."""

import re
from functools import cache
from html import escape
from typing import Any

from command_pages import commands_page
from error_messages import messages, of_family

COMMANDS = "<!-- commands -->"
MESSAGES = re.compile(r"<!-- messages: (\w+) -->")

_messages = cache(messages)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page with its marks replaced: all commands, or the messages of a family."""
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, commands_page())
    return MESSAGES.sub(lambda mark: message_list(mark[1]), markdown)


def message_list(family: str) -> str:
    """Return the messages of a family as a folded list."""
    items = "".join(f"<li>{escape(text)}</li>" for text in of_family(family, _messages()))
    return f'<details class="messages"><summary>All messages</summary><ul>{items}</ul></details>'
