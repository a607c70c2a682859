"""A phone joins by one line over TLS, and gets its program; a wrong code is refused."""

import asyncio
import hashlib
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateways import Echo, Served, attached_phones, keys_in
from golden.golden_scenario import golden_scenario
from invitations import authority_of, new_run, serve
from typer.testing import CliRunner

from samara.command import app as samara
from samara.devices.gateway import admission as gateway_module
from samara.devices.gateway.admitted_keys import AdmittedKeys
from samara.devices.gateway.registered_keys import RegisteredKeys
from samara.devices.gateway.server_requests import ServerRequests
from samara.devices.live import join as board
from samara.devices.live.client_folder import JOINED_FILE
from samara.devices.live.connection.gateway_stream import attach
from samara.devices.live.keys import OWN_KEY_FILE
from samara.devices.phone.reference_client.joining import (
    AUTHORITY_FILE,
    PROGRAM_FILE,
    join_run,
    read_joined_gateway,
)
from samara.server.commands import app as server_commands
from samara.server.live import join_filter
from samara.server.live.invitations import (
    PROGRAMS_FOLDER,
    Invitations,
    invite_client,
    phone_welcome,
)
from samara.server.live.join_filter import MAX_DOWNLOADS, JoinFilter
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.shared.errors import DeviceError, InvitationError, SamaraError
from samara.shared.network.invitation import JOIN_PATH, KEYS_PATH, InvitationCode
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.protocol.signing import SigningKey, fingerprint_of
from samara.shared.storage.files import UNFINISHED

PROGRAM, MANIFEST = bytes(range(256)) * 3000, b'{"version": 1}'
GATEWAY = "gateway.example:9100"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = new_run(tmp_path / "run")
    (tmp_path / "model.pte").write_bytes(PROGRAM)
    (tmp_path / "model.json").write_bytes(MANIFEST)
    return folder


@pytest.fixture
def app(run: Path) -> JoinFilter:
    return JoinFilter(Invitations(run), lambda: 0.0)


@pytest.fixture
def address(run: Path, app: JoinFilter) -> Iterator[str]:
    with serve(app, run) as served:
        yield served


def invite(run: Path, name: str = "pocket", hours: float = 1.0) -> InvitationCode:
    authority = authority_of(run)
    phone = phone_welcome(run, GATEWAY, authority, run.parent / "model.pte")
    end = datetime.now(UTC) + timedelta(hours=hours)
    return invite_client(run, name, authority, None, end, phone)


def get(address: str, path: str, **headers: str) -> httpx.Response:
    return httpx.get(f"https://{address}{path}", headers=headers, verify=False)


def test_a_phone_joins_by_one_line_and_has_all_that_it_needs(
    run: Path, address: str, tmp_path: Path
) -> None:
    scenario = tmp_path / "field.signed"
    scenario.write_bytes(golden_scenario().encode())
    authority = authority_of(run)
    of_phone = [f"--program={tmp_path / 'model.pte'}", f"--gateway={GATEWAY}"]
    asked = ["invite", "pocket", f"--run={run}", f"--address={address}", f"--scenario={scenario}"]
    with pytest.raises(SamaraError, match="a phone needs --program, --gateway and --gateway-ca"):
        CliRunner().invoke(server_commands, [*asked, *of_phone], catch_exceptions=False)
    asked += [*of_phone, f"--gateway-ca={authority}", "--qr"]
    shown = CliRunner().invoke(server_commands, asked)
    assert shown.exit_code == 0, shown.output
    line, picture = shown.stdout.split("\n", 1)
    assert picture.count("█") > 100
    program, *words = line.split()
    assert [program, *words[:2]] == ["samara", "phone", "join"]
    home = tmp_path / "phone"
    joined = CliRunner().invoke(samara, [*words, "--home", str(home)])
    assert joined.exit_code == 0, joined.output
    assert "signed by operator" in joined.output
    assert f"next: samara phone up --name pocket --home {home} --rows ROWS" in joined.output
    (key,) = ClientKeys(run / KEYS_FOLDER).read_all()
    public = SigningKey(home / OWN_KEY_FILE).public
    assert (key.name, key.public_key.encode()) == ("pocket", public)
    assert (home / PROGRAM_FILE).read_bytes() == PROGRAM
    assert (home / "model.json").read_bytes() == MANIFEST
    assert (home / AUTHORITY_FILE).read_bytes() == authority.read_bytes()
    assert list((home / "scenarios").glob("*.signed"))
    assert home.stat().st_mode & 0o077 == 0
    found = read_joined_gateway(home)
    assert found == (GATEWAY, home / AUTHORITY_FILE, home / OWN_KEY_FILE, home / PROGRAM_FILE)
    secret_line = (home / OWN_KEY_FILE).read_text().splitlines()[1]
    assert not any(secret_line in f.read_text("latin1") for f in run.rglob("*") if f.is_file())


