"""The parts of a live server: keys, certificates, access filter, resting clients, display."""

import asyncio
import io
import json
import os
import ssl
import stat
import time
import tomllib
import zipfile
from collections import Counter
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from rich.console import Console

from samara.server.live.bundle import build_bundle
from samara.server.live.certificates import check_certificates
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.live.live_config import read_live_config
from samara.server.live.run_display import RunDisplay
from samara.server.live.server_log import LOG_FILE
from samara.server.live.superlink import FILTER_PATH, AccessFilter, is_allowed
from samara.server.rounds.planner import ClientHealth
from samara.server.store import METRICS_FILE
from samara.server.transport.messages import MAX_FOREIGN_TEXT, cut_foreign_text, decode_foreign
from samara.shared.errors import ConfigError, FrameError, SamaraError
from samara.shared.network.certificates import make_certificates
from samara.shared.network.rejection import HEADER
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.protocol.signing import SigningKey
from samara.shared.settings.config import RunConfig
from samara.shared.storage.events import EventFollower, append_event


def test_a_key_is_made_checked_and_revoked(tmp_path: Path) -> None:
    keys = ClientKeys(tmp_path / "keys")
    secret = keys.create("kitchen")
    keys.create("garage")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert secret.read_bytes().startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    garage, kitchen = (key.public_key.encode() for key in keys.read_all())
    assert keys.refusal_reason(kitchen) == ""
    client = client_index_of_key(kitchen)
    assert [key.client for key in keys.read_all()] == [client_index_of_key(garage), client]
    keys.check(kitchen, client)
    with pytest.raises(SamaraError, match=f"its key belongs to client {client}, not to client 8"):
        keys.check(kitchen, 8)
    with pytest.raises(SamaraError, match=f"not to client {client}"):
        keys.check(garage, client)
    before = keys.modification_stamp()
    keys.revoke("kitchen")
    assert keys.modification_stamp() != before
    assert "its key kitchen was revoked on 20" in keys.refusal_reason(kitchen)
    with pytest.raises(SamaraError, match="was revoked"):
        keys.check(kitchen, client)
    keys.check(garage, client_index_of_key(garage))
    assert "is not registered here" in keys.refusal_reason(b"another")


def test_a_key_that_was_made_elsewhere_is_registered(tmp_path: Path) -> None:
    secret = ClientKeys(tmp_path / "elsewhere").create("phone")
    public = SigningKey(secret).public
    keys, file = ClientKeys(tmp_path / "keys"), tmp_path / "phone.pem"
    file.write_bytes(public.replace(b"\n", b"\r\n"))
    added = keys.add("pocket", file)
    assert (added.name, added.client) == ("pocket", client_index_of_key(public))
    keys.check(public, client_index_of_key(public))
    with pytest.raises(
        SamaraError, match="already has this key, or a key with the same client index"
    ):
        keys.add("pocket-again", file)
    with pytest.raises(SamaraError, match="choose another"):
        keys.add("pocket", file)
    rsa = generate_private_key(65537, 2048).public_key()
    file.write_bytes(rsa.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    for damaged in (file, secret, tmp_path / "none.pem"):
        with pytest.raises(SamaraError, match=f"{damaged.name}: "):
            keys.add("another", damaged)
    assert [key.name for key in keys.read_all()] == ["pocket"]


@pytest.mark.parametrize("name", ["", "../up", "a b", "x" * 65])
def test_a_name_that_is_no_file_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SamaraError, match="not a client's name"):
        ClientKeys(tmp_path).create(name)


def test_a_name_is_used_once_and_only_a_registered_key_is_revoked(tmp_path: Path) -> None:
    keys = ClientKeys(tmp_path)
    keys.create("kitchen")
    with pytest.raises(SamaraError, match="choose another"):
        keys.create("kitchen")
    with pytest.raises(SamaraError, match="has no key garage"):
        keys.revoke("garage")


