"""Device and link profiles: TOML files whose every figure names its source.

The shipped ones lie in ``profiles/`` and ``profiles/links/`` and are loaded by name.
docs/devices.md says what the keys mean.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import tomli_w
from pydantic import ConfigDict, Field, ValidationError, model_validator

from shared.errors import ConfigError
from shared.files import write_durably
from shared.fleet_settings import Hours, check_hours
from shared.settings import Section, explain

_NAME = r"^[a-z0-9][a-z0-9.-]*$"


class ProfileSection(Section):
    """A part of a profile; code calls its fields by their Python names."""

    model_config = ConfigDict(validate_by_name=True)


class SourcedProfile(ProfileSection):
    """A profile: a name, a description, figures, and where each of them comes from."""

    name: str = Field(pattern=_NAME)
    description: str = Field(min_length=1)
    sources: dict[str, str] = Field(
        description="by dotted key of a figure, or of the section that it stands in"
    )

    @model_validator(mode="after")
    def _every_figure_has_a_source(self) -> Self:
        figures = list(_figure_keys(self.model_dump(by_alias=True, exclude={"fit"})))
        bare = [key for key in figures if not any(_covers(known, key) for known in self.sources)]
        idle = [known for known in self.sources if not any(_covers(known, key) for key in figures)]
        mistakes = [f"sources: {key} has none; name where it comes from" for key in bare]
        mistakes += [f"sources.{known}: there is no such figure" for known in idle]
        mistakes += [
            f"sources.{known}: is empty" for known, text in self.sources.items() if not text
        ]
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return self


class Memory(ProfileSection):
    """What the processors share. (Where there is a GPU, it has no memory of its own.)"""

    bytes: int = Field(gt=0)
    system_bytes: int = Field(ge=0, description="taken by carve-outs, kernel and services")
    runtime_bytes: int = Field(ge=0, description="taken by interpreter, libraries and contexts")
    bandwidth: float = Field(gt=0, description="bytes/s on paper")
    on_chip_bytes: int = Field(0, ge=0, description="of fast memory that holds activations")


class Storage(ProfileSection):
    """Where models lie."""

    bandwidth: float = Field(gt=0, description="bytes/s that are read one after the other")


class Compute(ProfileSection):
    """The processor that does the forward passes."""

    processor: Literal["cpu", "gpu", "npu"]
    fp32: float = Field(gt=0, description="operations/s on paper; a multiplication and an addition")
    fp16: float = Field(gt=0)
    weights: Literal["fp32", "fp16"] = Field(description="type that quantized weights become")


class Timing(ProfileSection):
    """How far the device stays from its data sheet: the physical parameters of the time model."""

    bandwidth_share: float = Field(gt=0, le=1, description="of the bandwidth that is reached")
    rate_share: float = Field(gt=0, le=1, description="of the operations/s that is reached")
    full_rows: float = Field(
        ge=1, description="tokens in a pass below which a matrix product gets no faster"
    )
    activation_share: float = Field(
        gt=0,
        description="of the bandwidth, reached between matrix products; over 1 in caches",
    )
    nf4_operations: float = Field(ge=0, description="fp32 operations to dequantize one NF4 weight")
    int8_operations: float = Field(ge=0)
    launch_seconds: float = Field(ge=0, description="of one operation, however small")
    pass_seconds: float = Field(
        ge=0, description="of a pass beside its blocks: batches, masks, hooks, losses"
    )
    adapter_seconds: float = Field(
        ge=0,
        description="of drawing, perturbing and updating one adapted layer, once a query group",
    )


class PowerMode(ProfileSection):
    """What the device draws, and how its clocks compare to those of the profile's figures."""

    watts: float = Field(gt=0)
    compute: float = Field(1.0, gt=0, description="clock of the processor, relative")
    bandwidth: float = Field(1.0, gt=0, description="clock of the memory, relative")
    host: float = Field(1.0, gt=0, description="clock of the cores that launch the work, relative")


class MeasuredStep(ProfileSection):
    """A measured step and what the fitted model makes of it."""

    model: str
    quantization: Literal["fp32", "fp16", "int8", "nf4"]
    mode: Literal["sequential", "inner", "outer", "both"]
    sequence: int
    batch: int
    seconds: float
    residual: float = Field(description="(model − measured) / measured")


class TimingFit(ProfileSection):
    """Where the timing comes from."""

    fitted: list[str] = Field(description="keys of timing that were fitted; the others were set")
    mean_error: float = Field(description="mean |residual|")
    leave_one_out: float = Field(description="mean error on each cell, fitted to the others")
    cells: list[MeasuredStep]


