"""What surrounds a server beside messages: the time, and who can be reached now."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

_POLL_SECONDS = 1.0


class Clock(Protocol):
    """The real clock, or an emulated one."""

    def now(self) -> float:
        """Seconds on a clock that only goes forward."""

    def wait(self, most: float) -> None:
        """Let time pass until something may have happened, but no more than so many seconds."""

    def reachable(self, nodes: Iterable[int]) -> list[int]:
        """Those of these nodes that can be asked for something now."""

    def finish_round(self) -> dict[str, Any]:
        """What else is to be noted of the round that ends now; JSON, by key."""

    def finish_run(self, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What else is to be noted of a run with these rounds; JSON, by key."""


class SystemClock:
    """The clock on the wall; whoever is connected can be reached."""

    def now(self) -> float:
        """Seconds of the system's monotonic clock."""
        return time.monotonic()

    def wait(self, most: float) -> None:
        """Sleep for a second, or less."""
        time.sleep(min(_POLL_SECONDS, most))

    def reachable(self, nodes: Iterable[int]) -> list[int]:
        """All of them."""
        return list(nodes)

    def finish_round(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def finish_run(self, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Nothing."""
        return {}