@pytest.mark.parametrize("content", ["{}", "", "[" * 10**5, '{"name": 1, "public_key": 2'])
def test_a_damaged_key_file_refuses_its_key_alone(content: str, tmp_path: Path) -> None:
    keys = ClientKeys(tmp_path)
    keys.create("garage")
    keys.create("kitchen")
    garage, kitchen = keys.read_all()
    (tmp_path / "garage.json").write_text(content)
    assert "is not registered here" in keys.refusal_reason(garage.public_key.encode())
    assert keys.refusal_reason(kitchen.public_key.encode()) == ""
    assert keys.read_all() == [kitchen]
    [damage] = keys.find_damage()
    assert "garage.json: damaged: " in damage
    assert "restore the file, or delete it and create the key again" in damage
    keys.create("cellar")
    assert [key.name for key in keys.read_all()] == ["cellar", "kitchen"]
    (tmp_path / "garage.json").write_text(json.dumps(asdict(garage)))
    assert keys.refusal_reason(garage.public_key.encode()) == ""
    assert keys.find_damage() == []


@pytest.mark.parametrize("settled", [True, False])
def test_a_change_of_a_key_is_noticed_at_the_next_check(settled: bool, tmp_path: Path) -> None:
    """A folder that has changed within the last second is listed again at each check."""
    keys = ClientKeys(tmp_path)

    def let_time_pass() -> None:
        if settled:
            long_ago = time.time() - 100.0
            for path in (*tmp_path.iterdir(), tmp_path):
                os.utime(path, (long_ago, long_ago))

    keys.create("kitchen")
    [kitchen] = keys.read_all()
    for _ in range(2):
        let_time_pass()
        assert keys.refusal_reason(kitchen.public_key.encode()) == ""
    ClientKeys(tmp_path).revoke("kitchen")
    assert "was revoked" in keys.refusal_reason(kitchen.public_key.encode())
    let_time_pass()
    (tmp_path / "kitchen.json").write_text(json.dumps(asdict(kitchen)))  # in place
    assert keys.refusal_reason(kitchen.public_key.encode()) == ""
    let_time_pass()
    (tmp_path / "kitchen.json").unlink()
    assert "is not registered here" in keys.refusal_reason(kitchen.public_key.encode())


def test_the_cost_of_a_check_does_not_grow_with_the_number_of_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test counts file accesses: a check looks only at the folder and at its key's file."""
    keys = ClientKeys(tmp_path)
    for number in range(20):
        keys.create(f"client-{number}")
    long_ago = time.time() - 100.0
    os.utime(tmp_path, (long_ago, long_ago))
    public_keys = [key.public_key.encode() for key in keys.read_all()]
    looks = Counter[str]()

    def count(name: str) -> None:
        method = getattr(Path, name)

        def counted(path: Path, *args: Any, **options: Any) -> Any:
            looks[name] += 1
            return method(path, *args, **options)

        monkeypatch.setattr(Path, name, counted)

    for name in ("stat", "read_text", "glob"):
        count(name)
    for public_key in public_keys:
        assert keys.refusal_reason(public_key) == ""
        assert not keys.is_gateway(public_key)
    assert looks == {"stat": 4 * len(public_keys)}


def test_the_own_certificate_proves_the_server_by_every_name(tmp_path: Path) -> None:
    tls = make_certificates(tmp_path, ["server.example"])
    authority = tls.authority.read_bytes()
    first = tls.certificate.read_bytes()
    assert make_certificates(tmp_path, []).certificate.read_bytes() == first
    make_certificates(tmp_path, ["10.0.0.7"])
    assert tls.certificate.read_bytes() != first
    assert tls.authority.read_bytes() == authority
    for name in ("127.0.0.1", "server.example", "10.0.0.7"):
        assert shakes_hands(tls.certificate, tls.key, tls.authority, name)
    with pytest.raises(ssl.SSLCertVerificationError):
        shakes_hands(tls.certificate, tls.key, tls.authority, "another.example")
    assert check_certificates(tls.certificate, tls.key, tls.authority) == tls


def shakes_hands(certificate: Path, key: Path, authority: Path, name: str) -> bool:
    """Return whether a TLS handshake in memory succeeds, for a client that expects a name."""
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(certificate, key)
    client_side = ssl.create_default_context(cafile=str(authority))
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(down, up, server_hostname=name)
    server = server_side.wrap_bio(up, down, server_side=True)
    done = 0
    for _ in range(6):
        for side in (client, server):
            try:
                side.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                continue
    return done > 0


