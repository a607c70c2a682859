"""Strangers at a gateway's page server, whose streams and requests must not be admitted.

    python -m benchmarks.faults.hostile_web [--connections 1000] [--slow 200]

A gateway serves a page over TLS in a separate process, in front of a server that answers requests
about invitations. One admitted phone is attached by WebSocket, and answers a task after each tenth
of the hostile connections. The hostile connections are of each kind below in turn. Then, twice,
slow connections are held open at the same time; they send and read little or nothing. The program
prints how connections of each kind ended, how many slow connections were closed, and the gateway's
resident memory.
"""

import asyncio
import json
import multiprocessing
import ssl
import tempfile
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from benchmarks.arguments import arguments
from samara.devices.gateway.gateway import MAX_ANSWER_BYTES, Gateway
from samara.devices.gateway.page_server.join_relay import JoinRelay
from samara.devices.gateway.page_server.listening import PageServer
from samara.devices.gateway.page_server.page_app import PageApp
from samara.devices.gateway.page_server.published_files import PublishedFile
from samara.devices.gateway.page_server.web_socket_stream import SUBPROTOCOL
from samara.devices.gateway.server_requests import ServerRequests
from samara.server.live.invitations import Invitations, invite_client
from samara.server.live.join_filter import JoinFilter
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.shared.network.certificates import TlsFiles, make_certificates
from samara.shared.network.http.listening import open_tcp, server_config
from samara.shared.network.invitation import JOIN_PATH, JoinRequest, join_proof
from samara.shared.proto.trainer_pb2 import FromPhone, Proof, Task, TaskKind, TaskResult, ToPhone
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.protocol.frames.instructions import token_of
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.signing import answer_bytes, proof_bytes, public_pem, sign

LARGE = 64 * 2**20
"""Size in bytes of the file that slow readers request."""
AT_ONCE = 50
UNREAD_SECONDS = 90.0
"""Seconds for which slow readers do not read the file."""
WAVES = 2
MOST_SLOW_SECONDS = 240.0
"""Seconds after which a connection counts as not closed by the gateway."""
SECONDS = 60.0
STREAMS = (
    "page of another site",
    "no origin",
    "no proof",
    "a text",
    "forged proof",
    "unknown key",
    "message too long",
    "endless fragments",
)
REQUESTS = "no HTTP", "path out of the folder", "replayed invitation"
SLOW = "no TLS", "half a request", "half a body", "half a proof", "file not read"


def serve(folder: Path, phone: bytes, pipe: Connection) -> None:
    """Serve a page and invitations in a separate process, until the pipe receives a message."""
    asyncio.run(_serve(folder, phone, pipe))


async def _serve(folder: Path, phone: bytes, pipe: Connection) -> None:
    tls = make_certificates(folder / "certificates", [])
    listener = open_tcp("127.0.0.1", 0)
    joining = server_config(JoinFilter(Invitations(folder)))
    joining.ssl_certfile, joining.ssl_keyfile = tls.certificate, tls.key
    server = uvicorn.Server(joining)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    gateway = Gateway(lambda key: key == phone)
    files = {"/large.bin": PublishedFile(folder / "large.bin", "0" * 64)}
    relay = JoinRelay(ServerRequests(address, tls.authority))
    page = PageServer(PageApp(gateway, files, relay), tls.certificate, tls.key)
    pipe.send(await page.start("127.0.0.1:0"))
    while command := await asyncio.to_thread(pipe.recv):
        if command == "ask":
            task = Task(kind=TaskKind.TRAIN, instruction=b"an instruction")
            pipe.send(list(await gateway.ask(task, SECONDS)))
        else:
            pipe.send((gateway.attached_phones, sum(gateway.refused.values())))
    await page.stop()
    server.should_exit = True
    await serving


