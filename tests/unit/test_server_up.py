"""What keeps a live run up, against a Flower of paper: restarts, failed starts, clocks, keys."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from server.live import run_supervisor as module
from server.live.keys import Keys
from server.live.superlink_process import Node
from shared.config import RunConfig
from shared.errors import SamaraError


class Time:
    """A clock that sleeping moves on, and that can be set."""

    def __init__(self) -> None:
        self.passed, self.ahead = 0.0, 0.0

    def monotonic(self) -> float:
        return self.passed

    def time(self) -> float:
        return 1e9 + self.passed + self.ahead

    def sleep(self, seconds: float) -> None:
        self.passed += seconds


class Flower:
    """Does what a script of answers says, and remembers what was asked of it."""

    address = "nowhere"

    def __init__(self, statuses: Iterator[tuple[str, str]], begins: Iterator[bool]) -> None:
        self._statuses, self._begins = statuses, begins
        self.asked: list[str] = []
        self.known: dict[int, Node] = {}
        self._up = False

    def start(self) -> None:
        self.asked.append("start")
        self._up = True

    def missing(self) -> str:
        return "" if self._up else "Flower's SuperLink"

    def has_server_app(self) -> bool:
        return True

    def stop(self) -> None:
        self._up = False

    def forget(self) -> None:
        self.asked.append("forget")
        self._up = False

    def begin(self, config: RunConfig, bundle: bytes) -> int:
        self.asked.append("begin")
        if not next(self._begins, True):
            raise SamaraError("it does not answer")
        return 1

    def status(self, run: int) -> tuple[str, str]:
        return next(self._statuses)

    def nodes(self) -> list[Node]:
        return list(self.known.values())

    def register(self, public_key: bytes, name: str) -> None:
        self.known[len(self.known)] = Node(len(self.known), public_key, name, False)

    def unregister(self, node: int) -> None:
        del self.known[node]


class Watch:
    """Remembers what was said."""

    def __init__(self, has_result: bool = True) -> None:
        self.said: list[str] = []
        self._has_result = has_result

    def say(self, text: str, style: str = "") -> None:
        self.said.append(text)

    def refresh(self) -> None:
        pass

    def finished(self) -> bool:
        return self._has_result


Serve = Callable[..., bool]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(module, "time", time)
    monkeypatch.setattr(module, "bundle", lambda: b"")
    return time


@pytest.fixture
def serve(tmp_path: Path, clock: Time) -> Serve:
    def served(flower: Any, watch: Any, keys: Keys | None = None) -> bool:
        return module.up(RunConfig.of({"out": str(tmp_path)}, "test"), flower, keys, watch)

    return served


def test_a_clock_that_is_set_has_flower_begin_anew(serve: Serve, clock: Time) -> None:
    def statuses() -> Iterator[tuple[str, str]]:
        yield "running", ""
        clock.ahead = 3600
        yield "running", ""
        yield "finished", ""

    flower, watch = Flower(statuses(), iter([])), Watch()
    assert serve(flower, watch)
    assert flower.asked == ["start", "begin", "forget", "start", "begin"]
    assert "the clock was set by +3600 s" in watch.said


def test_a_start_that_fails_is_tried_again(serve: Serve) -> None:
    flower, watch = Flower(iter([("finished", "")]), iter([False, False, True])), Watch()
    assert serve(flower, watch)
    assert flower.asked == ["start", "begin", "begin", "begin"]
    assert "Flower (it does not answer) is gone; starting again" in watch.said


def test_a_start_that_fails_again_and_again_ends_it(serve: Serve) -> None:
    with pytest.raises(SamaraError, match="it does not answer"):
        serve(Flower(iter([]), iter([False] * 9)), Watch())


def test_what_the_run_itself_raises_ends_it(serve: Serve) -> None:
    said = "ServerApp failed with exception: the disk is full"
    with pytest.raises(SamaraError, match=r"^the disk is full"):
        serve(Flower(iter([("finished", said)]), iter([])), Watch(has_result=False))


def test_a_key_that_is_revoked_while_the_run_is_started_is_refused(
    serve: Serve, tmp_path: Path
) -> None:
    keys = Keys(tmp_path / "keys")
    keys.create("kitchen")
    flower, watch = Flower(iter([("running", ""), ("finished", "")]), iter([])), Watch()
    begin = flower.begin

    def revokes(config: RunConfig, bundle: bytes) -> int:
        keys.revoke("kitchen")
        return begin(config, bundle)

    flower.begin = revokes  # type: ignore[method-assign]
    assert serve(flower, watch, keys)
    assert watch.said[1:] == ["kitchen may join", "kitchen is refused from now on"]
