"""Processes with 64 file descriptors, while strangers open as many connections as they can."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from forked import LOADED
from gateways import Echo, keys_in
from live import attempts

from benchmarks.scale.fake_phones import Host
from samara.devices.live.connection.gateway_endpoint import GatewayEndpoint
from samara.devices.live.connection.gateway_stream import attach
from samara.shared.protocol.client_index import client_index_of_key

pytestmark = pytest.mark.slow

DESCRIPTORS, CONNECTIONS = 64, 40
SECONDS = 20.0
SERVER = f"""{LOADED}
import logging, socket, sys, uvicorn
from samara.server.live.connection_limits import LimitedLoop, LimitedProtocol
from samara.server.live.superlink import FILTER_PATH, AccessFilter

async def flower(scope, receive, send):
    raise AssertionError("nobody has the secret")

access = AccessFilter(flower, 100)
LimitedLoop.lines = access.lines
loop = f"{{LimitedLoop.__module__}}:{{LimitedLoop.__name__}}"
config = uvicorn.Config(
    access, "127.0.0.1", int(sys.argv[1]), loop=loop, http=LimitedProtocol, ws="none",
    lifespan="off", log_level="error", access_log=False,
)
uvicorn.Server(config).run()
"""


@contextmanager
def held(port: int, count: int) -> Iterator[None]:
    """Open a number of connections that send nothing."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), SECONDS))
        yield


def few_descriptors(process: int) -> None:
    psutil.Process(process).rlimit(psutil.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


def test_phones_attach_and_answer_among_more_connections_than_descriptors(tmp_path: Path) -> None:
    keys, host, stop = keys_in(tmp_path, 2), None, threading.Event()
    for number, key in enumerate(keys):
        (tmp_path / f"{number}.pem").write_bytes(key.public)
    host = Host(tmp_path)
    try:
        few_descriptors(host.process)
        endpoint = GatewayEndpoint(f"127.0.0.1:{host.port}", host.authority)
        with held(host.port, CONNECTIONS):
            for key in keys:
                phone = Echo(client_index_of_key(key.public))
                arguments = (phone, key, endpoint, stop)
                threading.Thread(target=attach, args=arguments, daemon=True).start()
            for _ in attempts("the phones to attach"):
                if host.ask("")["attached"] == len(keys):
                    break
            with held(host.port, CONNECTIONS):
                assert len(host.ask("an instruction")["answers"]) == len(keys)
    finally:
        stop.set()
        host.kill()


def test_a_server_answers_among_more_connections_than_descriptors(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url, said = f"http://127.0.0.1:{port}/samara/access-filter", tmp_path / "said"
    with said.open("wb") as output, httpx.Client(trust_env=False, timeout=SECONDS) as client:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(port)], stdout=output, stderr=output
        )
        try:
            for _ in attempts("the server"):
                try:
                    assert client.get(url).status_code == 204
                    break
                except httpx.TransportError:
                    assert server.poll() is None, said.read_text()
            few_descriptors(server.pid)
            with held(port, CONNECTIONS), held(port, CONNECTIONS):
                for _ in attempts("an answer"):
                    try:
                        assert httpx.get(url, trust_env=False, timeout=SECONDS).status_code == 204
                        break
                    except httpx.TransportError:
                        assert server.poll() is None, said.read_text()
        finally:
            server.terminate()
            server.wait()
    lines = said.read_text().splitlines()
    assert len([line for line in lines if "no file descriptor is left" in line]) <= 2
    assert len(lines) < 10, lines
    assert "no file descriptor is left; raise `ulimit -n`" in said.read_text()
