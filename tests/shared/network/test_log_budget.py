"""Log lines that strangers cause: few for each reason, and no reason hides another."""

import asyncio
import logging

import pytest

from samara.shared.network import log_budget
from samara.shared.network.log_budget import LINES_AT_ONCE, MAX_REASONS, REFILL_SECONDS, LogBudget

REASON = "asked for '%s'"


class Clock:
    """A clock that a test advances."""

    seconds = 5.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def budget(clock: Clock) -> LogBudget:
    return LogBudget(logging.getLogger("samara.test"), clock)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return said


def test_a_budget_refills_and_says_what_was_left_out(
    budget: LogBudget, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1000):
        budget.warn(f"10.0.{number}.1", REASON, number)
    assert lines(caplog) == [f"10.0.{n}.1 asked for '{n}'" for n in range(LINES_AT_ONCE)]
    clock.seconds += REFILL_SECONDS
    for number in range(2):
        budget.warn(f"10.1.{number}.1", REASON, number)
    left_out = 1000 - LINES_AT_ONCE
    assert lines(caplog) == [
        f"{left_out} lines were left out: \"asked for '%s'\"",
        "10.1.0.1 asked for '0'",
    ]
    budget.close()
    assert lines(caplog) == ["1 lines were left out: \"asked for '%s'\""]
    budget.close()
    assert lines(caplog) == []


def test_one_sender_causes_one_line_an_hour(
    budget: LogBudget, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        budget.warn("10.0.0.1", REASON, "a")
    budget.warn("10.0.0.2", REASON, "a")
    assert [line.split()[0] for line in lines(caplog)] == ["10.0.0.1", "10.0.0.2"]
    clock.seconds += log_budget.REPEAT_SECONDS + 1
    budget.warn("10.0.0.1", REASON, "a")
    assert [line.split()[0] for line in lines(caplog)] == ["19", "10.0.0.1"]


def test_a_text_of_a_stranger_is_one_short_printable_line(
    budget: LogBudget, caplog: pytest.LogCaptureFixture
) -> None:
    budget.warn("10.0.0.1", REASON, "a\n%s\x1b[2J" + "b" * 10_000)
    [line] = lines(caplog)
    assert line.startswith("10.0.0.1 asked for 'a?%s?[2Jb")
    assert len(line) < 2 * log_budget.MAX_DETAIL


def test_reasons_are_bounded_whatever_they_are(
    budget: LogBudget, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(10 * MAX_REASONS):
        budget.warn(f"10.0.{number}.1", f"reason {number}")
    assert len(budget._budgets) == MAX_REASONS + 1
    assert len(lines(caplog)) == MAX_REASONS + LINES_AT_ONCE


def test_what_was_left_out_is_said_when_nothing_else_comes(
    clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_budget, "REFILL_SECONDS", 0.01)

    async def be_asked() -> None:
        budget = LogBudget(logging.getLogger("samara.test"), clock)
        for number in range(LINES_AT_ONCE + 5):
            budget.warn(f"10.0.{number}.1", REASON, "a")
        clock.seconds += 1.0
        while budget._timer:
            await asyncio.sleep(0.01)

    asyncio.run(be_asked())
    assert lines(caplog)[-1].startswith("5 lines were left out")