def test_an_operators_certificate_needs_its_key_and_the_loopback_address(tmp_path: Path) -> None:
    tls = make_certificates(tmp_path, [])
    with pytest.raises(SamaraError, match="--cert: its private key is missing"):
        check_certificates(tls.certificate, None, None)
    with pytest.raises(SamaraError, match=r"^--key .*none: no such file; .* leave out --cert"):
        check_certificates(tls.certificate, tmp_path / "none", None)
    with pytest.raises(SamaraError, match=r"is not valid for 127\.0\.0\.1"):
        check_certificates(tls.authority, tls.key, None)


@pytest.mark.parametrize(
    ("host", "path", "allowed"),
    [
        ("10.0.0.7", "/v1/fleet/pull-messages", True),
        ("10.0.0.7", "/v1/control/start-run", False),
        ("10.0.0.7", "/v1/runtime/acquire-task", False),
        ("10.0.0.7", "/docs", False),
        ("::ffff:10.0.0.7", "/v1/control/register-node", False),
        ("", "/v1/control/register-node", False),
        ("127.0.0.1", "/v1/control/start-run", True),
        ("::1", "/v1/runtime/acquire-task", True),
        ("::ffff:127.0.0.1", "/v1/runtime/acquire-task", True),
    ],
)
def test_other_hosts_may_request_the_fleet_api_only(host: str, path: str, allowed: bool) -> None:
    assert is_allowed(host, path) is allowed


def request_to(path: str) -> dict[str, Any]:
    """Return the ASGI scope of a request from another host."""
    headers = [(b"content-type", b"application/protobuf")]
    client = ("10.0.0.7", 1234)
    return {"type": "http", "method": "POST", "client": client, "path": path, "headers": headers}


def test_a_host_that_is_turned_away_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def flower(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 412})

    sent: list[int] = []
    codes: list[tuple[bytes, bytes]] = []

    async def send(message: Any) -> None:
        sent.append(message.get("status", 0))
        codes.extend(message.get("headers", ()))

    access_filter = AccessFilter(flower, 100)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    for path in ("/v1/fleet/activate-node", "/v1/fleet/activate-node", "/v1/control/start-run"):
        asyncio.run(access_filter(request_to(path), receive, send))
    scope = request_to(FILTER_PATH)
    asyncio.run(access_filter(scope, None, send))
    assert sent == [412, 412, 403, 0, 204, 0]
    assert codes == [(HEADER.encode(), b"5")] * 2
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "10.0.0.7 was rejected by Flower: its key is already connected" in lines[0]
    assert "'/v1/control/start-run', which only this machine may request" in lines[1]


def test_a_body_that_is_too_long_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    bodies: list[bytes] = []

    async def flower(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        bodies.append(message["body"])
        assert not message["more_body"]
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 200})

    def receiver() -> Any:
        parts = [{"type": "http.request", "body": bytes(40), "more_body": n < 2} for n in range(3)]

        async def receive() -> Any:
            return parts.pop(0) if parts else {"type": "http.disconnect"}

        return receive

    sent: list[int] = []

    async def send(message: Any) -> None:
        sent.append(message.get("status", 0))

    scope = request_to("/v1/fleet/pull-messages")
    asyncio.run(AccessFilter(flower, 100)(scope, receiver(), send))
    assert (bodies, sent) == ([], [413, 0])
    assert "10.0.0.7 sent more than 100 bytes at once" in caplog.text
    asyncio.run(AccessFilter(flower, 120)(scope, receiver(), send))
    assert (bodies, sent) == ([bytes(120)], [413, 0, 200])


def test_rests_double_and_end_with_a_success() -> None:
    health = ClientHealth(patience=2)
    assert [health.record_failure(3, number) for number in (1, 2, 4, 7)] == [0, 1, 2, 4]
    assert [number for number in range(7, 14) if health.is_resting(3, number)] == [7, 8, 9, 10, 11]
    assert health.resting_clients(11) == [3]
    assert [health.record_failure(3, 20) for _ in range(9)][-1] == 64
    health.record_success(3)
    assert not health.is_resting(3, 20)
    assert health.record_failure(3, 21) == 0


