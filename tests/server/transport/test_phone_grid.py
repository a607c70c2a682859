"""Phones behind a gateway are separate nodes."""

import hashlib
import json
import time
from collections.abc import Iterable
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar

import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from helpers import layout_of

from samara.client.protocol.blob_receiver import receive_part
from samara.devices.live.keys import create_key, read_client_index
from samara.server.live.keys import ClientKeys
from samara.server.transport import blob_sender
from samara.server.transport.blob_sender import BlobSender
from samara.server.transport.deadline_grid import DeadlineGrid
from samara.server.transport.messages import LOST, make_message
from samara.server.transport.phone_grid import PhoneGrid
from samara.server.transport.roster import Roster
from samara.shared.errors import RefusalCode, SamaraError
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.protocol.frames.hello import Hello
from samara.shared.protocol.frames.instructions import token_of
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.signing import SigningKey, answer_bytes
from samara.shared.protocol.wire import (
    ATTACHED,
    CLIENTS,
    FRAMES,
    KNOWN,
    PENDING,
    PUBLIC_KEYS,
    RECORD,
    SHARES,
    SIGNATURES,
    Kind,
    kind_of,
)
from samara.shared.storage.blob_store import BlobStore
from samara.simulations.engines.in_process import InProcessGrid

LAPTOP, GATEWAY = 1000, 1001
CONTENT = bytes(range(250)) * 4
BLOB = hashlib.sha256(CONTENT).digest()


def hello(client: int) -> bytes:
    layout = layout_of(20).to_json()
    return Hello(client, 10, 0, bytes(32), layout, json.dumps({"clients": 0})).encode()


class Gateway:
    """A ClientApp: a laptop at the first node, a gateway with phones at the second."""

    def __init__(self, keys: list[SigningKey]) -> None:
        self.keys = {client_index_of_key(key.public): key for key in keys}
        self.calls: list[Any] = []
        self.silent: set[int] = set()
        self.lacking: dict[int, BlobStore] = {}
        self.forge = False
        self.hellos: dict[str, list[bytes]] = {}
        self.replays = False
        self.part = 0  # most hellos in a reply; 0 for all
        self.repeats = False  # whether the same phones say hello again and again
        self.nonces: list[bytes] = []
        self.clients: dict[int, int] = {}  # index by number of the key, where it is another

    def __call__(self, message: Message, context: Any) -> Message:
        record = message.content.config_records[RECORD]
        asks_hello = message.metadata.message_type == MessageType.QUERY
        if context.node_id == LAPTOP:
            frame = hello(5) if asks_hello else Refusal(bytes(8), 5, 0, RefusalCode.PAUSED).encode()
            return Message(RecordDict({RECORD: ConfigRecord({"frame": frame})}), reply_to=message)
        instruction = bytes(record["frame"])  # type: ignore[arg-type]
        if not asks_hello:
            self.calls.append(record)
        clients = list(self.keys) if asks_hello else record[CLIENTS]
        known, pending = list(record.get(KNOWN, [])), list[int]()  # type: ignore[call-overload]
        if asks_hello:
            self.nonces.append(instruction)
        if asks_hello and self.part:
            left = [client for client in self.keys if self.repeats or client not in known]
            clients, pending = left[: self.part], left[self.part :]
        frames, keys, signatures = [], [], []
        for client in clients:  # type: ignore[union-attr]
            if client not in self.silent:
                frames.append(self.answer(instruction, client, asks_hello))
                keys.append(self.keys[client].public)
                data = answer_bytes(instruction, frames[-1]) + b"!" * self.forge
                signatures.append(self.keys[client].sign(data))
        parts = {FRAMES: frames, PUBLIC_KEYS: keys, SIGNATURES: signatures}
        if asks_hello:
            parts = self.hellos if self.replays else parts
            self.hellos = parts
        if asks_hello and self.part:
            parts = parts | {ATTACHED: known, PENDING: pending}
        return Message(RecordDict({RECORD: ConfigRecord(parts)}), reply_to=message)

    def answer(self, instruction: bytes, number: int, asks_hello: bool) -> bytes:
        store, client = self.lacking.get(number), self.clients.get(number, number)
        if store and not asks_hello and kind_of(instruction) is Kind.BLOB_PART:
            return receive_part(instruction, [BLOB], client, store)
        if asks_hello and store and store.find(BLOB) is None:
            numbers = int.from_bytes(BLOB[:4]), store.received_bytes(BLOB)
            return Refusal(bytes(8), client, 0, RefusalCode.MISSING_BLOB, numbers).encode()
        if asks_hello:
            return hello(client)
        return Refusal(token_of(instruction), client, 0, RefusalCode.PAUSED).encode()


