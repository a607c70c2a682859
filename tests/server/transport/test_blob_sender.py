"""Blobs on their way from a server's store over a grid to the clients' stores."""

import hashlib
import json
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import hello_task, sent
from bases import basis_for
from federations import config_of
from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict
from helpers import instruction_with, layout_of

from samara.client.app import TRAINER
from samara.client.app import app as client_app
from samara.client.protocol.blob_receiver import receive_part
from samara.client.protocol.resident_trainer import BLOBS_FOLDER, ResidentTrainer
from samara.client.trainer.trainer_service import serve_trainer
from samara.server.app import serve
from samara.server.rounds.event_log import EventLog
from samara.server.rounds.report_validation import LateReportFilter, ReplyValidator
from samara.server.store import RunStore
from samara.server.transport import blob_sender
from samara.server.transport.blob_sender import MAX_REPETITION, BlobSender
from samara.server.transport.deadline_grid import DeadlineGrid
from samara.server.transport.messages import BLOB_MESSAGE, make_message
from samara.server.transport.roster import Roster
from samara.shared.errors import MissingBlobError, RefusalCode
from samara.shared.flower_compat import ErrorCode
from samara.shared.proto.trainer_pb2 import Task, TaskKind
from samara.shared.protocol.frames.blob import BlobPart, BlobReceipt
from samara.shared.protocol.frames.hello import Hello
from samara.shared.protocol.frames.instructions import token_of
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.ledger.records import CatchUp, LedgerHeader
from samara.shared.protocol.wire import RECORD
from samara.shared.results.result import read_result
from samara.shared.settings.blobs import publish_blobs
from samara.shared.settings.config import RunConfig
from samara.shared.settings.setting import Settings, setting
from samara.shared.storage.blob_store import BlobStore, blob_hash, to_reference
from samara.simulations.engines.in_process import FIRST_CLIENT_NODE, InProcessGrid
from samara.simulations.simulate import simulate

CONTENT = bytes(range(250)) * 4
BLOB = hashlib.sha256(CONTENT).digest()
PREFIX = int.from_bytes(BLOB[:4])
PART = 100


class _Named(Settings):
    basis: str = setting("", "a file", blob=True)


class Clients:
    """A ClientApp of clients that introduce themselves as soon as they have the blob."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts: list[tuple[int, int]] = []  # client and offset
        self.reply_to_part: Callable[[bytes, int], bytes] = self.receive

    def store_of(self, client: int) -> BlobStore:
        return BlobStore(self.folder / str(client))

    def receive(self, frame: bytes, client: int) -> bytes:
        return receive_part(frame, [BLOB], client, self.store_of(client))

    def refusal(self, frame: bytes, client: int, received: int | None = None) -> bytes:
        has = self.store_of(client).received_bytes(BLOB) if received is None else received
        return Refusal(token_of(frame), client, 0, RefusalCode.MISSING_BLOB, (PREFIX, has)).encode()

    def __call__(self, message: Message, context: Any) -> Message:
        client = int(context.node_config["partition-id"])
        frame = bytes(message.content.config_records[RECORD]["frame"])  # type: ignore[arg-type]
        if message.metadata.message_type == BLOB_MESSAGE:
            self.parts.append((client, BlobPart.decode(frame).offset))
            answer = self.reply_to_part(frame, client)
        elif self.store_of(client).find(BLOB) is None:
            answer = self.refusal(frame, client)
        else:
            layout, facts = layout_of(20).to_json(), json.dumps({"clients": 0})
            answer = Hello(client, 10, 0, bytes(32), layout, facts).encode()
        return Message(RecordDict({RECORD: ConfigRecord({"frame": answer})}), reply_to=message)


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[bytes, Path]:
    """The server's blob, which is sent in parts of 100 bytes."""
    monkeypatch.setattr(blob_sender, "PART_BYTES", PART)
    monkeypatch.setattr("samara.server.transport.roster._POLL_SECONDS", 0.0)
    (tmp_path / "basis").write_bytes(CONTENT)
    store = BlobStore(tmp_path / "server")
    store.add(tmp_path / "basis")
    file = store.find(BLOB)
    assert file
    return {BLOB: file}