def test_the_bundle_has_the_same_bytes_and_every_setting() -> None:
    data = build_bundle(RunConfig())
    assert data == build_bundle(RunConfig())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = archive.namelist()
        project = tomllib.loads(archive.read("pyproject.toml").decode())
    assert set(names) == {"pyproject.toml", ".info/CONTENT"}
    config = project["tool"]["flwr"]["app"]["config"]
    assert RunConfig.of(config, "bundle") == RunConfig()
    assert "form" not in config  # clients of earlier versions do not know it


def test_a_new_setting_reaches_clients_of_earlier_versions_only_where_a_run_has_it() -> None:
    key = "personal.own-words"
    plain, with_words = RunConfig(), RunConfig.of({"task": "style", key: True}, "run")
    assert key not in plain.sent()
    assert with_words.sent()[key] is True
    assert RunConfig.of(plain.sent(), "sent") == plain
    assert RunConfig.of(with_words.sent(), "sent") == with_words
    # versions without the setting used another value than its default
    assert plain.sent()["aggregation.rule"] == "median-norm"


def test_a_live_run_takes_its_form_from_the_task() -> None:
    with pytest.raises(
        ConfigError, match="form: is only for simulated clients; write the form into the task file"
    ):
        read_live_config(None, ["form=chat"], "serve")


def test_code_that_is_not_installed_makes_a_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("samara.shared.machine.installed_code.version", version)
    with zipfile.ZipFile(io.BytesIO(build_bundle(RunConfig()))) as archive:
        project = tomllib.loads(archive.read("pyproject.toml").decode())["project"]
    assert project["version"] == "checkout"


def test_a_tail_gives_whole_lines_once(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    tail = EventFollower(file)
    assert list(tail.read_new()) == []
    file.write_text('{"a": 1}\nnot json\n[]\n{"b"')
    assert list(tail.read_new()) == [{"a": 1}]
    with file.open("a") as more:
        more.write(": 2}\n")
    assert list(tail.read_new()) == [{"b": 2}]


def test_whatever_a_decoder_raises_refuses_its_sender_alone() -> None:
    def decode(content: bytes) -> int:
        return {b"known": 1}[content]

    assert decode_foreign(decode, b"known") == 1
    with pytest.raises(FrameError, match="its answer cannot be decoded: KeyError"):
        decode_foreign(decode, b"other")


def test_foreign_text_is_one_short_line() -> None:
    assert cut_foreign_text("a\n  b\x1b[31m\u202ec") == "a b?[31m?c"
    assert len(cut_foreign_text("long" * 10**6)) == MAX_FOREIGN_TEXT


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_display_sorts_clients_by_number(tmp_path: Path, is_terminal: bool) -> None:
    output = io.StringIO()
    with RunDisplay(tmp_path, Console(file=output, force_terminal=is_terminal)) as display:
        event = {
            "event": "round",
            "round": 3,
            "reports": 3,
            "clients": {"10": {}, "100": {}, "2": {}},
            "refused": {},
            "bytes_up": 1,
            "bytes_down": 1,
            "digest": "ab" * 32,
            "problem": "",
        }
        append_event(tmp_path / METRICS_FILE, event)
        display.refresh()
    expected = "2: 3  10: 3  100: 3" if is_terminal else "3 reports from 2,10,100,"
    assert expected in output.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_display_names_clients_as_they_were_invited(tmp_path: Path, is_terminal: bool) -> None:
    output, keys = io.StringIO(), ClientKeys(tmp_path / KEYS_FOLDER)
    keys.create("anna")
    anna = keys.read_all()[0].client
    with RunDisplay(tmp_path, Console(file=output, force_terminal=is_terminal)) as display:
        event = {
            "event": "round",
            "round": 3,
            "reports": 2,
            "clients": {str(anna): {}, "2": {}},
            "refused": {},
            "bytes_up": 1,
            "bytes_down": 1,
            "digest": "ab" * 32,
            "problem": "",
        }
        append_event(tmp_path / METRICS_FILE, event)
        append_event(tmp_path / LOG_FILE, {"message": f"client {anna} is away"})
        display.refresh()
    shown = output.getvalue()
    assert ("anna: 3" if is_terminal else "reports from 2,anna,") in shown
    assert "client anna is away" in shown
    assert str(anna) not in shown
