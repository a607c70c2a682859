"""Attacks by strangers and clients on a run's SuperLink, started as by `server up`.

Each attack is a function that takes a running SuperLink and returns a short description of the
outcome. `benchmarks.faults.attacks` prints a table of all attacks.
"""

import json
import os
import socket
import ssl
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from benchmarks.faults.ports import free_port
from benchmarks.faults.signed_requests import connect, is_refused, signed_headers
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.live.superlink_process import SuperLinkProcess
from samara.shared.flower_compat import (
    ControlHttpClient,
    RuntimeVersionHttpInterceptor,
    StartRunRequest,
)
from samara.shared.network.certificates import CERTIFICATES_FOLDER, TlsFiles, make_certificates
from samara.shared.storage.files import make_private_folder

MAX_BYTES = 2**20
_SECONDS = 120.0
_POLL_SECONDS = 0.1


@dataclass
class RunningSuperLink:
    """A SuperLink that serves over TLS, with registered keys.

    Attributes:
        process: the SuperLink.
        run: folder of the run.
        port: port on 127.0.0.1.
        tls: the server's certificate.
        keys: client keys of the run; the private key of `client` is known.
    """

    process: SuperLinkProcess
    run: Path
    port: int
    tls: TlsFiles
    keys: ClientKeys

    @property
    def address(self) -> str:
        """Address of the SuperLink, host:port."""
        return f"127.0.0.1:{self.port}"

    def private_key(self, name: str = "client") -> ec.EllipticCurvePrivateKey:
        """Return a client's private key."""
        file = self.run / KEYS_FOLDER / f"{name}.key"
        private = load_ssh_private_key(file.read_bytes(), None)
        assert isinstance(private, ec.EllipticCurvePrivateKey), "client keys are on elliptic curves"
        return private

    def add_client(self, name: str) -> ec.EllipticCurvePrivateKey:
        """Register another client, and return its private key once the SuperLink accepts it."""
        self.keys.create(name)
        private = self.private_key(name)
        begun = time.monotonic()
        while self.refuses(private):
            assert time.monotonic() - begun < _SECONDS, "a registered key is refused"
        return private

    def refuses(self, private: ec.EllipticCurvePrivateKey) -> bool:
        """Return whether the SuperLink refuses the holder of a key."""
        return is_refused(self.address, self.tls.authority, private)

    def memory(self) -> float:
        """Memory of the SuperLink's process without child processes, in MiB."""
        here = [p for p in psutil.process_iter(["cmdline"]) if self._is_superlink(p)]
        return float(sum(process.memory_full_info().uss for process in here)) / 2**20

    def log_bytes(self) -> int:
        """Total size of the SuperLink's logs, in bytes."""
        files = [*self.run.glob("*log*"), *self.run.glob("flower/*log*")]
        return sum(file.stat().st_size for file in files if file.is_file())

    def _is_superlink(self, process: psutil.Process) -> bool:
        command = process.info["cmdline"] or []
        return "samara.server.live.superlink" in command and str(self.process.folder) in " ".join(
            command
        )


@contextmanager
def running_superlink(folder: Path) -> Iterator[RunningSuperLink]:
    """Run a SuperLink over TLS in a folder inside the context."""
    make_private_folder(folder)
    tls = make_certificates(folder / CERTIFICATES_FOLDER, [])
    keys = ClientKeys(folder / KEYS_FOLDER)
    keys.create("client")
    port = free_port()
    process = SuperLinkProcess(
        folder / "flower", "127.0.0.1", port, tls, MAX_BYTES, folder / KEYS_FOLDER
    )
    before = os.umask(0o077)
    try:
        process.start()
        yield RunningSuperLink(process, folder, port, tls, keys)
    finally:
        process.stop()
        os.umask(before)


def flood_of_requests(link: RunningSuperLink) -> str:
    """Send 100 requests of a stranger that are not Flower messages."""
    before, statuses = link.log_bytes(), set()
    with connect(link.address, link.tls.authority) as http:
        for number in range(100):
            body = b"\xff" * 10_000
            answer = http.post(f"/v1/fleet/push-messages?{number}", content=body)
            statuses.add(answer.status_code)
    return f"{link.log_bytes() - before:,} bytes of log; status {_several(statuses)}"


def endless_bodies(link: RunningSuperLink) -> str:
    """Begin 60 requests, signed by four clients, with bodies of 1 MiB that never end."""
    before = link.memory()
    privates = [link.private_key(), *(link.add_client(f"client-{n}") for n in range(3))]
    requests = [_head(link, private) + bytes(MAX_BYTES - 1) for private in privates]
    with ExitStack() as stack:
        connections = [stack.enter_context(_tls_connection(link)) for _ in range(60)]
        for number, connection in enumerate(connections):
            body = threading.Thread(target=_send_all, args=(connection, requests[number % 4]))
            body.start()
            stack.callback(body.join)
        most, ended = _watch(link, connections)
    return f"{most - before:.0f} MiB at most, all ended within {ended:.0f} s"


def unfinished_handshakes(link: RunningSuperLink) -> str:
    """Open 300 connections that send only the first bytes of a TLS handshake."""
    before = link.memory()
    with ExitStack() as stack:
        connections: list[socket.socket] = []
        for _ in range(300):
            connection = socket.create_connection(("127.0.0.1", link.port), _SECONDS)
            connections.append(stack.enter_context(connection))
            connection.sendall(b"\x16\x03\x01\x02\x00\x01")
        most, ended = _watch(link, connections)
    return f"{most - before:.0f} MiB at most, all ended within {ended:.0f} s"