def test_phone_up_says_what_is_missing(tmp_path: Path) -> None:
    up = ["phone", "up", "--rows", "rows.jsonl", "--home", str(tmp_path)]
    assert "samara server invite" in str(CliRunner().invoke(samara, up).exception)
    by_hand = ["--program", "model.pte", "--key", "phone.key", "--gateway", "gateway.example"]
    wrong = str(CliRunner().invoke(samara, up + by_hand).exception)
    assert "--gateway gateway.example: this is not host:port" in wrong
    nameless = CliRunner().invoke(samara, ["phone", "up", "--rows", "rows.jsonl"])
    assert "--name NAME is missing" in str(nameless.exception)
    (tmp_path / JOINED_FILE).write_text('{"gateway": 1}')
    assert "join again" in str(CliRunner().invoke(samara, up).exception)
    gateway = ["gateway", "up", "--superlink", "127.0.0.1:1", "--insecure"]
    assert "--phones FOLDER is missing" in str(CliRunner().invoke(samara, gateway).exception)


def test_wrong_used_ended_and_foreign_codes(run: Path, address: str, tmp_path: Path) -> None:
    ended = invite(run, hours=-1.0)
    with pytest.raises(InvitationError, match="has ended"):
        join_run(address, ended, tmp_path / "late")
    code = invite(run)
    with pytest.raises(InvitationError, match="no such invitation"):
        join_run(address, InvitationCode(code.trusted, bytes(16)), tmp_path / "wrong")
    with pytest.raises(InvitationError, match="was changed on the way"):
        join_run(address, InvitationCode(bytes(16), code.secret), tmp_path / "wrong")
    for _ in range(2):
        join_run(address, code, tmp_path / "first")
    with pytest.raises(InvitationError, match="used with another key"):
        join_run(address, code, tmp_path / "second")
    with pytest.raises(InvitationError, match="samara phone join"):
        board.join_run(address, code, tmp_path / "board")
    end = datetime.now(UTC) + timedelta(hours=1)
    plain = invite_client(run, "kitchen", authority_of(run), None, end)
    with pytest.raises(InvitationError, match="samara client join"):
        join_run(address, plain, tmp_path / "third")
    assert [key.name for key in ClientKeys(run / KEYS_FOLDER).read_all()] == ["pocket"]
    for name in ("late", "wrong", "second", "board", "third"):
        assert not (tmp_path / name / JOINED_FILE).exists()
        assert not (tmp_path / name / PROGRAM_FILE).exists()


