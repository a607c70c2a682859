"""The faults of a rehearsal: their times, their actions on clients, and their outcomes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from samara.shared.errors import ConfigError
from samara.shared.settings.rehearsal import Fault, FaultKind
from samara.simulations.rehearsal.processes import RehearsedClient

Action = Callable[[], None]


class Moment(NamedTuple):
    """The start or the end of a fault.

    Attributes:
        at: seconds on this machine since the end of the first round.
        number: number of the fault in the settings.
        begins: whether the fault begins.
    """

    at: float
    number: int
    begins: bool


@dataclass(frozen=True)
class FaultReport:
    """The outcome of a fault.

    Attributes:
        kind: kind of the fault.
        client: name of the client.
        seconds: duration of the fault in seconds of the device.
        began_after: last round before the fault began; None if the run ended earlier.
        ended_after: last round before the fault ended; None if no round followed.
        back_in: first round after the fault with the client's report; None without such a report.
    """

    kind: str
    client: str
    seconds: float
    began_after: int | None
    ended_after: int | None
    back_in: int | None

    @property
    def is_survived(self) -> bool:
        """Return whether the client has reported after the fault; true if no round followed."""
        return self.ended_after is None or self.back_in is not None

    def describe(self) -> str:
        """Return the outcome of the fault as text."""
        what = f"{self.kind} of client {self.client}"
        if self.began_after is None:
            return f"{what}: the run ended before the fault began"
        begun = f"{what}: began after round {self.began_after}, for {self.seconds:g} device seconds"
        if self.ended_after is None:
            return f"{begun}; no round followed the fault"
        back = f"reported again in round {self.back_in}" if self.back_in else "never reported again"
        return f"{begun}; ended after round {self.ended_after}; the client {back}"


def check_faults(faults: Sequence[Fault], clients: int) -> None:
    """Check that faults name existing clients, and that a client's faults of a kind do not overlap.

    Raises:
        ConfigError: if a fault names a missing client or overlaps another; the message names all
            such faults.
    """
    mistakes = [
        f"rehearsal.faults.{number}: client {fault.client} does not exist; clients are 0 to "
        f"{clients - 1}"
        for number, fault in enumerate(faults)
        if fault.client >= clients
    ]
    mistakes += [
        f"rehearsal.faults.{second}: overlaps with rehearsal.faults.{first}, which is also a "
        f"{one.kind} of client {one.client}; change the time of one of them"
        for (first, one), (second, other) in combinations(enumerate(faults), 2)
        if (one.kind, one.client) == (other.kind, other.client)
        and max(one.at, other.at) < min(one.at + one.seconds, other.at + other.seconds)
    ]
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def timeline(faults: Sequence[Fault], dilation: float) -> list[Moment]:
    """Return the starts and ends of faults in order; at equal times, ends come first.

    Args:
        faults: the faults.
        dilation: seconds on this machine per second of the devices.
    """
    moments = []
    for number, fault in enumerate(faults):
        moments.append(Moment(fault.at * dilation, number, True))
        moments.append(Moment((fault.at + fault.seconds) * dilation, number, False))
    return sorted(moments, key=lambda moment: (moment.at, moment.begins, moment.number))


def begin(fault: Fault, client: RehearsedClient) -> None:
    """Start a fault of a client."""
    _actions(client)[fault.kind][0]()


def end(fault: Fault, client: RehearsedClient) -> None:
    """End a fault of a client."""
    _actions(client)[fault.kind][1]()


def _actions(client: RehearsedClient) -> dict[FaultKind, tuple[Action, Action]]:
    """Return the actions on a client at the start and at the end of a fault, by kind."""
    means = client.means
    return {
        "power-cut": (client.cut_power, client.start),
        "link-cut": (client.cut_link, client.mend_link),
        "clock-set": (means.set_clock, means.correct_clock),
        "disk-full": (means.fill_disk, means.free_disk),
        "slow-disk": (means.slow_disk, means.hasten_disk),
        "out-of-memory": (client.take_memory, client.give_memory),
    }


def first_report(name: str, after: int, reporters: Mapping[int, Sequence[str]]) -> int | None:
    """Return the first round after a given round with a client's report; None without one.

    Args:
        name: name of the client.
        after: the given round.
        reporters: names of the clients that reported, by round.
    """
    return min((n for n, names in reporters.items() if n > after and name in names), default=None)
