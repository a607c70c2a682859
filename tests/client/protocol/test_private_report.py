"""Whole runs in which clients add the noise: each report is sent once, and limits are kept."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import train_task
from federations import (
    Live,
    Settings,
    Tampering,
    config_of,
    grid_of,
    serve_until_killed,
    serve_until_recording,
)
from flwr.app import Message
from forked import LOADED
from helpers import ROOT
from private_reports import MODES, STEPS, asked_of, die_at, frame_of, local_config, private
from residents import CLIENTS, resident

from samara.client.limits.privacy_budget import CHARGES_FILE, ChargeLog
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.trainer.trainer_service import serve_trainer
from samara.server.app import serve
from samara.server.rounds.releases import RELEASES_FILE, read_releases
from samara.server.store import replay_run
from samara.shared.errors import RefusalCode
from samara.shared.privacy.accountant import epsilon_of, rho_of
from samara.shared.privacy.discrete_gaussian import sample_noise
from samara.shared.privacy.vector import NOISED_LIMIT, SENSITIVITY
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.frames.vector_report import NoisedVectorReport, VectorReport
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.wire import Kind, kind_of
from samara.shared.results.result import RunResult, read_result
from samara.shared.terms.description import describe_terms
from samara.simulations.simulate import simulate


@pytest.mark.parametrize("mode", MODES)
def test_what_leaves_clients_is_noised_and_only_its_sum_is_used(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    # The standard deviation of 42 samples of unknown noise would be out of bounds now and then.
    monkeypatch.setattr(sample_noise, "__defaults__", (random.Random(0).randrange,))
    config, frames = private(settings, mode, rounds=2), list[bytes]()
    grid = grid_of(config, Tampering)

    def keep(reply: Message) -> Message:
        frames.append(frame_of(reply))
        return reply

    grid.tamper = keep  # type: ignore[attr-defined]
    folder = serve(config, grid)
    kinds = {kind_of(frame) for frame in frames}
    assert Kind.NOISED_VECTOR_REPORT in kinds
    assert not kinds & {Kind.VECTOR_REPORT, Kind.REPORT, Kind.EVALUATION}
    noised = [f for f in frames if kind_of(f) is Kind.NOISED_VECTOR_REPORT]
    vectors = [NoisedVectorReport.decode(frame).vector for frame in noised]
    sigma = 4 * SENSITIVITY / (1 if mode == "local" else np.sqrt(2))
    assert 0.7 * sigma < np.std(np.concatenate(vectors)) < 1.4 * sigma
    releases = read_releases(folder / RELEASES_FILE)
    for number, release in enumerate(releases):
        exact = np.sum(vectors[3 * number : 3 * number + 3], axis=0)
        (total,) = release.sums
        assert total.total.tolist() == exact.tolist()  # the server adds no noise
        assert total.clients == 3
        assert total.noise_multiplier == pytest.approx(np.sqrt(3) * sigma / SENSITIVITY)
    assert [record.delta.contributors for record in read_ledger(folder / "ledger")] == [()] * 2
    *_, last = replay_run(folder)
    assert last.round == 2


@pytest.mark.parametrize(("mode", "rho"), [("local", rho_of(4.0 / 2)), ("distributed", rho_of(4))])
def test_a_run_tells_its_cost_and_who_is_trusted(settings: Settings, mode: str, rho: float) -> None:
    result = RunResult.read(simulate(private(settings, mode, rounds=2)))
    assert result.rounds[-1].epsilon == pytest.approx(epsilon_of(2 * rho, 1e-5))
    sees = "the server saw single reports, which this ε does not cover"
    assert (sees in result.describe_privacy()) == (mode == "distributed")
    said = "\n".join(describe_terms(private(settings, mode).terms))
    assert f"differential privacy, {mode}: clip 2, noise multiplier 4, ε = " in said
    assert ("for the server alone ε = " in said) == (mode == "distributed")


def test_a_server_that_was_killed_after_a_release_uses_it_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Restarted simulated clients have lost their reports and send different ones."""
    config = private(settings, "distributed", rounds=2)
    serve_until_recording(config, 2, monkeypatch)
    file = Path(config.out) / RELEASES_FILE
    before = file.read_bytes()
    folder = simulate(config)
    assert file.read_bytes() == before
    assert [r.delta.token for r in read_ledger(folder / "ledger")] == [
        release.token for release in read_releases(file)
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("without noise", "expected a noised_vector_report frame and got a vector_report frame"),
        ("too long", "the vector of client 1 is longer than clip and noise allow"),
        ("shorter", "client 1 reports 6 numbers, but the instruction asks for 7"),
    ],
)
def test_a_report_that_no_honest_client_sends_is_refused_alone(
    settings: Settings, change: str, reason: str
) -> None:
    config = private(settings, "local", rounds=1, cohort__minimum=2)
    grid = grid_of(config, Tampering)

    def tamper(reply: Message) -> Message:
        frame = frame_of(reply)
        if kind_of(frame) is not Kind.NOISED_VECTOR_REPORT:
            return reply
        own = NoisedVectorReport.decode(frame)
        if own.client == 1:
            vector = own.vector
            if change == "without noise":
                made: Any = VectorReport(own.token, 1, np.ones(len(vector), np.int32))
            elif change == "too long":
                made = NoisedVectorReport(own.token, 1, np.full(len(vector), NOISED_LIMIT))
            else:
                made = NoisedVectorReport(own.token, 1, vector[1:])
            reply.content.config_records["samara"]["frame"] = made.encode()
        return reply

    grid.tamper = tamper  # type: ignore[attr-defined]
    (event,) = read_result(serve(config, grid))["rounds"]
    assert event["refused"] == {"1": reason}
    assert set(event["clients"]) == {"0", "2"}


