"""A board behind a gateway: it answers the tasks of a stream with its resident trainer."""

import json
import logging
from pathlib import Path

from samara.client.protocol.client import hear_refusal, make_refusal, refused_frame
from samara.client.protocol.remote_trainer import RemoteTrainer
from samara.shared.errors import ConfigError, SamaraError
from samara.shared.proto.trainer_pb2 import Task, TaskKind

log = logging.getLogger("samara.device")

MAX_CONFIG_BYTES = 2**20


class Board:
    """A board's answers to the tasks of a gateway, each a frame; errors are refusals.

    The settings of a task are the run config as JSON; empty ones are those of the task before.

    Args:
        socket: path of the trainer's socket.
        client: client index.
    """

    def __init__(self, socket: Path, client: int) -> None:
        self._socket, self._client, self._settings = socket, client, b""

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
    """Raise an error unless a task has a run config, whose values the trainer checks.

    Raises:
        ConfigError: if it is too long, or no JSON object.
    """
    if len(settings) > MAX_CONFIG_BYTES:
        raise ConfigError(f"the gateway sent a run config of over {MAX_CONFIG_BYTES} bytes")
    try:
        config = json.loads(settings)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the gateway sent no run config: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError("the gateway sent a run config that is no object")
