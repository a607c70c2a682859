"""The limits of a gateway on strangers: connections, streams, time, attempts and log lines.

The last two tests hold many streams without a proof, over real sockets.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from gateways import SECONDS, Echo, Served, keys_in, opened_stream, serve_phones
from strangers import CALLS_OF_CONNECTION, STREAMS, grpc_calls, strangers, web_socket_call
from web_phones import ServedPage, StreamEndedError, WebSocketStub, serve_page
from websockets.exceptions import WebSocketException

from samara.devices.gateway import gateway as gateway_module
from samara.devices.gateway import server as gateway_server
from samara.devices.gateway.admission import NEW_KEYS_PER_MINUTE, RejectionError
from samara.devices.gateway.gateway import Gateway
from samara.devices.gateway.passed_connections import MAX_UNPROVEN_STREAMS
from samara.devices.live.connection.gateway_stream import answer_tasks, attach
from samara.shared.network import rate_limit
from samara.shared.network.log_budget import LINES_AT_ONCE
from samara.shared.proto.trainer_pb2 import FromPhone, Proof, TaskResult, ToPhone
from samara.shared.proto.trainer_pb2_grpc import GatewayStub
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.protocol.signing import SigningKey, proof_bytes

NOT_A_PROOF = FromPhone(result=TaskResult(number=1))
PHONES = 6
ATTACH_SECONDS = 10.0
"""Seconds within which all phones must attach."""
ELSEWHERE, SAME = "127.0.1.1", "127.0.0.1"
"""An address in another network than the phones', and an address in the phones' network."""


@pytest.fixture
def keys(tmp_path: Path) -> list[SigningKey]:
    return keys_in(tmp_path, PHONES)


@pytest.fixture
def served(keys: list[SigningKey]) -> Iterator[Served]:
    with serve_phones(keys[:2]) as served:
        yield served


def test_a_silent_stream_is_ended(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "PROOF_SECONDS", 0.1)
    silent = threading.Event()

    def says() -> Iterator[FromPhone]:
        silent.wait(SECONDS)
        yield from ()

    with grpc.insecure_channel(served.endpoint.address) as channel:
        stream = GatewayStub(channel).Attach(says())
        with pytest.raises(grpc.RpcError, match="no proof of the key within"):
            list(stream)
        silent.set()


@pytest.mark.parametrize("limit", ["MAX_UNPROVEN", "MAX_UNPROVEN_OF_NETWORK"])
def test_the_oldest_connection_without_a_proof_makes_room(
    limit: str, keys: list[SigningKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_server, limit, 2)
    with serve_phones(keys[:2]) as served, ExitStack() as stack:
        phone = opened_stream(stack.enter_context(channel_to(served)), keys[0])
        served.until(lambda gateway: bool(gateway.attached_phones))
        silent = [stack.enter_context(silent_stream(served)) for _ in range(3)]
        with pytest.raises(grpc.RpcError) as raised:
            next(silent[0])
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        other = opened_stream(stack.enter_context(channel_to(served)), keys[1])
        served.until(lambda gateway: len(gateway.attached_phones) == 2)
        assert silent[2].is_active()
        phone.cancel()
        other.cancel()


def channel_to(served: Served) -> Any:
    """A separate connection to a gateway."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    return grpc.insecure_channel(served.endpoint.address, options)


@contextmanager
def silent_stream(served: Served) -> Iterator[Any]:
    """A stream on a separate connection, which has been challenged and gives no proof."""
    silent = threading.Event()

    def says() -> Iterator[FromPhone]:
        silent.wait(SECONDS)
        yield from ()

    with channel_to(served) as channel:
        stream = GatewayStub(channel).Attach(says())
        assert next(stream).HasField("challenge")
        yield stream
        stream.cancel()
        silent.set()


def test_a_connection_opens_few_streams_without_a_proof(
    served: Served, keys: list[SigningKey]
) -> None:
    with channel_to(served) as channel:
        for _ in range(MAX_UNPROVEN_STREAMS):
            with pytest.raises(grpc.RpcError, match="must be a proof of the key"):
                list(GatewayStub(channel).Attach(iter([NOT_A_PROOF])))
        with pytest.raises(grpc.RpcError) as raised:
            list(GatewayStub(channel).Attach(iter([NOT_A_PROOF])))
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
    with channel_to(served) as channel:
        for _ in range(2 * MAX_UNPROVEN_STREAMS):
            stream = opened_stream(channel, keys[0])
            served.until(lambda gateway: bool(gateway.attached_phones))
            stream.cancel()
            served.until(lambda gateway: not gateway.attached_phones)


class Mute:
    """The stream of a stranger who hangs up, or who proves a key."""

    def __init__(self, host: str, key: SigningKey | None = None) -> None:
        self.host, self._key, self._nonce = host, key, b""

    def keep(self) -> None:
        raise AssertionError("a stranger was let in")

    async def write(self, message: ToPhone) -> None:
        self._nonce = message.challenge.nonce

    async def read(self) -> FromPhone | None:
        if self._key is None:
            return None
        signature = self._key.sign(proof_bytes(self._nonce))
        return FromPhone(proof=Proof(public_key=self._key.public, signature=signature))


