"""The limits that a device's owner sets on work for a federation."""

import re
from datetime import time
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from samara.devices.jetson.telemetry import Reading
from samara.shared.errors import ConfigError

BUSY_PERCENT = 50.0
"""Load of other software, in percent, above which a machine counts as busy."""
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


def check_hours(hours: str) -> str:
    """Return a daily period HH:MM-HH:MM, or an empty string, if it is valid.

    Raises:
        ConfigError: if the format is wrong, or both times are equal.
    """
    if hours:
        parse_hours(hours)
    return hours


class DeviceLimits(BaseModel):
    """The limits of a device's owner; the defaults limit nothing.

    Attributes:
        max_temperature: temperature in °C above which work pauses; 0 means no limit.
        mains_only: whether work pauses on battery.
        min_battery: charge in percent below which work pauses on battery; 0 means no limit.
        idle_only: whether work pauses while other software keeps the machine busy.
        unmetered_only: whether work pauses while the network connection is metered.
        hours: daily period of work in local time, HH:MM-HH:MM, possibly over midnight; empty means
            always.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_temperature: Annotated[float, Field(ge=0)] = 0.0
    mains_only: bool = False
    min_battery: Annotated[float, Field(ge=0, le=100)] = 0.0
    idle_only: bool = False
    unmetered_only: bool = False
    hours: Annotated[str, AfterValidator(check_hours)] = ""

    @property
    def limits_anything(self) -> bool:
        """Return whether any limit is set."""
        return any(getattr(self, name) for name in DeviceLimits.model_fields)

    def pause_reason(self, reading: Reading, now: time) -> str:
        """Return the reason why work should pause now; empty if it should not.

        An unreadable sensor of a set limit is also a reason.

        Args:
            reading: reading of the sensors; its load excludes this process.
            now: local time.
        """
        if self.hours and not is_within(parse_hours(self.hours), now):
            return f"the time {now:%H:%M} is not within {self.hours}"
        if self.max_temperature:
            if reading.temperature is None:
                return "the temperature cannot be read here"
            if reading.temperature > self.max_temperature:
                return f"{reading.temperature:.0f} °C is over {self.max_temperature:.0f} °C"
        if self.mains_only and not reading.on_mains:
            return "this machine is not on mains power"
        if self.min_battery and not reading.on_mains:
            if reading.battery is None:
                return "the battery's charge cannot be read here"
            if reading.battery < self.min_battery:
                return f"the battery is at {reading.battery:.0f} %, under {self.min_battery:.0f} %"
        if self.unmetered_only and reading.metered is not False:
            return "the network connection is metered" + (
                "" if reading.metered else ", or it cannot be read here"
            )
        if self.idle_only and (reading.load is None or reading.load > BUSY_PERCENT):
            return f"other software keeps this machine busy ({reading.load or 0:.0f} %)"
        return ""


def parse_hours(hours: str) -> tuple[time, time]:
    """Return the start and the end of a daily period HH:MM-HH:MM.

    Raises:
        ConfigError: if the format is wrong, or both times are equal.
    """
    match = _HOURS.fullmatch(hours)
    if match:
        begin = time(int(match[1]), int(match[2]))
        end = time(int(match[3]), int(match[4]))
        if begin != end:
            return begin, end
    raise ConfigError(f"owner.hours={hours}: give two different times in the form 22:00-06:30")


def is_within(hours: tuple[time, time], now: time) -> bool:
    """Return whether a time of day lies in a period, which may end on the next day."""
    begin, end = hours
    return begin <= now < end if begin < end else now >= begin or now < end
