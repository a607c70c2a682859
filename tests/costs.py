"""Processor seconds of each test file; the end of a run shows the most expensive files."""

import os
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

_SHOWN = 10
_PROPERTY = "processor seconds"
_MEASURED_UNTIL = pytest.StashKey[float]()
_seconds_of: Counter[str] = Counter()


def _processor_seconds() -> float:
    """Seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    now = _processor_seconds()
    stash = item.config.stash
    report.user_properties.append((_PROPERTY, now - stash.get(_MEASURED_UNTIL, now)))
    stash[_MEASURED_UNTIL] = now
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds_of[report.location[0]] += dict(report.user_properties).get(_PROPERTY, 0)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not (total := _seconds_of.total()):
        return
    shown = int(os.environ.get("SHOWN_COSTS", _SHOWN))
    terminalreporter.section(f"{total:.0f} processor seconds; the dearest files")
    for file, seconds in _seconds_of.most_common(shown):
        terminalreporter.write_line(f"{seconds:8.1f}  {file}")
