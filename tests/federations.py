"""Configurations and engines of small federations."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Message
from helpers import files_of

from client.app import app as client_app
from shared.config import RunConfig
from simulations.engine import InProcessGrid

Settings = dict[str, Any]


def config_of(settings: Settings, **changes: Any) -> RunConfig:
    dotted = {key.replace("__", ".").replace("_", "-"): value for key, value in changes.items()}
    return RunConfig.of(settings | dotted, "test")


def ledger_of(folder: Path) -> dict[str, bytes]:
    return files_of(folder / "ledger")


class Tampering(InProcessGrid):
    """Delivers what `tamper` makes of each reply."""

    tamper: Callable[[Message], Message] = staticmethod(lambda reply: reply)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.tamper(reply) for reply in super().pull_messages(message_ids)]


def grid_of(config: RunConfig, kind: type[InProcessGrid] = InProcessGrid) -> InProcessGrid:
    return kind(client_app, config.data.clients, config.flat())
