"""The faults of a rehearsal: when they begin and end, and what became of the clients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from samara.shared.errors import ConfigError
from samara.shared.rehearsal_settings import Fault, FaultKind
from samara.simulations.rehearsal.processes import RehearsedClient

Action = Callable[[], None]


class Moment(NamedTuple):
    """The begin or the end of a fault.

    Attributes:
        at: seconds here since the end of the first round.
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
        seconds: seconds of the device that it lasted.
        began_after: last round before it began; None if the run ended before that.
        ended_after: last round before it ended; None if no round came after it.
        back_in: first later round with the client's report; None if there was none.
    """

    kind: str
    client: str
    seconds: float
    began_after: int | None
    ended_after: int | None
    back_in: int | None

    @property
    def is_survived(self) -> bool:
        """Return whether the client has reported again, if the fault has ended."""
        return self.ended_after is None or self.back_in is not None

    def describe(self) -> str:
        """Return what became of it, as a sentence."""
        what = f"{self.kind} of client {self.client}"
        if self.began_after is None:
            return f"{what}: the run ended before it began"
        begun = f"{what}: after round {self.began_after}, for {self.seconds:g} s of the device"
        if self.ended_after is None:
            return f"{begun}; no round came after it"
        back = f"reported again in round {self.back_in}" if self.back_in else "never reported again"
        return f"{begun}, until after round {self.ended_after}; {back}"


def check_faults(faults: Sequence[Fault], clients: int) -> None:
    """Refuse faults of clients that do not exist, and those of one kind at the same time.

    Raises:
        ConfigError: naming each of them.
    """
    mistakes = [
        f"rehearsal.faults.{number}: client {fault.client}: clients are 0 to {clients - 1}"
        for number, fault in enumerate(faults)
        if fault.client >= clients
    ]
    mistakes += [
        f"rehearsal.faults.{second}: begins before rehearsal.faults.{first} has ended, which is a "
        f"{one.kind} of client {one.client}, too; move one of them"
        for (first, one), (second, other) in combinations(enumerate(faults), 2)
        if (one.kind, one.client) == (other.kind, other.client)
        and max(one.at, other.at) < min(one.at + one.seconds, other.at + other.seconds)
    ]
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def timeline(faults: Sequence[Fault], dilation: float) -> list[Moment]:
    """Return the moments of faults in their order; of equal times, those that end come first.

    Args:
        faults: the faults.
        dilation: seconds here that stand for a second of the devices.
    """
    moments = []
    for number, fault in enumerate(faults):
        moments.append(Moment(fault.at * dilation, number, True))
        moments.append(Moment((fault.at + fault.seconds) * dilation, number, False))
    return sorted(moments, key=lambda moment: (moment.at, moment.begins, moment.number))


def begin(fault: Fault, client: RehearsedClient) -> None:
    """Have a fault begin."""
    _actions(client)[fault.kind][0]()


def end(fault: Fault, client: RehearsedClient) -> None:
    """Have a fault end."""
    _actions(client)[fault.kind][1]()


def _actions(client: RehearsedClient) -> dict[FaultKind, tuple[Action, Action]]:
    """Return what is done to a client when a fault begins, and when it ends, by kind."""
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
    """Return the first round after another one in which a client has reported, or None.

    Args:
        name: name of the client.
        after: the other round.
        reporters: names of the clients that reported, by round.
    """
    return min((n for n, names in reporters.items() if n > after and name in names), default=None)
