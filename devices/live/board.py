"""A board behind a gateway: it answers the tasks of a stream with its resident trainer."""

import json
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

from samara.client.protocol.client import (
    INSTRUCTIONS,
    hear_refusal,
    make_refusal,
    refused_frame,
)
from samara.client.protocol.remote_trainer import RemoteTrainer
from samara.client.protocol.session import decode_instruction
from samara.shared.config import RunConfig
from samara.shared.errors import ConfigError, SamaraError
from samara.shared.frames.hello import Hello
from samara.shared.layout import Layout
from samara.shared.proto.trainer_pb2 import Task, TaskKind
from samara.shared.runs import run_id_of
from samara.shared.wire import Kind, kind_of

log = logging.getLogger("samara.device")

MAX_CONFIG_BYTES = 2**20


class Board:
    """A board's answers to the tasks of a gateway, each a frame; errors are refusals.

    The settings of a task are the run config as JSON; empty ones are those of the task before. An
    instruction's run id must be a hash of them, so that no gateway can change the settings of a
    run, its privacy for instance.

    Args:
        socket: path of the trainer's socket.
        client: client index.
    """

    def __init__(self, socket: Path, client: int) -> None:
        self._socket, self._client, self._settings = socket, client, b""
        self._runs: Collection[bytes] = ()  # under these settings; empty until they are asked for

    def answer(self, task: Task) -> bytes:
        """Return the reply to a task."""
        if task.settings and task.settings != self._settings:
            self._settings, self._runs = task.settings, ()
        try:
            if task.kind == TaskKind.REFUSED:
                return hear_refusal(task.instruction)
            _read_config(self._settings)
            with RemoteTrainer(str(self._socket)) as trainer:
                if task.kind in INSTRUCTIONS:
                    self._check_run(trainer, task.instruction)
                return trainer.answer(self._with_settings(task)).frame
        except SamaraError as error:
            return make_refusal(refused_frame(task), self._client, 0, error)

    def _with_settings(self, task: Task) -> Task:
        whole = Task()
        whole.CopyFrom(task)
        whole.settings = self._settings
        return whole

    def _check_run(self, trainer: RemoteTrainer, instruction: bytes) -> None:
        """Check that an instruction is of the run whose settings came with it, or with one before.

        Raises:
            ConfigError: if it is of another.
            FrameError: if it is no instruction.
        """
        run_id = decode_instruction(instruction).run_id
        if not self._runs:
            question = Task(kind=TaskKind.HELLO, settings=self._settings)
            introduction = trainer.answer(question).frame
            if kind_of(introduction) is Kind.REFUSAL:
                return  # the trainer refuses the instruction, too
            hello = Hello.decode(introduction)
            config = RunConfig.of(_read_config(self._settings), "run config")
            named = run_id_of(config, Layout.from_json(hello.layout), hello.model_id)
            self._runs = config.terms.federations(named)
        if run_id not in self._runs:
            raise ConfigError(
                f"the settings that came with the instruction are not those of run {run_id.hex()}"
            )


def _read_config(settings: bytes) -> dict[str, Any]:
    """Return the run config in a task, whose values the trainer checks.

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
    return config
