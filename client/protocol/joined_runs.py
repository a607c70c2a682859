"""The stored runs of a client, with all data that later use of a run's model needs.

Layout and settings come with every message. The client stores them, so the owner can use and export
the model without a server.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samara.client.limits.device_settings import with_device_settings
from samara.client.protocol.session_store import SESSION_FILE, SessionFolder
from samara.shared.errors import TrainerError
from samara.shared.protocol.layout import Layout
from samara.shared.settings.config import RunConfig
from samara.shared.settings.data import DataSettings
from samara.shared.settings.runs import run_id_of
from samara.shared.storage.kept_file import KeptFile

RUN_FILE = "run.json"
"""Name of the file with layout and settings, in a run's folder."""


@dataclass(frozen=True)
class JoinedRun:
    """A run that a client takes part in.

    Attributes:
        run_id: run id, 8 bytes.
        folder: folder of the run's files.
        config: settings of the run on the server.
        layout: layout of the adapter.
        model_id: model id of the base model, 32 bytes.
    """

    run_id: bytes
    folder: Path
    config: RunConfig
    layout: Layout
    model_id: bytes


class _RunFile(KeptFile[JoinedRun | None]):
    """The file in a run's folder with its layout and settings."""

    name = RUN_FILE
    damaged = (
        "{file}: cannot be read: {problem}; delete the file, and the client writes it again at the "
        "next message of the server"
    )

    def _to_json(self, content: JoinedRun | None) -> Any:
        return content and {
            "settings": content.config.flat(),
            "layout": content.layout.to_json(),
            "model_id": content.model_id,
        }

    def _parse(self, value: Any) -> JoinedRun:
        assert self.path is not None
        config = RunConfig.of(value["settings"], str(self.path))
        layout, model_id = Layout.from_json(value["layout"]), bytes.fromhex(value["model_id"])
        run_id, folder = run_id_of(config, layout, model_id), self.path.parent
        if run_id.hex() != folder.name:
            raise ValueError("the file belongs to another run")
        return JoinedRun(run_id, folder, config, layout, model_id)


class JoinedRuns:
    """The runs in which a client takes part.

    Args:
        folder: folder of the client.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._sessions = folder, SessionFolder(folder)

    def write(self, config: RunConfig, layout: Layout, model_id: bytes) -> bytes:
        """Store a run, unless it is already stored; return its run id.

        Args:
            config: settings of the run on the server.
            layout: layout of the adapter.
            model_id: model id of the base model, 32 bytes.

        Raises:
            TrainerError: if the file cannot be written, or the client already has the maximum
                number of personal models.
        """
        run_id = run_id_of(config, layout, model_id)
        folder = self._sessions.folder_of(run_id)
        if not (folder / RUN_FILE).exists():
            self._sessions.make_room(run_id)
            _RunFile(folder).write(JoinedRun(run_id, folder, config, layout, model_id))
        return run_id

    def read(self, run_id: bytes) -> JoinedRun:
        """Return a run.

        Raises:
            TrainerError: if there is no such run, or its file is damaged or belongs to another run.
        """
        file = _RunFile(self._sessions.folder_of(run_id))
        if (run := file.read()) is None:
            raise TrainerError(
                f"{file.path}: there is no such file; the client writes it again at the next "
                "message of the server"
            )
        return run

    def find(self, beginning: str = "") -> JoinedRun:
        """Return the run whose hexadecimal id starts with `beginning`, or the latest run for "".

        Raises:
            TrainerError: if no run or several runs match, or the run cannot be read.
        """
        return self.read(bytes.fromhex(find_run_folder(self._folder, beginning).name))


def latest_data_settings(folder: Path, config: RunConfig) -> DataSettings:
    """Return the data settings of a device's latest run, or of the device if there is no run.

    Args:
        folder: folder of the client.
        config: the device's settings.
    """
    try:
        run = JoinedRuns(folder).find()
    except TrainerError:  # no run yet, or a damaged run: the trainer reports it
        return config.data
    return with_device_settings(run.config, config).data


def find_run_folder(client_folder: Path, beginning: str = "") -> Path:
    """Return the folder of the run whose hexadecimal id starts with `beginning`.

    Args:
        client_folder: folder of the client.
        beginning: first digits of the run id; empty for the latest run.

    Raises:
        TrainerError: if no run or several runs match.
    """
    folders = [each for each in run_folders(client_folder) if each.name.startswith(beginning)]
    if not folders:
        which = f"whose id begins with {beginning!r}" if beginning else "yet"
        raise TrainerError(f"{client_folder}: this client has taken part in no run {which}")
    if beginning and len(folders) > 1:
        names = ", ".join(folder.name for folder in folders)
        raise TrainerError(f"--run {beginning}: {names} begin with these digits; give more digits")
    return folders[0]


def run_folders(client_folder: Path) -> list[Path]:
    """Return the folders of a client's runs, the latest first."""
    folders = client_folder.glob(f"runs/{'[0-9a-f]' * 16}")
    return sorted(folders, key=_time_of_session, reverse=True)


def _time_of_session(run_folder: Path) -> int:
    """Return the time at which a run's session was written, ns since 1970; 0 without a session."""
    try:
        return (run_folder / SESSION_FILE).stat().st_mtime_ns
    except OSError:
        return 0