def test_a_program_that_was_half_sent_goes_on_where_it_ended(
    run: Path, address: str, tmp_path: Path
) -> None:
    code, home = invite(run), tmp_path / "phone"
    home.mkdir()
    part = home / (PROGRAM_FILE + UNFINISHED)
    digest = hashlib.sha256(PROGRAM).hexdigest()
    answer = get(address, f"{JOIN_PATH}/{code.identifier}/{digest}", range="bytes=700000-")
    assert (answer.status_code, answer.content) == (206, PROGRAM[700_000:])
    part.write_bytes(PROGRAM[:700_000])
    join_run(address, code, home)
    assert (home / PROGRAM_FILE).read_bytes() == PROGRAM
    assert not part.exists()
    for other in (b"x" * 700_000, b"x" * (len(PROGRAM) + 1)):  # of another program
        (home / PROGRAM_FILE).unlink()
        part.write_bytes(other)
        with pytest.raises(InvitationError, match="invitation; run the same command again"):
            join_run(address, code, home)
        assert not (home / PROGRAM_FILE).exists()
        join_run(address, code, home)
        assert (home / PROGRAM_FILE).read_bytes() == PROGRAM


def test_another_program_than_the_invitations_is_not_kept(
    run: Path, address: str, tmp_path: Path
) -> None:
    code, home = invite(run), tmp_path / "phone"
    kept = run / PROGRAMS_FOLDER / hashlib.sha256(PROGRAM).hexdigest()
    kept.write_bytes(PROGRAM[::-1])
    with pytest.raises(InvitationError, match="does not match the invitation"):
        join_run(address, code, home)
    kept.unlink()
    with pytest.raises(InvitationError, match="the server did not send the program"):
        join_run(address, code, home)
    assert not (home / PROGRAM_FILE).exists()
    assert read_joined_gateway(home) is None


def test_a_program_is_sent_for_its_invitation_alone(
    run: Path, app: JoinFilter, address: str
) -> None:
    code, digest = invite(run), hashlib.sha256(PROGRAM).hexdigest()
    path = f"{JOIN_PATH}/{code.identifier}/{digest}"
    for wrong in (
        f"{JOIN_PATH}/{'0' * 32}/{digest}",
        f"{JOIN_PATH}/{code.identifier}/{'0' * 64}",
        f"{JOIN_PATH}/{code.identifier}/{digest[:-1]}",
        f"{JOIN_PATH}/{code.identifier}/../{digest}",
    ):
        answer = get(address, wrong)
        assert (answer.status_code, answer.content) == (404, b""), wrong
    assert get(address, path, range=f"bytes={len(PROGRAM) + 1}-").status_code == 416
    for odd in ("bytes=1-2", "bytes=-5", "lines=1-", "bytes=" + "9" * 99 + "-"):
        assert get(address, path, range=odd).content == PROGRAM, odd
    assert httpx.post(f"https://{address}{path}", verify=False).status_code == 404
    app._downloads = {str(other): object() for other in range(MAX_DOWNLOADS)}
    assert get(address, path).status_code == 503