def test_simulated_clients_keep_to_their_budget_over_a_restart(settings: Settings) -> None:
    limit = epsilon_of(2 * rho_of(4.0 / 2), 1e-5)
    config = private(settings, "local", data__epsilon_limit=limit, rounds=3)
    serve_until_killed(config, messages=5)
    result = RunResult.read(simulate(config))
    assert [entry.reports for entry in result.rounds] == [3, 3, 0]
    assert len(result.rounds[2].refused) == 3
    for reason in result.rounds[2].refused.values():
        assert reason.startswith("its owner's privacy budget does not allow the round (code 24)")
    for client in range(3):
        charges = ChargeLog(Path(config.out) / "clients" / str(client)).read()
        assert [charge.round for charge in charges] == [1, 2]


@pytest.mark.parametrize("mode", MODES)
def test_live_clients_add_the_noise(
    settings: Settings, tmp_path_factory: pytest.TempPathFactory, mode: str
) -> None:
    short = tmp_path_factory.mktemp("s")
    trainers = [resident(settings, client, short / str(client)) for client in CLIENTS]
    sockets = [short / f"{client}.sock" for client in CLIENTS]
    theirs = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    config = private(settings | theirs, mode, cohort__available=2, cohort__minimum=2, rounds=2)
    with (
        serve_trainer(lambda: trainers[0], sockets[0]),
        serve_trainer(lambda: trainers[1], sockets[1]),
    ):
        result = RunResult.read(serve(config, Live(sockets, config)))
    assert [event.reports for event in result.rounds] == [2, 2]
    for client in CLIENTS:
        charges = ChargeLog(short / str(client)).read()
        assert [(charge.round, charge.mode) for charge in charges] == [(1, mode), (2, mode)]


