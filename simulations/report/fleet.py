"""Statistics of a fleet's devices for each kind of device, for tables and figures."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from samara.shared.results.result import Fleet, FleetDevice


@dataclass(frozen=True)
class Kind:
    """A kind of device: devices with the same profile, link and quantization.

    Numbers are means over the devices.

    Attributes:
        name: profile with its power mode, quantization and link.
        numbers: client indices of the devices.
        step_seconds: duration of a local step.
        compute_seconds: seconds of computing in the whole run.
        transfer_seconds: seconds of transfer in the whole run.
        waiting_seconds: seconds of waiting for the link and for the end of a round.
        energy_joules: energy in joules; None if unknown.
        bytes_up: bytes sent over the link.
        bytes_down: bytes received over the link.
        peak_memory_bytes: largest peak memory of a device.
        outcomes: number of rounds by outcome, over all devices.
    """

    name: str
    numbers: tuple[int, ...]
    step_seconds: float
    compute_seconds: float
    transfer_seconds: float
    waiting_seconds: float
    energy_joules: float | None
    bytes_up: float
    bytes_down: float
    peak_memory_bytes: int
    outcomes: Counter[str]

    @property
    def count(self) -> int:
        """The number of devices."""
        return len(self.numbers)

    @property
    def failures(self) -> str:
        """The outcomes of a device's rounds without a timely report, with their counts."""
        outcomes = [f"{count} {what}" for what, count in sorted(self.outcomes.items())]
        return ", ".join(text for text in outcomes if not text.endswith(" reported"))


def kinds_of(fleet: Fleet) -> list[Kind]:
    """Return the kinds of a fleet, in the order of their first devices."""
    named: dict[str, dict[int, FleetDevice]] = {}
    for number, device in sorted(fleet.devices.items()):
        named.setdefault(kind_name(device), {})[number] = device
    return [_kind(name, devices) for name, devices in named.items()]


def kind_name(device: FleetDevice) -> str:
    """Return the name of a device's kind: profile, power mode, quantization and link."""
    mode = f" {device.power_mode}" if device.power_mode else ""
    return f"{device.device}{mode}, {device.quantization}, {device.link}"


def clock_of(second: float) -> str:
    """Format a virtual time in seconds as day and time, such as "day 1, 22:05:30"."""
    minutes, seconds = divmod(int(second), 60)
    time = f"{minutes // 60 % 24:02}:{minutes % 60:02}:{seconds:02}"
    return f"day {minutes // 1440 + 1}, {time}"


@dataclass(frozen=True)
class Unit:
    """A unit of time.

    Attributes:
        name: name in the singular.
        symbol: abbreviation.
        seconds: duration in seconds.
    """

    name: str
    symbol: str
    seconds: float


SECOND = Unit("second", "s", 1.0)
MINUTE = Unit("minute", "min", 60.0)
HOUR = Unit("hour", "h", 3600.0)


def unit_for(seconds: float) -> Unit:
    """Return the unit for a time: hours from 2 h, minutes from 2 min, otherwise seconds."""
    return next((unit for unit in (HOUR, MINUTE) if seconds >= 2 * unit.seconds), SECOND)


def unit_of_parts(kinds: Sequence[Kind]) -> Unit:
    """Return the unit for the parts of a device's time: minutes, or seconds for short times."""
    longest = max(max(kind.compute_seconds, kind.waiting_seconds) for kind in kinds)
    return SECOND if unit_for(longest) is SECOND else MINUTE


def span_of(seconds: float) -> str:
    """Format a time in a suitable unit, such as 42.0 s, 3.5 min or 23.8 h."""
    unit = unit_for(seconds)
    return f"{seconds / unit.seconds:.1f} {unit.symbol}"


def _kind(name: str, devices: dict[int, FleetDevice]) -> Kind:
    own = list(devices.values())

    def mean(figure: Callable[[FleetDevice], float]) -> float:
        return sum(map(figure, own)) / len(own)

    outcomes: Counter[str] = Counter()
    for device in own:
        outcomes.update(device.outcomes)
    known = all(device.energy_joules is not None for device in own)
    return Kind(
        name=name,
        numbers=tuple(devices),
        step_seconds=mean(lambda device: device.step_seconds),
        compute_seconds=mean(lambda device: device.compute_seconds),
        transfer_seconds=mean(lambda device: device.transfer_seconds),
        waiting_seconds=mean(lambda device: device.waiting_seconds),
        energy_joules=mean(lambda device: device.energy_joules or 0.0) if known else None,
        bytes_up=mean(lambda device: device.bytes_up),
        bytes_down=mean(lambda device: device.bytes_down),
        peak_memory_bytes=max(device.peak_memory_bytes for device in own),
        outcomes=outcomes,
    )
