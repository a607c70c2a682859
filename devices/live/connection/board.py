"""A board behind a gateway; the board's resident trainer answers the tasks of a stream."""

import json
import logging
from pathlib import Path

from samara.client.protocol.client import hear_refusal, make_refusal, refused_frame
from samara.client.trainer.remote_trainer import RemoteTrainer
from samara.shared.errors import ConfigError, SamaraError
from samara.shared.proto.trainer_pb2 import Task, TaskKind

log = logging.getLogger("samara.device")

MAX_CONFIG_BYTES = 2**20


class Board:
    """Answers a gateway's tasks with frames; an error becomes a refusal.

    A task may contain a run config as JSON. Otherwise, the previous task's run config still
    applies.

    Args:
        socket: path of the trainer's socket.
        client: client index.
    """

    def __init__(self, socket: Path, client: int) -> None:
        self._socket = socket
        self._client = client
        self._settings = b""

    def answer(self, task: Task) -> bytes:
        """Return the reply to a task."""
        self._settings = task.settings or self._settings
        try:
            if task.kind == TaskKind.REFUSED:
                return hear_refusal(task.instruction)
            _check_config(self._settings)
            with RemoteTrainer(str(self._socket)) as trainer:
                return trainer.answer(self._with_settings(task)).frame
        except SamaraError as error:
            return make_refusal(refused_frame(task), self._client, 0, error)

    def _with_settings(self, task: Task) -> Task:
        whole = Task()
        whole.CopyFrom(task)
        whole.settings = self._settings
        return whole


def _check_config(settings: bytes) -> None:
    """Check that a task has a run config; the trainer checks the config's values.

    Raises:
        ConfigError: if the run config is too long, or is not a JSON object.
    """
    if len(settings) > MAX_CONFIG_BYTES:
        raise ConfigError(f"the gateway sent a run config of over {MAX_CONFIG_BYTES} bytes")
    try:
        config = json.loads(settings)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the gateway sent a run config that is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError("the gateway sent a run config that is not a JSON object")
