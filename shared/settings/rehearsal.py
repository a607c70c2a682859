"""The settings of a rehearsal: its faults and their times."""

import json
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_serializer

from samara.shared.settings.fleet import read_tables
from samara.shared.settings.setting import Section, setting

FaultKind = Literal["power-cut", "link-cut", "clock-set", "disk-full", "slow-disk", "out-of-memory"]


class Fault(Section):
    """A fault on a client's device."""

    kind: FaultKind = setting(
        ...,
        "`power-cut`: every process is killed and started again. `link-cut`: the link is "
        "unplugged. `clock-set`: the clock is a day behind. `disk-full`: the disk of the client's "
        "folder is full. `slow-disk`: that disk reads and writes 20 kB/s. `out-of-memory`: "
        "another program takes memory, and the kernel kills processes of the client",
    )
    client: int = setting(..., "number of the client, in the order of `fleet.devices`", ge=0)
    at: float = setting(
        ..., "start of the fault, in seconds of the devices since the end of the first round", ge=0
    )
    seconds: float = setting(30.0, "duration of the fault, in seconds of the devices", gt=0)


class RehearsalSettings(Section):
    """The faults that `samara rehearse` injects into the clients of `fleet.devices`."""

    faults: Annotated[tuple[Fault, ...], Field(strict=False), BeforeValidator(read_tables)] = (
        setting(
            (),
            "faults, each a table `[[rehearsal.faults]]`; in `--set` a JSON list of objects. "
            "Simulations have no faults",
            identity=False,
            page="guides/rehearsal.md",
        )
    )

    @field_serializer("faults")
    def _as_text(self, faults: tuple[Fault, ...]) -> str:
        tables = [fault.model_dump(by_alias=True, exclude_unset=True) for fault in faults]
        return json.dumps(tables) if tables else ""
