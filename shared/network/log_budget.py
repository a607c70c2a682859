"""A budget of log lines, so that strangers can neither fill the log nor suppress lines."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

LINES_AT_ONCE = 8
"""Largest number of lines about one reason that can be logged at once."""
REFILL_SECONDS = 600.0
"""Interval in seconds after which the budget of a reason grows by one line."""
REPEAT_SECONDS = 3600.0
"""Interval in seconds in which a sender causes at most one line about a reason."""
MAX_REASONS = 64
"""Largest number of reasons with a separate budget. Further reasons share one budget."""
MAX_DETAIL = 200
"""Largest number of characters of a detail in a line."""


@dataclass
class _Budget:
    """The log lines that may still be written about one reason.

    Attributes:
        lines: number of lines that may be written, fractions included.
        counted: time when `lines` was updated last, monotonic seconds.
        said: time of the last line about omitted lines, monotonic seconds.
        left_out: number of lines omitted since `said`.
        senders: time of each sender's last line, monotonic seconds.
    """

    lines: float
    counted: float
    said: float
    left_out: int = 0
    senders: dict[str, float] = field(default_factory=dict)

    def refill(self, now: float) -> None:
        """Add the lines that have accrued since the last count."""
        grown = (now - self.counted) / REFILL_SECONDS
        self.lines, self.counted = min(LINES_AT_ONCE, self.lines + grown), now
        if self.senders and now - next(iter(self.senders.values())) > REPEAT_SECONDS:
            ends = now - REPEAT_SECONDS
            self.senders = {sender: at for sender, at in self.senders.items() if at > ends}


class LogBudget:
    """A refilling budget of log lines for each reason.

    A reason is a constant text of the program, with ``%s`` for details. So strangers can neither
    create reasons nor use up the budget of another reason.

    Args:
        log: log that receives the lines, as warnings.
        clock: function that returns monotonic seconds.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._budgets: dict[str, _Budget] = {}
        self._timer: asyncio.TimerHandle | None = None

    def warn(self, sender: str, reason: str, *details: object) -> None:
        """Log a line about a sender and a reason, or count it as omitted.

        Args:
            sender: address of the sender, or the name of its key, with which the line begins.
            reason: description of the event, with ``%s`` for each detail.
            details: values for the ``%s``. Only the first `MAX_DETAIL` characters of each are
                written, and unprintable characters become question marks.
        """
        now = self._clock()
        if reason not in self._budgets and len(self._budgets) >= MAX_REASONS:
            reason = "sent another request that was refused"
            details = ()
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
        """Log the number of omitted lines, even if the budget is empty."""
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
        """Schedule the log line that counts omitted lines, if an event loop is running."""
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
