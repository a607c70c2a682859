"""Requests to join that no honest device sends: replayed, racing, damaged, long, or too many."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from invitations import access_to, invite, names, new_run, post, request_of, serve

from samara.devices.live.join import join_run
from samara.devices.live.keys import OWN_KEY_FILE
from samara.server.live.invitations import Invitations
from samara.server.live.join_filter import MAX_REQUESTS, JoinFilter
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.shared.errors import InvitationError
from samara.shared.network.invitation import JOIN_PATH, MAX_REQUEST_BYTES, JoinRequest
from samara.shared.network.log_budget import LINES_AT_ONCE, LogBudget
from samara.shared.protocol.signing import SigningKey


class Clock:
    """A clock that a test advances."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return new_run(tmp_path / "run")


@pytest.fixture
def address(run: Path) -> Iterator[str]:
    with serve(access_to(run), run) as served:
        yield served


def test_a_recorded_request_lets_nobody_else_in(run: Path, address: str, tmp_path: Path) -> None:
    code = invite(run)
    recorded = request_of(code, tmp_path / "key")
    assert post(address, recorded.encode()) == 200
    before = (run / KEYS_FOLDER / "kitchen.json").read_bytes()
    assert post(address, recorded.encode()) == 200  # the same key: nothing changes
    mine = request_of(code, tmp_path / "mine")
    stolen = JoinRequest(recorded.secret, mine.public_key, recorded.signature)
    assert post(address, stolen.encode()) == 400  # not signed with the key that it names
    assert post(address, mine.encode()) == 409
    assert (run / KEYS_FOLDER / "kitchen.json").read_bytes() == before
    # what was signed for one invitation is nothing for another
    second = invite(run, "garden")
    elsewhere = JoinRequest(second.secret, recorded.public_key, recorded.signature)
    assert post(address, elsewhere.encode()) == 400


def test_two_devices_race_for_one_code(run: Path, address: str, tmp_path: Path) -> None:
    for number in range(6):
        code = invite(run, f"client-{number}")
        bodies = [request_of(code, tmp_path / f"{number}-{k}").encode() for k in range(2)]
        start = threading.Barrier(2)

        def send(body: bytes, start: threading.Barrier = start) -> int:
            start.wait()
            return post(address, body)

        with ThreadPoolExecutor(2) as both:
            assert sorted(both.map(send, bodies)) == [200, 409]
    assert len(names(run)) == 6


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"[" * 2000, b"\xff\xfe", b'{"secret": 1}',
        b'{"public-key": "", "secret": "", "signature": ""}',
        b'{"public-key": "-----BEGIN", "secret": "zz", "signature": "00"}',
        b'{"extra": "", "public-key": "", "secret": "", "signature": ""}',
    ],
)  # fmt: skip
def test_bodies_that_are_no_requests(run: Path, address: str, body: bytes) -> None:
    assert post(address, body) == 400


def test_bodies_and_paths_are_bounded(run: Path, address: str) -> None:
    code = invite(run)
    assert post(address, b"x" * (MAX_REQUEST_BYTES + 1)) == 413

    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * MAX_REQUEST_BYTES

    try:
        answer = httpx.post(f"https://{address}{JOIN_PATH}", content=endless(), verify=False)
        assert answer.status_code == 413
    except httpx.WriteError:
        pass  # the connection is closed before all is sent
    for path in ("x", "../keys/kitchen", f"{code.identifier}/..", "A" * 32, "0" * 32, "%00" * 32):
        answer = httpx.get(f"https://{address}{JOIN_PATH}/{path}", verify=False)
        assert (answer.status_code, answer.content) in [(404, b""), (403, b"")], path
    assert httpx.delete(f"https://{address}{JOIN_PATH}", verify=False).status_code == 404


def test_17204_requests_to_join_write_few_lines(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = LogBudget(logging.getLogger("samara.server"))
    asked, statuses = JoinFilter(Invitations(run), lines=lines), set[int]()

    async def send(message: Any) -> None:
        statuses.add(message.get("status", 0))

    async def ask_often() -> None:
        for number in range(17_204):
            client = f"10.{number % 300 >> 8}.{number % 300 & 255}.7", 1
            path = f"{JOIN_PATH}/{number}"
            scope = {"type": "http", "method": "GET", "client": client, "path": path, "headers": []}
            await asked(scope, None, send)

    asyncio.run(ask_often())
    assert statuses == {404, 429, 0}
    assert len(caplog.records) == 2 * LINES_AT_ONCE
    assert f"10.0.0.7 could not join by an invitation: sent over {MAX_REQUESTS}" in caplog.text
    lines.close()
    assert len(caplog.records) == 2 * LINES_AT_ONCE + 2


def test_requests_are_counted_by_address_and_a_key_by_its_index(run: Path, tmp_path: Path) -> None:
    clock, code = Clock(), invite(run)
    with serve(JoinFilter(Invitations(run), clock), run) as address:
        url = f"https://{address}{JOIN_PATH}/{'0' * 32}"
        with httpx.Client(verify=False) as client:
            statuses = [client.get(url).status_code for _ in range(MAX_REQUESTS + 1)]
        assert statuses == [404] * MAX_REQUESTS + [429]
        with pytest.raises(InvitationError, match="try again in a minute"):
            join_run(address, code, tmp_path / "home")
        clock.seconds = 60
        ClientKeys(run / KEYS_FOLDER).register(
            "garden", SigningKey(tmp_path / "home" / OWN_KEY_FILE).public, "a test"
        )
        with pytest.raises(InvitationError, match=r"own\.key, and run the\s+same command"):
            join_run(address, code, tmp_path / "home")
        (tmp_path / "home" / OWN_KEY_FILE).unlink()
        join_run(address, code, tmp_path / "home")
    with serve(JoinFilter(None), run) as insecure, pytest.raises(InvitationError, match="no such"):
        join_run(insecure, code, tmp_path / "home")