class DeviceProfile(SourcedProfile):
    """A device."""

    memory: Memory
    storage: Storage | None = Field(None, description="left out where nobody knows")
    compute: Compute
    timing: Timing
    power: dict[str, PowerMode] = Field(description="modes by name; empty where nobody knows")
    mode: str = Field("", description="the mode that the figures are for; empty without modes")
    fit: TimingFit | None = None

    @model_validator(mode="after")
    def _its_mode_is_one_of_them(self) -> Self:
        if self.mode not in (self.power or [""]):
            known = ", ".join(self.power) or "none"
            raise ValueError(f"mode: {self.mode!r} is not a mode of power; there are: {known}")
        return self

    @property
    def usable_bytes(self) -> int:
        """What is left for one process, its runtime included."""
        return max(0, self.memory.bytes - self.memory.system_bytes)

    @property
    def read_bandwidth(self) -> float:
        """Bytes/s that are read from storage.

        Raises:
            ConfigError: if the profile does not say.
        """
        if self.storage is None:
            raise ConfigError(
                f"{self.name}: the profile does not say how fast blocks can be read; add "
                "storage.bandwidth with its source, or leave --stream out"
            )
        return self.storage.bandwidth

    @property
    def watts(self) -> float | None:
        """Drawn at full load, at most; None if nobody knows."""
        return self.power[self.mode].watts if self.mode else None

    def with_power_mode(self, name: str) -> "DeviceProfile":
        """The device in another power mode, its figures scaled by the clocks.

        Raises:
            ConfigError: if there is no such mode.
        """
        if name not in self.power:
            known = ", ".join(self.power) or "no modes at all"
            raise ConfigError(f"{self.name}: no power mode {name!r}; it has {known}")
        new, old = self.power[name], self.power[self.mode]
        compute, host = new.compute / old.compute, new.host / old.host
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
    """A network link, seen from the device."""

    down: float = Field(gt=0, description="bytes/s")
    up: float = Field(gt=0, description="bytes/s")
    latency: float = Field(ge=0, description="seconds one way")
    jitter: float = Field(ge=0, description="seconds; largest extra delay of a transfer")
    loss: float = Field(ge=0, lt=1, description="share of packets")
    available: list[Hours] = Field(
        description="hours of the day, from and to; to may be past midnight. Empty is never"
    )
    metered: bool = Field(description="whether its owner pays by the byte")

    @model_validator(mode="after")
    def _hours_are_hours(self) -> Self:
        check_hours("available", self.available)
        return self

    @cached_property
    def hours(self) -> float:
        """Hours of a day that it is there, at most 24."""
        return min(24.0, sum(end - begin for begin, end in self.available))


Profile = TypeVar("Profile", bound=SourcedProfile)


def load_device(name_or_path: str) -> DeviceProfile:
    """Load a shipped device profile by its name, or one of your own by the path of its file.

    ``jetson-orin-nano`` is ``orin-nano-8gb``, as ``client up --device`` calls it.

    Raises:
        ConfigError: there is no such profile or file, or listing every mistake in it.
    """
    return _load_profile(DeviceProfile, name_or_path, _shipped_files("profiles"), "device")


def load_link(name_or_path: str) -> LinkProfile:
    """Load a shipped link profile by its name, or one of your own by the path of its file.

    Raises:
        ConfigError: there is no such profile or file, or listing every mistake in it.
    """
    return _load_profile(LinkProfile, name_or_path, _shipped_files("profiles", "links"), "link")


def shipped_devices() -> list[DeviceProfile]:
    """All device profiles that come with Samara, by name."""
    return [load_device(name) for name in sorted(_shipped_files("profiles"))]


def shipped_links() -> list[LinkProfile]:
    """All link profiles that come with Samara, by name."""
    return [load_link(name) for name in sorted(_shipped_files("profiles", "links"))]


def save_profile(profile: SourcedProfile, path: Path) -> None:
    """Write a profile as TOML, whole or not at all.

    Raises:
        ConfigError: if the file cannot be written.
    """
    try:
        content = tomli_w.dumps(profile.model_dump(by_alias=True, exclude_none=True))
        write_durably(path, content.encode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def _shipped_files(*folder: str) -> dict[str, Traversable]:
    place = resources.files("devices").joinpath(*folder)
    return {
        entry.name.removesuffix(".toml"): entry
        for entry in place.iterdir()
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
        raise ConfigError(f"{name_or_path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name_or_path}: not a TOML file in UTF-8: {error}") from error


def _resolve_name(name: str, shipped: Iterable[str]) -> str:
    """The profile that a name means: boards may be called as `client up` calls them, with
    ``jetson-`` before them, and without their memory, which is then the largest there is."""
    short = name.removeprefix("jetson-")
    sizes = {
        int(size): other
        for other in shipped
        if (size := other.removeprefix(f"{short}-").removesuffix("gb")).isdecimal()
    }
    return sizes[max(sizes)] if sizes else short


def _figure_keys(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted keys of all numbers that stand in a profile, and of lists of them."""
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
