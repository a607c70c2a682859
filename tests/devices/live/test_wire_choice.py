"""The wire of a client: chosen by options, by its last start, or by its invitation."""

import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from asking import evaluate_task, hello_task, train_task
from helpers import instruction_with, layout_of
from learners import Modelless
from typer.testing import CliRunner

from samara.client.protocol.client import Client, Guard, Participation
from samara.client.protocol.session_store import SessionFolder
from samara.client.trainer.remote_trainer import RemoteTrainer
from samara.devices.live.checks.gateway_check import check_gateways
from samara.devices.live.commands import app
from samara.devices.live.connection import board as board_module
from samara.devices.live.connection.board import Board
from samara.devices.live.join import GATEWAY_AUTHORITY_FILE, JoinedFile
from samara.devices.live.keys import OWN_KEY_FILE, create_key
from samara.devices.live.settings import ClientSettings
from samara.devices.live.wire_choice import WireChoice, choose_wire
from samara.shared.check_result import Outcome
from samara.shared.errors import ConfigError, InvitationError, RefusalCode
from samara.shared.network.invitation import GatewayWelcome, PhoneWelcome, Welcome
from samara.shared.network.polling import LEAST_PAUSE, pause_before_asking
from samara.shared.proto.trainer_pb2 import Reply, Task, TaskKind
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.frames.vector_report import VectorReport
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.replay import digest, zero_state
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import run_id_of

PRIVATE = {
    "privacy.mode": "central",
    "privacy.epsilon": 2.0,
    "seed-policy": "shared",
    "aggregation.rule": "mean",
    "cohort.late-rounds": 0,
}
DOOR, OTHER = "gateway.example:9100", "other.example:9100"


def started(folder: Path, **values: Any) -> None:
    """Write a client's folder as `client up` does."""
    folder.mkdir(exist_ok=True)
    settings = {"name": "a", "superlink": "", "client_index": 1, "device_settings": {}}
    ClientSettings(folder=folder, **(settings | values)).write()


def test_without_a_word_flowers_supernode_is_the_wire(tmp_path: Path) -> None:
    given = WireChoice(superlink="server.example:8000", key=tmp_path / "a.key")
    chosen = choose_wire(tmp_path, given, may_lack_key=False)
    assert chosen == given._replace(wire="flower")
    with pytest.raises(ConfigError, match="--superlink HOST:PORT is missing"):
        choose_wire(tmp_path, WireChoice(), may_lack_key=True)


def test_the_stream_that_was_chosen_once_is_used_again_until_another_wire_is(
    tmp_path: Path,
) -> None:
    key, authority = tmp_path / "a.key", tmp_path / "ca.pem"
    given = WireChoice("stream", "", (DOOR, OTHER), key, authority)
    assert choose_wire(tmp_path / "c", given, may_lack_key=False) == given
    started(tmp_path / "c", wire="stream", gateways=(DOOR, OTHER), key=key, certificates=authority)
    assert choose_wire(tmp_path / "c", WireChoice(), may_lack_key=False) == given
    other = choose_wire(tmp_path / "c", WireChoice(gateways=(OTHER,)), may_lack_key=False)
    assert (other.gateways, other.key, other.certificates) == ((OTHER,), key, None)
    flower = WireChoice("flower", "server.example:8000", key=key)
    assert choose_wire(tmp_path / "c", flower, may_lack_key=False) == flower
    started(tmp_path / "c", superlink="server.example:8000", key=key)
    with pytest.raises(ConfigError, match="--superlink"):
        choose_wire(tmp_path / "c", WireChoice(), may_lack_key=False)


