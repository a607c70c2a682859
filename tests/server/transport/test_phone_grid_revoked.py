"""A phone with a revoked or unregistered key learns of this through its gateway."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest
from gateways import SECONDS, Echo, Served, attached_phones, keys_in, serve_phones
from helpers import layout_of

from samara.devices.gateway import relay
from samara.devices.live.connection.gateway_stream import attach
from samara.server.live.keys import ClientKeys
from samara.server.transport import refusal_notices
from samara.server.transport.phone_grid import PhoneGrid
from samara.shared.errors import RefusalCode, RejectedError
from samara.shared.proto.trainer_pb2 import Task, TaskKind
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.protocol.frames.hello import Hello
from samara.shared.protocol.frames.refusal import Refusal, describe_servers_refusal
from samara.shared.protocol.signing import SigningKey
from samara.shared.settings.config import RunConfig
from samara.simulations.engines.in_process import FIRST_CLIENT_NODE, InProcessGrid


class Phone(Echo):
    """A phone that introduces itself and records the server's notices."""

    def __init__(self, key: SigningKey) -> None:
        super().__init__(client_index_of_key(key.public))
        self.told = SimpleQueue[bytes]()

    def hello(self, task: Task) -> bytes:
        layout = layout_of(20).to_json()
        return Hello(self.device, 10, 0, bytes(32), layout, '{"clients": 0}').encode()

    def answer(self, task: Task) -> bytes:
        if task.kind != TaskKind.REFUSED:
            return super().answer(task)
        self.told.put(task.instruction)
        return task.instruction


class OneGateway(PhoneGrid):
    """A grid whose only node is the gateway of a run."""

    def _flower_nodes(self) -> dict[int, bytes]:
        assert self._keys is not None
        [gateway] = [key for key in self._keys.read_all() if key.gateway]
        return {FIRST_CLIENT_NODE: gateway.public_key.encode()}


@pytest.fixture
def keys(tmp_path: Path) -> list[SigningKey]:
    return keys_in(tmp_path)[:2]


@pytest.fixture
def served(keys: list[SigningKey]) -> Iterator[Served]:
    with serve_phones(keys) as served:
        yield served


@pytest.fixture
def registered(tmp_path: Path, keys: list[SigningKey]) -> ClientKeys:
    """The keys of a run: the gateway's key, and the first phone's key, named ``pocket``."""
    registered = ClientKeys(tmp_path / "keys")
    registered.create("gateway", gateway=True)
    (tmp_path / "pocket.pem").write_bytes(keys[0].public)
    registered.add("pocket", tmp_path / "pocket.pem")
    return registered


@pytest.fixture
def grid(served: Served, registered: ClientKeys, monkeypatch: pytest.MonkeyPatch) -> PhoneGrid:
    monkeypatch.setattr("samara.server.transport.phone_grid.REFRESH_SECONDS", 0.0)
    app = relay.gateway_app(served.gateway, served.loop)
    settings = RunConfig.of({}, "test").flat()
    return OneGateway(InProcessGrid(app, 1, settings), registered)


def until(grid: PhoneGrid, condition: Callable[[], bool]) -> None:
    """Refresh the server's list of phones until a condition holds."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        grid.connected_nodes()


def test_a_revoked_phone_ends_with_the_servers_reason_and_others_stay(
    tmp_path: Path,
    served: Served,
    keys: list[SigningKey],
    registered: ClientKeys,
    grid: PhoneGrid,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "other.pem").write_bytes(keys[1].public)
    registered.add("other", tmp_path / "other.pem")
    pocket, other = (Phone(key) for key in keys)
    with attached_phones(served, keys[1], other), ThreadPoolExecutor() as pool:
        stop = threading.Event()
        ended: Future[None] = pool.submit(
            attach,
            pocket,  # type: ignore[arg-type]
            keys[0],
            served.endpoint,
            stop,
        )
        until(grid, lambda: {key.public for key in keys} == set(grid.connected_nodes().values()))
        assert pocket.told.empty()
        registered.revoke("pocket")
        until(grid, ended.done)
        why = describe_servers_refusal(RefusalCode.REVOKED)
        with pytest.raises(RejectedError, match="this client's key was revoked") as error:
            ended.result()
        assert (str(error.value), error.value.exit_status) == (why, 77)
        assert Refusal.decode(pocket.told.get(timeout=SECONDS)).code == RefusalCode.REVOKED
        until(grid, lambda: set(grid.connected_nodes().values()) == {keys[1].public})
        assert other.told.empty()
        # Started again, it is told again.
        again = pool.submit(
            attach,
            pocket,  # type: ignore[arg-type]
            keys[0],
            served.endpoint,
            stop,
        )
        until(grid, again.done)
        with pytest.raises(RejectedError, match="was revoked"):
            again.result()
    lines = [record.getMessage() for record in caplog.records if record.name == "samara.gateway"]
    assert f"phone {pocket.device}: {why}" in lines


def test_a_phone_that_nobody_registered_is_told_once_and_stays(
    tmp_path: Path,
    served: Served,
    keys: list[SigningKey],
    registered: ClientKeys,
    grid: PhoneGrid,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stranger = Phone(keys[1])
    with attached_phones(served, keys[1], stranger):
        until(grid, lambda: not stranger.told.empty())
        for _ in range(5):
            grid.connected_nodes()
        notice = Refusal.decode(stranger.told.get(timeout=SECONDS))
        assert (notice.code, stranger.told.empty()) == (RefusalCode.KEY, True)
        monkeypatch.setattr(refusal_notices, "REPEAT_SECONDS", 0.0)  # the time has passed
        until(grid, lambda: not stranger.told.empty())
        # It waits to be registered, and then takes part.
        (tmp_path / "late.pem").write_bytes(keys[1].public)
        registered.add("late", tmp_path / "late.pem")
        until(grid, lambda: set(grid.connected_nodes().values()) == {keys[1].public})
