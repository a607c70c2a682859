"""Hostile requests to a real process that serves a device's models over HTTP."""

from pathlib import Path

import pytest

from benchmarks.faults.hostile_http_requests import KINDS
from benchmarks.faults.hostile_questions_http import attack

pytestmark = pytest.mark.slow
MOST_GROWTH = 16
"""Largest growth of the process's memory, MiB."""


def test_serve_refuses_hostile_requests_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    place: Path = tmp_path_factory.mktemp("w")  # short: sockets lie in it
    outcomes, before, after, log = attack(place, requests=300, seed=1)
    assert outcomes.total() == 300
    assert outcomes["sound 200"] >= 300 // len(KINDS)
    assert after < before + MOST_GROWTH
    assert "Traceback" not in log
    assert len(log) < 1000, log
