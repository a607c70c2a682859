"""Trainers of live clients, in this process or in separate processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from federations import Live, Settings
from live import QUIET, attempts

from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.trainer.remote_trainer import RemoteTrainer
from samara.devices.live.settings import ClientSettings, resolve_device_settings
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.settings.config import RunConfig

CLIENTS = (7, 4_000_000_000)


START_SECONDS = 300.0


def device_settings(settings: Settings, device: int, folder: Path) -> ClientSettings:
    device_settings = resolve_device_settings(
        settings["model.path"], settings["data.path"], settings["task"], "cpu", ["threads=1"]
    )
    return ClientSettings(
        name="a",
        folder=folder,
        superlink="127.0.0.1:1",
        client_index=device,
        device_settings=device_settings,
        insecure=True,
    )


def resident(settings: Settings, device: int, folder: Path) -> ResidentTrainer:
    return ResidentTrainer.load(device_settings(settings, device, folder).config, device, folder)


@contextmanager
def process(settings: ClientSettings) -> Iterator[Callable[[], None]]:
    """Run a trainer process; yield a function that kills it and starts another."""
    settings.folder.mkdir(exist_ok=True)
    settings.write()
    running: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        command = [sys.executable, "-m", "samara.devices.live.trainer_process"]
        running.append(
            subprocess.Popen(
                [*command, str(settings.folder), str(os.getpid())], env={**os.environ, **QUIET}
            )
        )
        with RemoteTrainer(str(settings.socket), START_SECONDS):
            pass

    def kill() -> None:
        os.kill(running[-1].pid, signal.SIGKILL)
        running[-1].wait()
        start()

    start()
    try:
        yield kill
    finally:
        running[-1].terminate()
        assert running[-1].wait(START_SECONDS) == 0
        assert not settings.socket.exists()


def under(home: Path) -> Path:
    """The folder of a client's private files in its only run."""
    (folder,) = home.glob("runs/*/clients/*")
    return folder


def rounds_of(folder: Path) -> list[tuple[bytes, bytes]]:
    """A client's private rounds, without the run id, and the digest of the state after each."""
    records = list(read_ledger(folder / "personal.ledger"))
    assert records
    return [(record.delta.encode(), record.end_digest) for record in records]


def is_idle(home: Path) -> bool:
    """Return whether no private rounds of a client are due."""
    return not list(home.glob("runs/*/clients/*/personalization")) + list(
        home.glob("runs/*/clients/*/personalization.next")
    )


class Unhurried(Live):
    """Waits until no private rounds of a client are due, and then delivers messages."""

    def __init__(
        self, sockets: Sequence[Path], config: RunConfig, is_ready: Callable[[], bool]
    ) -> None:
        super().__init__(sockets, config)
        self._is_ready = is_ready

    def push_messages(self, messages: Any) -> Any:
        for _ in attempts("the private rounds"):
            if self._is_ready():
                return super().push_messages(messages)
        raise AssertionError