@pytest.fixture
def gateway(tmp_path: Path) -> Gateway:
    files = [tmp_path / f"{number}.key" for number in range(2)]
    for file in files:
        create_key(file)
    return Gateway([SigningKey(file) for file in files])


@pytest.fixture
def phone_grid(gateway: Gateway) -> PhoneGrid:
    return PhoneGrid(InProcessGrid(gateway, 2, {}))  # type: ignore[arg-type]


@pytest.fixture
def grid(phone_grid: PhoneGrid) -> DeadlineGrid:
    return DeadlineGrid(phone_grid, late_exchanges=1)


def train(
    grid: DeadlineGrid,
    nodes: Iterable[int],
    tails: Iterable[bytes] = repeat(b""),
    frames: Iterable[bytes] = repeat(b"do it"),
) -> dict[int, Message]:
    """Send each node an instruction; return the replies by node."""
    messages = [
        make_message(node, MessageType.TRAIN, "1", frame, CatchUp(tail=tail), 60.0)
        for node, tail, frame in zip(nodes, tails, frames, strict=False)
    ]
    replies = grid.send_and_receive(messages, timeout=20.0)
    return {reply.metadata.src_node_id: reply for reply in replies}


def phones_of(grid: DeadlineGrid) -> dict[int, int]:
    """The client indices of the connected phones, by node id."""
    keys = grid.connected_nodes().items()
    return {node: client_index_of_key(key) for node, key in keys if key}


def frame_in(reply: Message) -> bytes:
    return bytes(reply.content.config_records[RECORD]["frame"])  # type: ignore[arg-type]


def test_every_phone_is_a_node_and_gets_messages_by_its_gateway(
    gateway: Gateway, grid: DeadlineGrid
) -> None:
    nodes = grid.connected_nodes()
    assert LAPTOP in nodes
    assert GATEWAY not in nodes
    assert set(phones_of(grid).values()) == gateway.keys.keys()
    roster = Roster()
    roster.request_hellos(grid, 20.0)
    assert {entry.client for entry in roster.entries.values()} == {5, *gateway.keys}
    replies = train(grid, nodes, [b"long tail", b"", b"tail"])
    assert replies.keys() == nodes.keys()
    assert all(not reply.has_error() for reply in replies.values())
    [call] = gateway.calls
    assert sorted(call[CLIENTS]) == sorted(gateway.keys)
    for node, key in nodes.items():
        client = client_index_of_key(key) if key else 5
        assert Refusal.decode(frame_in(replies[node])).client == client


def test_the_phones_of_a_gateway_get_the_longest_catch_up(
    gateway: Gateway, grid: DeadlineGrid
) -> None:
    train(grid, phones_of(grid), [b"short", b"much longer"])
    assert gateway.calls[0]["tail"] == b"much longer"


def test_every_phone_of_a_gateway_gets_its_own_sealed_shares_in_one_message(
    gateway: Gateway, grid: DeadlineGrid
) -> None:
    phones = phones_of(grid)
    messages = [
        make_message(node, MessageType.TRAIN, "1", b"do it", CatchUp(), 60.0) for node in phones
    ]
    for message, client in zip(messages, phones.values(), strict=True):
        message.content.config_records[RECORD][SHARES] = client.to_bytes(4, "little")
    replies = list(grid.send_and_receive(messages, timeout=20.0))
    assert not any(reply.has_error() for reply in replies)
    [call] = gateway.calls
    shares = [client.to_bytes(4, "little") for client in call[CLIENTS]]
    assert list(call[SHARES]) == shares
    assert len(shares) == 2


