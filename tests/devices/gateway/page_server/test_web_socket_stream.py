"""The stream of a browser: a phone's stream over a WebSocket, and refused connections."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from gateways import SECONDS, Echo, Served, attached_phones, keys_in, serve_phones
from web_phones import ServedPage, StreamEndedError, WebSocketStub, end_of, serve_page
from websockets.exceptions import ConnectionClosed, InvalidStatus

from samara.devices.gateway import gateway as gateway_module
from samara.devices.gateway.gateway import MAX_ANSWER_BYTES
from samara.devices.gateway.page_server import listening, web_socket_stream
from samara.devices.live.connection.gateway_stream import answer_tasks
from samara.shared.network.certificates import make_certificates
from samara.shared.proto.trainer_pb2 import FromPhone, Proof, TaskKind, TaskResult, ToPhone
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.signing import SigningKey, answer_bytes, is_signed_by, proof_bytes

NO_PROOF = "the first message must be a proof of the key"


@pytest.fixture
def keys(tmp_path: Path) -> list[SigningKey]:
    return keys_in(tmp_path)


@pytest.fixture
def served(keys: list[SigningKey]) -> Iterator[Served]:
    with serve_phones(keys[:2]) as served:
        yield served


@pytest.fixture
def page(served: Served, tmp_path: Path) -> Iterator[ServedPage]:
    tls = make_certificates(tmp_path / "tls", [])
    with serve_page(served, tmp_path / "page", tls) as page:
        yield page


def attach(page: ServedPage, key: SigningKey) -> threading.Thread:
    """Start a thread that attaches a phone, which refuses everything, until its stream ends."""
    phone = Echo(client_index_of_key(key.public))

    def answer() -> None:
        with suppress(StreamEndedError):
            for _ in answer_tasks(phone, key, WebSocketStub(page.open)):  # type: ignore[arg-type]
                pass

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return thread


def proof_of(key: SigningKey, socket: Any) -> bytes:
    """The proof that answers a challenge and opens a stream."""
    challenge = ToPhone.FromString(socket.recv(SECONDS)).challenge
    assert (challenge.version, len(challenge.nonce)) == (1, 32)
    signature = key.sign(proof_bytes(challenge.nonce))
    made: bytes = FromPhone(
        proof=Proof(public_key=key.public, signature=signature)
    ).SerializeToString()
    return made


def test_browsers_and_phones_answer_one_request(
    served: Served, page: ServedPage, keys: list[SigningKey], tmp_path: Path
) -> None:
    clients = [client_index_of_key(key.public) for key in keys[:2]]
    thread = attach(page, keys[0])
    served.until(lambda gateway: clients[0] in gateway.attached_phones)
    with attached_phones(served, keys[1], Echo(clients[1])):
        answers = served.ask(TaskKind.TRAIN, b"an instruction", SECONDS, tail=bytes(60_000))
    assert sorted(answers) == sorted(clients)
    for client, key in zip(clients, keys, strict=False):
        frame = answers[client].frame
        assert Refusal.decode(frame).code == 60_000
        signed = answer_bytes(b"an instruction", frame)
        assert is_signed_by(key.public, answers[client].signature, signed)
    served.run(served.gateway.finish())
    thread.join(SECONDS)
    assert clients[0] in served.gateway.told


def test_a_stream_says_by_its_close_code_that_the_run_is_finished(
    served: Served, page: ServedPage, keys: list[SigningKey]
) -> None:
    served.run(served.gateway.finish())
    with page.open() as stream:
        assert stream.subprotocol == "samara.phone.1"
        stream.send(proof_of(keys[0], stream))
        assert end_of(stream) == (4011, "the run is finished")


@pytest.mark.parametrize(
    ("said", "code", "reason"),
    [
        (FromPhone(result=TaskResult(number=1)).SerializeToString(), 4009, NO_PROOF),
        (b"\xff\xff no message", 4009, NO_PROOF),
        (b"", 4009, NO_PROOF),
        ("a text", 4009, NO_PROOF),
        (
            FromPhone(proof=Proof(public_key=b"none")).SerializeToString(),
            4016,
            "not a PEM public key",
        ),
        ([bytes(2**20)] * 3, 1009, ""),
    ],
)
def test_a_first_message_that_is_no_proof_ends_the_stream(
    served: Served, page: ServedPage, said: Any, code: int, reason: str
) -> None:
    assert MAX_ANSWER_BYTES < 3 * 2**20
    with page.open() as stream:
        with suppress(OSError, ConnectionClosed):
            stream.send(said)
        ended, why = end_of(stream)
    assert ended in (code, 1006 if code == 1009 else code)
    assert reason in why
    assert served.gateway.attached_phones == []


def test_a_foreign_or_unadmitted_key_is_rejected(
    served: Served, page: ServedPage, keys: list[SigningKey]
) -> None:
    with page.open() as stream:
        stream.send(proof_of(keys[2], stream))
        code, reason = end_of(stream)
    assert (code, reason) == (4007, "this key is not admitted; add it to the gateway's --phones")
    with page.open() as stream, page.open() as other:
        stream.send(proof_of(keys[0], other))  # of another challenge
        assert end_of(stream) == (4016, "the proof is not signed with this key")
    assert served.gateway.attached_phones == []


def test_a_silent_stream_is_ended(page: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "PROOF_SECONDS", 0.05)
    with page.open() as silent:
        assert end_of(silent) == (4004, "no proof of the key within 0.05 s")


@pytest.mark.parametrize("limit", ["MAX_UNPROVEN", "MAX_UNPROVEN_OF_NETWORK"])
def test_the_oldest_connection_without_a_proof_makes_room(
    limit: str,
    served: Served,
    keys: list[SigningKey],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, limit, 2)
    with serve_page(served, tmp_path / "page") as page, page.open() as phone:
        phone.send(proof_of(keys[0], phone))
        served.until(lambda gateway: bool(gateway.attached_phones))
        with page.open() as one, page.open() as two, page.open() as three:
            assert end_of(one)[0] == 1006
            three.send(proof_of(keys[1], three))
            served.until(lambda gateway: len(gateway.attached_phones) == 2)
            with page.open():
                assert two.recv(SECONDS)


@pytest.mark.parametrize(
    "changes",
    [{"origin": None}, {"origin": "https://evil.example"}, {"origin": "null"}],
)
def test_pages_of_other_sites_get_no_stream(page: ServedPage, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidStatus) as raised, page.open(**changes):
        pass
    assert raised.value.response.status_code == 403


def test_behind_a_reverse_proxy_its_origin_counts(
    served: Served, keys: list[SigningKey], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def check(public_key: bytes, host: str) -> None:
        asked.append(host)

    monkeypatch.setattr(served.gateway._admission, "check", check)
    origin = "https://phones.example"
    with serve_page(served, tmp_path / "page", origin=origin) as page:
        passed_on = {"X-Forwarded-For": "9.9.9.9, 192.0.2.7", "X-Forwarded-Proto": "https"}
        with page.open(origin=origin, additional_headers=passed_on) as stream:
            stream.send(proof_of(keys[2], stream))
            served.until(lambda gateway: bool(gateway.attached_phones))
        with pytest.raises(InvalidStatus), page.open():
            pass
    assert asked == ["192.0.2.7"]  # what the proxy itself saw, not what a stranger has written


def test_a_stranger_who_pings_and_reads_no_answers_is_ended(
    served: Served, page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_socket_stream, "MAX_UNREAD_PONGS", 10)
    with page.open() as stream:
        raw = stream.socket
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ping = bytes([0x89, 0xFD, 0, 0, 0, 0]) + bytes(125)
        with suppress(OSError):
            while True:
                raw.sendall(ping * 1000)


def test_hostile_connections_leave_the_phones_in_peace(
    served: Served, page: ServedPage, keys: list[SigningKey]
) -> None:
    thread = attach(page, keys[0])
    served.until(lambda gateway: bool(gateway.attached_phones))
    with ExitStack() as stack:
        for number in range(20):
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", page.port), SECONDS))
            raw.sendall((b"", b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01")[number % 3])
        for number in range(20):
            stream = stack.enter_context(page.open())
            stream.send((b"x" * 100, "text", proof_of(keys[2], stream))[number % 3])
            assert end_of(stream)[0] in (4007, 4009)
        answers = served.ask(TaskKind.TRAIN, b"an instruction", SECONDS)
    assert list(answers) == [client_index_of_key(keys[0].public)]
    served.run(served.gateway.finish())
    thread.join(SECONDS)
