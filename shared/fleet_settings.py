"""The settings of a fleet of emulated devices."""

import json
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_serializer, model_validator
from pydantic_core import PydanticCustomError

from samara.shared.settings import Fixed, Section, Text, setting

Hours = Annotated[tuple[float, float], Field(strict=False)]
"""Begin and end in hours of the day; the end may be past midnight."""
Windows = Annotated[tuple[Hours, ...], Field(strict=False)]


def check_hours(name: str, windows: Iterable[Hours]) -> None:
    """Refuse windows that are not hours of a day.

    Raises:
        ValueError: naming the setting and the window.
    """
    for begin, end in windows:
        if not (0 <= begin < 24 and begin + 1 / 60 <= end <= begin + 24):
            raise ValueError(
                f"{name}: [{begin:g}, {end:g}]: begin in 0 to 24 and end a minute to a day later"
            )


class DeviceGroup(Section):
    """Emulated devices of one kind."""

    device: Text = setting(..., "a device profile: its name, or the path of a file", min_length=1)
    share: float = setting(
        ...,
        "share of the clients, relative to the other groups; groups follow each other in the "
        "order of clients",
        gt=0,
    )
    link: Text = setting(
        "ethernet", "a link profile: its name, or the path of a file", min_length=1
    )
    quantization: Literal["fp32", "fp16", "int8", "nf4"] = setting(
        "fp32",
        "type of the weights in the blocks: `fp32`, `fp16`, `int8`, `nf4`. Training uses INT8 "
        "and NF4 (extra: `samara-fl[quantized]`); `fp16` only affects time and memory, training "
        "then uses `model.dtype`",
    )
    power: Text = setting("", "power mode of the device; empty is its profile's")
    available: Windows = setting(
        (),
        "hours of the day when the link is up, instead of the profile's; `[[22, 31]]` is 22:00 "
        "to 7:00. Every device's hours are up to an hour earlier or later",
    )
    dropout: float = setting(
        0.0,
        "probability of failing in a round without an answer, at a random time in its steps",
        ge=0,
        le=1,
    )
    slow: float = setting(0.0, "probability of being slow in a round", ge=0, le=1)
    slowdown: float = setting(3.0, "factor of the duration of steps in a slow round", ge=1)
    battery: float = setting(0.0, "capacity of the battery in Wh; 0 is on mains", ge=0)
    charging: Windows = setting((), "hours of the day at a charger")
    charger: float = setting(10.0, "power of the charger in W", ge=0)
    use: float = setting(0.5, "average power that the owner's use takes, in W", ge=0)
    reserve: float = setting(
        0.3,
        "share of the battery that is reserved for the owner: below it a device takes part only "
        "at a charger, and work that reaches it ends",
        ge=0,
        lt=1,
    )

    @model_validator(mode="after")
    def _hours_are_hours(self) -> Self:
        check_hours("available", self.available)
        check_hours("charging", self.charging)
        return self


def read_tables(value: object) -> object:
    """Read the JSON that stands for tables in ``--set`` and in Flower's run config."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value else []
    except ValueError as error:
        raise PydanticCustomError(
            "tables", "Input should be tables, or a JSON list of objects: {why}", {"why": error}
        ) from error


class FleetSettings(Section):
    """Emulated devices in place of clients that are as fast as this machine."""

    fixed: ClassVar = {"rows": Fixed(512)}

    devices: Annotated[
        tuple[DeviceGroup, ...], Field(strict=False), BeforeValidator(read_tables)
    ] = setting(
        (),
        "groups of devices, each a table `[[fleet.devices]]`; in `--set` and in Flower's run "
        "config a JSON list of objects. Empty is no emulation",
        page="guides/fleet.md",
    )
    begins: float = setting(12.0, "hour of the day when the run begins", ge=0, lt=24)
    every: float = setting(
        0.0, "least number of virtual seconds between the beginnings of rounds", ge=0
    )
    timed_as: Text = setting(
        "",
        "the model whose times, memory and energy the devices have: `tinyllama-1.1b`, "
        "`llama2-7b`, or a folder with a `config.json`. Empty is the run's own",
    )

    @field_serializer("devices")
    def _as_text(self, devices: tuple[DeviceGroup, ...]) -> str:
        tables = [group.model_dump(by_alias=True, exclude_unset=True) for group in devices]
        return json.dumps(tables) if tables else ""