@pytest.fixture
def clients(tmp_path: Path) -> Clients:
    return Clients(tmp_path / "clients")


def grid_of(clients: Clients, count: int) -> InProcessGrid:
    return InProcessGrid(clients, count, {})  # type: ignore[arg-type]


def give(clients: Clients, client: int, count: int = len(CONTENT)) -> None:
    clients.store_of(client).receive(BLOB, len(CONTENT), 0, CONTENT[:count])


def test_clients_without_the_blob_get_it_side_by_side_and_join(
    clients: Clients, published: dict[bytes, Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "samara.server")
    grid, roster = grid_of(clients, 3), Roster(blobs=BlobSender(published))
    give(clients, 1)
    roster.request_hellos(grid, 5.0)
    assert [entry.client for entry in roster.entries.values()] == [1]  # nobody waits for others
    for _ in range(20):
        roster.request_hellos(grid, 5.0)
    assert sorted(entry.client for entry in roster.entries.values()) == [0, 1, 2]
    assert clients.parts == [(c, offset) for offset in range(0, 1000, PART) for c in (0, 2)]
    for client in (0, 2):
        assert f"sent 1000 bytes of {BLOB.hex()[:12]} to client {client}" in caplog.text
    file = clients.store_of(2).find(BLOB)
    assert file
    assert file.read_bytes() == CONTENT


def test_a_transfer_goes_on_where_it_was_after_a_restart_of_either_side(
    clients: Clients, published: dict[bytes, Path]
) -> None:
    grid, roster = grid_of(clients, 1), Roster(blobs=BlobSender(published))
    give(clients, 0, 137)
    for _ in range(4):
        roster.request_hellos(grid, 0.0)
    sent = [offset for _, offset in clients.parts]
    assert sent == [137, 237, 337]
    roster = Roster(blobs=BlobSender(published))
    for _ in range(10):
        roster.request_hellos(grid, 0.0)
    assert [offset for _, offset in clients.parts] == list(range(137, 1000, PART))
    assert list(roster.entries) == [FIRST_CLIENT_NODE]


def test_only_so_many_parts_are_in_flight(
    clients: Clients, published: dict[bytes, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_sender, "PARTS_IN_FLIGHT", 2)
    grid, roster = grid_of(clients, 5), Roster(blobs=BlobSender(published))
    roster.request_hellos(grid, 0.0)
    for number in range(1, 10):
        roster.send_blobs(grid)
        assert len(clients.parts) == 2 * number
    assert {client for client, _ in clients.parts[:5]} == {0, 1, 2, 3, 4}  # all in turn


def test_rounds_go_on_while_a_client_gets_a_blob(
    clients: Clients, published: dict[bytes, Path]
) -> None:
    give(clients, 0)
    grid = DeadlineGrid(grid_of(clients, 2), late_exchanges=1)
    roster = Roster(blobs=BlobSender(published))
    grid.while_waiting = lambda: roster.send_blobs(grid)
    roster.request_hellos(grid, 0.0)
    assert clients.parts == []

    class Clock:
        def __init__(self) -> None:
            self.waits = 0

        def now(self) -> float:
            return float(self.waits)

        def wait(self, seconds: float, waited: float = 0.0) -> None:
            self.waits += 1

    clock = Clock()
    grid.clock = clock  # type: ignore[assignment]
    lost = make_message(FIRST_CLIENT_NODE, MessageType.TRAIN, "1", b"", CatchUp(), 60.0)
    original = grid._grid.pull_messages
    grid._grid.pull_messages = lambda ids: [  # type: ignore[method-assign]
        reply for reply in original(ids) if reply.metadata.message_type != MessageType.TRAIN
    ]
    list(grid.send_and_receive([lost], timeout=20.0))
    assert clock.waits == 20
    assert [offset for _, offset in clients.parts] == list(range(0, 1000, PART))
    roster.request_hellos(grid, 0.0)
    assert len(roster.entries) == 2


def test_a_part_that_is_lost_is_sent_again(clients: Clients, published: dict[bytes, Path]) -> None:
    grid, roster = grid_of(clients, 1), Roster(blobs=BlobSender(published))
    original, losses = grid.pull_messages, iter([True, False, True, True])

    def lose(reply: Message) -> Message:
        if reply.metadata.message_type != BLOB_MESSAGE or not next(losses, False):
            return reply
        return Message(Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ""), metadata=reply.metadata)

    grid.pull_messages = lambda ids: list(map(lose, original(ids)))  # type: ignore[method-assign]
    for _ in range(20):
        roster.request_hellos(grid, 0.0)
    assert len(roster.entries) == 1
    assert len(clients.parts) == 13


def test_a_part_without_a_receipt_is_sent_again_in_time(
    clients: Clients, published: dict[bytes, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, roster = grid_of(clients, 1), Roster(blobs=BlobSender(published))
    roster.request_hellos(grid, 0.0)
    original = grid.pull_messages
    grid.pull_messages = lambda ids: []  # type: ignore[assignment,method-assign]
    for _ in range(3):
        roster.send_blobs(grid)
    assert len(clients.parts) == 1
    end = blob_sender.monotonic() + blob_sender.PART_SECONDS
    monkeypatch.setattr(blob_sender, "monotonic", lambda: end)
    roster.send_blobs(grid)
    assert len(clients.parts) == 2
    grid.pull_messages = original  # type: ignore[method-assign]
    roster.send_blobs(grid)
    assert clients.parts[-1] == (0, PART)  # the repeated part was left out


def test_who_asks_again_and_again_gets_no_more(
    clients: Clients, published: dict[bytes, Path]
) -> None:
    grid, roster = grid_of(clients, 1), Roster(blobs=BlobSender(published))
    clients.reply_to_part = lambda frame, client: BlobReceipt(
        token_of(frame), client, BLOB, 0
    ).encode()
    for _ in range(100):
        roster.request_hellos(grid, 0.0)
    assert len(clients.parts) == MAX_REPETITION * len(CONTENT) // PART
    assert "4000 bytes" in roster.refusal_reasons[0]
    roster._refused.clear()  # some minutes later
    for _ in range(100):
        roster.request_hellos(grid, 0.0)
    assert len(clients.parts) == MAX_REPETITION * len(CONTENT) // PART


def test_who_pretends_to_have_it_and_then_to_lack_it_gets_no_more(
    clients: Clients, published: dict[bytes, Path]
) -> None:
    grid, roster = grid_of(clients, 1), Roster(blobs=BlobSender(published))
    clients.reply_to_part = lambda frame, client: BlobReceipt(
        token_of(frame), client, BLOB, len(CONTENT)
    ).encode()
    for _ in range(1000):
        roster.request_hellos(grid, 0.0)
    assert len(clients.parts) == MAX_REPETITION * len(CONTENT) // PART
    assert "the server sends it no more before the server's next start" in roster.refusal_reasons[0]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda f, c: BlobReceipt(bytes(8), c, BLOB, 0).encode(), "part that was not sent to it"),
        (
            lambda f, c: BlobReceipt(token_of(f), 5, BLOB, 0).encode(),
            "part that was not sent to it",
        ),
        (
            lambda f, c: BlobReceipt(token_of(f), c, bytes(32), 0).encode(),
            "part that was not sent to it",
        ),
        (lambda f, c: BlobReceipt(token_of(f), c, BLOB, 1001).encode(), "more bytes"),
        (lambda f, c: Refusal(token_of(f), c, 0, RefusalCode.FILE).encode(), "code 7"),
        (lambda f, c: b"SM", "truncated"),
    ],
)
def test_an_unsound_receipt_ends_the_transfer_and_nothing_else(
    answer: Callable[[bytes, int], bytes],
    reason: str,
    clients: Clients,
    published: dict[bytes, Path],
) -> None:
    grid, roster = grid_of(clients, 2), Roster(blobs=BlobSender(published))
    good = clients.receive
    clients.reply_to_part = lambda f, c: answer(f, c) if c == 0 else good(f, c)
    for _ in range(20):
        roster.request_hellos(grid, 0.0)
    [refused] = roster.refusal_reasons
    assert refused.startswith("client 0: ")
    assert reason in refused
    assert [entry.client for entry in roster.entries.values()] == [1]
    assert len([1 for client, _ in clients.parts if client == 0]) == 1


