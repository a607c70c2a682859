"""A gateway of phones on its own event loop, and phones that attach to it, for tests."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

from samara.devices.gateway.gateway import Gateway
from samara.devices.gateway.server import start_gateway
from samara.devices.live.connection.gateway_endpoint import GatewayEndpoint
from samara.devices.live.connection.gateway_stream import attach
from samara.devices.live.keys import create_key
from samara.shared.network.certificates import TlsFiles
from samara.shared.proto.trainer_pb2 import FromPhone, Proof, Task, TaskKind
from samara.shared.proto.trainer_pb2_grpc import GatewayStub
from samara.shared.protocol.frames.instructions import token_of
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.signing import SigningKey, proof_bytes

SECONDS = 20.0


class Echo:
    """A phone that refuses every task; the refusal names the instruction and the device."""

    def __init__(self, device: int, hold: threading.Event | None = None) -> None:
        self.device, self.hold, self.asked = device, hold, 0

    def answer(self, task: Task) -> bytes:
        if task.kind == TaskKind.HELLO:
            return self.hello(task)
        self.asked += 1
        if self.hold:
            self.hold.wait(SECONDS)
        return Refusal(token_of(task.instruction), self.device, 3, len(task.tail)).encode()

    def hello(self, task: Task) -> bytes:
        return Refusal(bytes(8), self.device, 0, 0).encode()


class Served:
    """A gateway on its own event loop."""

    def __init__(
        self,
        admitted: Callable[[bytes], bool],
        tls: TlsFiles | None = None,
        registered: Callable[[bytes], bool] | None = None,
    ) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.gateway = Gateway(admitted, registered)
        proof = (tls.certificate.read_bytes(), tls.key.read_bytes()) if tls else ()
        self._server = self.run(start_gateway(self.gateway, "127.0.0.1:0", *proof))
        self.port, self.port_of_grpc = self._server.port, self._server.connections.port_of_grpc
        self.endpoint = GatewayEndpoint(
            f"127.0.0.1:{self.port}", tls.authority if tls else None, tls is None
        )

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(SECONDS)

    def ask(self, kind: Any, instruction: bytes, seconds: float, **more: Any) -> Any:
        """Return the answers that arrive within some seconds, by client index."""
        return self.start_asking(kind, instruction, seconds, **more).result(seconds + SECONDS)

    def start_asking(
        self,
        kind: Any,
        instruction: bytes,
        seconds: float,
        clients: Sequence[int] | None = None,
        **more: Any,
    ) -> Any:
        task = Task(kind=kind, instruction=instruction, **more)
        work = self.gateway.ask(task, seconds, clients)
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def until(self, condition: Callable[[Gateway], bool], seconds: float = SECONDS) -> None:
        async def wait() -> None:
            while not condition(self.gateway):
                await asyncio.sleep(0.01)

        try:
            asyncio.run_coroutine_threadsafe(wait(), self.loop).result(seconds)
        except TimeoutError as error:
            attached, refused = self.gateway.attached_phones, self.gateway.refused
            raise TimeoutError(f"{attached} attached, {refused} refused") from error

    def close(self) -> None:
        self.run(self._server.stop(None))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def keys_in(folder: Path, count: int = 3) -> list[SigningKey]:
    """New keys of phones."""
    files = [folder / f"{number}.key" for number in range(count)]
    for file in files:
        create_key(file)
    return [SigningKey(file) for file in files]


@contextlib.contextmanager
def serve_phones(keys: Sequence[SigningKey]) -> Iterator[Served]:
    """Serve a gateway that admits these keys, without TLS."""
    known = {key.public for key in keys}
    with contextlib.closing(Served(lambda key: key in known)) as served:
        yield served


@contextlib.contextmanager
def attached_phones(served: Served, key: SigningKey, phone: Echo) -> Iterator[threading.Event]:
    stop = threading.Event()
    thread = threading.Thread(target=attach, args=(phone, key, served.endpoint, stop), daemon=True)
    thread.start()
    try:
        served.until(lambda gateway: phone.device in gateway.attached_phones)
        yield stop
    finally:
        stop.set()


def opened_stream(channel: Any, key: SigningKey, *more: FromPhone) -> Any:
    """A stream that has given its proof, has sent further messages, and stays open."""
    forever = threading.Event()
    nonce: list[bytes] = []
    there = threading.Event()

    def says() -> Iterator[FromPhone]:
        there.wait(SECONDS)
        signature = key.sign(proof_bytes(nonce[0]))
        yield FromPhone(proof=Proof(public_key=key.public, signature=signature))
        yield from more
        forever.wait(SECONDS)

    stream = GatewayStub(channel).Attach(says())
    stream.add_callback(forever.set)
    nonce.append(next(stream).challenge.nonce)
    there.set()
    return stream
