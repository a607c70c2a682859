"""`samara gateway up` as a process, and a phone that attaches to it by TLS."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from live import QUIET, attempts, terminate

from devices.live.gateway_endpoint import GatewayEndpoint
from devices.live.gateway_stream import attach
from devices.live.keys import create_key
from shared.errors import DeviceError
from shared.signing import SigningKey

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def gateway(place: Path, listen: str) -> Iterator["subprocess.Popen[bytes]"]:
    """The process, once phones can attach; its SuperNode finds no server."""
    said = place / "gateway.said"
    said.unlink(missing_ok=True)
    with said.open("ab") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "samara", "gateway", "up", "--listen", listen),
                *("--superlink", f"127.0.0.1:{free_port()}", "--key", str(place / "node.key")),
                *("--phones", str(place / "phones"), "--home", str(place / "home")),
            ],
            cwd=place,
            env={**os.environ, **QUIET},
            stdout=log,
            stderr=log,
        )
    try:
        for _ in attempts("phones to be let in"):
            assert process.poll() is None, said.read_text()
            if "phones attach at port" in said.read_text():
                break
        yield process
    finally:
        process.kill()
        process.wait()


def test_phones_attach_come_back_after_a_kill_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "phones").mkdir()
    for name in ("node", "phone", "stranger"):
        create_key(tmp_path / f"{name}.key")
    key = SigningKey(tmp_path / "phone.key")
    (tmp_path / "phones" / "one.pem").write_bytes(key.public)
    listen, said = f"127.0.0.1:{free_port()}", tmp_path / "gateway.said"
    door = GatewayEndpoint(listen, tmp_path / "home" / "certificates" / "ca.pem")
    nobody: Any = None  # a phone that is asked nothing answers nothing
    stop = threading.Event()
    phone = threading.Thread(target=attach, args=(nobody, key, door, stop), daemon=True)
    with gateway(tmp_path, listen) as process:
        phone.start()
        for _ in attempts("the phone"):
            if "1 phones attached" in said.read_text():
                break
        with pytest.raises(DeviceError, match="this key is not admitted"):
            attach(nobody, SigningKey(tmp_path / "stranger.key"), door, threading.Event())
        children = psutil.Process(process.pid).children()
        assert children
        os.kill(process.pid, signal.SIGKILL)
        psutil.wait_procs(children, 60)
        assert not any(child.is_running() for child in children)
    with gateway(tmp_path, listen) as process:
        for _ in attempts("the phone to come back"):
            if "1 phones attached" in said.read_text():
                break
        stop.set()
        children = psutil.Process(process.pid).children()
        assert terminate(process) == 0
        assert not any(child.is_running() for child in children)
    assert not (tmp_path / "home" / "executor.secret").exists()
