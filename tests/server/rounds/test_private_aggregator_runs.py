"""Whole runs with central differential privacy: sent vectors, stored releases and refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import (
    RecordingGrid,
    Settings,
    Tampering,
    config_of,
    grid_of,
    ledger_of,
    wrap_local_steps,
)
from flwr.app import Message

from samara.server.app import serve
from samara.server.rounds import private_aggregator
from samara.server.rounds.releases import (
    RELEASES_FILE,
    Release,
    ReleasedSum,
    ReleaseLog,
    read_releases,
)
from samara.server.store import replay_run
from samara.shared.errors import TrainingError
from samara.shared.privacy.accountant import rho_of
from samara.shared.privacy.vector import SENSITIVITY
from samara.shared.protocol.frames.vector_report import VectorReport
from samara.shared.protocol.ledger.ledger import Ledger
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.wire import Kind, kind_of
from samara.shared.results.result import RunResult, read_result
from samara.shared.settings.config import RunConfig
from samara.simulations.simulate import simulate

PRIVATE = {
    "privacy__mode": "central",
    "privacy__clip": 2.0,
    "privacy__noise_multiplier": 2.0,
    "seed_policy": "shared",
    "aggregation__rule": "mean",
    "method": "global",
}


def private(settings: Settings, **changes: Any) -> RunConfig:
    return config_of(settings, **(PRIVATE | changes))


def test_a_run_keeps_nothing_of_single_clients(settings: Settings) -> None:
    folder = simulate(private(settings))
    result = RunResult.read(folder)
    assert result.evaluations == []
    assert all(client.examples == 0 for client in result.clients.values())
    assert not any("split_examples" in client.facts for client in result.clients.values())
    for event in read_result(folder)["rounds"]:
        assert {key for own in event["clients"].values() for key in own} == {
            *("scalars", "bytes_up", "bytes_down")
        }
    assert [record.delta.contributors for record in read_ledger(folder / "ledger")] == [()] * 3
    assert "clients" not in (folder / "step_size.jsonl").read_text()
    *_, last = replay_run(folder)
    assert last.round == 3


def test_epsilon_is_that_of_the_rounds_and_is_told(settings: Settings) -> None:
    folder = simulate(
        private(settings, privacy__noise_multiplier=0.0, privacy__epsilon=3.0, rounds=2)
    )
    result = RunResult.read(folder)
    spent = [event.epsilon for event in result.rounds]
    assert spent[-1] == pytest.approx(3.0)
    assert spent == sorted(spent, key=lambda epsilon: epsilon or 0.0)
    assert "central: ε = 3 at δ = 1e-05" in result.describe_privacy()
    assert "not covered" not in result.describe_privacy()


def test_measured_runs_say_that_evaluations_are_not_covered(settings: Settings) -> None:
    result = RunResult.read(simulate(private(settings, rounds=1, privacy__evaluation="exact")))
    assert set(result.evaluations[-1].columns["global"].clients) == {0, 1, 2}
    assert result.describe_privacy().endswith(
        "evaluations are exact, and this ε does not cover them"
    )


def test_a_profiled_loss_costs_the_privacy_of_a_plain_one(settings: Settings) -> None:
    """ε protects a client's whole vector, so a shift may depend on all rows."""
    plain, profiled = (
        RunResult.read(simulate(private(settings, out=f"{settings['out']}-{one}", objective=one)))
        for one in ("cross-entropy", "profiled-cross-entropy")
    )
    assert profiled.final_digest != plain.final_digest
    assert [event.epsilon for event in profiled.rounds] == [event.epsilon for event in plain.rounds]
    assert not any(event.refused for event in profiled.rounds)  # every client replays to its digest