def test_strangers_write_few_lines_of_a_gateways_log(
    keys: list[SigningKey], caplog: pytest.LogCaptureFixture
) -> None:
    gateway = Gateway(lambda key: False)

    async def come_often() -> None:
        for number in range(17_204):
            host = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
            with pytest.raises(RejectionError):
                await gateway.serve(Mute(host))
        assert len(caplog.records) == LINES_AT_ONCE
        with pytest.raises(RejectionError):
            await gateway.serve(Mute("10.0.0.7", keys[0]))

    asyncio.run(come_often())
    assert "10.0.0.7 was not attached: this key is not admitted" in caplog.text
    gateway.lines.close()
    assert f"{17_204 - LINES_AT_ONCE} lines were left out" in caplog.text
    assert len(caplog.records) == LINES_AT_ONCE + 2


def test_attachments_per_minute_are_limited(
    keys: list[SigningKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "ATTACHMENTS_PER_MINUTE", 2)
    monkeypatch.setattr(rate_limit, "WINDOW_SECONDS", 1e6)
    with (
        serve_phones(keys) as served,
        grpc.insecure_channel(served.endpoint.address) as channel,
    ):
        for _ in range(2):
            stream = opened_stream(channel, keys[0])
            served.until(lambda gateway: bool(gateway.attached_phones))
            stream.cancel()
            served.until(lambda gateway: not gateway.attached_phones)
        with pytest.raises(grpc.RpcError, match="too many attachments"):
            list(opened_stream(channel, keys[0]))
        other = opened_stream(channel, keys[1])
        served.until(lambda gateway: bool(gateway.attached_phones))
        other.cancel()


def test_a_stranger_does_not_use_up_what_the_server_answers_about_new_keys(
    keys: list[SigningKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limit, "WINDOW_SECONDS", 1e6)
    asked: list[bytes] = []
    known, *unknown = keys
    served = Served(lambda key: key == known.public, None, lambda key: bool(asked.append(key)))
    with closing(served):
        for _ in range(NEW_KEYS_PER_MINUTE):
            with (
                channel_to(served) as channel,
                pytest.raises(grpc.RpcError, match="not registered at the server"),
            ):
                list(opened_stream(channel, unknown[0]))
        for stranger in unknown:
            with (
                channel_to(served) as channel,
                pytest.raises(grpc.RpcError, match="try again in a minute") as raised,
            ):
                list(opened_stream(channel, stranger))
            assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert asked == [unknown[0].public] * NEW_KEYS_PER_MINUTE
        with channel_to(served) as channel:
            stream = opened_stream(channel, known)
            served.until(lambda gateway: bool(gateway.attached_phones))
            stream.cancel()


def attach_by_web(page: ServedPage, phone: Echo, key: SigningKey, stop: threading.Event) -> None:
    """Attach like a phone's page, which opens its stream again a second after the stream's end."""
    while not stop.is_set():
        try:
            for _ in answer_tasks(phone, key, WebSocketStub(page.open)):  # type: ignore[arg-type]
                pass
        except (StreamEndedError, WebSocketException, OSError):
            stop.wait(1.0)


@contextmanager
def attaching(
    keys: Sequence[SigningKey], attach_one: Callable[[Echo, SigningKey, threading.Event], Any]
) -> Iterator[None]:
    """Phones that attach, each in a thread of its own."""
    stop = threading.Event()
    for key in keys:
        phone = Echo(client_index_of_key(key.public))
        threading.Thread(target=attach_one, args=(phone, key, stop), daemon=True).start()
    try:
        yield
    finally:
        stop.set()


def all_attached(served: Served) -> None:
    served.until(lambda gateway: len(gateway.attached_phones) == PHONES, ATTACH_SECONDS)


@pytest.mark.parametrize("source", [ELSEWHERE, SAME])
def test_strangers_of_one_address_keep_no_phone_out(keys: list[SigningKey], source: str) -> None:
    with serve_phones(keys) as served, ExitStack() as stack:
        connections = STREAMS // CALLS_OF_CONNECTION
        stack.enter_context(strangers(served.port, grpc_calls, connections, source))

        def attach_one(phone: Echo, key: SigningKey, stop: threading.Event) -> None:
            attach(phone, key, served.endpoint, stop)

        stack.enter_context(attaching(keys, attach_one))
        all_attached(served)


@pytest.mark.parametrize("source", [ELSEWHERE, SAME])
def test_strangers_of_one_address_keep_no_browser_out(
    keys: list[SigningKey], source: str, tmp_path: Path
) -> None:
    with (
        serve_phones(keys) as served,
        serve_page(served, tmp_path / "page") as page,
        ExitStack() as stack,
    ):
        stack.enter_context(strangers(page.port, web_socket_call, STREAMS, source))
        stack.enter_context(attaching(keys, partial(attach_by_web, page)))
        all_attached(served)
