import asyncio
import contextlib
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from helpers import layout_of
from typer.testing import CliRunner

from client.protocol.blob_receiver import receive_part
from devices.live.keys import create_key
from devices.phone import gateway as gateway_module
from devices.phone import relay
from devices.phone.commands import gateway as gateway_app
from devices.phone.gateway import MAX_ANSWER_BYTES, Gateway, start_gateway
from devices.phone.gateway_process import AdmittedKeys
from devices.phone.reference_client.attachment import answer_tasks, attach
from devices.phone.reference_client.gateway_endpoint import GatewayEndpoint
from server.transport.blob_sender import BlobSender
from server.transport.phone_grid import PhoneGrid
from server.transport.roster import Roster
from shared.blob_store import BlobStore, blob_hash
from shared.certificates import TlsFiles, make_certificates, renew_certificate
from shared.client_index import client_index_of_key
from shared.config import RunConfig
from shared.errors import DeviceError, RefusalCode
from shared.frames.hello import Hello
from shared.frames.instructions import token_of
from shared.frames.refusal import Refusal
from shared.proto.trainer_pb2 import FromPhone, Proof, TaskKind, TaskResult, ToPhone
from shared.proto.trainer_pb2_grpc import GatewayStub
from shared.signing import SigningKey, answer_bytes, is_signed_by, proof_bytes
from simulations.engine import InProcessGrid

SECONDS = 20.0
NOT_A_PROOF = FromPhone(result=TaskResult(number=1))


class Echo:
    """A phone that refuses everything, which is a frame that names instruction and device."""

    def __init__(self, device: int, hold: threading.Event | None = None) -> None:
        self.device, self.hold, self.asked = device, hold, 0

    def hello(self) -> bytes:
        return Refusal(bytes(8), self.device, 0, 0).encode()

    def train(self, instruction: bytes, catch_up: Any) -> bytes:
        self.asked += 1
        if self.hold:
            self.hold.wait(SECONDS)
        return Refusal(token_of(instruction), self.device, 3, len(catch_up.tail)).encode()

    evaluate = train