@pytest.mark.parametrize("numbers", [(PREFIX ^ 1, 0), (PREFIX, len(CONTENT) + 1)])
def test_nothing_but_published_blobs_is_read(
    numbers: tuple[int, int],
    clients: Clients,
    published: dict[bytes, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grid, roster = grid_of(clients, 1), Roster(blobs=BlobSender(published))
    refusal = Refusal(bytes(8), 0, 0, RefusalCode.MISSING_BLOB, numbers).encode()
    monkeypatch.setattr(clients, "refusal", lambda frame, client: refusal)
    for _ in range(5):
        roster.request_hellos(grid, 0.0)
    assert clients.parts == []
    assert "code 15" in roster.refusal_reasons[0]


def test_a_server_without_the_file_says_so_when_it_starts(tmp_path: Path) -> None:
    config = _Named.of({"basis": to_reference(BLOB)}, "test")
    with pytest.raises(MissingBlobError, match="basis: blob"):
        BlobSender.for_run(config, BlobStore(tmp_path))
    (tmp_path / "file").write_bytes(CONTENT)
    BlobStore(tmp_path / "store").add(tmp_path / "file")
    sender = BlobSender.for_run(config, BlobStore(tmp_path / "store"))
    assert sender is not None
    assert sender._blobs.keys() == {PREFIX}
    local = _Named.of({"basis": str(tmp_path / "file")}, "test")
    assert BlobSender.for_run(local, BlobStore(tmp_path)) is None


def test_a_client_that_refuses_an_instruction_for_want_of_a_blob_gets_it_and_comes_back(
    clients: Clients, published: dict[bytes, Path], tmp_path: Path
) -> None:
    config, layout = RunConfig(), layout_of(20)
    grid, roster = grid_of(clients, 1), Roster(blobs=BlobSender(published))
    give(clients, 0)
    roster.request_hellos(grid, 5.0)
    store = RunStore(tmp_path / "run", layout, LedgerHeader(0, bytes(8), layout.hash), 0)
    validator = ReplyValidator(config, roster, LateReportFilter(0), EventLog(store))
    (clients.folder / "0" / BLOB.hex()).unlink()
    instruction = instruction_with()
    message = make_message(
        FIRST_CLIENT_NODE, MessageType.TRAIN, "1", instruction.encode(), CatchUp(), 60.0
    )
    replies = validator.validate_reports(grid.send_and_receive([message]), instruction)
    assert "lacks blob" in replies.refused[0]
    assert not roster.entries
    for _ in range(15):
        roster.request_hellos(grid, 0.0)
    assert len(roster.entries) == 1
    assert len(clients.parts) == len(CONTENT) // PART
    store.close()


def test_a_trainer_is_loaded_without_the_basis_of_a_run_and_used_once_it_has_it(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_sender, "PART_BYTES", 1000)
    basis = basis_for(settings, tmp_path)
    published = publish_blobs(config_of(settings, adapter__basis=basis), BlobStore())
    assert published.adapter.basis == to_reference(blob_hash(Path(basis)))
    expected = serve(published, InProcessGrid(client_app, 3, published.flat()))
    theirs = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    theirs |= {"out": str(tmp_path / "live"), "cohort.available": 1, "evaluate.every": 0}
    config = RunConfig.of(published.flat() | theirs, "test")
    with tempfile.TemporaryDirectory() as short:
        home, socket = Path(short) / "h", Path(short) / "s"
        resident = ResidentTrainer.load(config_of(settings), 7, home)
        grid = InProcessGrid(client_app, 1, config.flat(), nodes=[{TRAINER: str(socket)}])
        with serve_trainer(lambda: resident, socket):
            folder = serve(config, grid)
        stored = BlobStore(home / BLOBS_FOLDER).find(blob_hash(Path(basis)))
        assert stored
        assert stored.read_bytes() == Path(basis).read_bytes()
        assert resident.model_loads == 1
        again = ResidentTrainer.load(config_of(settings), 7, home)
        hello = Hello.decode(
            again.client_for(json.dumps(config.flat()).encode()).answer(hello_task())
        )
    layouts = [json.loads((run / "layout.json").read_text()) for run in (expected, folder)]
    assert layouts[0] == layouts[1] == json.loads(hello.layout)
    assert hello.round == 3


def test_settings_of_a_server_that_name_a_path_are_refused(
    settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    resident = ResidentTrainer.load(config_of(settings), 7, tmp_path)
    config = config_of(settings, adapter__basis="/etc/passwd")
    for kind in (TaskKind.HELLO, TaskKind.BLOB):
        answer = resident.answer(Task(kind=kind, settings=sent(config)))
        assert Refusal.decode(answer).code == RefusalCode.SETTINGS
        assert "adapter.basis: '/etc/passwd' names a file on" in caplog.text
        caplog.clear()


def test_a_client_stores_no_blob_but_those_of_its_run(
    settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    resident = ResidentTrainer.load(config_of(settings), 7, tmp_path)
    part = BlobPart(BLOB, len(CONTENT), 0, CONTENT[:100]).encode()

    def give(part: bytes, config: RunConfig) -> bytes:
        return resident.answer(Task(kind=TaskKind.BLOB, instruction=part, settings=sent(config)))

    assert Refusal.decode(give(part, config_of(settings))).code == RefusalCode.FRAME
    assert "not named by the run's settings" in caplog.text
    named = config_of(settings, adapter__basis=to_reference(BLOB))
    receipt = BlobReceipt.decode(give(part, named))
    assert receipt == BlobReceipt(token_of(part), 7, BLOB, 100)
    assert Refusal.decode(give(part[:-1], named)).code == RefusalCode.FRAME


def test_a_client_that_lacks_nothing_refuses_parts(settings: dict[str, Any]) -> None:
    config = config_of(settings)
    grid = InProcessGrid(client_app, 1, config.flat())
    part = BlobPart(BLOB, len(CONTENT), 0, CONTENT[:100]).encode()
    message = make_message(FIRST_CLIENT_NODE, BLOB_MESSAGE, "blob", part, CatchUp(), 60.0)
    [reply] = grid.send_and_receive([message])
    frame = bytes(reply.content.config_records[RECORD]["frame"])  # type: ignore[arg-type]
    assert Refusal.decode(frame).code == RefusalCode.FRAME


def test_simulated_clients_use_the_store_of_their_machine(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    basis = basis_for(settings, tmp_path)
    folder = simulate(config_of(settings, adapter__basis=basis, rounds=1))
    config = read_result(folder)["config"]
    assert config["adapter.basis"] == to_reference(blob_hash(Path(basis)))
    Path(basis).unlink()
    again = simulate(RunConfig.of(config | {"out": str(tmp_path / "again")}, "test"))
    assert read_result(again)["final_digest"] == read_result(folder)["final_digest"]
