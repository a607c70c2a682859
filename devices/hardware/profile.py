"""Device and link profiles: TOML files that give a source for every number.

The shipped profiles are in ``profiles/`` and ``profiles/links/`` and are loaded by name.
docs/guides/devices.md explains the keys.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import tomli_w
from pydantic import ConfigDict, Field, ValidationError, model_validator

from samara.shared.errors import ConfigError
from samara.shared.settings.fleet import Hours, check_hours
from samara.shared.settings.setting import Section, explain
from samara.shared.storage.files import write_durably

Stream = Literal["off", "host", "disk"]
"""The storage of blocks between uses: on the device, in its host's memory, or on disk."""
_NAME = r"^[a-z0-9][a-z0-9.-]*$"


class ProfileSection(Section):
    """A section of a profile; fields may be set by their Python names."""

    model_config = ConfigDict(validate_by_name=True)


class SourcedProfile(ProfileSection):
    """A profile with a name, a description, numbers, and the source of each number."""

    name: str = Field(pattern=_NAME)
    description: str = Field(min_length=1)
    sources: dict[str, str] = Field(
        description="source by dotted key of a number, or of the section that contains it"
    )

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        figures = list(_figure_keys(self.model_dump(by_alias=True, exclude={"fit"})))
        bare = [key for key in figures if not any(_covers(source, key) for source in self.sources)]
        idle = [
            source for source in self.sources if not any(_covers(source, key) for key in figures)
        ]
        mistakes = [f'sources: {key} has no source; add one, or write "assumed"' for key in bare]
        mistakes += [
            f"sources.{source}: the profile has no such number; remove it" for source in idle
        ]
        mistakes += [
            f"sources.{key}: the source is empty; name one"
            for key, source in self.sources.items()
            if not source
        ]
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return self


class Memory(ProfileSection):
    """The memory that all processors share; with a `Host`, the accelerator's separate memory."""

    bytes: int = Field(gt=0)
    system_bytes: int = Field(ge=0, description="bytes taken by carve-outs, kernel and services")
    runtime_bytes: int = Field(
        ge=0, description="bytes taken by interpreter, libraries and contexts"
    )
    bandwidth: float = Field(gt=0, description="bytes/s by the data sheet")
    on_chip_bytes: int = Field(0, ge=0, description="bytes of fast memory that holds activations")


class Storage(ProfileSection):
    """The storage from which models are read."""

    bandwidth: float = Field(gt=0, description="bytes/s of sequential reads")


class Compute(ProfileSection):
    """The processor that runs the forward passes."""

    processor: Literal["cpu", "gpu", "npu"]
    fp32: float = Field(gt=0, description="operations/s by the data sheet; a multiply-add is two")
    fp16: float = Field(gt=0)
    weights: Literal["fp32", "fp16"] = Field(
        description="type that quantized weights are dequantized to"
    )


class Timing(ProfileSection):
    """The parameters of the time model, such as the share of the bandwidth that passes reach."""

    bandwidth_share: float = Field(gt=0, le=1, description="share of the bandwidth that is reached")
    rate_share: float = Field(gt=0, le=1, description="share of the operations/s that is reached")
    half_rate_share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of the operations/s reached in fp16; left out if equal to rate-share",
    )
    full_rows: float = Field(
        ge=1, description="tokens in a pass below which a matrix product becomes no faster"
    )
    activation_share: float = Field(
        gt=0,
        description="share of the bandwidth reached between matrix products; above 1 with caches",
    )
    nf4_operations: float = Field(ge=0, description="fp32 operations to dequantize one NF4 weight")
    int8_operations: float = Field(ge=0)
    launch_seconds: float = Field(ge=0, description="seconds to launch one operation of any size")
    pass_seconds: float = Field(
        ge=0, description="seconds of a pass outside its blocks: batches, masks, hooks, losses"
    )
    adapter_seconds: float = Field(
        ge=0,
        description="seconds to draw, perturb and update one adapted layer, once per query group",
    )

    def share_of_rate(self, kind: Literal["fp32", "fp16"]) -> float:
        """Return the share of the stated operations/s that a number type reaches."""
        return self.half_rate_share if kind == "fp16" and self.half_rate_share else self.rate_share


class Host(ProfileSection):
    """The host of an accelerator that has separate memory, and the link between the two."""

    bytes: int = Field(gt=0, description="bytes of the host's memory")
    to_host: float = Field(gt=0, description="bytes/s from the accelerator to page-locked memory")
    to_device: float = Field(gt=0, description="bytes/s from page-locked memory to the accelerator")
    updates: float = Field(gt=0, description="parameters/s of a fused Adam on the host")