class Served:
    """A gateway on a loop of its own."""

    def __init__(self, admitted: Callable[[bytes], bool], tls: TlsFiles | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.gateway = Gateway(admitted)
        proof = (tls.certificate.read_bytes(), tls.key.read_bytes()) if tls else ()
        self._server, self.port = self.run(start_gateway(self.gateway, "127.0.0.1:0", *proof))
        self.endpoint = GatewayEndpoint(
            f"127.0.0.1:{self.port}", tls.authority if tls else None, tls is None
        )

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(SECONDS)

    def ask(self, *arguments: Any, **named: Any) -> Any:
        return self.run(self.gateway.ask(*arguments, **named))

    def start_asking(self, *arguments: Any, **named: Any) -> Any:
        work = self.gateway.ask(*arguments, **named)
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def until(self, condition: Callable[[Gateway], bool]) -> None:
        async def wait() -> None:
            while not condition(self.gateway):
                await asyncio.sleep(0.01)

        self.run(wait())

    def close(self) -> None:
        self.run(self._server.stop(None))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def keys(tmp_path: Path) -> list[SigningKey]:
    files = [tmp_path / f"{number}.key" for number in range(3)]
    for file in files:
        create_key(file)
    return [SigningKey(file) for file in files]


@pytest.fixture
def served(keys: list[SigningKey]) -> Iterator[Served]:
    known = {key.public for key in keys[:2]}
    server = Served(lambda key: key in known)
    yield server
    server.close()


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


def test_answers_are_signed_by_each_phone(served: Served, keys: list[SigningKey]) -> None:
    devices = [client_index_of_key(key.public) for key in keys[:2]]
    phones = [Echo(device) for device in devices]
    with attached_phones(served, keys[0], phones[0]), attached_phones(served, keys[1], phones[1]):
        answers = served.ask(TaskKind.TRAIN, b"do it", SECONDS, tail=b"tail")
        assert sorted(answers) == sorted(devices)
        for device, answer in answers.items():
            assert client_index_of_key(answer.public_key) == device
            refusal = Refusal.decode(answer.frame)
            assert (refusal.client, refusal.code) == (device, len(b"tail"))
            data = answer_bytes(b"do it", answer.frame)
            assert is_signed_by(answer.public_key, answer.signature, data)
            assert not is_signed_by(answer.public_key, answer.signature, data + b"!")
        only = served.ask(TaskKind.HELLO, b"", SECONDS, clients=devices[:1])
        assert sorted(only) == devices[:1]


class Fetching(Echo):
    """A phone that joins once it has a blob."""

    def __init__(self, device: int, blob: bytes, store: BlobStore) -> None:
        super().__init__(device)
        self.blob, self.store = blob, store

    def hello(self) -> bytes:
        if self.store.find(self.blob):
            layout = layout_of(20).to_json()
            return Hello(self.device, 10, 0, bytes(32), layout, '{"clients": 0}').encode()
        numbers = int.from_bytes(self.blob[:4]), self.store.received_bytes(self.blob)
        return Refusal(bytes(8), self.device, 0, RefusalCode.MISSING_BLOB, numbers).encode()

    def receive_blob(self, part: bytes) -> bytes:
        return receive_part(part, [self.blob], self.device, self.store)


def test_attached_phones_get_a_blob_through_the_gateway_and_join(
    served: Served, keys: list[SigningKey], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.transport.blob_sender.PART_BYTES", 1000)
    monkeypatch.setattr("server.transport.phone_grid.REFRESH_SECONDS", 0.1)
    (tmp_path / "basis").write_bytes(bytes(range(250)) * 20)
    blob = blob_hash(tmp_path / "basis")
    first, second = (
        Fetching(client_index_of_key(key.public), blob, BlobStore(tmp_path / str(number)))
        for number, key in enumerate(keys[:2])
    )
    second.store.add(tmp_path / "basis")
    app = relay.gateway_app(served.gateway, served.loop)
    settings = RunConfig.of({}, "test").flat()
    grid = PhoneGrid(InProcessGrid(app, 1, settings))
    roster = Roster(blobs=BlobSender({blob: tmp_path / "basis"}))
    with attached_phones(served, keys[0], first), attached_phones(served, keys[1], second):
        end = time.monotonic() + SECONDS
        while len(roster.entries) < 2 and time.monotonic() < end:
            roster.request_hellos(grid, SECONDS)
    assert {e.client for e in roster.entries.values()} == {first.device, second.device}
    assert first.store.find(blob)


def test_a_silent_phone_does_not_delay_the_next_request(
    served: Served, keys: list[SigningKey]
) -> None:
    hold = threading.Event()
    slow, quick = (
        Echo(client_index_of_key(keys[0].public), hold),
        Echo(client_index_of_key(keys[1].public)),
    )
    with attached_phones(served, keys[0], slow), attached_phones(served, keys[1], quick):
        asked = served.start_asking(TaskKind.TRAIN, b"one", 1.0)
        assert sorted(asked.result(SECONDS)) == [quick.device]
        hold.set()
        # its late answer ends nothing: it is asked the next question
        answers = served.ask(TaskKind.TRAIN, b"two", SECONDS)
        assert sorted(answers) == sorted([slow.device, quick.device])
        assert Refusal.decode(answers[slow.device].frame).token == token_of(b"two")


def test_a_phone_that_reattaches_gets_the_request_again(
    served: Served, keys: list[SigningKey]
) -> None:
    device = client_index_of_key(keys[0].public)
    asked = served.start_asking(TaskKind.TRAIN, b"one", SECONDS, clients=[device])
    with grpc.insecure_channel(served.endpoint.address) as channel:
        stream = _opened(channel, keys[0])
        assert next(stream).task.instruction == b"one"
        stream.cancel()
    served.until(lambda gateway: not gateway.attached_phones)
    with attached_phones(served, keys[0], Echo(device)):
        assert sorted(asked.result(SECONDS)) == [device]


def test_a_phone_that_stays_away_is_not_waited_for(
    served: Served, keys: list[SigningKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "RECONNECT_SECONDS", 0.0)
    away, there = (client_index_of_key(key.public) for key in keys[:2])
    with attached_phones(served, keys[1], Echo(there)):
        answers = served.ask(TaskKind.TRAIN, b"one", 1000.0, clients=[away, there])
        assert sorted(answers) == [there]


def test_a_second_attachment_replaces_the_first(served: Served, keys: list[SigningKey]) -> None:
    device = client_index_of_key(keys[0].public)
    with grpc.insecure_channel(served.endpoint.address) as channel:
        first = _opened(channel, keys[0])
        served.until(lambda gateway: gateway.attached_phones == [device])
        with attached_phones(served, keys[0], Echo(device)):
            assert list(first) == []
            assert sorted(served.ask(TaskKind.TRAIN, b"one", SECONDS)) == [device]


def _opened(channel: Any, key: SigningKey, *more: FromPhone) -> Any:
    """A stream behind its proof, with more said after it, that stays open."""
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


@pytest.mark.parametrize(
    ("said", "code", "reason"),
    [
        (NOT_A_PROOF, "FAILED_PRECONDITION", "the first message must be a proof of the key"),
        (FromPhone(), "FAILED_PRECONDITION", "the first message must be a proof of the key"),
        (
            FromPhone(proof=Proof(public_key=b"-----BEGIN", signature=b"")),
            "UNAUTHENTICATED",
            "not a public key",
        ),
        (
            FromPhone(result=TaskResult(frame=bytes(MAX_ANSWER_BYTES + 1))),
            "RESOURCE_EXHAUSTED",
            "larger than max",
        ),
    ],
)
def test_a_first_message_that_is_no_proof_is_rejected(
    served: Served, said: FromPhone, code: str, reason: str
) -> None:
    with grpc.insecure_channel(served.endpoint.address) as channel:
        stream = GatewayStub(channel).Attach(iter([said]))
        with pytest.raises(grpc.RpcError, match=reason) as raised:
            list(stream)
        assert raised.value.code().name == code
    assert served.gateway.attached_phones == []


def test_a_foreign_or_unadmitted_key_is_rejected(served: Served, keys: list[SigningKey]) -> None:
    with grpc.insecure_channel(served.endpoint.address) as channel:
        forged = Proof(public_key=keys[0].public, signature=keys[1].sign(proof_bytes(bytes(32))))
        with pytest.raises(grpc.RpcError, match="not signed with this key"):
            list(GatewayStub(channel).Attach(iter([FromPhone(proof=forged)])))
    with pytest.raises(DeviceError, match="not admitted"):
        attach(Echo(0), keys[2], served.endpoint, threading.Event())  # type: ignore[arg-type]
    assert served.gateway.refused["this key is not admitted; add it to the gateway's --phones"] == 1


def test_a_message_out_of_turn_or_unsigned_ends_the_stream(
    served: Served, keys: list[SigningKey]
) -> None:
    device = client_index_of_key(keys[0].public)
    frame = Refusal(bytes(8), device, 0, 0).encode()
    with grpc.insecure_channel(served.endpoint.address) as channel:
        with pytest.raises(grpc.RpcError, match="out of turn"):
            list(_opened(channel, keys[0], FromPhone(result=TaskResult(number=1))))
        for done, problem in (
            (TaskResult(number=2, frame=frame), "does not answer the task"),
            (TaskResult(number=1, frame=b"SM"), "not a frame"),
            (TaskResult(number=1, frame=frame, signature=b"x"), "not signed"),
        ):
            asked = served.start_asking(TaskKind.TRAIN, b"one", 1.0, clients=[device])
            stream = _replying(channel, keys[0], FromPhone(result=done))
            with pytest.raises(grpc.RpcError, match=problem):
                list(stream)
            assert asked.result(SECONDS) == {}


def _replying(channel: Any, key: SigningKey, reply: FromPhone) -> Iterator[ToPhone]:
    """A stream that proves the key and says this to the first task."""
    from queue import SimpleQueue

    outgoing: SimpleQueue[FromPhone | None] = SimpleQueue()
    stream = GatewayStub(channel).Attach(iter(outgoing.get, None))
    try:
        for said in stream:
            if said.WhichOneof("content") == "challenge":
                proof = Proof(
                    public_key=key.public, signature=key.sign(proof_bytes(said.challenge.nonce))
                )
                outgoing.put(FromPhone(proof=proof))
            else:
                outgoing.put(reply)
            yield said
    finally:
        outgoing.put(None)


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


def test_attachments_per_minute_are_limited(
    served: Served, keys: list[SigningKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "ATTACHMENTS_PER_MINUTE", 2)
    with grpc.insecure_channel(served.endpoint.address) as channel:
        for _ in range(2):
            stream = _opened(channel, keys[0])
            served.until(lambda gateway: bool(gateway.attached_phones))
            stream.cancel()
            served.until(lambda gateway: not gateway.attached_phones)
        with pytest.raises(grpc.RpcError, match="too many attachments"):
            list(_opened(channel, keys[0]))


def test_the_folder_of_keys_is_read_anew_when_a_file_changes(
    keys: list[SigningKey], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "phones"
    folder.mkdir()
    admitted, file = AdmittedKeys(folder), folder / "one.pem"
    assert not admitted(keys[0].public)
    file.touch()
    assert not admitted(keys[0].public)
    assert "one.pem: key not admitted: not a public key" in caplog.text
    file.write_bytes(keys[0].public)
    assert admitted(keys[0].public)
    assert not admitted(keys[1].public)
    (folder / "two.pem").write_bytes(keys[1].public)
    (folder / "three.txt").write_bytes(keys[2].public)
    assert admitted(keys[1].public)
    assert not admitted(keys[2].public)
    file.unlink()
    assert not admitted(keys[0].public)
    assert admitted(keys[1].public)


@pytest.mark.parametrize(
    ("option", "content", "problem"),
    [
        ("--key", None, "the key cannot be read"),
        ("--key", "a key", "not an OpenSSH private key"),
        ("--certs", None, "not a certificate"),
        ("--certs", "a certificate", "not a certificate"),
        ("--cert", None, "No such file"),
        ("--cert", "a certificate", "not a certificate and its private key"),
        ("--phones", None, "no such folder"),
    ],
)
def test_gateway_settings_are_checked_before_anything_runs(
    option: str, content: str | None, problem: str, keys: list[SigningKey], tmp_path: Path
) -> None:
    make_certificates(tmp_path, [])
    (tmp_path / "phones").mkdir()
    wrong = tmp_path / "wrong"
    if content is not None:
        wrong.write_text(content)
    options = {
        "--key": tmp_path / "0.key",
        "--certs": tmp_path / "ca.pem",
        "--cert": tmp_path / "server.pem",
        "--cert-key": tmp_path / "server.key",
        "--phones": tmp_path / "phones",
        "--home": tmp_path / "home",
    }
    words = [str(word) for pair in (options | {option: wrong}).items() for word in pair]
    result = CliRunner().invoke(gateway_app, ["up", "--superlink", "127.0.0.1:1", *words])
    assert isinstance(result.exception, DeviceError)
    assert "wrong" in str(result.exception)
    assert problem in str(result.exception)
    assert not (tmp_path / "home" / "executor.secret").exists()


class Once(threading.Event):
    """Tells a phone to end when it begins to wait for its next try."""

    def wait(self, timeout: float | None = None) -> bool:
        self.set()
        return True


def test_over_tls_the_right_authority_gets_in_and_nobody_else(
    keys: list[SigningKey], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls, other = (make_certificates(tmp_path / name, []) for name in ("own", "other"))
    served = Served(lambda key: True, tls)
    address, phone = served.endpoint.address, Echo(client_index_of_key(keys[0].public))
    try:
        with attached_phones(served, keys[0], phone):
            assert sorted(served.ask(TaskKind.HELLO, b"", SECONDS)) == [phone.device]
        for endpoint, problem in (
            (
                GatewayEndpoint(address, other.authority),
                "certificate is not accepted: .*; give the gateway's",
            ),
            (GatewayEndpoint(address), "certificate is not accepted"),
            (GatewayEndpoint(address, insecure=True), "it speaks TLS; give --certs"),
        ):
            caplog.clear()
            attach(phone, keys[1], endpoint, Once())  # type: ignore[arg-type]
            assert re.search(problem, caplog.text)
            assert served.gateway.attached_phones == [phone.device]
        with pytest.raises(DeviceError, match=r"own/ca\.key: not a certificate"):
            attach(phone, keys[0], GatewayEndpoint(address, tmp_path / "own" / "ca.key"), Once())  # type: ignore[arg-type]
    finally:
        served.close()


def test_new_connections_get_a_renewed_certificate(tmp_path: Path) -> None:
    tls = make_certificates(tmp_path, [])

    def read() -> tuple[bytes, bytes]:
        return tls.certificate.read_bytes(), tls.key.read_bytes()

    def certificate_of(port: int) -> bytes:
        context = ssl.create_default_context(cafile=str(tls.authority))
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection(("127.0.0.1", port), SECONDS) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            return ssl.DER_cert_to_PEM_cert(connection.getpeercert(True) or b"").encode()

    async def serve() -> None:
        gateway = Gateway(lambda key: True)
        server, port = await start_gateway(gateway, "127.0.0.1:0", *read(), read)
        try:
            for _ in range(2):
                assert await asyncio.to_thread(certificate_of, port) == read()[0]
                renew_certificate(tmp_path)
        finally:
            await server.stop(0)

    asyncio.run(serve())


def test_a_gateway_in_plain_text_is_refused_by_a_phone_that_asks_for_tls(
    served: Served, keys: list[SigningKey], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = GatewayEndpoint(
        served.endpoint.address, make_certificates(tmp_path / "tls", []).authority
    )
    attach(Echo(client_index_of_key(keys[0].public)), keys[0], endpoint, Once())  # type: ignore[arg-type]
    assert "it does not speak TLS" in caplog.text
    assert served.gateway.attached_phones == []


def test_a_port_in_use_is_reported(served: Served) -> None:
    with pytest.raises(DeviceError, match=f"cannot listen on 127.0.0.1:{served.port}"):
        served.run(start_gateway(served.gateway, f"127.0.0.1:{served.port}"))


def test_a_phone_answers_over_a_stream_of_its_own(served: Served, keys: list[SigningKey]) -> None:
    phone = Echo(client_index_of_key(keys[0].public))
    with grpc.insecure_channel(served.endpoint.address) as channel:
        numbers = answer_tasks(phone, keys[0], GatewayStub(channel))  # type: ignore[arg-type]
        asked = served.start_asking(TaskKind.TRAIN, b"x", SECONDS, clients=[phone.device])
        assert next(numbers) == 1
        assert sorted(asked.result(SECONDS)) == [phone.device]
        numbers.close()  # type: ignore[attr-defined]
