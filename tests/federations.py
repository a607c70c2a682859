"""Configurations and engines of small federations."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType
from helpers import files_of
from numpy.typing import NDArray

from samara.client.app import TRAINER
from samara.client.app import app as client_app
from samara.client.training.local_steps import take_local_steps
from samara.client.training.model_runtime import LoadedRun, ModelRuntime, load_run
from samara.server.app import serve
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.ledger.ledger import Ledger
from samara.shared.protocol.round_delta import RoundDelta
from samara.shared.settings.blobs import publish_blobs
from samara.shared.settings.config import RunConfig
from samara.shared.storage.blob_store import BlobStore
from samara.simulations.engines.in_process import InProcessGrid, ignore_message

Settings = dict[str, Any]
Simulated = Callable[..., Path]
"""The fixture `simulated`: takes settings and changes to them."""


def loaded(settings: Settings, **changes: Any) -> LoadedRun:
    return load_run(config_of(settings, **changes))


def config_of(settings: Settings, **changes: Any) -> RunConfig:
    dotted = {key.replace("__", ".").replace("_", "-"): value for key, value in changes.items()}
    return RunConfig.of(settings | dotted, "test")


def short_run(clients: int, out: Path, **changes: Any) -> RunConfig:
    """Settings of a few rounds with toy clients, for tests that disturb the run."""
    settings: Settings = {
        "out": str(out),
        "rounds": 2,
        "steps": 1,
        "queries": 2,
        "learning-rate": 0.001,
        "data.clients": clients,
        "personal.rounds": 0,
        "evaluate.every": 0,
        "cohort.timeout": 0.05,
    }
    return config_of(settings, **changes)


def ledger_of(folder: Path) -> dict[str, bytes]:
    return files_of(folder / "ledger")


class Tampering(InProcessGrid):
    """Delivers every reply as changed by `tamper`."""

    tamper: Callable[[Message], Message] = staticmethod(lambda reply: reply)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.tamper(reply) for reply in super().pull_messages(message_ids)]


class Live(InProcessGrid):
    """Delivers messages to resident trainers behind sockets."""

    def __init__(
        self,
        sockets: Sequence[Path],
        config: RunConfig,
        on_message: Callable[[str, int], None] = ignore_message,
    ) -> None:
        nodes = [{TRAINER: str(socket)} for socket in sockets]
        super().__init__(client_app, len(sockets), config.flat(), on_message, nodes=nodes)


def grid_of(config: RunConfig, kind: type[InProcessGrid] = InProcessGrid) -> InProcessGrid:
    return kind(client_app, config.data.clients, config.flat())


def serve_until_killed(config: RunConfig, messages: int) -> None:
    """Serve a run; its process ends while a client works on a given train message."""
    config = publish_blobs(config, BlobStore())
    grid = grid_of(config)
    plain, trained = grid._deliver, []

    def dies(message: Message) -> Message:
        if message.metadata.message_type == MessageType.TRAIN:
            trained.append(message)
            if len(trained) == messages:
                raise KeyboardInterrupt
        return plain(message)

    grid._deliver = dies  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        serve(config, grid)


def serve_until_recording(config: RunConfig, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve a run; its process ends before a given round is in the ledger."""
    append = Ledger.append

    def dies(ledger: Ledger, delta: RoundDelta) -> int:
        if delta.round == number:
            raise KeyboardInterrupt
        return append(ledger, delta)

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "append", dies)
        with pytest.raises(KeyboardInterrupt):
            serve(config, grid_of(config))


def wrap_local_steps(monkeypatch: pytest.MonkeyPatch, wrapper: Callable[..., Report]) -> None:
    """Replace the clients' local steps by a wrapper, whose first argument is the original function.

    Its other arguments are those of `take_local_steps`: runtime, data, instruction, state, mask.
    """

    def wrapped(*arguments: Any) -> Report:
        return wrapper(take_local_steps, *arguments)

    monkeypatch.setattr("samara.client.personal.runtime_learner.take_local_steps", wrapped)


class RecordingGrid(InProcessGrid):
    """Records every byte of every message and reply."""

    traffic: list[bytes]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self.traffic += [_bytes_of(message) for message in messages]
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(message_ids))
        self.traffic += [_bytes_of(reply) for reply in replies]
        return replies


def _bytes_of(message: Message) -> bytes:
    """Return all bytes in a message; a Samara message has one record of byte strings."""
    assert not message.content.array_records
    assert not message.content.metric_records
    (record,) = message.content.config_records.values()
    values = list(record.values())
    assert all(isinstance(value, bytes) for value in values)
    return b"".join(values)  # type: ignore[arg-type]


def state_of(runtime: ModelRuntime) -> NDArray[np.int64]:
    """A random state, at which no gradient vanishes."""
    values = np.random.default_rng(1).normal(0, 0.1, runtime.layout.size)
    return (values * 2.0**51).astype(np.int64)
