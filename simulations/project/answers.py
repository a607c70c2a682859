"""Answers to a project's questions, from options, from a terminal dialog, or by default."""

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
    """The answers to a project's questions; in a terminal, a dialog asks for missing options.

    Attributes:
        given: values by option.
        asks: whether to ask for missing options.
        used: values of the options that were given or asked for, by option, in order.
    """

    given: Mapping[str, str]
    asks: bool
    used: dict[str, str] = field(default_factory=dict)

    def one(self, option: str, question: str, default: str | None, check: Callable[[str], T]) -> T:
        """Return a checked answer; in a terminal, ask again after a wrong answer.

        Args:
            option: name of the option, for example ``data``.
            question: text of the question, which explains the option.
            default: answer without the option; None if an answer is required.
            check: function that converts the text to the answer, or raises a `SamaraError`.

        Raises:
            SamaraError: if a given answer is wrong, or a required answer is missing.
        """
        if option not in self.given and not self.asks:
            if default is None:
                raise ConfigError(f"{question}: give --{option}")
            return check(default)
        while True:
            text = (self.given[option] if option in self.given else _ask(question, default)).strip()
            try:
                if not text:
                    raise ConfigError(f"--{option}: the answer is empty; give an answer")
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
        """Ask as `one` does, and return a checked answer of several texts separated by commas."""
        shown = None if default is None else ",".join(default)
        if default is not None and option not in self.given and not self.asks:
            return check(default)
        return self.one(option, question, shown, lambda text: check(_split(text)))

    def command(self, folder: str) -> str:
        """Return the command that gives the same answers through options."""
        words = ["samara", "new", folder]
        for option, texts in self.used.items():
            words += [f"--{option}", texts]
        return shlex.join(words)


def _ask(question: str, default: str | None) -> str:
    """Return the typed text; the end of the input stops the command, as Ctrl-C does."""
    try:
        return Prompt.ask(escape(question), default=default) or ""
    except EOFError:
        raise KeyboardInterrupt from None


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
