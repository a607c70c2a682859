"""A budget of log lines about what strangers do, so that they neither fill a log nor silence it."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

LINES_AT_ONCE = 8
"""Most lines about one reason at once."""
REFILL_SECONDS = 600.0
"""Time in which the budget of a reason grows by a line."""
REPEAT_SECONDS = 3600.0
"""Time in which one sender causes one line about a reason."""
MAX_REASONS = 64
"""Most reasons with a budget of their own; further ones share one."""
MAX_DETAIL = 200
"""Most characters of a detail in a line."""


@dataclass
class _Budget:
    """The budget of a reason.

    Attributes:
        lines: lines that may be written, with a part of the next one.
        counted: when they were counted, monotonic seconds.
        said: when it was said last how many lines were left out, monotonic seconds.
        left_out: lines that were left out since then.
        senders: when each sender has caused a line, monotonic seconds.
    """

    lines: float
    counted: float
    said: float
    left_out: int = 0
    senders: dict[str, float] = field(default_factory=dict)

    def refill(self, now: float) -> None:
        """Add what has grown since it was counted."""
        grown = (now - self.counted) / REFILL_SECONDS
        self.lines, self.counted = min(LINES_AT_ONCE, self.lines + grown), now
        if self.senders and now - next(iter(self.senders.values())) > REPEAT_SECONDS:
            ends = now - REPEAT_SECONDS
            self.senders = {sender: at for sender, at in self.senders.items() if at > ends}


class LogBudget:
    """The budget of each reason of a log's lines, which refills.

    A reason is a text of the program's own, with ``%s`` where details go. So strangers choose
    neither how many reasons there are nor which one a line counts for.

    Args:
        log: log that gets the lines, as warnings.
        clock: monotonic seconds.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._budgets: dict[str, _Budget] = {}
        self._timer: asyncio.TimerHandle | None = None

    def warn(self, sender: str, reason: str, *details: object) -> None:
        """Log a line of a sender and a reason, or count it.

        Args:
            sender: address of the sender, or the name of its key; begins the line.
            reason: what happened, with ``%s`` for each detail.
            details: what differs between lines about the same; of each the first `MAX_DETAIL`
                characters are written, and others than printable ones as question marks.
        """
        now = self._clock()
        if reason not in self._budgets and len(self._budgets) >= MAX_REASONS:
            reason, details = "did something else that is refused", ()
        budget = self._budgets.setdefault(reason, _Budget(LINES_AT_ONCE, now, now))
        budget.refill(now)
        if budget.lines < 1 or sender in budget.senders:
            budget.left_out += 1
            self._count_later()
            return
        if now >= budget.said + REFILL_SECONDS:
            self._say_left_out(reason, budget)
        budget.lines -= 1
        budget.senders[sender] = now
        self._log.warning(f"%s {reason}", *map(_printable, (sender, *details)))

    def close(self) -> None:
        """Say how many lines were left out, whatever the budget."""
        if self._timer:
            self._timer.cancel()
        for reason, budget in self._budgets.items():
            self._say_left_out(reason, budget)

    def _say_left_out(self, reason: str, budget: _Budget) -> None:
        if budget.left_out:
            self._log.warning("%d lines were left out: %r", budget.left_out, reason)
            budget.left_out = 0
        budget.said = self._clock()

    def _count_later(self) -> None:
        """Have what is left out counted when the budget has refilled, where a loop runs."""
        if self._timer is None:
            with suppress(RuntimeError):
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(REFILL_SECONDS, self._count)

    def _count(self) -> None:
        self._timer = None
        for reason, budget in self._budgets.items():
            budget.refill(self._clock())
            if budget.left_out and budget.lines >= 1:
                budget.lines -= 1
                self._say_left_out(reason, budget)
        if any(budget.left_out for budget in self._budgets.values()):
            self._count_later()


def _printable(detail: object) -> str:
    text = str(detail)[:MAX_DETAIL]
    return "".join(character if character.isprintable() else "?" for character in text)