def test_a_board_that_was_invited_to_a_gateway_attaches_to_it(tmp_path: Path) -> None:
    addresses: Any = {"superlink": "server.example:8000", "gateway": DOOR}
    JoinedFile(tmp_path, "superlink").write(addresses)
    chosen = choose_wire(tmp_path, WireChoice(), may_lack_key=False)
    assert chosen.wire == "stream"
    assert chosen.gateways == (DOOR,)
    assert chosen.key == tmp_path / OWN_KEY_FILE
    assert chosen.certificates == tmp_path / GATEWAY_AUTHORITY_FILE
    by_flower = choose_wire(tmp_path, WireChoice("flower"), may_lack_key=False)
    assert by_flower.superlink == "server.example:8000"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (WireChoice("stream"), "--gateway HOST:PORT is missing"),
        (WireChoice("stream", gateways=(DOOR,)), "--key FILE is missing"),
        (WireChoice("stream", gateways=("nowhere",)), "--gateway"),
        (WireChoice("stream", "server.example:8000"), "--superlink belongs to --wire flower"),
        (
            WireChoice("flower", "server.example:8000", (DOOR,)),
            "--gateway belongs to --wire stream",
        ),
    ],
)
def test_options_that_do_not_fit_are_named(tmp_path: Path, given: WireChoice, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        choose_wire(tmp_path, given, may_lack_key=False)


def test_costs_of_rounds_are_not_shared_through_a_gateway(tmp_path: Path) -> None:
    create_key(tmp_path / "a.key")
    options = ["--wire", "stream", "--gateway", DOOR, "--key", str(tmp_path / "a.key")]
    home = ["--name", "a", "--home", str(tmp_path / "home"), "--set", "owner.share-energy=true"]
    shown = CliRunner().invoke(app, ["up", *options, *home])
    assert "a gateway does not pass on the costs of a round" in str(shown.exception)


def test_the_preflight_names_gateways_that_do_not_answer(tmp_path: Path) -> None:
    started(tmp_path, wire="stream", gateways=("127.0.0.1:1", "127.0.0.1:2"))
    check = check_gateways(ClientSettings.read(tmp_path))
    assert check.outcome is Outcome.FAIL
    assert "no answer from 127.0.0.1:1" in check.finding
    assert "no answer from 127.0.0.1:2" in check.finding


def test_a_board_refuses_what_it_cannot_read_or_whose_trainer_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board_module, "RemoteTrainer", partial(RemoteTrainer, patience=0.05))
    board = Board(tmp_path / "t.sock", 7)
    for settings in (b"", b"{", b"[1]", b"[" * 100_000, b" " * 2**20 + b"{}"):
        refusal = Refusal.decode(
            board.answer(train_task(b"no instruction", CatchUp(), settings, b""))
        )
        assert (refusal.client, refusal.code) == (7, RefusalCode.SETTINGS)
    refusal = Refusal.decode(board.answer(hello_task(b"{}")))
    assert (refusal.client, refusal.code) == (7, RefusalCode.TRAINER)
    notice = Task(kind=TaskKind.REFUSED, instruction=b"no frame")
    assert Refusal.decode(board.answer(notice)).code == RefusalCode.FRAME


class Trainer(nullcontext[None]):
    """A trainer without a model, which answers tasks under the settings in each task."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        super().__init__()
        self._folder, self._learner = folder, Modelless(layout)

    def __enter__(self) -> Any:
        return self

    def answer(self, task: Task) -> Reply:
        config, learner = RunConfig.of(json.loads(task.settings), "test"), self._learner
        run_id = run_id_of(config, learner.layout, learner.model_id)
        part = Participation(config.terms, run_id, self._folder, 0, is_live=True)
        client = Client(learner, SessionFolder(self._folder), Guard(), part)
        return Reply(frame=client.answer(task))


def test_a_gateway_cannot_change_the_settings_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = layout_of(20)
    monkeypatch.setattr(board_module, "RemoteTrainer", lambda _: Trainer(tmp_path, layout))
    board = Board(tmp_path / "t.sock", 7)
    private, plain = (RunConfig.of(more, "test") for more in (PRIVATE, {}))
    run_id = run_id_of(private, layout, Modelless(layout).model_id)
    start = digest(layout.hash, zero_state(layout.size))
    instruction = instruction_with(
        run_id=run_id, layout_hash=layout.hash, start_digest=start
    ).encode()

    def settings(config: RunConfig) -> bytes:
        return json.dumps(config.flat()).encode()

    report = board.answer(train_task(instruction, CatchUp(), settings(private), b""))
    assert VectorReport.decode(report).client == 7
    assert board.answer(train_task(instruction, CatchUp(), b"", b"")) == report
    for answer in (
        board.answer(train_task(instruction, CatchUp(), settings(plain), b"")),
        board.answer(evaluate_task(instruction, CatchUp(), b"", False)),
    ):
        assert Refusal.decode(answer).code == RefusalCode.SETTINGS
    assert board.answer(train_task(instruction, CatchUp(), settings(private), b"")) == report


def test_a_welcome_has_a_gateway_for_a_board_a_program_for_a_phone_or_neither() -> None:
    board = Welcome("PEM", "", board=GatewayWelcome(DOOR, "PEM of the gateway"))
    phone = Welcome("PEM", "", PhoneWelcome(DOOR, "PEM of the gateway", "1" * 64, "2" * 64))
    for welcome in (board, phone, Welcome("PEM")):
        assert Welcome.decode(welcome.encode(), welcome.digest) == welcome
    with pytest.raises(InvitationError):
        Welcome.decode(board.encode(), phone.digest)


def test_pauses_grow_with_the_time_waited() -> None:
    assert pause_before_asking(0.0, 3.0) == LEAST_PAUSE
    assert pause_before_asking(10.0, 3.0) == 0.5
    assert pause_before_asking(1e9, 3.0) == 3.0
