"""The settings of a fleet of emulated devices."""

import json
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_serializer, model_validator
from pydantic_core import PydanticCustomError

from samara.shared.settings.setting import Fixed, Section, Text, setting

Hours = Annotated[tuple[float, float], Field(strict=False)]
"""Start and end of a daily window, in hours since midnight; an end after midnight exceeds 24."""
Windows = Annotated[tuple[Hours, ...], Field(strict=False)]


def check_hours(name: str, windows: Iterable[Hours]) -> None:
    """Check that daily windows begin within a day and last at most 24 hours.

    Raises:
        ValueError: naming the setting and the window.
    """
    for begin, end in windows:
        if not (0 <= begin < 24 and begin + 1 / 60 <= end <= begin + 24):
            raise ValueError(
                f"{name}: [{begin:g}, {end:g}]: the first hour must be from 0 to below 24, and the "
                "second must be a minute to 24 hours later"
            )


class DeviceGroup(Section):
    """Emulated devices of one kind."""

    device: Text = setting(..., "a device profile: its name, or the path of a file", min_length=1)
    share: float = setting(
        ...,
        "share of the clients, relative to the other groups; clients are assigned to the groups "
        "in order",
        gt=0,
    )
    link: Text = setting(
        "ethernet", "a link profile: its name, or the path of a file", min_length=1
    )
    quantization: Literal["fp32", "fp16", "int8", "nf4"] = setting(
        "fp32",
        "type of the weights in the blocks: `fp32`, `fp16`, `int8`, `nf4`. Training uses INT8 "
        "and NF4 (extra: `samara-fl[quantized]`); `fp16` only affects time and memory; training "
        "then uses `model.dtype`",
    )
    power: Text = setting("", "power mode of the device; empty means the mode of its profile")
    available: Windows = setting(
        (),
        "hours of the day when the link is up, instead of the profile's hours; `[[22, 31]]` means "
        "22:00 to 7:00. Every device's hours are shifted by up to an hour",
    )
    dropout: float = setting(
        0.0,
        "probability of failing in a round without an answer, at a random time in its steps",
        ge=0,
        le=1,
    )
    slow: float = setting(0.0, "probability of being slow in a round", ge=0, le=1)
    slowdown: float = setting(3.0, "factor of the duration of steps in a slow round", ge=1)
    battery: float = setting(0.0, "capacity of the battery in Wh; 0 means mains power", ge=0)
    charging: Windows = setting((), "hours of the day at a charger")
    charger: float = setting(10.0, "power of the charger in W", ge=0)
    use: float = setting(0.5, "average power in W that the device's owner uses", ge=0)
    reserve: float = setting(
        0.3,
        "share of the battery that is reserved for the owner. Below it a device takes part only "
        "at a charger, and running work ends when the charge reaches it",
        ge=0,
        lt=1,
    )

    @model_validator(mode="after")
    def _hours_are_hours(self) -> Self:
        check_hours("available", self.available)
        check_hours("charging", self.charging)
        return self


def read_tables(value: object) -> object:
    """Parse tables given as JSON text, as in ``--set`` and Flower's run config."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value else []
    except ValueError as error:
        raise PydanticCustomError(
            "tables", "Input should be tables, or a JSON list of objects: {why}", {"why": error}
        ) from error


class FleetSettings(Section):
    """A fleet: emulated devices, whose clients run on a virtual clock."""

    fixed: ClassVar = {"rows": Fixed(512)}

    devices: Annotated[
        tuple[DeviceGroup, ...], Field(strict=False), BeforeValidator(read_tables)
    ] = setting(
        (),
        "groups of devices, each a table `[[fleet.devices]]`; in `--set` and in Flower's run "
        "config a JSON list of objects. Empty means no emulation",
        page="guides/fleet.md",
    )
    begins: float = setting(12.0, "hour of the day when the run begins", ge=0, lt=24)
    every: float = setting(
        0.0, "least number of virtual seconds between the beginnings of rounds", ge=0
    )
    timed_as: Text = setting(
        "",
        "the model from which times, memory and energy are predicted: `tinyllama-1.1b`, "
        "`llama2-7b`, or a folder with a `config.json`. Empty means the run's own model",
    )

    @field_serializer("devices")
    def _as_text(self, devices: tuple[DeviceGroup, ...]) -> str:
        tables = [group.model_dump(by_alias=True, exclude_unset=True) for group in devices]
        return json.dumps(tables) if tables else ""
