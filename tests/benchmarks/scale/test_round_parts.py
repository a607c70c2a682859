"""The parts of a round: time counts for the innermost part."""

import contextlib

from benchmarks.scale.round_parts import OTHER, RoundParts


def test_time_inside_a_part_counts_for_the_innermost_one() -> None:
    now = 0.0

    def pass_seconds(seconds: float) -> str:
        nonlocal now
        now += seconds
        return "done"

    parts = RoundParts(lambda: now)
    inner = parts.timed("inner", pass_seconds)

    def work() -> str:
        pass_seconds(1.0)
        said = inner(5.0)
        pass_seconds(2.0)
        return said

    outer = parts.timed("outer", work)
    assert outer() == "done"
    pass_seconds(0.5)
    assert parts.take() == {OTHER: 0.5, "outer": 3.0, "inner": 5.0}
    assert parts.take() == {OTHER: 0.0}


def test_a_part_that_fails_is_over() -> None:
    parts = RoundParts(lambda: 0.0)
    with contextlib.suppress(ZeroDivisionError):
        parts.timed("broken", lambda: 1 // 0)()
    assert parts.take().keys() == {OTHER, "broken"}
    assert parts.take().keys() == {OTHER}
