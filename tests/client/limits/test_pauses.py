"""A trainer that pauses between forward passes computes the same results as without pauses."""

from collections.abc import Callable
from pathlib import Path

import pytest
from asked_clients import run_id_in
from asking import evaluate_task, sent, train_task
from federations import Live, Settings, config_of, ledger_of
from helpers import delta_of, history_of, instruction_with
from residents import resident

from samara.client.limits.work_costs import WorkCosts
from samara.client.protocol.session import Session
from samara.client.protocol.session_store import decode_session
from samara.client.trainer.remote_trainer import RemoteTrainer
from samara.client.trainer.trainer_service import serve_trainer
from samara.server.app import serve
from samara.shared.errors import RefusalCode
from samara.shared.protocol.frames.instructions import EvaluateInstruction, Split
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.ledger.records import CatchUp, LedgerHeader
from samara.shared.protocol.wire import Kind, kind_of
from samara.shared.settings.config import RunConfig


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samara.client.limits.pauses._SECONDS_BETWEEN", 0.001)


@pytest.fixture
def server_config(settings: Settings) -> RunConfig:
    theirs = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    few = {"cohort.available": 1, "evaluate.every": 1, "personal.rounds": 1, "micro-batch": 2}
    return config_of(settings | theirs | few)


class Moods:
    """A device that is hot at every fifth look during messages, and stays hot for three looks."""

    def __init__(self) -> None:
        self.looks = self.pauses = 0

    def __call__(self) -> str:
        self.looks += 1
        hot = self.looks % 5 < 3 and self.looks > 1
        self.pauses += self.looks % 5 == 0
        return "91 °C is over 85 °C" if hot else ""


def test_a_run_with_pauses_has_the_bits_of_one_without(
    settings: Settings, server_config: RunConfig, short: Path, tmp_path: Path
) -> None:
    ledgers = []
    moods = Moods()

    def run(name: str, reason: Callable[[], str]) -> None:
        mine, socket = resident(settings, 7, short / name), short / f"{name}.sock"
        config = config_of(server_config.flat(), out=str(tmp_path / name))
        counter = iter(range(10**9))
        with serve_trainer(lambda: mine, socket, reason, lambda: float(next(counter))):
            ledgers.append(ledger_of(serve(config, Live([socket], config))))

    def hot_within_messages_only() -> str:
        """Stay cool between messages, so that no message is refused at once."""
        import inspect

        inside = any(frame.function == "before_pass" for frame in inspect.stack()[1:3])
        return moods() if inside else ""

    run("steady", lambda: "")
    run("moody", hot_within_messages_only)
    assert moods.pauses > 10
    assert ledgers[0] == ledgers[1]
    steady, moody = (WorkCosts(short / name).read() for name in ("steady", "moody"))
    [quick], [slow] = steady.values(), moody.values()
    assert (quick.rounds, quick.paused) == (3, 0.0)
    assert slow.rounds == 3
    assert 0 < slow.paused <= slow.seconds
    assert slow.joules == quick.joules > 0
    files = [
        sorted((short / name).glob("runs/*/clients/*/*/*.seg")) for name in ("steady", "moody")
    ]
    assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]
    assert files[0]


def test_a_round_that_ends_during_a_pause_is_computed_anew_with_the_same_bits(
    settings: Settings, server_config: RunConfig, short: Path
) -> None:
    reasons = {"": 0}
    hot = [False]

    def reason() -> str:
        reasons[""] += 1
        return "91 °C is over 85 °C" if hot[0] and reasons[""] > 2 else ""

    def ask(name: str, gets_hot: bool) -> list[bytes]:
        mine, socket = resident(settings, 7, short / name), short / f"{name}.sock"
        mine.client_under(server_config)
        layout = mine.runtime.layout
        start = Session.begin(LedgerHeader(0, run_id_in(mine), layout.hash), layout)
        fields = {"layout_hash": layout.hash, "start_digest": start.digest, "deadline": 0.05}
        frame = instruction_with(run_id=run_id_in(mine), **fields).encode()
        hot[0], reasons[""] = gets_hot, 0
        with (
            serve_trainer(lambda: mine, socket, reason),
            RemoteTrainer(str(socket)) as remote,
        ):
            replies = [remote.answer(train_task(frame, settings=sent(server_config))).frame]
            hot[0] = False
            if kind_of(replies[0]) is Kind.REFUSAL:
                [kept] = (short / name).glob("runs/*/session")
                assert not decode_session(kept.read_bytes()).report
                replies.append(remote.answer(train_task(frame, settings=sent(server_config))).frame)
        return replies

    [expected] = ask("steady", gets_hot=False)
    refused, found = ask("moody", gets_hot=True)
    assert Refusal.decode(refused).code == RefusalCode.PAUSED
    assert Report.decode(found).gradients.size
    assert found == expected


def test_an_evaluation_is_refused_once_its_server_no_longer_waits(
    settings: Settings, server_config: RunConfig, short: Path
) -> None:
    looks, hot = iter(range(10**9)), [True]

    def reason() -> str:
        return "91 °C is over 85 °C" if hot[0] and next(looks) > 0 else ""

    config = server_config.with_values({"cohort.timeout": 0.05})
    mine, socket = resident(settings, 7, short / "client"), short / "client.sock"
    layout = mine.client_under(config) and mine.runtime.layout
    run_id = run_id_in(mine)
    digest = Session.begin(LedgerHeader(0, run_id, layout.hash), layout).digest
    asked = EvaluateInstruction(run_id, 0, 0, Split.VALIDATION, layout.hash, digest).encode()
    with (
        serve_trainer(lambda: mine, socket, reason),
        RemoteTrainer(str(socket)) as remote,
    ):
        refused = remote.answer(evaluate_task(asked, settings=sent(config))).frame
        hot[0] = False
        found = remote.answer(evaluate_task(asked, settings=sent(config))).frame
    assert Refusal.decode(refused).code == RefusalCode.PAUSED
    assert kind_of(found) is Kind.EVALUATION


def test_a_client_that_may_not_work_does_not_catch_up(
    settings: Settings, server_config: RunConfig, short: Path
) -> None:
    hot = [True]
    mine, socket = resident(settings, 7, short / "client"), short / "client.sock"
    layout = mine.client_under(server_config) and mine.runtime.layout
    history = history_of([delta_of(1), delta_of(2)], layout, run_id_in(mine))
    fields = {"round": 3, "layout_hash": layout.hash, "start_digest": history.digests[2]}
    frame = instruction_with(run_id=history.header.run_id, **fields).encode()
    task = train_task(frame, CatchUp(tail=history.tail(0)), settings=sent(server_config))
    with (
        serve_trainer(lambda: mine, socket, lambda: "91 °C is over 85 °C" if hot[0] else ""),
        RemoteTrainer(str(socket)) as remote,
    ):
        refused = Refusal.decode(remote.answer(task).frame)
        assert (refused.code, refused.round) == (RefusalCode.PAUSED, 0)
        assert not [*(short / "client").glob("runs/*/session")]
        hot[0] = False
        assert kind_of(remote.answer(task).frame) is Kind.REPORT
