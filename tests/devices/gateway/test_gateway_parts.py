"""A gateway of phones and boards that answers in parts: notices to boards, and kept messages."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from gateways import SECONDS, Echo, Served, attached_phones, keys_in, opened_stream, serve_phones
from helpers import layout_of

from samara.devices.gateway import gateway as gateways
from samara.devices.gateway import relay
from samara.devices.live.connection.gateway_endpoint import GatewayEndpoint
from samara.devices.live.connection.gateway_stream import attach
from samara.devices.live.connection.stream_wire import StreamWire
from samara.devices.live.keys import read_client_index
from samara.devices.live.settings import ClientSettings
from samara.shared.errors import ConfigError, DeviceError, RefusalCode, RejectedError
from samara.shared.proto.trainer_pb2 import Challenge, Task, TaskKind, ToPhone
from samara.shared.proto.trainer_pb2_grpc import GatewayServicer, add_GatewayServicer_to_server
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.protocol.frames.hello import Hello
from samara.shared.protocol.frames.instructions import token_of
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.signing import SigningKey
from samara.shared.protocol.wire import (
    ATTACHED,
    CLIENTS,
    FRAMES,
    IN_PARTS,
    KNOWN,
    PENDING,
    RECORD,
    SESSION,
)
from samara.shared.settings.config import RunConfig
from samara.simulations.engines.in_process import FIRST_CLIENT_NODE, InProcessGrid


@pytest.fixture
def keys(tmp_path: Path) -> list[SigningKey]:
    return keys_in(tmp_path)


@pytest.fixture
def served(keys: list[SigningKey]) -> Iterator[Served]:
    with serve_phones(keys) as served:
        yield served


class Told(Echo):
    """A phone or board that sends a hello and records the settings that it receives."""

    def __init__(self, device: int, hold: threading.Event | None = None) -> None:
        super().__init__(device, hold)
        self.settings: list[bytes] = []

    def hello(self, task: Task) -> bytes:
        return Hello(self.device, 10, 0, bytes(32), layout_of(20).to_json(), "{}").encode()

    def answer(self, task: Task) -> bytes:
        self.settings.append(task.settings)
        return super().answer(task)


def client_of(key: SigningKey) -> int:
    return client_index_of_key(key.public)


def ask_for_part(served: Served, instruction: bytes, clients: list[int], **more: Any) -> Any:
    task = Task(kind=TaskKind.TRAIN, instruction=instruction)
    return served.run(served.gateway.ask_for_part(task, SECONDS, clients, **more))


def test_a_slow_phone_delays_nobody_elses_answer(served: Served, keys: list[SigningKey]) -> None:
    hold = threading.Event()
    slow, quick = Echo(client_of(keys[0]), hold), Echo(client_of(keys[1]))
    both = [slow.device, quick.device]
    with attached_phones(served, keys[0], slow), attached_phones(served, keys[1], quick):
        answers, pending = ask_for_part(served, b"one", both)
        assert (sorted(answers), pending) == ([quick.device], [slow.device])
        hold.set()
        answers, pending = ask_for_part(served, b"one", pending)
        assert (sorted(answers), pending) == ([slow.device], [])
        assert Refusal.decode(answers[slow.device].frame).token == token_of(b"one")
        assert (slow.asked, quick.asked) == (1, 1)
        # an answer that was lost on its way to the server is asked for again
        answers, pending = ask_for_part(served, b"one", both)
        assert (sorted(answers), pending) == (sorted(both), [])
        ask_for_part(served, b"two", [])
    assert not served.gateway._in_parts[:-1]  # what is answered is not kept


@pytest.fixture
def board(keys: list[SigningKey]) -> Told:
    return Told(client_of(keys[0]))


def attach_board(served: Served, key: SigningKey, board: Told) -> threading.Event:
    stop = threading.Event()
    arguments = (board, key, served.endpoint, stop)
    threading.Thread(target=attach, args=arguments, kwargs={"is_board": True}, daemon=True).start()
    served.until(lambda gateway: board.device in gateway.attached_phones)
    return stop


def send(served: Served, kind: str, config: RunConfig, **more: Any) -> ConfigRecord:
    """The record in a gateway's reply to a message."""
    app = relay.gateway_app(served.gateway, served.loop)
    grid = InProcessGrid(app, 1, config.flat())
    content = RecordDict({RECORD: ConfigRecord({"frame": bytes(32), **more})})
    message = grid.create_message(content, kind, FIRST_CLIENT_NODE, "1", ttl=SECONDS)
    (reply,) = grid.send_and_receive([message])
    assert isinstance(reply, Message)
    if reply.has_error():
        raise ConfigError(reply.error.reason or "")
    return reply.content.config_records[RECORD]


