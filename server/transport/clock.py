"""The clock that a server plans its rounds by: the system's, or a fleet's virtual one."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from samara.shared.polling import pause_before_asking

_POLL_SECONDS = 1.0


class Clock(Protocol):
    """A clock, and which nodes can be reached at its time."""

    def now(self) -> float:
        """Return the time, in seconds on a clock that only goes forward."""

    def wait(self, max_seconds: float, waited: float = math.inf) -> None:
        """Wait until there may be a new reply, but no longer than max_seconds.

        Args:
            max_seconds: most seconds to wait.
            waited: seconds for which replies are waited for already.
        """

    def reachable(self, nodes: Iterable[int]) -> list[int]:
        """Return those of the nodes to which a message can be sent now."""

    def finish_round(self) -> dict[str, Any]:
        """Finish a round and return what its event holds besides; JSON values by key."""

    def finish_run(self, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Finish a run with these round events and return what its result holds besides."""


class SystemClock:
    """The system's monotonic clock, by which every connected node can be reached."""

    def now(self) -> float:
        """Return the monotonic time, in seconds."""
        return time.monotonic()

    def wait(self, max_seconds: float, waited: float = math.inf) -> None:
        """Sleep for one second, for less if little was waited, and for max_seconds at most."""
        time.sleep(min(pause_before_asking(waited, _POLL_SECONDS), max_seconds))

    def reachable(self, nodes: Iterable[int]) -> list[int]:
        """Return all of the nodes."""
        return list(nodes)

    def finish_round(self) -> dict[str, Any]:
        """Return an empty dictionary: an event needs nothing of this clock."""
        return {}

    def finish_run(self, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return an empty dictionary: a result needs nothing of this clock."""
        return {}
