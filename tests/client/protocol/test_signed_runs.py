"""A client with a signed scenario obeys no other run: hostile instructions in real messages."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Live, Settings, config_of, wrap_local_steps
from flwr.app import MessageType
from residents import CLIENTS, device_settings, resident
from scenarios import give, operator_key

from samara.client.app import TRAINER
from samara.client.app import app as client_app
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.protocol.scenario_folder import ScenarioFolder, describe_scenarios
from samara.client.trainer.trainer_service import serve_trainer
from samara.server.app import serve
from samara.server.transport.messages import make_message
from samara.shared.errors import ConfigError, RefusalCode, ScenarioError
from samara.shared.protocol.directions import directions, round_root
from samara.shared.protocol.frames.blob import BlobPart
from samara.shared.protocol.frames.evaluation import Evaluation
from samara.shared.protocol.frames.instructions import (
    CLUSTERING_TRACK,
    EvaluateInstruction,
    SeedPolicy,
    Split,
    TrainInstruction,
)
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.replay import digest, zero_state
from samara.shared.protocol.signing import SigningKey
from samara.shared.protocol.wire import BLOB_ACTION, PERSONAL_ACTION, RECORD, Kind, kind_of
from samara.shared.results.result import read_result
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import run_id_of
from samara.shared.storage.blob_store import to_reference
from samara.simulations.engines.in_process import FIRST_CLIENT_NODE, InProcessGrid

CLIENT = CLIENTS[0]


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return operator_key(tmp_path)


@pytest.fixture
def server_config(settings: Settings) -> RunConfig:
    theirs = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    own = {"evaluate.every": 2, "evaluate.limit": 8}
    return config_of(settings | theirs | own, cohort__available=1)


@dataclass
class Server:
    """A server that sends arbitrary Flower messages to one live client."""

    socket: Path
    config: RunConfig

    def ask(self, frame: bytes, kind: str = MessageType.TRAIN, **settings: Any) -> bytes:
        sent = self.config.flat() | settings
        grid = InProcessGrid(client_app, 1, sent, nodes=[{TRAINER: str(self.socket)}])
        message = make_message(FIRST_CLIENT_NODE, kind, "", frame, CatchUp(), 60.0)
        [reply] = grid.pull_messages(grid.push_messages([message]))
        return bytes(reply.content.config_records[RECORD]["frame"])  # type: ignore[arg-type]

    def train(self, instruction: TrainInstruction, **settings: Any) -> Report:
        return Report.decode(self.ask(instruction.encode(), **settings))

    def refusal(self, instruction: TrainInstruction, **settings: Any) -> Refusal:
        return Refusal.decode(self.ask(instruction.encode(), **settings))


@contextmanager
def asking(trainer: ResidentTrainer, socket: Path, config: RunConfig) -> Iterator[Server]:
    with serve_trainer(lambda: trainer, socket):
        yield Server(socket, config)


def round_of(trainer: ResidentTrainer, config: RunConfig, number: int = 1) -> TrainInstruction:
    """The instruction of an honest server for a round that starts from the base model."""
    trainer.client_under(config)  # after which its runtime has the run's layout
    layout = trainer.runtime.layout
    run_id = run_id_of(config, layout, trainer.runtime.model_id)
    start = digest(layout.hash, zero_state(layout.size))
    return config.terms.instruction(
        run_id, number, layout.hash, start, learning_rate=0.1, clip=0.0, curvature_every=0
    )


def never(*arguments: object) -> Report:
    raise AssertionError("it trained")


def is_recovered(server: Server, attack: TrainInstruction, size: int) -> bool:
    """Return whether the scalars along the first directions predict those along the last 64."""
    gradients = server.train(attack).gradients[0].astype(np.float64)
    z = directions(attack.seeds(CLIENT)[0], size, "gaussian") * 2.0**-11
    gradient = np.linalg.lstsq(z[:size], gradients[:size], rcond=None)[0]
    return bool(np.corrcoef(z[size:] @ gradient, gradients[size:])[0, 1] > 0.95)


def test_a_made_up_run_recovers_the_gradient_of_a_batch_without_a_signed_scenario(
    settings: Settings, server_config: RunConfig, short: Path, key: SigningKey
) -> None:
    usual = resident(settings, CLIENT, short / "usual")
    honest = round_of(usual, server_config)
    size = usual.runtime.layout.size
    values: dict[str, Any] = {"steps": 1, "queries": size + 64, "root": 1, "epsilon": 1e-3}
    of_one = replace(honest, batch=1, **values)
    of_two, foreign = replace(of_one, batch=2), replace(of_one, run_id=b"made up!")
    with asking(usual, short / "a.sock", server_config) as server:
        assert server.refusal(foreign).code == RefusalCode.SETTINGS
        assert server.refusal(of_one).code == RefusalCode.BATCH
        assert is_recovered(server, of_two, size)
    own = device_settings(settings, CLIENT, short).config.flat() | {"data.least-batch": 1}
    unlimited = RunConfig.of(own, "test")
    with asking(
        ResidentTrainer.load(unlimited, CLIENT, short), short / "a.sock", server_config
    ) as server:
        assert is_recovered(server, of_one, size)

    give(short / "careful", server_config, key)
    careful = ResidentTrainer.load(unlimited, CLIENT, short / "careful")
    with asking(careful, short / "a.sock", server_config) as server:
        for attack in (of_one, of_two, foreign):
            assert server.refusal(attack).code == RefusalCode.SCENARIO
        assert server.train(honest).gradients.shape == (2, 2)
    refused = ScenarioFolder(short / "careful").read_refused()
    assert refused is not None
    assert f"run {b'made up!'.hex()}" in refused.reason
    assert honest.run_id.hex() in refused.reason


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"run_id": b"made up!"}, "run 6d61646520757021, track 0"),
        ({"track": 1}, "track 1"),
        ({"track": CLUSTERING_TRACK}, f"track {CLUSTERING_TRACK}"),
        ({"steps": 20}, "steps 20 and not 2"),
        ({"queries": 3072}, "queries 3072 and not 2"),
        ({"batch": 1}, "batch 1 and not 4"),
        ({"epsilon": 1e-6}, "epsilon 1e-06 and not 0.01"),
        ({"root": 5}, "root 5 and not "),
        ({"seed_policy": SeedPolicy.SHARED}, "seed policy shared and not independent"),
        (
            {"seed_policy": SeedPolicy.POOL, "pool_root": 3, "pool_size": 9},
            "seed policy pool and not independent, pool root 3 and not 0, pool size 9 and not 0",
        ),
        ({"learning_rate": 5.0}, "learning rate 5.0 and not 0.1"),
        ({"clip": 3.0}, "clip 3.0 and not 0.0"),
        ({"curvature_every": 1}, "curvature every 1 and not 0"),
        ({"differences": "forward"}, "differences forward and not central"),
        ({"deadline": 1.0}, "deadline 1.0 and not 3600.0"),
        (
            {"round": 4, "root": round_root(0, 4, 0)},
            "round 4, but the signed scenario has 3 rounds",
        ),
        ({"round": 2**32 - 1, "root": round_root(0, 2**32 - 1, 0)}, "round 4294967295"),
    ],
)
def test_what_is_not_signed_is_refused_before_a_pass(
    changes: dict[str, Any],
    said: str,
    settings: Settings,
    server_config: RunConfig,
    short: Path,
    key: SigningKey,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wrap_local_steps(monkeypatch, never)
    give(short, server_config, key)
    trainer = resident(settings, CLIENT, short)
    attack = replace(round_of(trainer, server_config), **changes)
    with asking(trainer, short / "a.sock", server_config) as server:
        refusal = server.refusal(attack)
    assert (refusal.code, refusal.client, refusal.numbers) == (17, CLIENT, (0, 0))
    assert "signed by the operator" in refusal.description
    assert said in caplog.text
    assert said in describe_scenarios(short)[-1]
    assert not list(short.glob("runs/*/session"))


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": 4},
        {"seed": 1},
        {"adapter.rank": 1},
        {"adapter.alpha": 8.0},
        {"personal.rounds": 1000},
        {"evaluate.every": 1},
        {"method": "global"},
        {"adapter.basis": to_reference(bytes(32))},
        {"adapter.damping": to_reference(bytes(32))},
        {"adapter.start": to_reference(bytes(32))},
    ],
)
def test_other_settings_are_refused_with_the_hello_and_with_every_file(
    changes: dict[str, Any],
    settings: Settings,
    server_config: RunConfig,
    short: Path,
    key: SigningKey,
    caplog: pytest.LogCaptureFixture,
) -> None:
    give(short, server_config, key)
    trainer = resident(settings, CLIENT, short)
    honest = round_of(trainer, server_config)
    part = BlobPart(bytes(32), 10, 0, b"x").encode()
    with asking(trainer, short / "a.sock", server_config) as server:
        for frame, kind in (
            (honest.encode(), MessageType.TRAIN),
            (b"", MessageType.QUERY),
            (part, f"{MessageType.QUERY}.{BLOB_ACTION}"),
        ):
            reply = server.ask(frame, kind, **changes)
            assert Refusal.decode(reply).code == RefusalCode.SCENARIO
        assert kind_of(server.ask(b"", MessageType.QUERY)) is Kind.HELLO
    [(name, value)] = changes.items()
    assert f"{name} = {value!r} and not " in caplog.text
    assert not list(short.glob("blobs/*"))


def test_no_settings_are_not_the_devices_own(
    settings: Settings, server_config: RunConfig, short: Path, key: SigningKey
) -> None:
    give(short, server_config, key)
    trainer = resident(settings, CLIENT, short)
    with pytest.raises(ConfigError, match="run config"):
        trainer.client_for(b"")
    with pytest.raises(ScenarioError, match="settings other than the signed ones"):
        trainer.client_for(b"{}")


def test_settings_that_decide_no_number_are_the_servers(
    settings: Settings, server_config: RunConfig, short: Path, key: SigningKey
) -> None:
    give(short, server_config, key)
    trainer = resident(settings, CLIENT, short)
    changes = {"out": "elsewhere", "cohort.quorum": 5, "ledger.snapshot-every": 3}
    with asking(trainer, short / "a.sock", server_config) as server:
        report = server.train(round_of(trainer, server_config), **changes)
    assert report.client == CLIENT


def test_every_round_is_answered_once_also_after_a_restart(
    settings: Settings, server_config: RunConfig, short: Path, key: SigningKey
) -> None:
    give(short, server_config, key)
    trainer = resident(settings, CLIENT, short)
    honest = round_of(trainer, server_config)
    with asking(trainer, short / "a.sock", server_config) as server:
        report = server.ask(honest.encode())
    trainer = resident(settings, CLIENT, short)
    with asking(trainer, short / "a.sock", server_config) as server:
        assert server.ask(honest.encode()) == report
        again = replace(honest, learning_rate=0.05)
        assert server.refusal(again).code == RefusalCode.SCENARIO
    refused = ScenarioFolder(short).read_refused()
    assert refused is not None
    assert refused.reason.startswith("another report about round 1")


def evaluation(server: Server, instruction: TrainInstruction, **changes: Any) -> bytes:
    asked = EvaluateInstruction(
        instruction.run_id, 0, 0, Split.TEST, instruction.layout_hash, instruction.start_digest
    )
    personal = changes.pop("personal", False)
    kind = MessageType.EVALUATE + (f".{PERSONAL_ACTION}" if personal else "")
    return server.ask(replace(asked, **changes).encode(), kind)


def test_evaluations_are_those_of_the_signed_scenario(
    settings: Settings, server_config: RunConfig, short: Path, key: SigningKey
) -> None:
    give(short, server_config, key)
    trainer = resident(settings, CLIENT, short)
    honest = round_of(trainer, server_config)
    with asking(trainer, short / "a.sock", server_config) as server:
        for split in (Split.VALIDATION, Split.TEST):
            Evaluation.decode(evaluation(server, honest, split=split))
        for changes in (
            {"split": Split.TRAIN},
            {"round": 1, "split": Split.VALIDATION},
            {"round": 2, "split": Split.TEST},
            {"round": 4},
            {"run_id": b"made up!"},
            {"track": 7},
            {"personal": True},
        ):
            refusal = Refusal.decode(evaluation(server, honest, **changes))
            assert refusal.code == RefusalCode.SCENARIO, changes


def test_a_run_with_signed_scenarios_is_the_same_run(
    settings: Settings, server_config: RunConfig, short: Path, key: SigningKey
) -> None:
    readout = {
        "learning_rate": "auto",
        "method": "readout",
        "evaluate__best": True,
        "adapter__layers": "readout",
        "adapter__label_bias": True,
    }
    for changes in ({}, readout):
        ends = []
        for name in ("plain", "signed"):
            place = short / f"{name}-{len(changes)}"
            config = config_of(server_config.flat(), **changes, out=str(place / "run"))
            homes = [place / str(client) for client in CLIENTS]
            if name == "signed":
                for home in homes:
                    give(home, config, key)
            first, second = (resident(settings, c, h) for c, h in zip(CLIENTS, homes, strict=True))
            sockets = [short / "a.sock", short / "b.sock"]
            with (
                serve_trainer(lambda of=first: of, sockets[0]),
                serve_trainer(lambda of=second: of, sockets[1]),
            ):
                result = read_result(serve(config, Live(sockets, config)))
            assert not result["refused"]
            assert [entry["reports"] for entry in result["rounds"][: config.rounds]] == [2] * 3
            assert all(ScenarioFolder(home).read_refused() is None for home in homes)
            ends.append((result["final_digest"], len(result["evaluations"])))
        assert ends[0] == ends[1]