def test_the_phones_of_two_clusters_each_get_their_instruction_and_their_answers_count(
    gateway: Gateway, grid: DeadlineGrid
) -> None:
    clients, frames = phones_of(grid), [b"train cluster 1", b"train cluster 2"]
    replies = train(grid, clients, [b"tail of cluster 1", b"2"], frames)
    assert [bytes(call["frame"]) for call in gateway.calls] == frames
    assert [call["tail"] for call in gateway.calls] == [b"tail of cluster 1", b"2"]
    assert [list(call[CLIENTS]) for call in gateway.calls] == [[c] for c in clients.values()]
    for (node, client), instruction in zip(clients.items(), frames, strict=True):
        refusal = Refusal.decode(frame_in(replies[node]))
        assert (refusal.client, refusal.token) == (client, token_of(instruction))


def test_a_phone_that_is_silent_or_signs_wrongly_loses_its_own_answer_only(
    gateway: Gateway, grid: DeadlineGrid
) -> None:
    clients = phones_of(grid)
    first, second = clients
    gateway.silent = {clients[first]}
    replies = train(grid, clients)
    assert replies[first].error.code in LOST  # it counts as absent
    assert not replies[second].has_error()
    gateway.silent, gateway.forge = set(), True
    replies = train(grid, clients)
    assert all(reply.has_error() for reply in replies.values())


