"""A scripted SuperLink, clock and display for the supervisor of a live run."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from samara.server.live import run_supervisor
from samara.server.live.busy import NoAnswerError
from samara.server.live.keys import ClientKeys
from samara.server.live.superlink_process import Node
from samara.shared.errors import SamaraError
from samara.shared.settings.config import RunConfig

BUSY = "busy", ""
"""The status of a run whose SuperLink does not answer in time."""


class Time:
    """A clock that sleeping advances, and whose time of day can be set."""

    def __init__(self) -> None:
        self.seconds, self.set_by = 0.0, 0.0

    def monotonic(self) -> float:
        return self.seconds

    def time(self) -> float:
        return 1e9 + self.seconds + self.set_by

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class SuperLink:
    """A SuperLink whose run has the statuses in a script; it records the calls."""

    address, folder, log_file = "nowhere", Path("nowhere/flower"), Path("superlink.log")

    def __init__(self, statuses: Iterator[tuple[str, str]], starts: Iterator[bool]) -> None:
        self._statuses, self._starts = statuses, starts
        self.calls: list[str] = []
        self.nodes: dict[int, Node] = {}
        self._is_up = False
        self.failure = SamaraError("it does not answer")
        self.certificate = self.loaded_certificate = 1

    def start(self) -> None:
        self.calls.append("start")
        self.loaded_certificate = self.certificate
        self._is_up = True

    def missing_process(self) -> str:
        return "" if self._is_up else "Flower's SuperLink"

    def has_server_app(self) -> bool:
        return True

    def has_new_certificate(self) -> bool:
        return self.certificate != self.loaded_certificate

    def stop(self) -> None:
        self._is_up = False

    def reset(self) -> None:
        self.calls.append("reset")
        self._is_up = False

    def start_run(self, config: RunConfig, bundle: bytes) -> int:
        self.calls.append("start run")
        if not next(self._starts, True):
            raise self.failure
        return 1

    def run_status(self, run: int) -> tuple[str, str]:
        if (status := next(self._statuses)) == BUSY:
            raise NoAnswerError("it does not answer in time")
        return status

    def list_nodes(self) -> list[Node]:
        return list(self.nodes.values())

    def register(self, names: Mapping[str, str]) -> None:
        self.calls.append(f"register {len(names)}")
        for public_key, name in names.items():
            number = len(self.nodes)
            self.nodes[number] = Node(number, public_key.encode(), name, False, False)

    def unregister(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            del self.nodes[node]


class Display:
    """A display that stores its lines."""

    def __init__(self, has_result: bool = True) -> None:
        self.lines: list[str] = []
        self.finished = has_result

    def show(self, text: str, style: str = "") -> None:
        self.lines.append(text)

    def refresh(self) -> None:
        pass

    def has_result(self) -> bool:
        return self.finished


Serve = Callable[..., bool]


def set_clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    """Give the supervisor a new clock, which is returned; bundles are then empty."""
    clock = Time()
    monkeypatch.setattr(run_supervisor, "time", clock)
    monkeypatch.setattr(run_supervisor, "build_bundle", lambda config: b"")
    return clock


def server_of(run: Path) -> Serve:
    """Return a function that serves a run in a folder."""

    def serve(
        superlink: Any,
        display: Any,
        keys: ClientKeys | None = None,
        renew_certificate: Callable[[], object] | None = None,
    ) -> bool:
        config = RunConfig.of({"out": str(run)}, "test")
        return run_supervisor.serve_run(config, superlink, keys, display, renew_certificate)

    return serve
