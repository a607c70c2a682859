"""A hostile gateway forges a phone's answers in a live run; the phone's key is gone."""

from pathlib import Path

import pytest

from benchmarks.faults.hostile_gateway import speak_for_a_phone

pytestmark = pytest.mark.slow


def test_a_gateway_cannot_answer_for_a_phone(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder: Path = tmp_path_factory.mktemp("g")  # short: sockets lie in it
    sound, forged, ways = speak_for_a_phone(folder, rounds=4)
    assert (sound, forged) == (1, 0)
    assert any(way.startswith("report") for way in ways)
