"""`samara client up` with a real SuperLink, in separate processes on loopback."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from live import SuperLink, attempts, rounds_of, start_client, terminate

from samara.client.personal.personalizations import read_personalizations
from samara.client.protocol.session_store import decode_session
from samara.client.trainer.remote_trainer import RemoteTrainer
from samara.devices.live.keys import create_key, read_client_index
from samara.shared.settings.config import RunConfig

pytestmark = pytest.mark.slow
NAMES = ("kitchen", "garden")


def processes_of(folder: Path) -> list[psutil.Process]:
    """The running processes whose command line contains the folder."""
    return [p for p in psutil.process_iter(["cmdline"]) if str(folder) in str(p.info["cmdline"])]


def trainer_of(folder: Path) -> psutil.Process:
    [found] = [
        p
        for p in processes_of(folder)
        if "samara.devices.live.trainer_process" in p.info["cmdline"]
    ]
    return found


@pytest.fixture
def service_manager(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    """The socket on which systemd would receive notifications of its services."""
    address = str(tmp_path_factory.mktemp("n") / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        yield manager


def test_two_clients_take_part_and_leave_nothing_behind(
    settings: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
    service_manager: socket.socket,
) -> None:
    place = tmp_path_factory.mktemp("e")  # short: sockets lie in it
    run = place / "run"
    asked = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    more = {
        "out": str(run),
        "cohort.available": 2,
        "evaluate.every": 0,
        "personal.rounds": 1,
        "personal.when": "every 2 rounds",
    }
    config = RunConfig.of(settings | asked | more, "test")
    options = [
        *("--model", settings["model.path"], "--data", settings["data.path"]),
        *("--task", settings["task"], "--set", "threads=1"),
    ]
    link = SuperLink(place / "link")
    clients: list[subprocess.Popen[bytes]] = []
    killed = 0
    try:
        number = link.start_run(config)
        keys = [place / f"{name}.key" for name in NAMES]
        for key in keys:
            create_key(key)
            link.register(key)
        clients = [start_client(link, key, place / key.stem, *options) for key in keys]
        for _ in attempts("the run to finish", 600):
            for client, name in zip(clients, NAMES, strict=True):
                assert client.poll() is None, (place / f"{name}.log").read_text()[-4000:]
            if not killed and rounds_of(run):
                killed = trainer_of(place / "kitchen").pid
                os.kill(killed, signal.SIGKILL)
            if (run / "result.json").exists() and link.is_finished(number):
                break
        rounds = rounds_of(run)
        assert len(rounds) == 3, link.log_tail()
        assert service_manager.recv(64) == b"READY=1"
        assert b"WATCHDOG=1" in [service_manager.recv(64) for _ in NAMES]
        assert trainer_of(place / "kitchen").pid != killed
        assert set(rounds[0]["clients"]) == {str(read_client_index(key)) for key in keys}
        for name in NAMES:
            with RemoteTrainer(str(place / name / "trainer.sock")) as trainer:
                assert trainer.status().model_loads == 1
            [session] = (place / name).glob("runs/*/session")
            assert decode_session(session.read_bytes()).digest.hex() == rounds[-1]["digest"]
            assert list((place / name).glob("runs/*/clients/*/personal.ledger/*.seg"))
            [own] = (place / name).glob("runs/*/clients/*")
            taken = [one.global_round for one in read_personalizations(own)]
            assert taken in ([2, 3], [3])  # the killed one may have been away after round 2
        clients[1].kill()
    finally:
        statuses = [terminate(client) for client in clients]
        terminate(link.process)
    assert statuses == [0, -9]
    for _ in attempts("what the killed client started to end with it"):
        if not processes_of(place):
            break
    assert not list(place.glob("*/trainer.sock"))