class PowerMode(ProfileSection):
    """A power mode: its power draw, and its clocks relative to the clocks of the profile's mode."""

    watts: float = Field(gt=0)
    compute: float = Field(1.0, gt=0, description="relative clock of the processor")
    bandwidth: float = Field(1.0, gt=0, description="relative clock of the memory")
    host: float = Field(1.0, gt=0, description="relative clock of the cores that launch operations")


class MeasuredStep(ProfileSection):
    """A measured step, and the fitted time model's error on it."""

    model: str
    quantization: Literal["fp32", "fp16", "int8", "nf4"]
    grouping: Literal["sequential", "inner", "outer", "both"]
    sequence: int
    batch: int
    seconds: float
    residual: float = Field(description="(model − measured) / measured")


class TimingFit(ProfileSection):
    """The measurements to which the timing was fitted."""

    fitted: list[str] = Field(
        description="keys of timing that were fitted; the others were set by hand"
    )
    mean_error: float = Field(description="mean |residual|")
    leave_one_out: float = Field(description="mean error on each cell when fitted to the others")
    cells: list[MeasuredStep]


class DeviceProfile(SourcedProfile):
    """A device: its memory, storage, processor, timing and power modes."""

    memory: Memory
    storage: Storage | None = Field(None, description="left out if unknown")
    compute: Compute
    timing: Timing
    host: Host | None = Field(None, description="left out if the processors share one memory")
    power: dict[str, PowerMode] = Field(description="modes by name; empty if unknown")
    mode: str = Field("", description="the mode that the numbers are for; empty without modes")
    fit: TimingFit | None = None

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.mode not in (self.power or [""]):
            known = ", ".join(self.power) or "there are none"
            raise ValueError(f"mode: {self.mode!r} is not one of the modes under power: {known}")
        return self

    @property
    def usable_bytes(self) -> int:
        """The bytes of memory available to one process, including its runtime."""
        return max(0, self.memory.bytes - self.memory.system_bytes)

    def has_stream(self, stream: Stream) -> bool:
        """Return whether the profile states the bandwidth of a storage of blocks."""
        return {"off": True, "host": self.host is not None, "disk": self.storage is not None}[
            stream
        ]

    @property
    def read_bandwidth(self) -> float:
        """The bandwidth of reads from storage in bytes/s.

        Raises:
            ConfigError: if the profile does not state it.
        """
        if self.storage is None:
            raise ConfigError(
                f"{self.name}: the profile has no storage.bandwidth, which streaming needs; add "
                "it with its source, or leave model.stream out"
            )
        return self.storage.bandwidth

    @property
    def offload_host(self) -> Host:
        """The host to which an accelerator with separate memory can offload.

        Raises:
            ConfigError: if the profile has no host.
        """
        if self.host is None:
            raise ConfigError(
                f"{self.name}: the processors share one memory, so there is nothing to offload to; "
                "choose a profile with a [host] section, another --optimizer, or model.stream=disk"
            )
        return self.host

    @property
    def watts(self) -> float | None:
        """The maximum power draw at full load in watts; None if unknown."""
        return self.power[self.mode].watts if self.mode else None

    def with_power_mode(self, name: str) -> "DeviceProfile":
        """Return the device in another power mode, with numbers scaled by the clocks.

        Raises:
            ConfigError: if the mode does not exist.
        """
        if name not in self.power:
            known = ", ".join(self.power) or "none"
            raise ConfigError(f"{self.name}: no power mode {name!r}; choose one of: {known}")
        new = self.power[name]
        old = self.power[self.mode]
        compute = new.compute / old.compute
        host = new.host / old.host
        memory = {"bandwidth": self.memory.bandwidth * new.bandwidth / old.bandwidth}
        rates = {"fp32": self.compute.fp32 * compute, "fp16": self.compute.fp16 * compute}
        timing = {
            "launch_seconds": self.timing.launch_seconds / host,
            "pass_seconds": self.timing.pass_seconds / host,
            "adapter_seconds": self.timing.adapter_seconds / host,
        }
        return self.model_copy(
            update={
                "mode": name,
                "memory": self.memory.model_copy(update=memory),
                "compute": self.compute.model_copy(update=rates),
                "timing": self.timing.model_copy(update=timing),
            }
        )


