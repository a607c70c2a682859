"""The run id, and the folder of a run on this machine."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from samara.shared.errors import ConfigError
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.run_id import hash_identity
from samara.shared.settings.config import RunConfig
from samara.shared.storage.files import check_writable

RUNS_FOLDER = Path("runs")
"""Default folder for runs, in the working directory."""


def identity_bytes(config: RunConfig, before: Mapping[str, Any] = MappingProxyType({})) -> bytes:
    """Return the settings that are part of the run id as sorted JSON.

    Args:
        config: settings of the run.
        before: originally recorded paths by dotted key, if the run's folder was moved.
    """
    identity = config.identity()
    moved = {key: value for key, value in before.items() if key in identity}
    return json.dumps(identity | moved, sort_keys=True).encode()


def run_id_of(config: RunConfig, layout: Layout, model_id: bytes) -> bytes:
    """Return the 8-byte id of a run: a hash of everything on which the run's results depend.

    A setting is part of the id if its declaration says so (``identity``). Special cases are:

    - Model: its id is hashed and not its path, so that its folder may move.
    - Threads, caches, memory budget, block streaming: not part of the id, because they control only
      the execution on one machine. They can affect rounding, so a run records them at its first
      step and keeps them (`samara.client.training.execution`).
    - Blobs, such as a basis: the layout's hash covers their content.
    - ``data.path`` and ``task``: part of the id although they are locations, because no hash covers
      their content. Without them a run could continue with other examples unnoticed.

    Args:
        config: settings of the run, as the server has them.
        layout: layout of the adapter.
        model_id: hash of the base model, 32 bytes.
    """
    return hash_identity(identity_bytes(config), layout.hash, model_id)


def run_folder(config: RunConfig, run_id: bytes) -> Path:
    """Return the folder of a run on this machine: ``out``, or ``runs/<task>-<run id>``.

    The name uses the first eight digits of the run id.
    """
    return Path(config.out) if config.out else RUNS_FOLDER / folder_name(config.task, run_id.hex())


def folder_name(task: str, identity: str) -> str:
    """Return a readable name for a run's folder: the task and the first digits of a hash.

    Args:
        task: name of a shipped task, or path of a task file.
        identity: hash of everything on which the run's results depend, in hexadecimal.
    """
    return f"{Path(task).stem}-{identity[:8]}"


def check_results_folder(out: str) -> None:
    """Check that a folder for results could be written.

    Args:
        out: path of the folder, or empty for a folder in `RUNS_FOLDER`.

    Raises:
        ConfigError: if the folder could not be written.
    """
    folder = Path(out) if out else RUNS_FOLDER
    try:
        check_writable(folder)
    except OSError as error:
        raise ConfigError(
            f"{folder.absolute()}: results cannot be written there: {error.strerror}; give another "
            "--out"
        ) from error


def settings_here(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a run's settings, with new paths if the run's folder was moved with its inputs.

    If the task, data or model no longer exists at its recorded path, the path at the same position
    relative to the run's folder is tried.

    Args:
        settings: recorded settings of the run, by dotted key.
        folder: folder of the run.
    """
    here = dict(settings)
    before = str(settings.get("out", ""))
    if not os.path.isabs(before):
        return here
    for key in ("task", "data.path", "model.path"):
        path = str(here.get(key, ""))
        if os.path.isabs(path) and not os.path.exists(path):
            moved = os.path.normpath(folder.absolute() / os.path.relpath(path, before))
            if os.path.exists(moved):
                here[key] = moved
    return here


def client_folder(config: RunConfig, run_id: bytes, client: int) -> Path:
    """Return the folder for a client's files in a run's folder."""
    return run_folder(config, run_id) / "clients" / str(client)
