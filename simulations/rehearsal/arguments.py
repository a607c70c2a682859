"""The command-line arguments of a rehearsal's processes."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from samara.shared.model.model_folder import find_embedded_model
from samara.shared.network.certificates import CERTIFICATES_FOLDER
from samara.shared.settings.config import RunConfig
from samara.shared.settings.sections import EMBEDDED_MODEL
from samara.shared.settings.setting import Scalar, describe
from samara.simulations.rehearsal.plan import PlannedClient

_OF_FLEET = ("fleet.", "rehearsal.")
_PLACED = ("out", "threads", "task", "model.path", "model.torch-device", "model.quantization")
"""Settings that a rehearsal decides for each client."""


def server_arguments(
    config: RunConfig, run: Path, port: int, names: Iterable[str], dilation: float
) -> list[str]:
    """Return the arguments of the server's command."""
    arguments = ["server", "up", "--run", str(run), "--port", str(port)]
    for name in sorted(names):
        arguments += ["--name", name]
    for key, value in served_settings(config.flat(), dilation).items():
        arguments += ["--set", f"{key}={value}"]
    return arguments


def served_settings(settings: Mapping[str, Scalar], dilation: float) -> dict[str, str]:
    """Return the settings for a rehearsal's server, as values for `--set` by key.

    These are the settings that a server decides. The timeout is multiplied by the dilation.
    """
    described = describe(RunConfig)
    served: dict[str, Scalar] = {
        key: value
        for key, value in settings.items()
        if described[key].owner != "device"
        and not key.startswith(_OF_FLEET)
        and key not in _PLACED
        and value != described[key].default
    }
    served["cohort.timeout"] = float(settings["cohort.timeout"]) * dilation
    served["data.clients"] = settings["data.clients"]
    return {key: as_toml(value) for key, value in served.items()}


def client_arguments(
    config: RunConfig, client: PlannedClient, server: str, key: Path, run: Path, home: Path
) -> list[str]:
    """Return the arguments of a client's command, without the client's data."""
    model = config.model.path
    path = str(find_embedded_model()) if model == EMBEDDED_MODEL else model
    arguments = ["client", "up", "--name", client.name, "--home", str(home)]
    arguments += ["--superlink", server, "--key", str(key)]
    arguments += ["--certs", str(run / CERTIFICATES_FOLDER / "ca.pem"), "--model", path]
    described = describe(RunConfig)
    own: dict[str, Scalar] = {
        name: value
        for name, value in config.flat().items()
        if described[name].owner == "device"
        and not name.startswith((*_OF_FLEET, "data."))
        and name not in _PLACED
        and value != described[name].default
    }
    own |= {"threads": 1, "model.quantization": stored_as(client.quantization)}
    for name, value in own.items():
        arguments += ["--set", f"{name}={as_toml(value)}"]
    return arguments


def as_toml(value: Scalar) -> str:
    """Return a value in the form that `--set` accepts."""
    return json.dumps(value)


def stored_as(kind: str) -> str:
    """Return the value of `model.quantization` for the quantization of a group of devices."""
    return kind if kind in ("int8", "nf4") else "none"