def test_a_lost_session_gets_the_stored_report_and_a_new_run_spends_on(
    settings: Settings, tmp_path: Path
) -> None:
    trainer, config = resident(settings, 7, tmp_path), local_config(settings)
    asked = asked_of(trainer, config)
    report = trainer.client_under(config).answer(train_task(asked.encode()))
    assert kind_of(report) is Kind.NOISED_VECTOR_REPORT
    for session in tmp_path.glob("runs/*/session"):
        session.unlink()
    again = resident(settings, 7, tmp_path)
    assert again.client_under(config).answer(train_task(asked.encode())) == report
    another = config_of(config.flat(), seed=1)
    asked = asked_of(again, another)
    other = again.client_under(another).answer(train_task(asked.encode()))
    assert other != report
    assert len(ChargeLog(tmp_path).read()) == 2
    limited = settings | {"data.epsilon-limit": epsilon_of(2.5 * rho_of(4.0 / 2), 1e-5)}
    careful = ResidentTrainer.load(config_of(limited, data__clients=1), 7, tmp_path)
    for changes in ({"seed": 2}, {"privacy__mode": "none"}):
        under = config_of(config.flat(), **changes)
        asked = asked_of(careful, under)
        refusal = Refusal.decode(careful.client_under(under).answer(train_task(asked.encode())))
        assert refusal.code == RefusalCode.BUDGET
    assert len(ChargeLog(tmp_path).read()) == 2


MOMENTS = [f"{when} {step}" for step in STEPS for when in ("before", "after")]


def check_after(folder: Path, moment: str, again: Callable[[], bytes]) -> None:
    """Check that a killed client ends with a single report, and charges it once."""
    before = [charge.report for charge in ChargeLog(folder).read()]
    is_charged = MOMENTS.index(moment) >= MOMENTS.index("after charge")
    assert len(before) == is_charged
    report = again()
    assert before in ([], [report])
    assert [charge.report for charge in ChargeLog(folder).read()] == [report]
    assert again() == report


@pytest.mark.parametrize("moment", MOMENTS)
def test_wherever_a_client_stops_there_is_one_report_and_one_charge(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    config = local_config(settings)
    trainer = resident(settings, 7, tmp_path)
    asked = asked_of(trainer, config).encode()

    def stop() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        die_at(moment, stop, patched.setattr)
        with pytest.raises(KeyboardInterrupt):
            trainer.client_under(config).answer(train_task(asked))
    check_after(
        tmp_path,
        moment,
        lambda: resident(settings, 7, tmp_path).client_under(config).answer(train_task(asked)),
    )


CLIENT_THAT_IS_KILLED = """
import json, os, signal, sys
from pathlib import Path
from asking import train_task
from private_reports import asked_of, die_at, local_config
from residents import resident

settings, folder, moment = json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
trainer, config = resident(settings, 7, folder), local_config(settings)
asked = asked_of(trainer, config)
if moment:
    die_at(moment, lambda: os.kill(os.getpid(), signal.SIGKILL))
print(trainer.client_under(config).answer(train_task(asked.encode())).hex())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(moment, marks=() if moment == "after charge" else pytest.mark.exhaustive)
        for moment in MOMENTS
    ],
)
def test_kill_9_makes_no_second_noise(settings: Settings, tmp_path: Path, moment: str) -> None:
    """A process is killed at a moment of its answer; its successor gets the same instruction."""
    home = tmp_path / "home"

    def run(moment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *(sys.executable, "-c", LOADED + CLIENT_THAT_IS_KILLED),
                *(json.dumps(settings), str(home), moment),
            ],
            env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
            capture_output=True,
            text=True,
            check=False,
        )

    killed = run(moment)
    assert killed.returncode == -9, killed.stderr
    assert (home / CHARGES_FILE).exists() == (
        MOMENTS.index(moment) > MOMENTS.index("before charge")
    )
    check_after(home, moment, lambda: bytes.fromhex(run("").stdout))


def test_simulated_clients_without_a_limit_write_nothing(settings: Settings) -> None:
    """Simulated clients without a limit need no file: they run in the server's process."""
    folder = simulate(private(settings, "local", rounds=1))
    assert not list(folder.glob(f"**/{CHARGES_FILE}"))
