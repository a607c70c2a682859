"""A live server's waits for replies end when a reply arrives, or at their time limit."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from samara.server.live.arrivals import Arrivals
from samara.server.transport import arrival_clock
from samara.server.transport.arrival_clock import ArrivalClock


class PretendedTime:
    """A clock on which replies arrive at given seconds."""

    def __init__(self, arrivals: Arrivals, at: Sequence[float]) -> None:
        self.arrivals, self.at, self.seconds = arrivals, list(at), 0.0

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.seconds += seconds
        while self.at and self.at[0] <= self.seconds:
            self.at.pop(0)
            self.arrivals.add()


@pytest.fixture
def arrivals(tmp_path: Path) -> Arrivals:
    return Arrivals(tmp_path / "arrivals")


@pytest.fixture
def clock(arrivals: Arrivals, tmp_path: Path) -> ArrivalClock:
    return ArrivalClock(tmp_path / "arrivals")


@pytest.fixture
def waits(
    arrivals: Arrivals, clock: ArrivalClock, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[float]]:
    """Function that returns the seconds of several limited waits, while replies arrive."""

    def seconds_of(at: Sequence[float], *most: float) -> list[float]:
        time, found = PretendedTime(arrivals, at), []
        pretended = SimpleNamespace(monotonic=time.monotonic, sleep=time.sleep)
        monkeypatch.setattr(arrival_clock, "time", pretended)
        for seconds in most:
            begun = time.seconds
            clock.wait(seconds, begun)
            found.append(time.seconds - begun)
        return found

    return seconds_of


def test_a_wait_ends_soon_after_something_has_arrived(waits: Callable[..., list[float]]) -> None:
    first, second = waits([0.5], 10.0, 10.0)
    assert 0.5 < first < 0.55
    assert second == pytest.approx(1.0)


def test_parts_that_follow_each_other_are_waited_for_once(
    waits: Callable[..., list[float]],
) -> None:
    first, second = waits([0.5, 0.515, 0.53], 10.0, 10.0)
    assert 0.53 < first < 0.6
    assert second == pytest.approx(1.0)


def test_what_arrives_while_the_server_asks_ends_its_next_wait(
    arrivals: Arrivals, waits: Callable[..., list[float]]
) -> None:
    arrivals.add()
    [first] = waits([], 10.0)
    assert first < 0.05


@pytest.mark.parametrize("at", [[], [n / 100 for n in range(1000)]], ids=["nothing", "a stream"])
def test_no_wait_is_longer_than_a_second_or_than_was_asked_for(
    at: list[float], waits: Callable[..., list[float]]
) -> None:
    assert waits(at, 10.0, 0.25, 0.0) == pytest.approx([1.0, 0.25, 0.0])


def test_without_its_file_a_server_asks_every_second(
    tmp_path: Path, waits: Callable[..., list[float]]
) -> None:
    (tmp_path / "arrivals").unlink()
    assert waits([], 10.0, 10.0)[1] == pytest.approx(1.0)


def test_a_count_that_cannot_be_written_disturbs_nobody(tmp_path: Path) -> None:
    Arrivals(tmp_path / "missing" / "arrivals").add()
