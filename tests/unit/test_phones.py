"""PhoneGrid behind a gateway as nodes of their own."""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from helpers import layout_of

from devices.live.keys import create_key
from server.transport.deadline_grid import DeadlineGrid
from server.transport.messages import make_message
from server.transport.phone_grid import PhoneGrid
from server.transport.roster import Roster
from shared.client_index import client_index_of_key
from shared.frames.hello import Hello
from shared.frames.instructions import token_of
from shared.frames.refusal import Refusal
from shared.ledger.catch_up import CatchUp
from shared.signing import PhoneKey, of_answer
from shared.wire import CLIENTS, FRAMES, PUBLIC_KEYS, RECORD, SIGNATURES
from simulations.engine import InProcessGrid

LAPTOP, GATEWAY = 1000, 1001


def hello(client: int) -> bytes:
    layout = layout_of(20).to_json()
    return Hello(client, 10, 0, bytes(32), layout, json.dumps({"clients": 0})).encode()


class Gateway:
    """A ClientApp: a laptop at the first node, a gateway with phones at the second."""

    def __init__(self, keys: list[PhoneKey]) -> None:
        self.keys = {client_index_of_key(key.public): key for key in keys}
        self.calls: list[Any] = []
        self.silent: set[int] = set()
        self.forge = False

    def __call__(self, message: Message, context: Any) -> Message:
        record = message.content.config_records[RECORD]
        asks_hello = message.metadata.message_type == MessageType.QUERY
        if context.node_id == LAPTOP:
            frame = hello(5) if asks_hello else Refusal(bytes(8), 5, 0, "busy").encode()
            return Message(RecordDict({RECORD: ConfigRecord({"frame": frame})}), reply_to=message)
        instruction = bytes(record["frame"])  # type: ignore[arg-type]
        if not asks_hello:
            self.calls.append(record)
        clients = list(self.keys) if asks_hello else record[CLIENTS]
        frames, keys, signatures = [], [], []
        for client in clients:  # type: ignore[union-attr]
            if client not in self.silent:
                refusal = Refusal(token_of(instruction), client, 0, "busy").encode()
                frames.append(hello(client) if asks_hello else refusal)
                keys.append(self.keys[client].public)
                data = of_answer(instruction, frames[-1]) + b"!" * self.forge
                signatures.append(self.keys[client].sign(data))
        parts = {FRAMES: frames, PUBLIC_KEYS: keys, SIGNATURES: signatures}
        return Message(RecordDict({RECORD: ConfigRecord(parts)}), reply_to=message)


@pytest.fixture
def gateway_and_grid(tmp_path: Path) -> tuple[Gateway, DeadlineGrid]:
    files = [tmp_path / f"{number}.key" for number in range(2)]
    for file in files:
        create_key(file)
    app = Gateway([PhoneKey(file) for file in files])
    grid = InProcessGrid(app, 2, {})  # type: ignore[arg-type]
    return app, DeadlineGrid(PhoneGrid(grid), patience=1)


def train(post: DeadlineGrid, nodes: Iterable[int], tails: Iterable[bytes]) -> dict[int, Message]:
    messages = [
        make_message(node, MessageType.TRAIN, "1", b"do it", CatchUp(tail=tail), 60.0)
        for node, tail in zip(nodes, tails, strict=True)
    ]
    replies = post.send_and_receive(messages, timeout=20.0)
    return {reply.metadata.src_node_id: reply for reply in replies}


def test_every_phone_is_a_node_and_is_asked_through_its_gateway(gateway_and_grid: Any) -> None:
    app, post = gateway_and_grid
    nodes = post.connected_nodes()
    assert LAPTOP in nodes
    assert GATEWAY not in nodes
    assert {client_index_of_key(key) for key in nodes.values() if key} == app.keys.keys()
    roster = Roster()
    roster.request_hellos(post, 20.0)
    assert {entry.client for entry in roster.entries.values()} == {5, *app.keys}
    replies = train(post, nodes, [b"long tail", b"", b"tail"])
    assert replies.keys() == nodes.keys()
    assert all(not reply.has_error() for reply in replies.values())
    [call] = app.calls
    assert sorted(call[CLIENTS]) == sorted(app.keys)
    for node, key in nodes.items():
        frame = replies[node].content.config_records[RECORD]["frame"]
        assert Refusal.decode(frame).client == (client_index_of_key(key) if key else 5)


def test_the_phones_of_a_gateway_get_what_the_furthest_behind_needs(gateway_and_grid: Any) -> None:
    app, post = gateway_and_grid
    phones = [node for node, key in post.connected_nodes().items() if key]
    train(post, phones, [b"short", b"much longer"])
    assert app.calls[0]["tail"] == b"much longer"


def test_a_phone_that_is_silent_or_not_signed_costs_its_own_answer(gateway_and_grid: Any) -> None:
    app, post = gateway_and_grid
    by_device = {
        client_index_of_key(key): node for node, key in post.connected_nodes().items() if key
    }
    first, second = by_device
    app.silent = {first}
    replies = train(post, by_device.values(), [b"", b""])
    assert replies[by_device[first]].has_error()
    assert not replies[by_device[second]].has_error()
    app.silent, app.forge = set(), True
    replies = train(post, by_device.values(), [b"", b""])
    assert all(reply.has_error() for reply in replies.values())


def test_phones_come_and_go(gateway_and_grid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.transport.phone_grid.REFRESH_SECONDS", 0.0)
    app, post = gateway_and_grid
    assert len(post.connected_nodes()) == 3
    app.silent = set(app.keys)
    post.connected_nodes()
    assert list(post.connected_nodes()) == [LAPTOP]
    app.silent = set()
    post.connected_nodes()
    assert len(post.connected_nodes()) == 3


def test_what_nobody_answers_in_its_time_is_forgotten(
    gateway_and_grid: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, post = gateway_and_grid
    phones = [node for node, key in post.connected_nodes().items() if key]
    messages = [
        make_message(node, MessageType.TRAIN, "1", b"do it", CatchUp(), 60.0) for node in phones
    ]
    names = list(post.push_messages(messages))
    grid, clock = post._grid, time.monotonic()
    assert len(grid._relayed) == 1
    assert set(grid._places) == set(names)
    monkeypatch.setattr(
        "server.transport.phone_grid.time.monotonic", lambda: clock + messages[0].metadata.ttl + 1
    )
    post.connected_nodes()
    assert grid._relayed == grid._places == {}


def test_an_answer_that_nobody_fetches_is_forgotten(
    gateway_and_grid: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, post = gateway_and_grid
    phones = [node for node, key in post.connected_nodes().items() if key]
    messages = [
        make_message(node, kind, "1", b"do it", CatchUp(), 60.0)
        for kind in (MessageType.TRAIN, MessageType.QUERY)
        for node in phones
    ]
    fetched, *others = post.push_messages(messages)
    grid, clock = post._grid, time.monotonic()
    assert len(list(grid.pull_messages([fetched]))) == 1
    assert set(grid._ready) == set(others)
    monkeypatch.setattr(
        "server.transport.phone_grid.time.monotonic", lambda: clock + messages[0].metadata.ttl + 1
    )
    post.connected_nodes()
    assert grid._ready == {}


def test_a_phone_cannot_be_another_device(gateway_and_grid: Any) -> None:
    app, post = gateway_and_grid
    (one, key), (other, _) = app.keys.items()
    app.keys = {one: key, other: key}  # it signs for both
    assert {client_index_of_key(k) for k in post.connected_nodes().values() if k} == {one}
