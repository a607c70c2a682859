"""A browser joins by a link: the gateway passes each of its requests to the server once."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from gateways import Served, serve_phones
from golden.golden_scenario import golden_scenario
from invitations import authority_of, new_run, serve
from typer.testing import CliRunner, Result
from web_phones import ServedPage, serve_page

from samara.devices.gateway.page_server import join_relay
from samara.devices.gateway.page_server.join_relay import JoinRelay
from samara.devices.gateway.server_requests import ServerRequests
from samara.server.commands import app as server_commands
from samara.server.live.invitations import Invitations
from samara.server.live.join_filter import JoinFilter
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.shared.errors import ConfigError, SamaraError
from samara.shared.network import rate_limit
from samara.shared.network.invitation import (
    JOIN_PATH,
    MAX_REQUEST_BYTES,
    InvitationCode,
    JoinRequest,
    Welcome,
    join_proof,
)
from samara.shared.protocol.signing import public_pem, sign

ORIGIN = "https://phones.example"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return new_run(tmp_path / "run")


@pytest.fixture
def address(run: Path) -> Iterator[str]:
    with serve(JoinFilter(Invitations(run), lambda: 0.0), run) as served:
        yield served


@pytest.fixture
def served() -> Iterator[Served]:
    with serve_phones([]) as served:
        yield served


@pytest.fixture
def page(served: Served, run: Path, address: str, tmp_path: Path) -> Iterator[ServedPage]:
    joining = JoinRelay(ServerRequests(address, authority_of(run)))
    with serve_page(served, tmp_path / "page", None, joining) as page:
        yield page


@pytest.fixture(autouse=True)
def long_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "WINDOW_SECONDS", 1e6)


def invite(run: Path, *options: str, name: str = "pocket") -> Result:
    asked = ["invite", name, f"--run={run}", "--address=server.example:8000", *options]
    asked.append(f"--ca={authority_of(run)}")
    return CliRunner().invoke(server_commands, asked, catch_exceptions=False)


def code_in(shown: Result) -> InvitationCode:
    link, picture = shown.stdout.split("\n", 1)
    assert picture.count("█") > 100
    origin, code = link.split("/#join=")
    assert origin == ORIGIN
    return InvitationCode.parse(code)


def request_of(key: ec.EllipticCurvePrivateKey, code: InvitationCode) -> bytes:
    signature = sign(key, join_proof(code.secret))
    return JoinRequest(code.secret, public_pem(key), signature).encode()


def post(page: ServedPage, body: bytes) -> httpx.Response:
    return httpx.post(f"{page.origin}{JOIN_PATH}", content=body)


def test_a_browser_joins_by_a_link_and_nobody_joins_by_it_again(
    run: Path, page: ServedPage, tmp_path: Path
) -> None:
    scenario = tmp_path / "field.signed"
    scenario.write_bytes(golden_scenario().encode())
    code = code_in(invite(run, f"--page={ORIGIN}/", f"--scenario={scenario}"))
    got = httpx.get(f"{page.origin}{JOIN_PATH}/{code.identifier}")
    assert (got.status_code, got.headers["cache-control"]) == (200, "no-store")
    welcome = Welcome.decode(got.content, code.trusted)
    assert welcome.scenario == golden_scenario().encode().decode()
    key, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    for _ in range(2):  # the same request gets the same answer
        joined = post(page, request_of(key, code))
        assert (joined.status_code, joined.json()) == (200, {"name": "pocket"})
    (kept,) = ClientKeys(run / KEYS_FOLDER).read_all()
    assert kept.public_key.encode() == public_pem(key)
    assert post(page, request_of(other, code)).status_code == 409
    assert "pocket: its key was revoked on 20" in invite(run, "--revoke").stdout
    assert post(page, request_of(key, code)).status_code == 403
    (kept,) = ClientKeys(run / KEYS_FOLDER).read_all()
    assert kept.revoked


def test_a_revoked_link_lets_nobody_in(run: Path, page: ServedPage) -> None:
    code = code_in(invite(run, f"--page={ORIGIN}"))
    assert "its invitation is no longer valid" in invite(run, "--revoke").stdout
    key = ec.generate_private_key(ec.SECP256R1())
    assert post(page, request_of(key, code)).status_code == 404
    with pytest.raises(SamaraError, match="has no key and no invitation of pocket"):
        invite(run, "--revoke")
    assert ClientKeys(run / KEYS_FOLDER).read_all() == []


def test_a_link_that_has_ended_or_is_of_nobody_lets_nobody_in(run: Path, page: ServedPage) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    assert post(page, request_of(key, InvitationCode(bytes(16), bytes(16)))).status_code == 404
    assert post(page, b"not JSON").status_code == 400
    assert post(page, bytes(MAX_REQUEST_BYTES + 1)).status_code == 413
    assert httpx.get(f"{page.origin}{JOIN_PATH}/{'0' * 32}").status_code == 404
    assert ClientKeys(run / KEYS_FOLDER).read_all() == []


def test_joining_is_limited_before_the_server_is_asked(page: ServedPage) -> None:
    paths = [f"{JOIN_PATH}/{number:032x}" for number in range(join_relay.NEW_KEYS_PER_MINUTE)]
    assert {httpx.get(f"{page.origin}{path}").status_code for path in paths} == {404}
    answer = httpx.get(f"{page.origin}{paths[0]}")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "20")


def test_a_body_that_does_not_come_is_not_waited_for(
    page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_relay, "BODY_SECONDS", 0.05)

    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
        head = f"POST {JOIN_PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
        writer.write(head.encode())
        line = await reader.readline()
        writer.close()
        return line

    assert b" 408 " in asyncio.run(ask())


def test_a_server_that_cannot_be_asked_is_said(
    served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nobody = JoinRelay(ServerRequests("127.0.0.1:1", None))
    with serve_page(served, tmp_path / "page", None, nobody) as page:
        assert httpx.get(f"{page.origin}{JOIN_PATH}/{'0' * 32}").status_code == 502
    assert "nobody can join at present: the server cannot be asked" in caplog.text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--page=http://phones.example"], "--page http://phones.example: this is not an origin"),
        ([f"--page={ORIGIN}/path"], "this is not an origin"),
        ([f"--page={ORIGIN}", "--gateway=g.example:9100"], "leave out --program, --gateway and"),
    ],
)
def test_a_link_that_would_lead_nowhere_is_refused(
    run: Path, options: list[str], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        invite(run, *options)
