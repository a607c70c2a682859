"""A board behind a gateway: it answers the tasks of a stream with its resident trainer."""

import json
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from samara.client.protocol.client_handler import decode_instruction, make_refusal
from samara.client.protocol.remote_trainer import RemoteTrainer
from samara.shared.config import RunConfig
from samara.shared.errors import ConfigError, SamaraError
from samara.shared.frames.hello import Hello
from samara.shared.frames.refusal import Refusal, describe_servers_refusal
from samara.shared.layout import Layout
from samara.shared.ledger.records import CatchUp
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

    def hello(self, settings: bytes) -> bytes:
        """Return the hello of the client."""
        return self._answer(b"", settings, lambda trainer: trainer.hello())

    def mask(self, frame: bytes, settings: bytes) -> bytes:
        """Return the answer to a masking frame."""
        return self._answer(b"", settings, lambda trainer: trainer.mask(frame))

    def train(self, instruction: bytes, catch_up: CatchUp, settings: bytes, shares: bytes) -> bytes:
        """Catch up, train, and report; a repeated instruction gets the stored report."""

        def reply(trainer: RemoteTrainer) -> bytes:
            self._check_run(trainer, instruction)
            refusal = trainer.mask(shares) if shares else b""
            return refusal or trainer.catch_up(instruction, catch_up) or trainer.train(instruction)

        return self._answer(instruction, settings, reply)

    def evaluate(
        self, instruction: bytes, catch_up: CatchUp, settings: bytes, personal: bool
    ) -> bytes:
        """Catch up, and evaluate the global model, or the personal model and its baselines."""

        def reply(trainer: RemoteTrainer) -> bytes:
            self._check_run(trainer, instruction)
            refusal = trainer.catch_up(instruction, catch_up)
            return refusal or trainer.evaluate(instruction, personal)

        return self._answer(instruction, settings, reply)

    def receive_blob(self, part: bytes, settings: bytes) -> bytes:
        """Keep a part of a file that the run needs, and return the receipt."""
        return self._answer(part, settings, lambda trainer: trainer.receive_blob(part))

    def hear_refusal(self, refusal: bytes) -> bytes:
        """Log why the server refuses this client, and return its refusal."""
        try:
            log.warning("%s", describe_servers_refusal(Refusal.decode(refusal).code))
        except SamaraError as error:
            return make_refusal(refusal, self._client, 0, error)
        return refusal

    def _answer(
        self, instruction: bytes, settings: bytes, reply: Callable[[RemoteTrainer], bytes]
    ) -> bytes:
        if settings and settings != self._settings:
            self._settings, self._runs = settings, ()
        try:
            with RemoteTrainer(str(self._socket), _read_config(self._settings)) as trainer:
                return reply(trainer)
        except SamaraError as error:
            return make_refusal(instruction, self._client, 0, error)

    def _check_run(self, trainer: RemoteTrainer, instruction: bytes) -> None:
        """Check that an instruction is of the run whose settings came with it, or with one before.

        Raises:
            ConfigError: if it is of another.
            FrameError: if it is no instruction.
        """
        run_id = decode_instruction(instruction).run_id
        if not self._runs:
            introduction = trainer.hello()
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
