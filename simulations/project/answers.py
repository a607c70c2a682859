"""Answers to what a project must know: from options, from questions in a terminal, or defaults."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.prompt import Prompt

from samara.shared.errors import ConfigError, SamaraError

T = TypeVar("T")


@dataclass
class Answers:
    """The answers so far; in a terminal, what no option says is asked.

    Attributes:
        given: values by option.
        asks: whether to ask.
        used: options that were given or asked for, and their values, in order.
    """

    given: Mapping[str, str]
    asks: bool
    used: dict[str, str] = field(default_factory=dict)

    def one(self, option: str, question: str, default: str | None, check: Callable[[str], T]) -> T:
        """Return a checked answer; in a terminal a wrong one is asked for again.

        Args:
            option: name of the option, ``data``.
            question: what is asked, and what the option means.
            default: answer where none is given; None if there has to be one.
            check: turns the text into the answer, or raises a `SamaraError`.

        Raises:
            SamaraError: if a given answer is wrong, or a required one is missing.
        """
        if option not in self.given and not self.asks:
            if default is None:
                raise ConfigError(f"{question}: give --{option}")
            return check(default)
        while True:
            text = (self.given[option] if option in self.given else _ask(question, default)).strip()
            try:
                if not text:
                    raise ConfigError(f"--{option}: an answer is needed, not an empty text")
                answer = check(text)
            except SamaraError as error:
                if option in self.given:
                    raise
                Console(stderr=True, highlight=False).print(
                    str(error), markup=False, style="yellow"
                )
            else:
                self.used[option] = text
                return answer

    def several(
        self,
        option: str,
        question: str,
        default: Sequence[str] | None,
        check: Callable[[Sequence[str]], T],
    ) -> T:
        """Return a checked answer of several texts, separated by commas; as `one` otherwise."""
        shown = None if default is None else ",".join(default)
        if default is not None and option not in self.given and not self.asks:
            return check(default)
        return self.one(option, question, shown, lambda text: check(_split(text)))

    def command(self, folder: str) -> str:
        """Return the command that gives the same answers by options."""
        words = ["samara", "new", folder]
        for option, texts in self.used.items():
            words += [f"--{option}", texts]
        return shlex.join(words)


def _ask(question: str, default: str | None) -> str:
    """Return what is typed; the end of the input stops the command as Ctrl-C does."""
    try:
        return Prompt.ask(escape(question), default=default) or ""
    except EOFError:
        raise KeyboardInterrupt from None


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
