"""Processor seconds of a run and of each test file; the end shows the most expensive files.

The total also has what no file has: pytest's start, its collection in each worker, and zygotes.
"""

import os
from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import psutil
import pytest

_SHOWN = 10
_PROPERTY = "processor seconds"
_MEASURED_UNTIL = pytest.StashKey[float]()
_seconds_of: Counter[str] = Counter()
_seconds_beside_workers: list[float] = []
"""Seconds of the processes that each worker's end left behind, such as its zygote."""


def _processor_seconds() -> float:
    """Seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


def _seconds_of_living_children() -> float:
    """Seconds of processes that have not ended, and of their children that have."""
    seconds = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            seconds += sum(process.cpu_times()[:4])
    return seconds


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


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_PROPERTY] = _seconds_of_living_children()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _seconds_beside_workers.append(getattr(node, "workeroutput", {}).get(_PROPERTY, 0.0))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not (tests := _seconds_of.total()):
        return
    shown = int(os.environ.get("SHOWN_COSTS", _SHOWN))
    beside = _seconds_of_living_children() + sum(_seconds_beside_workers)
    title = f"{_processor_seconds() + beside:.0f} processor seconds, {tests:.0f} of tests"
    terminalreporter.section(f"{title}; the dearest files")
    for file, seconds in _seconds_of.most_common(shown):
        terminalreporter.write_line(f"{seconds:8.1f}  {file}")
