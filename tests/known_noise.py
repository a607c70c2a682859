"""The same noise for two runs, so that a test can compare them bit for bit."""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pytest

AT_START = """
from known_noise import known_noise
from samara.shared.privacy import discrete_gaussian

discrete_gaussian.sample_noise = known_noise
"""
"""Code of a ``sitecustomize.py``, which a process runs first if its folder is on the path."""


def known_noise(count: int, sigma: int) -> Any:
    return np.array([sigma * (-1) ** n // (n + 1) for n in range(count)], object)


def add_known_noise(monkeypatch: "pytest.MonkeyPatch") -> None:
    """Make clients and server in this process add known noise."""
    from samara.client.protocol import private_report
    from samara.server.rounds import private_aggregator
    from samara.shared.protocol.frames.vector_report import hide_report

    monkeypatch.setattr(
        private_report,
        "hide_report",
        lambda report, clip, sigma, has_indicator: hide_report(
            report, clip, sigma, known_noise, has_indicator
        ),
    )
    aggregator = private_aggregator.PrivateAggregator
    assert aggregator.__init__.__defaults__ is not None
    monkeypatch.setattr(aggregator.__init__, "__defaults__", (known_noise,))
