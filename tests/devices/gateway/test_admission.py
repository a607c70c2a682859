"""Admission to a gateway of phones: proofs of keys, settings, certificates."""

import asyncio
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from gateways import SECONDS, Echo, Served, attached_phones, keys_in, serve_phones
from typer.testing import CliRunner

from samara.devices.gateway import server as gateway_server
from samara.devices.gateway.admitted_keys import AdmittedKeys
from samara.devices.gateway.certificate import GatewayCertificate
from samara.devices.gateway.commands import app as gateway_app
from samara.devices.gateway.gateway import MAX_ANSWER_BYTES, Gateway
from samara.devices.gateway.phone_stream import _port_of
from samara.devices.gateway.server import start_gateway
from samara.devices.gateway.settings import GatewaySettings
from samara.devices.live.connection.gateway_endpoint import GatewayEndpoint
from samara.devices.live.connection.gateway_stream import attach
from samara.shared.errors import DeviceError
from samara.shared.network.certificates import make_certificates, renew_certificate
from samara.shared.proto.trainer_pb2 import FromPhone, Proof, TaskKind, TaskResult
from samara.shared.proto.trainer_pb2_grpc import GatewayStub
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.protocol.signing import SigningKey, proof_bytes

NOT_A_PROOF = FromPhone(result=TaskResult(number=1))


@pytest.fixture
def keys(tmp_path: Path) -> list[SigningKey]:
    return keys_in(tmp_path)


@pytest.fixture
def served(keys: list[SigningKey]) -> Iterator[Served]:
    with serve_phones(keys[:2]) as served:
        yield served


@pytest.mark.parametrize(
    ("said", "code", "reason"),
    [
        (NOT_A_PROOF, "FAILED_PRECONDITION", "the first message must be a proof of the key"),
        (FromPhone(), "FAILED_PRECONDITION", "the first message must be a proof of the key"),
        (
            FromPhone(proof=Proof(public_key=b"-----BEGIN", signature=b"")),
            "UNAUTHENTICATED",
            "the key is not a PEM public key",
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


def test_a_stream_of_no_connection_that_is_passed_on_is_not_served(served: Served) -> None:
    address = f"127.0.0.1:{served.port_of_grpc}"
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError):
        next(GatewayStub(channel).Attach(iter([])))


@pytest.mark.parametrize(
    ("peer", "port"),
    [("ipv4:127.0.0.1:40000", 40000), ("ipv6:%5B::1%5D:40001", 40001), ("unix:", 0), ("", 0)],
)
def test_the_port_in_grpcs_name_of_a_peer(peer: str, port: int) -> None:
    assert _port_of(peer) == port


def test_the_folder_of_keys_is_read_anew_when_a_file_changes(
    keys: list[SigningKey], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "phones"
    folder.mkdir()
    admitted, file = AdmittedKeys(folder), folder / "one.pem"
    assert not admitted(keys[0].public)
    file.touch()
    assert not admitted(keys[0].public)
    assert "one.pem: this key is not admitted: the key is not a PEM public key" in caplog.text
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
        ("--certs", None, "not a readable certificate"),
        ("--certs", "a certificate", "not a readable certificate"),
        ("--cert", None, "No such file"),
        ("--cert", "a certificate", "not a certificate and its private key"),
        ("--phones", None, "this folder does not exist; create it"),
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
    """Makes a phone end as soon as it begins to wait for its next try."""

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
            (GatewayEndpoint(address, insecure=True), "the gateway uses TLS; give --certs"),
        ):
            caplog.clear()
            attach(phone, keys[1], endpoint, Once())  # type: ignore[arg-type]
            assert re.search(problem, caplog.text)
            assert served.gateway.attached_phones == [phone.device]
        with pytest.raises(
            DeviceError, match=r"own/ca\.key: this file is not a readable certificate"
        ):
            attach(phone, keys[0], GatewayEndpoint(address, tmp_path / "own" / "ca.key"), Once())  # type: ignore[arg-type]
    finally:
        served.close()


def test_new_connections_get_a_renewed_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls, configured = make_certificates(tmp_path, []), list[bytes]()
    configure = gateway_server._certificate_configuration

    def configure_and_count(certificate: bytes, key: bytes) -> Any:
        configured.append(certificate)
        return configure(certificate, key)

    monkeypatch.setattr(gateway_server, "_certificate_configuration", configure_and_count)

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
        server = await start_gateway(gateway, "127.0.0.1:0", *read(), read)
        try:
            for number in range(2):
                for _ in range(3):
                    assert await asyncio.to_thread(certificate_of, server.port) == read()[0]
                # one for all connections: gRPC crashes where many get configurations of their own
                assert len(configured) == number + 1
                renew_certificate(tmp_path)
        finally:
            await server.stop(0)

    asyncio.run(serve())


def test_a_replaced_certificate_is_taken_up_and_a_damaged_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls, other = (make_certificates(tmp_path / name, []) for name in ("own", "other"))
    settings = GatewaySettings(
        folder=tmp_path,
        phones=None,
        listen="127.0.0.1:0",
        certificate=tls.certificate,
        certificate_key=tls.key,
        names=(),
        superlink="127.0.0.1:1",
        key=None,
        certificates=None,
        insecure=False,
    )
    certificate = GatewayCertificate(settings)
    first = certificate.current
    tls.certificate.write_bytes(other.certificate.read_bytes())  # and the key not yet
    assert not certificate.renew()
    assert certificate.current == first
    assert "the gateway's certificate cannot be renewed and stays as it is" in caplog.text
    tls.key.write_bytes(other.key.read_bytes())
    second = other.certificate.read_bytes(), other.key.read_bytes()
    assert certificate.renew()
    assert certificate.current == second != first
    with pytest.raises(DeviceError, match="--cert needs --cert-key"):
        GatewayCertificate(replace(settings, certificate_key=None))
    assert GatewayCertificate(replace(settings, insecure=True)).current == (b"", b"")


def test_a_gateway_in_plain_text_is_refused_by_a_phone_that_asks_for_tls(
    served: Served, keys: list[SigningKey], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = GatewayEndpoint(
        served.endpoint.address, make_certificates(tmp_path / "tls", []).authority
    )
    attach(Echo(client_index_of_key(keys[0].public)), keys[0], endpoint, Once())  # type: ignore[arg-type]
    assert "the gateway's address does not use TLS" in caplog.text
    assert served.gateway.attached_phones == []