class LinkProfile(SourcedProfile):
    """A network link as seen from the device."""

    down: float = Field(gt=0, description="bytes/s")
    up: float = Field(gt=0, description="bytes/s")
    latency: float = Field(ge=0, description="seconds one way")
    jitter: float = Field(ge=0, description="largest extra delay of a transfer, seconds")
    loss: float = Field(ge=0, lt=1, description="share of packets")
    available: list[Hours] = Field(
        description="hours of the day, from and to; to may exceed 24. Empty means never"
    )
    metered: bool = Field(description="whether its owner pays by the byte")

    @model_validator(mode="after")
    def _check_available(self) -> Self:
        check_hours("available", self.available)
        return self

    @cached_property
    def hours(self) -> float:
        """The hours of a day in which the link is available, at most 24."""
        return min(24.0, sum(end - begin for begin, end in self.available))


Profile = TypeVar("Profile", bound=SourcedProfile)


def load_device(name_or_path: str) -> DeviceProfile:
    """Load a shipped device profile by name, or any device profile by the path of its file.

    A board's name may have the prefix ``jetson-`` and may omit the memory size:
    ``jetson-orin-nano`` means ``orin-nano-8gb``.

    Raises:
        ConfigError: if the profile or file does not exist, or is invalid; the message lists every
            mistake.
    """
    return _load_profile(DeviceProfile, name_or_path, _shipped_files("profiles"), "device")


def load_link(name_or_path: str) -> LinkProfile:
    """Load a shipped link profile by name, or any link profile by the path of its file.

    Raises:
        ConfigError: if the profile or file does not exist, or is invalid; the message lists every
            mistake.
    """
    return _load_profile(LinkProfile, name_or_path, _shipped_files("profiles", "links"), "link")


@cache
def shipped_devices() -> tuple[DeviceProfile, ...]:
    """Load all device profiles that come with Samara, sorted by name."""
    return tuple(load_device(name) for name in sorted(_shipped_files("profiles")))


def shipped_links() -> list[LinkProfile]:
    """Load all link profiles that come with Samara, sorted by name."""
    return [load_link(name) for name in sorted(_shipped_files("profiles", "links"))]


def save_profile(profile: SourcedProfile, path: Path) -> None:
    """Write a profile as TOML, atomically.

    Raises:
        ConfigError: if the file cannot be written.
    """
    try:
        content = tomli_w.dumps(profile.model_dump(by_alias=True, exclude_none=True))
        write_durably(path, content.encode())
    except OSError as error:
        raise ConfigError(
            f"{path}: the profile cannot be written: {error.strerror}; choose another path"
        ) from error


def _shipped_files(*folder: str) -> dict[str, Traversable]:
    directory = resources.files("samara.devices").joinpath(*folder)
    return {
        entry.name.removesuffix(".toml"): entry
        for entry in directory.iterdir()
        if entry.name.endswith(".toml")
    }


def _load_profile(
    kind: type[Profile], name_or_path: str, shipped: Mapping[str, Traversable], what: str
) -> Profile:
    source = shipped.get(_resolve_name(name_or_path, shipped), Path(name_or_path))
    try:
        if not source.is_file():
            raise ConfigError(
                f"{name_or_path!r}: neither a shipped {what} profile nor a file; "
                f"give one of {', '.join(sorted(shipped))} or the path of a TOML file"
            )
        return kind.model_validate(tomllib.loads(source.read_bytes().decode()))
    except ValidationError as error:
        raise ConfigError(explain(error, name_or_path, list(_setting_keys(kind)))) from None
    except OSError as error:
        raise ConfigError(
            f"{name_or_path}: the profile cannot be read: {error.strerror}; check the path"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{name_or_path}: not a TOML file in UTF-8: {error}; correct the file"
        ) from error


def _resolve_name(name: str, shipped: Iterable[str]) -> str:
    """Return the name of the shipped profile that a user's name refers to.

    A board's name may have the prefix ``jetson-``. A name without a memory size means the board
    with the largest memory.
    """
    short = name.removeprefix("jetson-")
    sizes = {
        int(size): other
        for other in shipped
        if (size := other.removeprefix(f"{short}-").removesuffix("gb")).isdecimal()
    }
    return sizes[max(sizes)] if sizes else short


def _figure_keys(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of all numbers, and lists of numbers, in a profile."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _figure_keys(value, f"{prefix}{key}.")
        elif not isinstance(value, str | bool) and value is not None:
            yield prefix + key


def _covers(source: str, figure: str) -> bool:
    return source == figure or figure.startswith(source + ".")


def _setting_keys(kind: type[Section], prefix: str = "") -> Iterator[str]:
    for field in kind.model_fields.values():
        yield f"{prefix}{field.alias}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _setting_keys(field.annotation, f"{prefix}{field.alias}.")
