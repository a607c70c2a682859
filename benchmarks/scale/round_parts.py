"""The seconds of a server's round by part, measured inside the ServerApp of a real server.

`python -m benchmarks.scale.load` puts a `sitecustomize.py` with a call of `install` on the path of
the server's processes. In the ServerApp's it replaces functions by ones that note when they begin
and end; time inside a part counts for the innermost one. At the end of every round the seconds
since the end of the last one are appended to the file named by `FILE_VARIABLE`, as a line of JSON.
"""

import functools
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

FILE_VARIABLE = "SAMARA_ROUND_PARTS"
OTHER = "other"
"""The time in no part: Flower's loop of rounds, health, step size."""
PARTS = {
    "find clients": ("samara.server.transport.roster:Roster.request_hellos",),
    "nodes and hellos": ("samara.server.transport.phone_grid:PhoneGrid.connected_nodes",),
    "draw cohort": ("samara.server.rounds.planner:RoundPlanner._choose_cohort",),
    "instructions": ("samara.server.rounds.planner:RoundPlanner._address",),
    "relay to gateways": (
        "samara.server.transport.phone_grid:PhoneGrid.push_messages",
        "samara.server.transport.phone_grid:PhoneGrid.pull_messages",
    ),
    "SuperLink": (
        "samara.server.transport.guarded_grid:GuardedGrid.push_messages",
        "samara.server.transport.guarded_grid:GuardedGrid.pull_messages",
        "samara.server.transport.guarded_grid:GuardedGrid.connected_nodes",
    ),
    "signature checks": ("samara.server.transport.phone_answers:is_signed_by",),
    "waiting": ("samara.server.transport.deadline_grid:SystemClock.wait", "time:sleep"),
    "validation": (
        "samara.server.rounds.report_validation:ReplyValidator.validate_reports",
        "samara.server.rounds.planner:Request.has_enough",
    ),
    "aggregation": ("samara.server.rounds.aggregation:RoundAggregator.aggregate",),
    "replay": ("samara.shared.protocol.ledger.ledger:replay",),
    "fsync": ("os:fsync",),
    "ledger": (
        "samara.shared.protocol.ledger.ledger:Ledger.append",
        "samara.shared.protocol.ledger.ledger:Ledger.compact",
    ),
    "events": ("samara.server.rounds.event_log:EventLog.append_round",),
}
_ROUND_ENDS = "samara.server.rounds.strategy:ScalarStrategy._stop_if_nothing_is_learned"


class RoundParts:
    """The seconds of each part since the last round's end.

    Args:
        clock: function that returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._open = clock, [OTHER]
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._since = clock()

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same, and whose time counts for a part."""

        @functools.wraps(function)
        def measured(*arguments: Any, **named: Any) -> Any:
            self._turn()
            self._open.append(part)
            try:
                return function(*arguments, **named)
            finally:
                self._turn()
                self._open.pop()

        return measured

    def take(self) -> dict[str, float]:
        """Return the seconds of each part, and begin anew."""
        self._turn()
        taken = dict(self._seconds)
        self._seconds.clear()
        return taken

    def _turn(self) -> None:
        """Count the time since the last turn for the innermost part."""
        now = self._clock()
        self._seconds[self._open[-1]] += now - self._since
        self._since = now


def install() -> None:
    """Measure this process, if it is a ServerApp whose parts are wanted."""
    file = os.environ.get(FILE_VARIABLE)
    if not file or "flwr-serverapp" not in " ".join(sys.orig_argv):
        return
    parts = RoundParts()
    for part, places in PARTS.items():
        for place in places:
            _replace(place, functools.partial(parts.timed, part))

    def writing(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def ended(self: Any, event: Any) -> Any:
            with Path(file).open("a", encoding="utf-8") as rows:
                rows.write(json.dumps({"round": event.round, "seconds": parts.take()}) + "\n")
            return function(self, event)

        return ended

    _replace(_ROUND_ENDS, writing)


def _replace(place: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a function, given as module:name or module:Class.name, by a changed one."""
    module, _, path = place.partition(":")
    *holders, name = path.split(".")
    holder = functools.reduce(getattr, holders, import_module(module))
    setattr(holder, name, change(getattr(holder, name)))
