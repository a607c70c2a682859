"""Many phones at a gateway whose separate process is killed."""

import asyncio

import pytest

from benchmarks.scale.fake_phones import tried


@pytest.mark.slow
def test_phones_come_back_and_hostile_streams_stay_out() -> None:
    told = asyncio.run(tried(phones=6, rounds=1, streams=10, strangers=5, vanishing=0.0, seed=0))
    assert told["answers"] == [6]
    assert told["answers_after_kill"] == 6
    assert sum(told["hostile"].values()) == 10
    assert "LET IN" not in told["hostile"]
    assert set(told["answers among slow strangers"]) == {6}
    assert None not in told["seconds until slow strangers were sent away"].values()
