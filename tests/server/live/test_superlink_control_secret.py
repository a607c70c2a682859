"""The secret of the control API, and the file modes in a run's folder."""

import asyncio
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from live import serve_app
from typer.testing import CliRunner

from samara.server.commands import app as commands
from samara.server.live.superlink import SECRET_HEADER, AccessFilter
from samara.server.live.superlink_process import SuperLinkProcess
from samara.shared.flower_compat import ControlHttpClient, ListNodesRequest

SECRET = b"5e" * 32
CONTROL_PATHS = (
    *("/v1/control/start-run", "/v1/control/register-node", "/v1/control/list-nodes"),
    *("/docs", "/openapi.json", "/"),
)


class Flower:
    """Flower's app: it accepts every request and records the paths."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        self.paths.append(scope["path"])
        headers = [(b"content-type", b"application/protobuf")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


@contextmanager
def serve(access: AccessFilter) -> Iterator[int]:
    """Serve an app on this machine; yield the port."""
    with serve_app(access) as address:
        yield int(address.rpartition(":")[2])


@contextmanager
def forward_to(port: int) -> Iterator[int]:
    """Forward TCP connections to a port, like an SSH tunnel; yield the tunnel's port."""
    loop, started, ports = asyncio.new_event_loop(), threading.Event(), list[int]()
    connections = set[asyncio.Task[None] | None]()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.current_task())
        there = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))

    async def run() -> None:
        server = await asyncio.start_server(forward, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        started.set()
        with pytest.raises(asyncio.CancelledError):
            await server.serve_forever()
        await asyncio.gather(*filter(None, connections))

    task = loop.create_task(run())
    thread = threading.Thread(target=loop.run_until_complete, args=(task,))
    thread.start()
    started.wait()
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()


def test_a_tunnel_to_this_machine_does_not_open_the_control_api(
    caplog: pytest.LogCaptureFixture,
) -> None:
    flower = Flower()
    wrong_headers: list[dict[str, str]] = [
        *({}, {SECRET_HEADER: ""}, {SECRET_HEADER: SECRET.decode()[:-1]}),
        {SECRET_HEADER: "5f" * 32},
    ]
    with (
        serve(AccessFilter(flower, 100, secret=SECRET)) as port,
        forward_to(port) as tunnel,
        httpx.Client(base_url=f"http://127.0.0.1:{tunnel}") as client,
    ):
        for path in CONTROL_PATHS:
            for headers in wrong_headers:
                assert client.post(path, content=b"run this", headers=headers).status_code == 403
        assert flower.paths == []
        with_secret = {SECRET_HEADER: SECRET.decode()}
        assert client.post(CONTROL_PATHS[0], headers=with_secret).status_code == 200
    assert flower.paths == [CONTROL_PATHS[0]]
    assert "'/v1/control/start-run' without the secret of this run" in caplog.text
    assert len(caplog.records) == 1  # of one sender and reason, whatever the path


def test_a_filter_without_a_secret_keeps_the_control_api_closed() -> None:
    flower = Flower()
    with serve(AccessFilter(flower, 100)) as port:
        for headers in ({}, {SECRET_HEADER: ""}):
            url = f"http://127.0.0.1:{port}/v1/control/start-run"
            assert httpx.post(url, headers=headers).status_code == 403
    assert flower.paths == []


class _StartError(Exception):
    """The SuperLink's process would start at this point."""


def test_the_server_itself_uses_the_secret_of_the_superlinks_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, arguments, environment = tmp_path / "flower", list[str](), dict[str, str]()
    folder.mkdir(mode=0o755)
    database = folder / "superlink.db"
    database.touch(0o644)

    def start(command: list[str], env: dict[str, str], **settings: Any) -> Any:
        arguments.extend(command)
        environment.update(env)
        raise _StartError

    monkeypatch.setattr("samara.server.live.superlink_process.subprocess.Popen", start)
    secrets = []
    for _ in range(2):
        superlink = SuperLinkProcess(folder, "127.0.0.1", 0, None, 100)
        with pytest.raises(_StartError):
            superlink.start()
        file = Path(environment["SAMARA_CONTROL_SECRET"])
        secrets.append(file.read_bytes())
        assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE(database.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert secrets[0] != secrets[1]
    assert len(secrets[1]) == 64
    assert secrets[1].decode() not in " ".join([*arguments, *environment.values()])
    assert arguments.count(str(file)) == 4  # of the SuperLink and its SuperExec, at each start

    flower = Flower()
    with serve(AccessFilter(flower, 100, secret=secrets[1])) as port:
        superlink = SuperLinkProcess(folder, "127.0.0.1", port, None, 100)
        assert superlink.list_nodes() == []
        plain = ControlHttpClient.from_server_address(f"127.0.0.1:{port}", True, None, [])
        with pytest.raises(httpx.HTTPStatusError, match="403"):
            plain.ListNodes(ListNodesRequest())
        plain.close()
    assert flower.paths == ["/v1/control/list-nodes"]


def test_the_files_of_a_run_are_for_its_owner(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "field"
    before = os.umask(0o022)
    try:
        result = CliRunner().invoke(commands, ["keys", "create", "kitchen", "--run", str(run)])
        assert result.exit_code == 0
        child = "import pathlib; pathlib.Path('database').touch()"
        subprocess.run([sys.executable, "-c", child], cwd=run, check=True)
    finally:
        os.umask(before)
    for path in (run, *run.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
