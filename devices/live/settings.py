"""The settings of a client, written by ``samara client up`` and read by its processes."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, ValidationError

from samara.client.limits.answer_limits import LIVE_LEAST_BATCH
from samara.devices.hardware.profile import load_device
from samara.devices.live.client_folder import SETTINGS_FILE, SOCKET, check_was_started
from samara.devices.live.limits import DeviceLimits
from samara.shared.errors import ConfigError, DeviceError
from samara.shared.settings.config import RunConfig
from samara.shared.settings.sections import EMBEDDED_MODEL
from samara.shared.settings.setting import Scalar, Text, describe, former_keys, parse_assignment
from samara.shared.storage.files import write_durably
from samara.shared.tasks.catalog import shipped_tasks
from samara.shared.tasks.messages import EMBEDDED_DATA

_TORCH_DEVICE = re.compile(r"cpu|mps|cuda(:\d+)?")

Wire = Literal["flower", "stream"]


class OwnerSettings(DeviceLimits):
    """The limits of a device's owner, and settings for working beside other software.

    Attributes:
        nice: niceness of the trainer's process, 0 to 19.
        idle_io: whether the trainer only uses the disk while no other process uses it.
        share_energy: whether the client sends the server the round cost of its reports.
        power_mode: nvpmodel name of the power mode in which a Jetson works for the client; empty
            leaves the mode unchanged.
    """

    nice: Annotated[int, Field(ge=0, le=19)] = 0
    idle_io: bool = False
    share_energy: bool = False
    power_mode: Text = ""


OWNER_KEYS = {f"owner.{name.replace('_', '-')}": name for name in OwnerSettings.model_fields}
"""Field names of the owner's settings, by `--set` key."""


class ClientSettings(OwnerSettings):
    """The settings of one client on this machine, including its owner's.

    Attributes:
        name: name that the operator gave the client.
        folder: folder of the client's files.
        wire: connection to the server: Flower's SuperNode, or the stream to a gateway.
        superlink: address of the SuperLink, host:port; empty with the stream.
        gateways: addresses of the run's gateways, host:port, tried in turn; empty without the
            stream.
        client_index: client index, derived from the key.
        profile: name or file of the device profile; empty if none was given.
        device_settings: settings that the device decides instead of the server, by dotted key of
            `RunConfig`.
        key: private key file that authenticates the client to the SuperLink or gateway; None means
            the key in the folder, or no key without TLS.
        certificates: PEM file of the certificate authority of the server or of the gateways; None
            means the system's.
        insecure: whether the connection is plain text, without authentication of either side.
    """

    # Settings that another version has written are ignored.
    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    folder: Path
    superlink: str
    client_index: int
    wire: Wire = "flower"
    gateways: tuple[str, ...] = ()
    device_settings: dict[str, Scalar]
    profile: str = ""
    key: Path | None = None
    certificates: Path | None = None
    insecure: bool = False

    @property
    def config(self) -> RunConfig:
        """The run configuration with the device's settings; the server decides all others."""
        return RunConfig.of(self.device_settings, "client up")

    @property
    def server(self) -> str:
        """The server's address, host:port: the SuperLink, or the first gateway."""
        return self.gateways[0] if self.wire == "stream" else self.superlink

    @property
    def socket(self) -> Path:
        """The path of the trainer's Unix socket."""
        return self.folder / SOCKET

    def write(self) -> None:
        """Write the settings to the client's folder.

        Raises:
            DeviceError: if the file cannot be written.
        """
        file = self.folder / SETTINGS_FILE
        try:
            write_durably(file, self.model_dump_json(indent=2).encode())
        except OSError as error:
            raise DeviceError(
                f"{file}: the client's settings cannot be written: {error.strerror}"
            ) from error

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the settings from a client's folder.

        Raises:
            DeviceError: if no client was started in the folder, or the file is damaged.
        """
        check_was_started(folder)
        file = folder / SETTINGS_FILE
        try:
            return cls.model_validate_json(file.read_bytes())
        except (OSError, ValidationError) as error:
            raise DeviceError(
                f"{file}: the client's settings cannot be read: {error}; run samara client up"
            ) from error


def split_owner_settings(assignments: Iterable[str]) -> tuple[OwnerSettings, list[str]]:
    """Split ``--set`` assignments into the owner's settings and all other assignments.

    Args:
        assignments: ``key=value``; the owner's keys begin with ``owner.``.

    Raises:
        ConfigError: if an assignment is malformed, or the owner has no such setting or value.
    """
    own = dict[str, Scalar]()
    others = list[str]()
    for assignment in assignments:
        key, value = parse_assignment(assignment)
        if not key.startswith("owner."):
            others.append(assignment)
        elif key not in OWNER_KEYS:
            raise ConfigError(
                f"--set {key}: there is no such setting; use one of {', '.join(OWNER_KEYS)}"
            )
        else:
            own[OWNER_KEYS[key]] = value
    try:
        return OwnerSettings.model_validate(own), others
    except ValidationError as error:
        first = error.errors()[0]
        key = next(key for key, name in OWNER_KEYS.items() if name == first["loc"][0])
        raise ConfigError(f"--set {key}={first['input']}: {first['msg']}") from error


def resolve_device_settings(
    model: str, data: str, task: str, torch_device: str, assignments: Iterable[str]
) -> dict[str, Scalar]:
    """Return the validated settings that the device decides.

    A shipped name takes precedence over a file or folder of the same name. ``./NAME`` names the
    file or folder.

    Args:
        model: model folder, name on the hub, or ``embedded``.
        data: data file, folder, name on the hub, or ``messages``.
        task: name of a shipped task, or path of a task file.
        torch_device: torch device to load the model to.
        assignments: ``key=value`` as given to ``--set``.

    Raises:
        ConfigError: if a setting is invalid, or is decided by the server.
    """
    device_settings = {
        "model.path": _absolute(model, EMBEDDED_MODEL),
        "model.torch-device": torch_device,
        "data.path": _absolute(data, EMBEDDED_DATA),
        "data.clients": 1,
        "data.least-batch": LIVE_LEAST_BATCH,
        "task": _absolute(task, *shipped_tasks()),
    }
    described = describe(RunConfig)
    for given, value in map(parse_assignment, assignments):
        key = former_keys(RunConfig).get(given, given)
        if key in described and described[key].owner == "server":
            raise ConfigError(
                f"--set {key}: the server decides this setting; leave it out, or "
                f"set it at the server"
            )
        device_settings[key] = value
    config = RunConfig.given(device_settings, "client up")
    return {key: value for key, value in config.flat().items() if key in device_settings}


def resolve_device(name: str) -> tuple[str, str]:
    """Return the torch device and the device profile that ``--device`` names.

    The profile is empty if the option names a torch device.

    Raises:
        ConfigError: if the name is neither a torch device nor a profile, or if torch does not run
            on the profile's processor.
    """
    if _TORCH_DEVICE.fullmatch(name):
        return name, ""
    try:
        processor = load_device(name).compute.processor
    except ConfigError as error:
        raise ConfigError(
            f"--device: this is not a torch device (cpu, cuda, mps), and {error}"
        ) from error
    if processor == "npu":
        raise ConfigError(
            f"--device {name}: torch does not run on this device's processor; give another device"
        )
    is_file = Path(name).is_file()
    return "cuda" if processor == "gpu" else "cpu", _absolute(name) if is_file else name


def _absolute(path: str, *names: str) -> str:
    """Return an absolute path if the text names an existing path and no shipped name."""
    return str(Path(path).resolve()) if path not in names and Path(path).exists() else path