@pytest.mark.parametrize("objective", ["cross-entropy", "profiled-cross-entropy"])
def test_what_leaves_a_client_is_within_the_sensitivity(
    objective: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even clients with huge projected gradients clip them before sending."""

    def huge(plain: Any, *arguments: Any) -> Any:
        report = plain(*arguments)
        report.gradients[:] *= np.float32(1000)
        return report

    wrap_local_steps(monkeypatch, huge)
    config = private(settings, rounds=1, objective=objective)
    frames: list[bytes] = []
    grid = grid_of(config, Tampering)

    def keep(reply: Message) -> Message:
        frames.append(bytes(reply.content.config_records["samara"]["frame"]))  # type: ignore[arg-type]
        return reply

    grid.tamper = keep  # type: ignore[attr-defined]
    serve(config, grid)
    reports = [VectorReport.decode(f) for f in frames if kind_of(f) is Kind.VECTOR_REPORT]
    assert len(reports) == 3
    for report in reports:
        square = sum(number * number for number in report.vector.tolist())
        assert SENSITIVITY**2 * 0.8 < square <= SENSITIVITY**2
    kinds = {kind_of(frame) for frame in frames}
    assert not kinds & {Kind.REPORT, Kind.REPORT_OF_SUMS, Kind.EVALUATION, Kind.ROUND_COST}


@pytest.mark.parametrize("moment", ["before the release", "after the release", "after the append"])
def test_a_killed_server_adds_no_second_noise_and_loses_no_budget(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    config = private(settings)
    released: list[int] = []
    plain_append, plain_noise = Ledger.append, private_aggregator.sample_noise

    def dies(*_: Any) -> Any:
        raise KeyboardInterrupt

    def append(ledger: Ledger, delta: Any) -> int:
        if delta.round == 2 and moment == "after the release":
            raise KeyboardInterrupt
        written = plain_append(ledger, delta)
        if delta.round == 2 and moment == "after the append":
            raise KeyboardInterrupt
        return written

    def noise(count: int, sigma: int) -> Any:
        released.append(count)
        if len(released) == 2 and moment == "before the release":
            raise KeyboardInterrupt
        return plain_noise(count, sigma)

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "append", append)
        patched.setattr(private_aggregator.PrivateAggregator.__init__, "__defaults__", (noise,))
        with pytest.raises(KeyboardInterrupt):
            serve(config, grid_of(config))
    file = Path(config.out) / RELEASES_FILE
    before = {release.token: release.sums[0].total.tolist() for release in read_releases(file)}
    assert len(before) == (1 if moment == "before the release" else 2)
    folder = simulate(config)
    after = read_releases(file)
    assert [release.round for release in after] == [1, 2, 3]
    assert {r.token: r.sums[0].total.tolist() for r in after if r.token in before} == before
    tokens = [record.delta.token for record in read_ledger(folder / "ledger")]
    assert tokens == [release.token for release in after]
    *_, last = replay_run(folder)
    assert last.round == 3
    assert read_result(folder)["final_digest"] is not None


def test_a_run_whose_budget_is_spent_asks_nobody(settings: Settings) -> None:
    """The same rounds with other tokens, as after a restore of the ledger from a backup."""
    config = private(settings)
    file = Path(config.out) / RELEASES_FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    log = ReleaseLog(file, rho_of(2.0), 1.0, 1e-5)
    for n in range(1, 4):
        total = ReleasedSum(2.0, np.zeros(4, np.int64), 3.0)
        log.add(Release(n, bytes([n] * 8), rho_of(2.0), 1e-5, 0.0, (total,)))
    grid = grid_of(config, RecordingGrid)
    grid.traffic = []  # type: ignore[attr-defined]
    with pytest.raises(TrainingError, match="round 1: the run's privacy budget is spent"):
        serve(config, grid)
    traffic = b"".join(grid.traffic)  # type: ignore[attr-defined]
    assert b"SM\x01\x02" not in traffic  # no train instruction
    assert ledger_of(Path(config.out))


def test_a_refusal_does_not_say_what_is_wrong_with_the_examples(settings: Settings) -> None:
    config = private(settings, data__least_batch=1000, rounds=1)
    with pytest.raises(TrainingError) as ended:
        serve(config, grid_of(config))
    assert "it gives no reason, because the run has differential privacy (code 23)" in str(
        ended.value
    )
    assert "1000" not in str(ended.value)
    assert not (Path(config.out) / RELEASES_FILE).exists()


def test_a_report_that_is_not_clipped_is_refused_alone(settings: Settings) -> None:
    config = private(settings, rounds=1)
    grid = grid_of(config, Tampering)

    def longer(reply: Message) -> Message:
        record = reply.content.config_records["samara"]
        frame = bytes(record["frame"])  # type: ignore[arg-type]
        if kind_of(frame) is Kind.VECTOR_REPORT and (own := VectorReport.decode(frame)).client == 1:
            own.vector[:] = SENSITIVITY
            record["frame"] = own.encode()
        return reply

    grid.tamper = longer  # type: ignore[attr-defined]
    (event,) = read_result(serve(config, grid))["rounds"]
    assert event["refused"] == {"1": "the vector of client 1 exceeds the limit of its norm"}
    assert set(event["clients"]) == {"0", "2"}
