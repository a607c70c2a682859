"""The id of a run, and its folder on this machine."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from samara.shared.config import RunConfig
from samara.shared.errors import ConfigError
from samara.shared.files import check_writable
from samara.shared.layout import Layout
from samara.shared.run_id import hash_identity

RUNS_FOLDER = Path("runs")
"""The folder of runs that are not told where to be, in the working directory."""


def identity_bytes(config: RunConfig, before: Mapping[str, Any] = MappingProxyType({})) -> bytes:
    """Return the settings that are part of the run id as sorted JSON.

    Args:
        config: settings of the run.
        before: paths that the run began with, by dotted key, if it has been moved.
    """
    identity = config.identity()
    moved = {key: value for key, value in before.items() if key in identity}
    return json.dumps(identity | moved, sort_keys=True).encode()


def run_id_of(config: RunConfig, layout: Layout, model_id: bytes) -> bytes:
    """Return the 8 bytes that name a run: a hash of what decides the numbers that it computes.

    Settings count by value and not by location. The model is known by its id, so that its folder
    may move; threads, caches, the memory budget and block streaming say how a machine executes a
    run, and what of it rounds differently is recorded at the run's first step and kept
    (`samara.client.training.execution`). The content of a blob, such as a basis, is in the layout's
    hash. ``data.path`` and ``task`` stay in the identity although they are locations: nothing else
    in it knows their content, and without them a run would go on with other examples unnoticed.
    Which settings count is declared with each of them (``identity``).

    Args:
        config: settings of the run, as the server has them.
        layout: layout of the adapter.
        model_id: hash of the base model, 32 bytes.
    """
    return hash_identity(identity_bytes(config), layout.hash, model_id)


def run_folder(config: RunConfig, run_id: bytes) -> Path:
    """Return the folder of a run on this machine: ``out``, or ``runs/<task>-<run id>``.

    Of the run id the first eight digits are enough.
    """
    return Path(config.out) if config.out else RUNS_FOLDER / folder_name(config.task, run_id.hex())


def folder_name(task: str, identity: str) -> str:
    """Return a readable name for the folder of a run: its task and the begin of its identity.

    Args:
        task: name of a shipped task, or path of a task file.
        identity: hash of all that decides what the run computes, in hexadecimal.
    """
    return f"{Path(task).stem}-{identity[:8]}"


def check_results_folder(out: str) -> None:
    """Refuse a folder of results that could not be written.

    Args:
        out: the folder, or empty for one in `RUNS_FOLDER`.

    Raises:
        ConfigError: if it could not be written.
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
    """Return the settings of a run whose folder may have been moved together with its neighbours.

    A task, data or a model that are missing at their path are looked for at the same path relative
    to the folder.

    Args:
        settings: settings of the run by dotted key, as it recorded them.
        folder: folder of the run.
    """
    here, before = dict(settings), str(settings.get("out", ""))
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
    """Return the folder of a client's own files in the folder of a run."""
    return run_folder(config, run_id) / "clients" / str(client)