class Slow:
    """The connection of a device that reads a part of a download when the test says so."""

    def __init__(self) -> None:
        self.got, self.waits, self.goes_on = bytearray(), asyncio.Event(), asyncio.Event()
        self.is_whole = False

    async def __call__(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            self.waits.set()
            await self.goes_on.wait()
            self.got += message["body"]
            self.is_whole = not message.get("more_body", False)


def test_a_download_gives_its_place_back(
    run: Path, app: JoinFilter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(join_filter, "PIECE_BYTES", 100_000)
    monkeypatch.setattr(join_filter, "MAX_DOWNLOADS", 2)
    digest = hashlib.sha256(PROGRAM).hexdigest()
    codes = [invite(run, name) for name in ("first", "second", "third")]

    def download(device: Slow, number: int) -> "asyncio.Task[None]":
        path = f"{JOIN_PATH}/{codes[number].identifier}/{digest}"
        scope = {"path": path, "method": "GET", "headers": []}
        return asyncio.create_task(app(scope, None, device))

    async def take() -> None:
        devices = [Slow() for _ in range(4)]
        earlier, later, second, third = devices
        tasks = [download(earlier, 0), download(second, 1)]
        for device in (earlier, second):
            await device.waits.wait()
        third.goes_on.set()
        await download(third, 2)
        assert (third.got, third.is_whole) == (b"", True)  # refused: status and no body
        tasks.append(download(later, 0))  # of the same invitation: in place of the earlier one
        for device in (later, earlier, second):
            await device.waits.wait()
            device.goes_on.set()
        await asyncio.gather(*tasks)
        assert (later.got, later.is_whole) == (PROGRAM, True)
        assert (second.got, second.is_whole) == (PROGRAM, True)
        assert (earlier.got, earlier.is_whole) == (PROGRAM[:100_000], False)
        assert app._downloads == {}
        monkeypatch.setattr(join_filter, "PIECE_SECONDS", 0.01)
        await download(Slow(), 0)
        assert app._downloads == {}

    asyncio.run(take())
    assert "asked for a program during 2 other transfers" in caplog.text
    assert "received a program too slowly" in caplog.text


def test_a_gateway_admits_the_keys_of_the_servers_clients(
    run: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ClientKeys(run / KEYS_FOLDER)
    keys.create("gateway", gateway=True)
    joined, known, stranger = keys_in(tmp_path)
    keys.register("pocket", joined.public, "a test")
    keys.register("gone", known.public, "a test")
    keys.revoke("gone")
    for public, status in (
        (joined.public, 200),
        (known.public, 404),
        (stranger.public, 404),
        (keys.find_by_name("gateway").public_key.encode(), 404),  # type: ignore[union-attr]
    ):
        assert get(address, f"{KEYS_PATH}/{fingerprint_of(public)}").status_code == status
    folder, authority = tmp_path / "phones", authority_of(run)
    admitted = AdmittedKeys(folder)
    served = Served(admitted, None, RegisteredKeys(admitted, ServerRequests(address, authority)))
    with closing(served):
        with attached_phones(served, joined, Echo(client_index_of_key(joined.public))):
            assert [file.read_bytes() for file in folder.iterdir()] == [joined.public]
        for key in (known, stranger):
            with pytest.raises(DeviceError, match="not registered at the server"):
                attach(None, key, served.endpoint, threading.Event())  # type: ignore[arg-type]
        monkeypatch.setattr(gateway_module, "MAX_ASKED", 0)
        later = threading.Event()
        monkeypatch.setattr(later, "wait", lambda _: later.set())
        assert not attach(None, stranger, served.endpoint, later)  # type: ignore[arg-type]
        assert "too many new keys at once; try again later" in served.gateway.refused
        with attached_phones(served, joined, Echo(client_index_of_key(joined.public))):
            pass  # one that is known is let in without a question


def test_a_phone_comes_again_when_the_server_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreachable(public_key: bytes) -> bool:
        raise DeviceError("no server")

    key, served = keys_in(tmp_path)[0], Served(lambda _: False, None, unreachable)
    tries, stop = list[float](), threading.Event()

    def wait(seconds: float) -> None:
        tries.append(seconds)
        if len(tries) == 3:
            stop.set()

    monkeypatch.setattr(stop, "wait", wait)
    with closing(served):
        assert not attach(None, key, served.endpoint, stop)  # type: ignore[arg-type]
    [(reason, times)] = served.gateway.refused.items()
    assert (reason, times) == (
        "the gateway cannot ask the server about this key; try again later",
        3,
    )
    assert [record.getMessage() for record in caplog.records if "no server" in record.message] == [
        "new phones are not admitted at present: no server"
    ]


def test_a_server_that_answers_otherwise_admits_nobody(tmp_path: Path, run: Path) -> None:
    (key, *_), admitted = keys_in(tmp_path), AdmittedKeys(tmp_path / "phones")
    authority = authority_of(run)
    for place in ("127.0.0.1:9", "nowhere.invalid:1", f"{'x' * 64}.invalid:1"):
        with pytest.raises(DeviceError, match="cannot be asked"):
            RegisteredKeys(admitted, ServerRequests(place, authority))(key.public)

    async def broken(scope: object, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": b""})  # type: ignore[operator]

    with serve(broken, run) as place, pytest.raises(DeviceError, match="status 500"):
        RegisteredKeys(admitted, ServerRequests(place, authority))(key.public)
    assert not (tmp_path / "phones").exists()
