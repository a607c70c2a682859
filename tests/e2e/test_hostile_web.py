"""Strangers at the page server of a gateway in a separate process: none is admitted."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.faults.hostile_web import REQUESTS, STREAMS, attack

pytestmark = pytest.mark.slow


def test_no_stranger_gets_in_and_the_phone_is_answered(tmp_path: Path) -> None:
    came_out = asyncio.run(attack(tmp_path, connections=2 * len([*STREAMS, *REQUESTS]), slow=0))
    ended = came_out["ended"]
    assert sum(ended.values()) == 22
    assert ended["page of another site: 403"] == ended["no origin: 403"] == 2
    assert ended["unknown key: 4007"] == ended["forged proof: 4016"] == 2
    assert ended["replayed invitation: 409"] == 2
    assert ended["path out of the folder: 404"] == 2
    assert came_out["streams refused"] >= 8