class Stranger:
    """A stranger with unregistered keys, a server's address, and a used invitation.

    Args:
        port: port of the page server.
        tls: certificate of its authority.
        used: body of a request to join with a used invitation and another key.
    """

    def __init__(self, port: int, tls: TlsFiles, used: bytes) -> None:
        self._port, self._used, self._key = port, used, ec.generate_private_key(ec.SECP256R1())
        self._context = ssl.create_default_context(cafile=str(tls.authority))
        self._origin = f"https://127.0.0.1:{port}"

    def stream(self, origin: str | None = "") -> Any:
        """Return a WebSocket that is not yet opened."""
        return connect(
            f"wss://127.0.0.1:{self._port}/stream",
            ssl=self._context,
            origin=self._origin if origin == "" else origin,  # type: ignore[arg-type]
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
            compression=None,
            ping_interval=None,
            max_size=None,
            open_timeout=SECONDS,
        )

    async def connect(self, tls: bool = True) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection without a WebSocket, over TLS or TCP."""
        context = self._context if tls else None
        return await asyncio.open_connection("127.0.0.1", self._port, ssl=context)

    async def be(self, kind: str) -> str:
        """Make a hostile connection of a kind, and return a description of how it ended."""
        try:
            if kind in REQUESTS:
                return await self._request(kind)
            origin = {STREAMS[0]: "https://evil.example", STREAMS[1]: None}.get(kind, "")
            async with self.stream(origin) as opened:
                return await self._misuse(opened, kind)
        except InvalidHandshake as error:
            return str(error).rpartition(" ")[2]
        except (OSError, ConnectionClosed) as error:
            return type(error).__name__

    async def _misuse(self, opened: ClientConnection, kind: str) -> str:
        nonce = ToPhone.FromString(await opened.recv()).challenge.nonce
        signed = nonce if kind == "unknown key" else bytes(32)
        proof = Proof(
            public_key=public_pem(self._key), signature=sign(self._key, proof_bytes(signed))
        )
        said: dict[str, Any] = {
            "no proof": b"x" * 100,
            "a text": "x" * 100,
            "message too long": bytes(MAX_ANSWER_BYTES + 1),
            "endless fragments": [bytes(2**16)] * 2**8,
        }
        with suppress(ConnectionClosed):
            await opened.send(said.get(kind, FromPhone(proof=proof).SerializeToString()))
        with suppress(ConnectionClosed):
            while await opened.recv():
                pass
        return str(opened.close_code)

    async def _request(self, kind: str) -> str:
        reader, writer = await self.connect()
        head = f"Host: 127.0.0.1\r\nContent-Length: {len(self._used)}\r\n\r\n".encode()
        said = {
            "no HTTP": b"\0" * 1000 + b"\r\n\r\n",
            "path out of the folder": b"GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n",
            "replayed invitation": f"POST {JOIN_PATH} HTTP/1.1\r\n".encode() + head + self._used,
        }
        writer.write(said[kind])
        line = await reader.readline()
        writer.close()
        return line.split()[1].decode() if line else "ended"

    async def hold(self, kind: str) -> bool:
        """Hold a slow connection of a kind open, and return whether the gateway has closed it."""
        asked = "GET /large.bin" if kind == "file not read" else f"POST {JOIN_PATH}"
        length = "Content-Length: 1000\r\n\r\n" if kind == "half a body" else "\r\n"
        head = f"{asked} HTTP/1.1\r\nHost: 127.0.0.1\r\n{length}".encode()
        said = {"no TLS": b"\x16\x03\x01", "half a request": head[:20]}.get(kind, head)
        try:
            async with asyncio.timeout(MOST_SLOW_SECONDS):
                if kind == "half a proof":
                    async with self.stream() as opened:
                        await opened.wait_closed()
                    return True
                reader, writer = await self.connect(tls=kind != "no TLS")
                writer.write(said)
                if kind == "file not read":
                    await asyncio.sleep(UNREAD_SECONDS)  # asyncio buffers little meanwhile
                received = 0
                while piece := await reader.read(2**16):
                    received += len(piece)
                writer.close()
                return received < LARGE
        except TimeoutError:
            return False
        except (OSError, ConnectionClosed, InvalidHandshake):
            return True


async def answer(stranger: Stranger, key: ec.EllipticCurvePrivateKey) -> None:
    """Attach as the admitted phone, and answer each task with a refusal."""
    client = client_index_of_key(public_pem(key))
    async with stranger.stream() as stream:
        async for received in stream:
            assert isinstance(received, bytes)
            message = ToPhone.FromString(received)
            if message.HasField("challenge"):
                signature = sign(key, proof_bytes(message.challenge.nonce))
                proof = Proof(public_key=public_pem(key), signature=signature)
                await stream.send(FromPhone(proof=proof).SerializeToString())
                continue
            task = message.task
            frame = Refusal(token_of(task.instruction), client, 0, 0).encode()
            signature = sign(key, answer_bytes(task.instruction, frame))
            result = TaskResult(number=task.number, frame=frame, signature=signature)
            await stream.send(FromPhone(result=result).SerializeToString())


def used_invitation(run: Path, tls: TlsFiles) -> bytes:
    """Return a request to join with an invitation that another key has already used."""
    end = datetime.now(UTC) + timedelta(hours=1)
    code = invite_client(run, "anna", tls.authority, None, end)

    def request(key: ec.EllipticCurvePrivateKey) -> JoinRequest:
        signature = sign(key, join_proof(code.secret))
        return JoinRequest(code.secret, public_pem(key), signature)

    first, second = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    Invitations(run).redeem(request(first))
    return request(second).encode()


async def attack(folder: Path, connections: int, slow: int) -> dict[str, Any]:
    """Make hostile connections to a gateway, as described at the top of the module.

    Args:
        folder: empty folder.
        connections: number of hostile connections, divided evenly among all kinds.
        slow: number of connections held open at the same time, divided evenly among all kinds.

    Returns:
        The outcomes, by name.

    Raises:
        AssertionError: if the gateway admits a stranger, or the phone no longer answers.
    """
    tls = make_certificates(folder / "certificates", [])
    (folder / "large.bin").write_bytes(bytes(LARGE))
    used, key = used_invitation(folder, tls), ec.generate_private_key(ec.SECP256R1())
    spawning = multiprocessing.get_context("spawn")
    pipe, other = spawning.Pipe()
    process = spawning.Process(target=serve, args=(folder, public_pem(key), other))
    process.start()
    ended: Counter[str] = Counter()

    def ask(command: str) -> Any:
        pipe.send(command)
        return pipe.recv()

    def memory() -> int:
        return int(psutil.Process(process.pid).memory_info().rss / 2**20)

    try:
        stranger = Stranger(await asyncio.to_thread(pipe.recv), tls, used)
        phone = asyncio.create_task(answer(stranger, key))
        client = client_index_of_key(public_pem(key))
        while await asyncio.to_thread(ask, "state") != ([client], 0):
            await asyncio.sleep(0.1)
        used_memory, kinds = [memory()], [*STREAMS, *REQUESTS]
        turn = asyncio.Semaphore(AT_ONCE)

        async def be(kind: str) -> None:
            async with turn:
                ended[f"{kind}: {await stranger.be(kind)}"] += 1

        tenth = max(1, connections // 10)
        for start in range(0, connections, tenth):
            some = range(start, min(start + tenth, connections))
            await asyncio.gather(*(be(kinds[number % len(kinds)]) for number in some))
            assert await asyncio.to_thread(ask, "ask") == [client], "the phone does not answer"
            used_memory.append(memory())
        with_slow, away = [], Counter[str]()
        for _ in range(WAVES):
            kinds_held = [SLOW[number % len(SLOW)] for number in range(slow)]
            holding = [asyncio.create_task(stranger.hold(kind)) for kind in kinds_held]
            most = 0
            while not all(held.done() for held in holding):
                await asyncio.sleep(0.2)
                most = max(most, memory())
            with_slow += [most, memory()]
            away.update(k for k, held in zip(kinds_held, holding, strict=True) if held.result())
        assert await asyncio.to_thread(ask, "ask") == [client], "the phone does not answer"
        attached, refused = await asyncio.to_thread(ask, "state")
        assert attached == [client], "a stranger was let in"
        names = [key.name for key in ClientKeys(folder / KEYS_FOLDER).read_all()]
        assert names == ["anna"], "a replayed invitation registered a key"
        phone.cancel()
        return {
            "ended": dict(sorted(ended.items())),
            "streams refused": refused,
            "sent away": dict(away),
            "MiB before and after each tenth": used_memory,
            "MiB at most with slow ones, and after, in each wave": with_slow,
        }
    finally:
        with suppress(OSError):
            pipe.send("")
        process.join(SECONDS)
        process.kill()


def main() -> None:
    given = arguments(__doc__, connections=1000, slow=200)
    with tempfile.TemporaryDirectory(prefix="w") as name:
        came_out = asyncio.run(attack(Path(name), given.connections, given.slow))
    print(json.dumps(came_out, indent=1))


if __name__ == "__main__":
    main()