def test_phones_come_and_go(
    gateway: Gateway, grid: DeadlineGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samara.server.transport.phone_grid.REFRESH_SECONDS", 0.0)
    assert len(grid.connected_nodes()) == 3
    gateway.silent = set(gateway.keys)
    grid.connected_nodes()
    assert list(grid.connected_nodes()) == [LAPTOP]
    gateway.silent = set()
    grid.connected_nodes()
    assert len(grid.connected_nodes()) == 3


def test_hellos_that_come_in_parts_are_asked_for_at_once_and_answer_one_nonce(
    gateway: Gateway, grid: DeadlineGrid
) -> None:
    gateway.part = 1
    assert len(phones_of(grid)) == 1
    assert set(phones_of(grid).values()) == gateway.keys.keys()
    phones_of(grid)
    assert len(gateway.nonces) == 2  # nothing is due again before the phones are to be refreshed
    assert gateway.nonces[0] == gateway.nonces[1]


def test_a_gateway_that_has_more_hellos_without_end_is_not_asked_without_end(
    gateway: Gateway, grid: DeadlineGrid
) -> None:
    gateway.part, gateway.repeats = 1, True
    for _ in range(5):
        assert len(phones_of(grid)) == 1
    assert len(gateway.nonces) == 2


def test_messages_that_are_not_answered_in_time_are_discarded(
    phone_grid: PhoneGrid, grid: DeadlineGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [
        make_message(node, MessageType.TRAIN, "1", b"do it", CatchUp(), 60.0)
        for node in phones_of(grid)
    ]
    ids, now = list(grid.push_messages(messages)), time.monotonic()
    assert len(phone_grid._relay._whole) == 1
    assert phone_grid._relay.message_ids == set(ids)
    monkeypatch.setattr(
        "samara.server.transport.phone_grid.time.monotonic",
        lambda: now + messages[0].metadata.ttl + 1,
    )
    grid.connected_nodes()
    assert phone_grid._relay._whole == phone_grid._relay._unanswered == {}


def test_replies_that_are_not_pulled_in_time_are_discarded(
    phone_grid: PhoneGrid, grid: DeadlineGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [
        make_message(node, message_type, "1", b"do it", CatchUp(), 60.0)
        for message_type in (MessageType.TRAIN, MessageType.QUERY)
        for node in phones_of(grid)
    ]
    (pulled, *others), now = grid.push_messages(messages), time.monotonic()
    assert len(list(phone_grid.pull_messages([pulled]))) == 1
    assert set(phone_grid._replies) == set(others)
    monkeypatch.setattr(
        "samara.server.transport.phone_grid.time.monotonic",
        lambda: now + messages[0].metadata.ttl + 1,
    )
    grid.connected_nodes()
    assert phone_grid._replies == {}


def test_a_phone_cannot_be_another_client(gateway: Gateway, grid: DeadlineGrid) -> None:
    (one, key), (other, _) = gateway.keys.items()
    gateway.keys = {one: key, other: key}  # it signs for both
    assert set(phones_of(grid).values()) == {one}


def test_a_gateway_cannot_repeat_an_old_hello_of_a_phone(
    gateway: Gateway, grid: DeadlineGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samara.server.transport.phone_grid.REFRESH_SECONDS", 0.0)
    assert len(phones_of(grid)) == 2
    gateway.replays = True
    grid.connected_nodes()
    assert phones_of(grid) == {}


class KeyedGrid(PhoneGrid):
    """A grid whose nodes have the keys of given names in a run."""

    names: ClassVar = {LAPTOP: "laptop", GATEWAY: "gateway"}

    def _flower_nodes(self) -> dict[int, bytes]:
        assert self._keys is not None
        keys = {key.name: key.public_key.encode() for key in self._keys.read_all()}
        return {node: keys[name] for node, name in self.names.items()}


def run_keys(folder: Path, gateway: Gateway, is_marked: bool) -> ClientKeys:
    """Return the keys of a run with a laptop, a gateway and its phones."""
    keys = ClientKeys(folder / "keys")
    keys.create("laptop")
    keys.create("gateway", gateway=is_marked)
    for number, key in enumerate(gateway.keys.values()):
        (folder / "phone.pem").write_bytes(key.public)
        keys.add(f"phone-{number}", folder / "phone.pem")
    return keys


@pytest.mark.parametrize("is_marked", [True, False])
def test_only_a_node_whose_key_was_made_for_a_gateway_brings_phones(
    gateway: Gateway, tmp_path: Path, is_marked: bool
) -> None:
    keys = run_keys(tmp_path, gateway, is_marked)
    grid = KeyedGrid(InProcessGrid(gateway, 2, {}), keys)  # type: ignore[arg-type]
    nodes = DeadlineGrid(grid, 1).connected_nodes()
    assert (GATEWAY in nodes) is not is_marked
    assert len(nodes) == (3 if is_marked else 2)
    roster = Roster(keys)
    roster.request_hellos(DeadlineGrid(grid, 1), 0.0)
    phones = {entry.client for entry in roster.entries.values()} & gateway.keys.keys()
    assert phones == (gateway.keys.keys() if is_marked else set())


def test_a_phone_with_a_new_key_stays_the_same_client(gateway: Gateway, tmp_path: Path) -> None:
    keys = run_keys(tmp_path, gateway, is_marked=True)
    stolen, (other, _) = gateway.keys.items()
    client, file = stolen[0], tmp_path / "new.key"
    create_key(file, client)
    assert read_client_index(file) == client
    (tmp_path / "new.pem").write_bytes(SigningKey(file).public)
    keys.rotate_to("phone-0", tmp_path / "new.pem")
    number = client_index_of_key(SigningKey(file).public)
    gateway.keys = {client: stolen[1], other: gateway.keys[other], number: SigningKey(file)}
    gateway.clients[number] = client
    grid = DeadlineGrid(KeyedGrid(InProcessGrid(gateway, 2, {}), keys), 1)  # type: ignore[arg-type]
    roster = Roster(keys)
    roster.request_hellos(grid, 20.0)
    entries = {entry.client: entry for entry in roster.entries.values()}
    assert entries.keys() & {client, other, number} == {client, other}
    assert entries[client].public_key == SigningKey(file).public
    [reply] = train(grid, [entries[client].node]).values()
    assert Refusal.decode(frame_in(reply)).client == client
    assert gateway.calls[-1][CLIENTS] == [number]
    gateway.keys[number] = stolen[1]  # the gateway answers for it with the earlier key
    [reply] = train(grid, [entries[client].node]).values()
    assert reply.has_error()


@pytest.mark.parametrize("claimed", ["another phone", "its new key's own"])
def test_a_new_key_of_a_phone_is_no_other_client(
    gateway: Gateway, tmp_path: Path, claimed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samara.server.transport.phone_grid.REFRESH_SECONDS", 0.0)
    keys = run_keys(tmp_path, gateway, is_marked=True)
    (client, _), (other, other_key) = gateway.keys.items()
    create_key(tmp_path / "new.key", client)
    key = SigningKey(tmp_path / "new.key")
    (tmp_path / "new.pem").write_bytes(key.public)
    keys.rotate_to("phone-0", tmp_path / "new.pem")
    number = client_index_of_key(key.public)
    gateway.keys = {number: key, other: other_key}
    gateway.clients[number] = other if claimed == "another phone" else number
    grid = KeyedGrid(InProcessGrid(gateway, 2, {}), keys)  # type: ignore[arg-type]
    assert set(grid.connected_nodes().values()) & {key.public, other_key.public} == {
        other_key.public
    }
    gateway.clients[number] = client
    grid.connected_nodes()
    assert key.public in grid.connected_nodes().values()


def test_a_gateway_takes_no_part_itself(gateway: Gateway, tmp_path: Path) -> None:
    keys = run_keys(tmp_path, gateway, is_marked=True)
    [key] = [key for key in keys.read_all() if key.gateway]
    with pytest.raises(
        SamaraError, match="its key gateway belongs to a gateway, which is not a client"
    ):
        keys.check(key.public_key.encode(), key.client)


def test_phones_without_a_registered_key_are_left_out_with_one_line(
    gateway: Gateway, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = run_keys(tmp_path, gateway, is_marked=True)
    for number in range(20):
        create_key(tmp_path / f"stranger-{number}.key")
        key = SigningKey(tmp_path / f"stranger-{number}.key")
        gateway.keys[client_index_of_key(key.public)] = key
    grid = KeyedGrid(InProcessGrid(gateway, 2, {}), keys)  # type: ignore[arg-type]
    for _ in range(5):
        assert len(grid.connected_nodes()) == 3
    lines = [record.getMessage() for record in caplog.records if record.name == "samara.server"]
    assert lines == [
        f"gateway {GATEWAY}: a phone's key is not registered, or was revoked (20 times)"
    ]


def test_a_gateway_that_fails_adds_one_line_whatever_it_says(
    gateway: Gateway, grid: DeadlineGrid, caplog: pytest.LogCaptureFixture
) -> None:
    clients = phones_of(grid)
    gateway.answer = None  # type: ignore[method-assign, assignment]
    replies = train(grid, clients)
    assert [reply.error.reason for reply in replies.values()] == ["its gateway failed"] * 2
    lines = [record.getMessage() for record in caplog.records if record.name == "samara.server"]
    assert len(lines) == 1
    assert lines[0].startswith(f"gateway {GATEWAY}: it failed: ")


def test_a_phone_that_lacks_a_blob_gets_it_through_its_gateway(
    gateway: Gateway, grid: DeadlineGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_sender, "PART_BYTES", 100)
    monkeypatch.setattr("samara.server.transport.phone_grid.REFRESH_SECONDS", 0.1)
    gateway.lacking = {client: BlobStore(tmp_path / str(client)) for client in gateway.keys}
    behind, _ = gateway.keys
    gateway.lacking[behind].receive(BLOB, len(CONTENT), 0, CONTENT[:730])
    (tmp_path / "basis").write_bytes(CONTENT)
    roster = Roster(blobs=BlobSender({BLOB: tmp_path / "basis"}))
    end = time.monotonic() + 20
    while len(roster.entries) < 3 and time.monotonic() < end:
        roster.request_hellos(grid, 20.0)
    assert {entry.client for entry in roster.entries.values()} == {5, *gateway.keys}
    assert all(store.find(BLOB) for store in gateway.lacking.values())
    assert 13 <= len(gateway.calls) <= 16  # the last parts may be sent twice
