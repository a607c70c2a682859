import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
from flwr.app import ConfigRecord, RecordDict
from gateways import SECONDS, Echo, Served, attached_phones, keys_in, opened_stream, serve_phones
from helpers import instruction_with, layout_of

from samara.client.protocol.blob_receiver import receive_part
from samara.client.protocol.client import INSTRUCTIONS
from samara.devices.gateway import gateway as gateway_module
from samara.devices.gateway import relay
from samara.devices.gateway.server import start_gateway
from samara.devices.live.connection.gateway_stream import answer_tasks
from samara.server.transport.blob_sender import BlobSender
from samara.server.transport.phone_grid import PhoneGrid
from samara.server.transport.roster import Roster
from samara.shared.errors import DeviceError, RefusalCode
from samara.shared.proto.trainer_pb2 import FromPhone, Proof, Task, TaskKind, TaskResult, ToPhone
from samara.shared.proto.trainer_pb2_grpc import GatewayStub
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.protocol.frames.hello import Hello
from samara.shared.protocol.frames.instructions import token_of
from samara.shared.protocol.frames.refusal import Refusal, describe_servers_refusal
from samara.shared.protocol.run_id import hash_identity
from samara.shared.protocol.signing import SigningKey, answer_bytes, is_signed_by, proof_bytes
from samara.shared.protocol.wire import FRAMES, PERSONAL_ACTION, RECORD
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import run_id_of
from samara.shared.storage.blob_store import BlobStore, blob_hash
from samara.shared.terms.run_terms import RunTerms
from samara.simulations.engines.in_process import FIRST_CLIENT_NODE, InProcessGrid


@pytest.fixture
def keys(tmp_path: Path) -> list[SigningKey]:
    return keys_in(tmp_path)


@pytest.fixture
def served(keys: list[SigningKey]) -> Iterator[Served]:
    with serve_phones(keys[:2]) as served:
        yield served


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

    def hello(self, task: Task) -> bytes:
        if self.store.find(self.blob):
            layout = layout_of(20).to_json()
            return Hello(self.device, 10, 0, bytes(32), layout, '{"clients": 0}').encode()
        numbers = int.from_bytes(self.blob[:4]), self.store.received_bytes(self.blob)
        return Refusal(bytes(8), self.device, 0, RefusalCode.MISSING_BLOB, numbers).encode()

    def answer(self, task: Task) -> bytes:
        if task.kind != TaskKind.BLOB:
            return super().answer(task)
        return receive_part(task.instruction, [self.blob], self.device, self.store)


def test_attached_phones_get_a_blob_through_the_gateway_and_join(
    served: Served, keys: list[SigningKey], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samara.server.transport.blob_sender.PART_BYTES", 1000)
    monkeypatch.setattr("samara.server.transport.phone_grid.REFRESH_SECONDS", 0.1)
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


class Other(Echo):
    """A phone with an adapter of a given size, which records the server's notices."""

    def __init__(self, device: int, size: int) -> None:
        super().__init__(device)
        self.size, self.told = size, SimpleQueue[bytes]()

    def hello(self, task: Task) -> bytes:
        layout = layout_of(self.size).to_json()
        return Hello(self.device, 10, 0, bytes(32), layout, '{"clients": 0}').encode()

    def answer(self, task: Task) -> bytes:
        if task.kind != TaskKind.REFUSED:
            return super().answer(task)
        self.told.put(task.instruction)
        return task.instruction


def test_a_refused_phone_is_told_why_through_its_gateway(
    served: Served,
    keys: list[SigningKey],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("samara.server.transport.phone_grid.REFRESH_SECONDS", 0.1)
    phones = [
        Other(client_index_of_key(key.public), size)
        for key, size in zip(keys[:2], (20, 21), strict=True)
    ]
    app = relay.gateway_app(served.gateway, served.loop)
    grid = PhoneGrid(InProcessGrid(app, 1, RunConfig.of({}, "test").flat()))
    roster = Roster()
    with attached_phones(served, keys[0], phones[0]), attached_phones(served, keys[1], phones[1]):
        end = time.monotonic() + SECONDS
        while not (roster.entries and roster.refusal_reasons) and time.monotonic() < end:
            roster.request_hellos(grid, SECONDS)
        [entry] = roster.entries.values()
        [refused] = [phone for phone in phones if phone.device != entry.client]
        notice = Refusal.decode(refused.told.get(timeout=SECONDS))
    assert (notice.client, notice.code) == (refused.device, RefusalCode.LAYOUT)
    assert all(phone.told.empty() for phone in phones)
    expected = f"phone {refused.device}: {describe_servers_refusal(RefusalCode.LAYOUT)}"
    assert expected in [r.getMessage() for r in caplog.records if r.name == "samara.gateway"]


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
        stream = opened_stream(channel, keys[0])
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
        asked = served.start_asking(TaskKind.TRAIN, b"one", 1000.0, clients=[away, there])
        assert sorted(asked.result(SECONDS)) == [there]


def test_a_second_attachment_replaces_the_first(served: Served, keys: list[SigningKey]) -> None:
    device = client_index_of_key(keys[0].public)
    with grpc.insecure_channel(served.endpoint.address) as channel:
        first = opened_stream(channel, keys[0])
        served.until(lambda gateway: gateway.attached_phones == [device])
        with attached_phones(served, keys[0], Echo(device)):
            assert list(first) == []
            assert sorted(served.ask(TaskKind.TRAIN, b"one", SECONDS)) == [device]


def test_a_message_out_of_turn_or_unsigned_ends_the_stream(
    served: Served, keys: list[SigningKey]
) -> None:
    device = client_index_of_key(keys[0].public)
    frame = Refusal(bytes(8), device, 0, 0).encode()
    with grpc.insecure_channel(served.endpoint.address) as channel:
        with pytest.raises(grpc.RpcError, match="out of turn"):
            list(opened_stream(channel, keys[0], FromPhone(result=TaskResult(number=1))))
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
    """A stream that proves the key and answers the first task with a given message."""
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


class Told(Echo):
    """A phone that records settings and kind of its instructions, and refuses them."""

    def __init__(self, device: int) -> None:
        super().__init__(device)
        self.told: list[tuple[bytes, bool]] = []

    def answer(self, task: Task) -> bytes:
        if task.kind in INSTRUCTIONS:
            self.told.append((task.settings, task.personal))
        return super().answer(task)


def test_phones_are_told_the_settings_that_the_run_id_is_a_hash_of(
    served: Served, keys: list[SigningKey]
) -> None:
    config = RunConfig.of({"personal.when": "every 2 rounds", "rounds": 4}, "test")
    phone, layout = Told(client_index_of_key(keys[0].public)), layout_of()
    run_id = run_id_of(config, layout, bytes(32))
    app = relay.gateway_app(served.gateway, served.loop)
    grid = InProcessGrid(app, 1, config.flat())
    instruction = instruction_with(run_id=run_id, layout_hash=layout.hash).encode()
    content = RecordDict({RECORD: ConfigRecord({"frame": instruction})})
    with attached_phones(served, keys[0], phone):
        for kind in ("train", "evaluate", f"evaluate.{PERSONAL_ACTION}"):
            message = grid.create_message(content, kind, FIRST_CLIENT_NODE, "1", ttl=SECONDS)
            (reply,) = grid.send_and_receive([message])
            assert len(reply.content.config_records[RECORD][FRAMES]) == 1
    assert [personal for _, personal in phone.told] == [False, False, True]
    (settings,) = {settings for settings, _ in phone.told}
    assert hash_identity(settings, layout.hash, bytes(32)) == run_id
    assert RunTerms.decode(settings).interval == 2
