"""`samara gateway up` as a process, a phone that attaches to it by TLS, and a browser."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from live import QUIET, attempts, terminate
from web_phones import PAGE, StreamEndedError, WebSocketStub, make_page, open_stream

from benchmarks.faults.ports import free_address
from samara.devices.live.connection.gateway_endpoint import GatewayEndpoint
from samara.devices.live.connection.gateway_stream import answer_tasks, attach
from samara.devices.live.keys import create_key
from samara.devices.phone.manifest import hash_program
from samara.devices.phone.program_index import ListedFile, ProgramIndex, Tokenization
from samara.shared.errors import DeviceError
from samara.shared.protocol.signing import SigningKey

pytestmark = pytest.mark.slow


@contextmanager
def gateway(place: Path, listen: str, web: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A gateway's process, yielded when phones can attach; its SuperNode finds no server."""
    said = place / "gateway.said"
    said.unlink(missing_ok=True)
    with said.open("ab") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "samara", "gateway", "up", "--listen", listen),
                *("--superlink", free_address(), "--key", str(place / "node.key")),
                *("--phones", str(place / "phones"), "--home", str(place / "home")),
                *("--web", web, "--page", str(place / "page"), "--program", str(place / "m.onnx")),
            ],
            cwd=place,
            env={**os.environ, **QUIET},
            stdout=log,
            stderr=log,
        )
    try:
        for _ in attempts("phones to be let in"):
            assert process.poll() is None, said.read_text()
            if f"browsers open http://{web}" in said.read_text():
                break
        yield process
    finally:
        process.kill()
        process.wait()


def make_program(program: Path) -> None:
    """Write placeholders for the files of a program, and the index that lists them."""
    for file in (program, program.with_suffix(".json")):
        file.write_bytes(file.name.encode())
    how = Tokenization(special=False, before=[], after="", limit=1, answers=[])
    graph, manifest = (
        ListedFile(sha256=hash_program(file), bytes=file.stat().st_size)
        for file in (program, program.with_suffix(".json"))
    )
    ProgramIndex(
        version=1,
        manifest=manifest,
        graph=graph,
        weights=[],
        tokenizer={},
        task={},
        tokenization=how,
        examples=[],
    ).write(program)


def answer_all(key: SigningKey, browser: WebSocketStub) -> None:
    """Attach as a browser that gets no task, until the gateway ends the stream."""
    nobody: Any = None
    with pytest.raises(StreamEndedError):
        list(answer_tasks(nobody, key, browser))


@pytest.mark.usefixtures("cold_start")  # it looks at the children of processes
def test_phones_attach_come_back_after_a_kill_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "phones").mkdir()
    for name in ("node", "phone", "browser", "stranger"):
        create_key(tmp_path / f"{name}.key")
    key, of_browser = (SigningKey(tmp_path / f"{name}.key") for name in ("phone", "browser"))
    (tmp_path / "phones" / "one.pem").write_bytes(key.public)
    (tmp_path / "phones" / "two.pem").write_bytes(of_browser.public)
    make_page(tmp_path / "page")
    make_program(tmp_path / "m.onnx")
    listen, web = (free_address() for _ in range(2))
    said = tmp_path / "gateway.said"
    door = GatewayEndpoint(listen, tmp_path / "home" / "certificates" / "ca.pem")
    nobody: Any = None  # a phone that is asked nothing answers nothing
    stop = threading.Event()
    phone = threading.Thread(target=attach, args=(nobody, key, door, stop), daemon=True)
    with gateway(tmp_path, listen, web) as process:
        phone.start()
        for _ in attempts("the phone"):
            if "1 phones attached" in said.read_text():
                break
        assert httpx.get(f"http://{web}/").content == PAGE["index.html"]
        assert httpx.get(f"http://{web}/program/index.json").json()["version"] == 1
        browser = WebSocketStub(lambda: open_stream(f"http://{web}"))
        tasks = threading.Thread(target=answer_all, args=(of_browser, browser), daemon=True)
        tasks.start()
        for _ in attempts("the browser"):
            if "2 phones attached" in said.read_text():
                break
        with pytest.raises(DeviceError, match="this key is not admitted"):
            attach(nobody, SigningKey(tmp_path / "stranger.key"), door, threading.Event())
        children = psutil.Process(process.pid).children()
        assert children
        os.kill(process.pid, signal.SIGKILL)
        tasks.join(60)
        psutil.wait_procs(children, 60)
        assert not any(child.is_running() for child in children)
    with gateway(tmp_path, listen, web) as process:
        for _ in attempts("the phone to come back"):
            if "1 phones attached" in said.read_text():
                break
        stop.set()
        children = psutil.Process(process.pid).children()
        assert terminate(process) == 0
        assert not any(child.is_running() for child in children)
    assert not (tmp_path / "home" / "executor.secret").exists()