def test_a_board_is_told_the_run_config_once_and_again_when_it_changes(
    served: Served, keys: list[SigningKey], board: Told
) -> None:
    phone = Told(client_of(keys[1]))
    stop = attach_board(served, keys[0], board)
    first, second = (RunConfig.of({"rounds": rounds}, "test") for rounds in (4, 5))
    with attached_phones(served, keys[1], phone):
        for config in (first, first, second, second):
            for kind in ("query", "evaluate"):
                named = {CLIENTS: sorted((board.device, phone.device))}
                send(served, kind, config, **(named if kind == "evaluate" else {}))
    stop.set()
    sent = [json.loads(settings) if settings else None for settings in board.settings]
    whole = [dict(sorted(config.flat().items())) for config in (first, second)]
    assert sent == [whole[0], None, None, None, whole[1], None, None, None]
    assert all(phone.settings)  # a phone of any version is told each time


def test_who_is_known_and_still_attached_need_not_introduce_itself_again(
    served: Served, keys: list[SigningKey], board: Told
) -> None:
    stop = attach_board(served, keys[0], board)
    config = RunConfig.of({}, "test")
    first = send(served, "query", config)
    assert len(first[FRAMES]) == 1  # type: ignore[arg-type]
    assert first[ATTACHED] == []
    again = send(served, "query", config, **{KNOWN: [board.device, 7]})
    assert (again[FRAMES], again[ATTACHED]) == ([], [board.device])
    assert first[SESSION] == again[SESSION] == served.gateway.session
    assert len(board.settings) == 1
    stop.set()
    with grpc.insecure_channel(served.endpoint.address) as channel:
        stream = opened_stream(channel, keys[0])  # it attaches anew, and says nothing
        served.until(lambda gateway: not gateway.introduced([board.device]))
        served.until(lambda gateway: gateway.attached_phones == [board.device])
        stream.cancel()


