"""What ``samara client up`` was told, as its processes read it."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from devices.hardware.profile import load_device
from shared.config import RunConfig
from shared.errors import ConfigError, DeviceError
from shared.files import write_durably
from shared.settings import Scalar, describe, parse_assignment

SETTINGS_FILE = "client.json"
SOCKET = "trainer.sock"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s:/]+):(\d{1,5})")

_TORCH_DEVICE = re.compile(r"cpu|mps|cuda(:\d+)?")


class ClientSettings(BaseModel):
    """One client of this machine.

    Attributes:
        name: what the operator calls it.
        folder: where it keeps everything.
        superlink: host:port.
        device: index, made of the key.
        profile: of the device, a shipped one's name or a file; empty if none was named.
        own: the device's settings by dotted key, as `RunConfig` has them.
        key: private key file, given to the SuperLink as proof; none without TLS.
        certificates: PEM file that proves the server; none is the system's.
        insecure: plain text, no proof of either side.
        trusted: SHA-256 of app bundles that are accepted though they differ from what is installed.
        max_temperature: °C above which nothing is trained; 0 is no limit.
        mains_only: train only when not on battery.
        idle_only: train only when the machine has nothing else to do.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    folder: Path
    superlink: str
    device: int
    device_settings: dict[str, Scalar]
    profile: str = ""
    key: Path | None = None
    certificates: Path | None = None
    insecure: bool = False
    trusted: tuple[str, ...] = ()
    max_temperature: Annotated[float, Field(ge=0)] = 0.0
    mains_only: bool = False
    idle_only: bool = False

    @property
    def config(self) -> RunConfig:
        """The device's settings; the run's come from the server."""
        return RunConfig.of(self.device_settings, "client up")

    @property
    def socket(self) -> Path:
        """Of the trainer."""
        return self.folder / SOCKET

    def write(self) -> None:
        """Leave them in the client's folder.

        Raises:
            DeviceError: if the disk refuses.
        """
        file = self.folder / SETTINGS_FILE
        try:
            write_durably(file, self.model_dump_json(indent=2).encode())
        except OSError as error:
            raise DeviceError(f"{file}: cannot be written: {error.strerror}") from error

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Those of a client's folder.

        Raises:
            DeviceError: if there are none, or they are damaged.
        """
        file = folder / SETTINGS_FILE
        try:
            return cls.model_validate_json(file.read_bytes())
        except (OSError, ValidationError) as error:
            raise DeviceError(f"{file}: cannot be read: {error}; run samara client up") from error


def check_name(name: str) -> str:
    """The name, if a folder can be called so.

    Raises:
        ConfigError: otherwise.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"--name {name}: use up to 64 letters, digits, dots, dashes and underscores"
        )
    return name


def parse_address(address: str) -> tuple[str, int]:
    """Of a SuperLink.

    Raises:
        ConfigError: if it is not host:port.
    """
    found = _ADDRESS.fullmatch(address)
    if not found or not 0 < int(found[2]) < 2**16:
        raise ConfigError(f"--superlink {address}: write it as host:port, e.g. example.org:8000")
    return found[1].strip("[]"), int(found[2])


def resolve_device_settings(
    model: str, data: str, task: str, torch_device: str, assignments: Iterable[str]
) -> dict[str, Scalar]:
    """What the device decides for itself, whole and sound.

    Args:
        model: folder, name on the hub, or embedded.
        data: file, folder, name on the hub, or messages.
        task: shipped task, or a task file.
        torch_device: where the model goes.
        assignments: ``key=value`` as given to ``--set``.

    Raises:
        ConfigError: if a setting is unsound, or is the server's to decide.
    """
    device_settings = {
        "model.path": _absolute(model),
        "model.torch-device": torch_device,
        "data.path": _absolute(data),
        "data.clients": 1,
        "task": _absolute(task),
    }
    described = describe(RunConfig)
    for key, value in map(parse_assignment, assignments):
        if key in described and described[key].owner != "device":
            raise ConfigError(f"--set {key}: the server decides this; set it there")
        device_settings[key] = value
    config = RunConfig.of(device_settings, "client up")
    return {key: value for key, value in config.flat().items() if key in device_settings}


def resolve_device(name: str) -> tuple[str, str]:
    """The torch device that ``--device`` means, and the profile, if it names one.

    Raises:
        ConfigError: if it means neither, or a processor that torch does not run on.
    """
    if _TORCH_DEVICE.fullmatch(name):
        return name, ""
    try:
        processor = load_device(name).compute.processor
    except ConfigError as error:
        raise ConfigError(f"--device: none of cpu, cuda, cuda:1 and mps, or {error}") from error
    if processor == "npu":
        raise ConfigError(f"--device {name}: torch does not run on its processor")
    is_file = Path(name).is_file()
    return "cuda" if processor == "gpu" else "cpu", _absolute(name) if is_file else name


def _absolute(path: str) -> str:
    """The path from anywhere, if it is one."""
    return str(Path(path).resolve()) if Path(path).exists() else path
