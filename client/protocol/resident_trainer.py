"""The resident trainer: one client's model, loaded once, and what it remembers on disk.

Its folder holds, for every run that the client took part in, ``runs/<run id>`` with the session
and the personal ledger, and how the run is executed. Each is written so that a crash at any point
leaves the old content or the new, and the server is told where the session truly stands.
"""

import json
from pathlib import Path
from typing import Any

from client.protocol.device_settings import with_device_settings
from client.protocol.protocol_client import ProtocolClient
from client.protocol.session_store import SessionFolder
from client.training.trainer import Trainer
from shared.config import RunConfig
from shared.errors import ConfigError, DataError
from shared.frames.instructions import Split
from shared.runs import run_id_of


class ResidentTrainer:
    """A client's trainer for one run after the other; one thread uses it.

    Attributes:
        client: index of the client.
        trainer: under the settings of the latest run.
        model_loads: how often a base model was loaded.
    """

    def __init__(self, own: RunConfig, client: int, folder: Path) -> None:
        """Load model, task and data.

        Args:
            own: the device's settings; those that a device owns count.
            client: index.
            folder: where it remembers; made if it is not there.

        Raises:
            SamaraError: if model, task, data or folder cannot be used.
        """
        self.client, self._own, self._folder = client, own, folder
        self._memory = SessionFolder(folder)
        self.trainer, self.model_loads = Trainer(own), 1
        if not len(self.trainer.share(client, 0, Split.TRAIN).labels):
            raise DataError(f"{own.data.path}: no training example; this client has nothing to add")
        self._settings, self._participant = "", self.participant(own)

    def under(self, settings: str) -> ProtocolClient:
        """The client under the settings of a run; weights and examples stay as they are.

        Args:
            settings: the run config as it came, a JSON object of dotted keys.

        Raises:
            ConfigError: if they are not sound.
        """
        if settings != self._settings:
            asked = RunConfig.of(_object(settings), "run config")
            self._participant = self.participant(asked)
            self._settings = settings
        return self._participant

    def participant(self, asked: RunConfig) -> ProtocolClient:
        """The client under settings of which those of the client are replaced by its own."""
        config = with_device_settings(asked, self._own).model_copy(
            update={"out": str(self._folder)}
        )
        self.trainer = trainer = self.trainer.under(config)
        run_id = run_id_of(asked, trainer.layout, trainer.model_id)
        own_folder = {"out": str(self._memory.folder_of(run_id))}
        return ProtocolClient(
            trainer, config.model_copy(update=own_folder), asked, self.client, 0, self._memory
        )


def _object(settings: str) -> dict[str, Any]:
    try:
        value = json.loads(settings)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"run config: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError("run config: not a JSON object")
    return value