def test_answers_that_have_no_room_in_a_reply_come_in_the_next(
    served: Served, keys: list[SigningKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateways, "MAX_PART_BYTES", 1)
    told = [Told(client_of(key)) for key in keys[:2]]
    config, both = RunConfig.of({}, "test"), sorted(one.device for one in told)
    with attached_phones(served, keys[0], told[0]), attached_phones(served, keys[1], told[1]):
        first = send(served, "query", config, **{IN_PARTS: True})
        assert (len(first[FRAMES]), len(first[PENDING])) == (1, 1)  # type: ignore[arg-type]
        known = sorted(set(both) - set(first[PENDING]))  # type: ignore[arg-type]
        second = send(served, "query", config, **{IN_PARTS: True, KNOWN: known})
        assert (len(second[FRAMES]), second[PENDING], second[ATTACHED]) == (1, [], known)  # type: ignore[arg-type]
        parts = [send(served, "evaluate", config, **{CLIENTS: both, IN_PARTS: True})]
        parts.append(
            send(served, "evaluate", config, **{CLIENTS: parts[0][PENDING], IN_PARTS: True})
        )
    assert [len(part[FRAMES]) for part in parts] == [1, 1]  # type: ignore[arg-type]
    assert [len(one.settings) for one in told] == [2, 2]  # nobody is asked twice


def test_a_run_that_phones_cannot_take_part_in_goes_on_with_boards(
    served: Served, keys: list[SigningKey], board: Told, caplog: pytest.LogCaptureFixture
) -> None:
    config = RunConfig.of({"adapter.layers": "readout,top:1"}, "test")
    phone = Told(client_of(keys[1]))
    with attached_phones(served, keys[1], phone):
        with pytest.raises(ConfigError):
            send(served, "query", config)
        stop = attach_board(served, keys[0], board)
        reply = send(served, "query", config)
        stop.set()
    assert len(reply[FRAMES]) == 1  # type: ignore[arg-type]
    assert not phone.settings
    lines = [record.getMessage() for record in caplog.records if record.name == "samara.gateway"]
    assert sum(line.startswith("phones cannot take part in this run: ") for line in lines) == 1


def test_a_reply_in_parts_says_who_may_yet_answer(
    served: Served, keys: list[SigningKey], board: Told
) -> None:
    board.hold = threading.Event()
    stop, quick = attach_board(served, keys[0], board), Told(client_of(keys[1]))
    config, both = RunConfig.of({}, "test"), sorted((board.device, client_of(keys[1])))
    with attached_phones(served, keys[1], quick):
        reply = send(served, "evaluate", config, **{CLIENTS: both, IN_PARTS: True})
        assert len(reply[FRAMES]) == 1  # type: ignore[arg-type]
        assert reply[PENDING] == [board.device]
        board.hold.set()
        reply = send(served, "evaluate", config, **{CLIENTS: [board.device], IN_PARTS: True})
    stop.set()
    assert len(reply[FRAMES]) == 1  # type: ignore[arg-type]
    assert reply[PENDING] == []


class OldGateway(GatewayServicer):  # type: ignore[misc]
    """A gateway of an earlier version, which does not know boards."""

    def Attach(self, messages: Any, context: Any) -> Iterator[ToPhone]:  # noqa: N802
        yield ToPhone(challenge=Challenge(version=1, nonce=bytes(32)))
        yield from ()


def test_a_board_says_that_a_gateway_is_too_old_for_it(keys: list[SigningKey], board: Told) -> None:
    from concurrent.futures import ThreadPoolExecutor

    server = grpc.server(ThreadPoolExecutor(1))
    add_GatewayServicer_to_server(OldGateway(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    endpoint = GatewayEndpoint(f"127.0.0.1:{port}", insecure=True)
    try:
        with pytest.raises(
            DeviceError, match="accepts only phones; update the gateway, or use --wire flower"
        ):
            attach(board, keys[0], endpoint, threading.Event(), is_board=True)
    finally:
        server.stop(None)


def test_a_board_goes_to_the_next_gateway_when_one_does_not_answer(
    served: Served, keys: list[SigningKey], board: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samara.devices.live.connection.gateway_stream.FIRST_PAUSE", 0.01)
    nobody, stop = GatewayEndpoint("127.0.0.1:1", insecure=True), threading.Event()
    noted: list[tuple[str, bool]] = []
    threading.Thread(
        target=attach,
        args=(board, keys[0], nobody, stop, [served.endpoint]),
        kwargs={"is_board": True, "note": lambda *said: noted.append((said[0], bool(said[1])))},
        daemon=True,
    ).start()
    served.until(lambda gateway: board.device in gateway.attached_phones)
    assert sorted(served.ask(TaskKind.TRAIN, b"one", SECONDS)) == [board.device]
    stop.set()
    assert noted[:2] == [("127.0.0.1:1", True), (served.endpoint.address, False)]


def test_only_when_every_gateway_rejects_its_key_a_board_gives_up(
    keys: list[SigningKey], board: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samara.devices.live.connection.gateway_stream.FIRST_PAUSE", 0.01)
    with serve_phones(keys[1:]) as one, serve_phones(keys[1:]) as other:
        with pytest.raises(DeviceError, match="the gateway rejects this key"):
            attach(board, keys[0], one.endpoint, threading.Event(), [other.endpoint])
        assert one.gateway.refused.keys() == other.gateway.refused.keys()
        assert len(one.gateway.refused) == 1


def wire_to(served: Served, key: Path, home: Path) -> StreamWire:
    """The wire of a client without a running trainer."""
    return StreamWire(
        ClientSettings(
            name="a",
            folder=home,
            superlink="",
            client_index=read_client_index(key),
            device_settings={},
            wire="stream",
            gateways=(served.endpoint.address,),
            key=key,
            insecure=True,
        )
    )


def ended(wire: StreamWire) -> bool:
    """Wait for the end of a wire; return whether the run is finished."""
    wire._thread.join(SECONDS)
    assert not wire.is_alive
    return wire.is_finished()


def test_a_client_whose_key_was_revoked_ends_with_the_reason(
    served: Served, keys: list[SigningKey], tmp_path: Path
) -> None:
    wire = wire_to(served, tmp_path / "0.key", tmp_path)
    wire.start()
    served.until(lambda gateway: bool(gateway.attached_phones))
    assert not wire.is_finished()
    notice = Refusal(bytes(8), 0, 0, RefusalCode.REVOKED).encode()
    served.start_asking(TaskKind.REFUSED, notice, 1.0)
    with pytest.raises(RejectedError, match="revoked"):
        ended(wire)


def test_a_client_hears_by_the_stream_that_the_run_is_finished(
    served: Served, keys: list[SigningKey], tmp_path: Path
) -> None:
    wire = wire_to(served, tmp_path / "0.key", tmp_path)
    wire.start()
    served.until(lambda gateway: bool(gateway.attached_phones))
    served.run(served.gateway.finish())
    assert ended(wire)
    assert wire.restart_if_due() == ""
    wire.stop()