def start_run_through_a_tunnel(link: RunningSuperLink) -> str:
    """Ask the control API to start a run through a TCP forwarder on the server's machine."""
    version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
    with _forwarder(link.port) as port:
        control = ControlHttpClient.from_server_address(
            f"127.0.0.1:{port}", False, link.tls.authority.read_bytes(), [version]
        )
        try:
            control.StartRun(StartRunRequest())
        except httpx.HTTPStatusError as error:
            return f"refused with status {error.response.status_code}"
        finally:
            control.close()
    return "opened"


def file_modes(link: RunningSuperLink) -> str:
    """Check that other users of the machine cannot read the run's files."""
    files = {"folder": link.run, "database": link.run / "flower" / "superlink.db"}
    return ", ".join(
        f"{name} {stat.S_IMODE(file.stat().st_mode):04o}" for name, file in files.items()
    )


def strict_client(link: RunningSuperLink) -> str:
    """Complete a TLS handshake with the strict checks of Python 3.13."""
    context = ssl.create_default_context(cafile=str(link.tls.authority))
    context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        with (
            socket.create_connection(("127.0.0.1", link.port), _SECONDS) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            return f"accepted, {connection.version()}"
    except ssl.SSLCertVerificationError as error:
        return f"refused: {error.verify_message}"


def stolen_key(link: RunningSuperLink) -> str:
    """Use the key that a client had before its key was rotated."""
    stolen = link.private_key()
    assert not link.refuses(stolen), "a registered key is refused"
    client = _index_of(link)
    link.keys.rotate("client")
    begun = time.monotonic()
    while not link.refuses(stolen):
        assert time.monotonic() - begun < _SECONDS, "the stolen key is not refused"
    seconds = time.monotonic() - begun
    assert not link.refuses(link.private_key()), "the new key is refused"
    assert _index_of(link) == client, "the client has another index"
    return f"refused {seconds:.1f} s after the rotation; the client keeps its index"


def damaged_key_file(link: RunningSuperLink) -> str:
    """Damage the file of one client's key, and check that another client continues."""
    link.keys.create("other")
    file = link.run / KEYS_FOLDER / "other.json"
    file.write_text(json.dumps({"name": "other", "public_key": None})[:-5])
    damage = ClientKeys(link.run / KEYS_FOLDER).find_damage()
    assert not link.refuses(link.private_key()), "a sound key is refused"
    assert link.process.missing_process() == "", "the server has ended"
    file.unlink()
    return f"{len(damage)} key refused; the other clients and the server continue"


def _head(link: RunningSuperLink, private: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the head of a signed request with a body of `MAX_BYTES`."""
    headers = signed_headers(private) | {"host": link.address, "content-length": str(MAX_BYTES)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /v1/fleet/push-messages HTTP/1.1\r\n{lines}\r\n".encode()


def _index_of(link: RunningSuperLink) -> int:
    [client] = [key.client for key in link.keys.read_all() if key.name == "client"]
    return client


def _several(values: set[int]) -> str:
    return ", ".join(map(str, sorted(values)))


def _tls_connection(link: RunningSuperLink) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(link.tls.authority))
    plain = socket.create_connection(("127.0.0.1", link.port), _SECONDS)
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


def _send_all(connection: ssl.SSLSocket, data: bytes) -> None:
    with suppress(OSError):  # the server may end the connection first
        connection.sendall(data)


def _watch(link: RunningSuperLink, connections: Sequence[socket.socket]) -> tuple[float, float]:
    """Wait until the server has answered or ended all connections.

    Returns:
        Maximum memory of the SuperLink during the wait, in MiB, and the seconds of the wait.
    """
    begun, most = time.monotonic(), link.memory()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(_wait_for_ends, connections)
        while not waiting.done():
            most = max(most, link.memory())
            time.sleep(_POLL_SECONDS)
        waiting.result()
    return most, time.monotonic() - begun


def _wait_for_ends(connections: Sequence[socket.socket]) -> None:
    for connection in connections:
        connection.settimeout(_SECONDS)
        with suppress(ConnectionError, ssl.SSLError):
            connection.recv(1)


@contextmanager
def _forwarder(to: int) -> Iterator[int]:
    """Forward connections to another port of this machine, as an SSH tunnel does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_forward, args=(listener, to), daemon=True)
        thread.start()
        yield listener.getsockname()[1]


def _forward(listener: socket.socket, to: int) -> None:
    with suppress(OSError):  # the listener is closed
        while True:
            here, _ = listener.accept()
            there = socket.create_connection(("127.0.0.1", to))
            threading.Thread(target=_relay, args=(here, there), daemon=True).start()


def _relay(here: socket.socket, there: socket.socket) -> None:
    with here, there:
        back = threading.Thread(target=_pump, args=(there, here), daemon=True)
        back.start()
        _pump(here, there)
        back.join()


def _pump(source: socket.socket, goal: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(2**16):
            goal.sendall(data)
    with suppress(OSError):
        goal.shutdown(socket.SHUT_WR)
