"""Fleets of emulated devices: the same federation on a virtual clock, with shared passes."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import Settings, Simulated, config_of, ledger_of
from helpers import ROOT

from samara.client.training import local_steps
from samara.client.training.model_runtime import ModelRuntime, load_run
from samara.server.store import replay_run
from samara.shared.errors import ConfigError, TrainingError
from samara.shared.protocol.directions import round_root
from samara.shared.protocol.frames.instructions import SeedPolicy, TrainInstruction
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.replay import zero_state
from samara.shared.results.result import RunResult
from samara.shared.settings.config import RunConfig, load_scenario
from samara.shared.tasks.label_scores import cross_entropy
from samara.simulations.report.fleet_figures import accuracy_over_time, fleet_figures
from samara.simulations.simulate import simulate

SCENARIOS = ROOT / "simulations" / "scenarios"
GROUPS: list[dict[str, Any]] = [
    {"device": "laptop", "share": 2, "link": "wifi", "available": [[0, 24]], "dropout": 0.2},
    {
        "device": "mid-range-phone",
        "share": 1,
        "link": "lte",
        "quantization": "fp16",
        "slow": 0.3,
        "slowdown": 9.0,
    },
]
CLIENTS = 9


@pytest.fixture
def fleet(settings: Settings) -> Settings:
    return settings | {
        "data.clients": CLIENTS,
        "rounds": 5,
        "fleet.devices": GROUPS,
        "fleet.timed-as": "tinyllama-1.1b",
        "cohort.oversample": 1.3,
        "cohort.fraction": 0.6,
        "cohort.timeout": 300.0,
        "cohort.late-rounds": 1,
        "evaluate.every": 2,
    }


def without_clocks(folder: Path) -> dict[str, Any]:
    """Return a result without the fields that depend on the wall clock or the machine."""
    result = json.loads((folder / "result.json").read_text())
    for key in ("wall_seconds", "peak_memory_bytes"):
        del result[key]
    del result["config"]["out"]
    for event in (*result["rounds"], *result["evaluations"]):
        del event["seconds"], event["time"]
    return result


def test_the_same_seed_gives_the_same_result_twice(
    fleet: Settings, simulated: Simulated, tmp_path: Path
) -> None:
    one = simulated(fleet)
    again = simulate(config_of(fleet, out=str(tmp_path / "again")))
    assert ledger_of(one) == ledger_of(again)
    assert without_clocks(one) == without_clocks(again)
    other = simulate(config_of(fleet, out=str(tmp_path / "other"), seed=1))
    assert without_clocks(one)["rounds"] != without_clocks(other)["rounds"]


def test_what_is_told_of_a_fleet_adds_up(fleet: Settings, simulated: Simulated) -> None:
    result = RunResult.read(simulated(fleet))
    assert result.fleet is not None
    assert [result.fleet.devices[number].device for number in (0, 5, 6, 8)] == [
        *["laptop"] * 2,
        *["mid-range-phone"] * 2,
    ]
    clock = result.fleet.begun
    assert clock == 12 * 3600
    for told in result.rounds:
        assert told.fleet is not None
        assert clock <= told.fleet.begun <= told.fleet.ended <= told.fleet.begun + 300
        clock = told.fleet.ended
        in_time = {n for n, job in told.fleet.devices.items() if job.outcome == "reported"}
        assert in_time <= told.clients.keys()
        for job in told.fleet.devices.values():
            if job.outcome == "reported":
                spent = job.compute + job.transfer + job.waiting
                assert spent == pytest.approx(told.fleet.ended - told.fleet.begun, abs=1e-4)
    assert clock == result.fleet.ended
    outcomes: Counter[str] = Counter()
    for device in result.fleet.devices.values():
        outcomes.update(device.outcomes)
        assert device.peak_memory_bytes == 0 or device.fits
    assert outcomes["reported"] > 10
    assert outcomes["late"] > 0
    assert outcomes["dropped out"] > 0
    figures = fleet_figures("A", result)
    assert [figure.name for figure in figures] == ["reachedA", "roundsA", "daysA", "splitA"]
    assert all(figure.svg.startswith("<svg role=") for figure in figures)
    (begun, before), *_, (ended, after) = accuracy_over_time(result)
    assert (begun, ended) == (12 * 3600, result.fleet.ended)
    validations = [e.columns["global"] for e in result.evaluations if e.split == "validation"]
    assert before == validations[0].mean_client_accuracy
    assert after == validations[-1].mean_client_accuracy


def test_every_round_of_a_fleet_is_proven_by_its_ledger(
    fleet: Settings, simulated: Simulated
) -> None:
    folder = simulated(fleet)
    *_, last = replay_run(folder)
    assert last.state.any()
    assert RunResult.read(folder).final_round == 5


@pytest.mark.parametrize("objective", ["cross-entropy", "profiled-cross-entropy"])
def test_a_fleet_without_chance_trains_what_clients_train_one_by_one(
    objective: str, fleet: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frames are equal, so one client at a time gives the ledger of the in-process engine."""
    monkeypatch.setattr("samara.simulations.fleet.clients.MOST_ROWS", 0)
    monkeypatch.setattr("samara.shared.settings.config.TRUNK_CACHE_BYTES", 0)
    calm = fleet | {
        "fleet.devices": [{"device": "laptop", "share": 1}],
        "cohort.late-rounds": 0,
        "cohort.oversample": 1.0,
        "objective": objective,
        "adapter.label-bias": False,  # its default depends on the emulated devices
    }
    devices = simulate(config_of(calm))
    alone = simulate(config_of(calm, fleet__devices="", out=str(tmp_path / "alone")))
    one, other = RunResult.read(devices), RunResult.read(alone)
    assert one.passes == other.passes
    assert one.rounds[0].bytes_down == other.rounds[0].bytes_down
    assert [r.clients.keys() for r in one.rounds] == [r.clients.keys() for r in other.rounds]
    for mine, its in zip(one.rounds, other.rounds, strict=True):
        assert mine.loss == its.loss
        assert mine.digest == its.digest
    for mine_event, its_event in zip(one.evaluations, other.evaluations, strict=True):
        assert mine_event.columns["global"].confusion == its_event.columns["global"].confusion


def test_a_run_that_is_interrupted_goes_on(
    fleet: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from samara.simulations.fleet.virtual_clock import VirtualClock

    told = VirtualClock.finish_round
    rounds = []

    def until_the_third(clock: VirtualClock) -> dict[str, Any]:
        rounds.append(told(clock))
        if len(rounds) == 3:
            raise TrainingError("stopped")
        return rounds[-1]

    monkeypatch.setattr(VirtualClock, "finish_round", until_the_third)
    with pytest.raises(TrainingError, match="stopped"):
        simulate(config_of(fleet))
    monkeypatch.undo()
    result = RunResult.read(simulate(config_of(fleet)))
    assert result.final_round == 5
    told_of = [told.fleet for told in result.rounds if told.fleet]
    assert all(one.ended <= other.begun for one, other in pairwise(told_of))


def test_a_device_that_is_too_small_is_ended_every_time_and_the_run_goes_on(
    fleet: Settings,
) -> None:
    groups = [GROUPS[0], {"device": "orin-nano-4gb", "share": 1, "quantization": "fp32"}]
    changed = fleet | {"fleet.devices": groups}
    result = RunResult.read(simulate(config_of(changed)))
    assert result.fleet is not None
    small = [d for d in result.fleet.devices.values() if d.device == "orin-nano-4gb"]
    assert {outcome for device in small for outcome in device.outcomes} == {"out of memory"}
    assert not any(device.fits for device in small)
    assert sum(told.reports for told in result.rounds) > 5


def test_unknown_profiles_and_engines_are_refused_at_once(fleet: Settings) -> None:
    groups = [
        {"device": "laptopp", "share": 1},
        {"device": "laptop", "share": 1, "link": "pigeon"},
        {"device": "laptop", "share": 1, "power": "900W"},
    ]
    with pytest.raises(ConfigError) as caught:
        simulate(config_of(fleet, fleet__devices=groups))
    for part in ("fleet.devices.0: 'laptopp'", "fleet.devices.1: 'pigeon'", "fleet.devices.2"):
        assert part in str(caught.value)
    with pytest.raises(ConfigError, match="in-process engine"):
        simulate(config_of(fleet), engine="flower")


def instruction_of(runtime: ModelRuntime, config: RunConfig) -> TrainInstruction:
    return TrainInstruction(
        run_id=bytes(8),
        round=1,
        track=0,
        steps=config.steps,
        queries=config.queries,
        batch=config.batch,
        seed_policy=SeedPolicy.INDEPENDENT,
        root=round_root(config.seed, 1, 0),
        epsilon=config.epsilon,
        learning_rate=0.05,
        clip=0.0,
        deadline=0.0,
        layout_hash=runtime.layout.hash,
        start_digest=bytes(32),
        curvature_every=2,
    )


@pytest.mark.parametrize(
    ("projections", "layers"), [("auto", "top:2"), ("gate_proj,up_proj", "top:1")]
)
def test_clients_that_share_passes_report_what_they_report_alone(
    projections: str, layers: str, settings: Settings
) -> None:
    """Differences come from rounding, 10·u/ε (docs/concepts/steps.md), and from earlier steps."""
    config = config_of(
        settings,
        data__clients=6,
        steps=3,
        queries=3,
        micro_batch=2,
        adapter__projections=projections,
        adapter__layers=layers,
        adapter__label_bias=True,
    )
    runtime, source = load_run(config)
    instruction, state = instruction_of(runtime, config), zero_state(runtime.layout.size)
    clients = [source.share_of(client, 6) for client in (4, 0, 5, 2)]
    together = local_steps.take_local_steps_together(runtime, clients, instruction, state)
    allowed = 10 * torch.finfo(torch.float32).eps / 2 / config.epsilon
    for data, found in zip(clients, together, strict=True):
        alone = local_steps.take_local_steps(runtime, data, instruction, state)
        assert isinstance(found, Report)
        assert (found.client, found.examples) == (alone.client, alone.examples)
        np.testing.assert_allclose(found.gradients[0], alone.gradients[0], rtol=0, atol=allowed)
        np.testing.assert_allclose(found.gradients, alone.gradients, rtol=0, atol=3 * allowed)
        assert found.mean_loss == pytest.approx(alone.mean_loss, abs=1e-5)


def test_one_clients_error_is_its_own(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(settings, data__clients=4)
    runtime, source = load_run(config)
    instruction, state = instruction_of(runtime, config), zero_state(runtime.layout.size)
    clients = [source.share_of(client, 4) for client in (0, 2)]
    sound = local_steps.take_local_steps(runtime, clients[1], instruction, state)
    calls: list[int] = []

    def poisoned(scores: Any, labels: Any) -> Any:
        calls.append(len(labels))
        return cross_entropy(scores, labels) * (np.nan if len(calls) == 1 else 1.0)

    monkeypatch.setattr(runtime, "objective", poisoned)
    broken, whole = local_steps.take_local_steps_together(runtime, clients, instruction, state)
    assert isinstance(broken, TrainingError)
    assert isinstance(whole, Report)
    np.testing.assert_allclose(whole.gradients, sound.gradients, rtol=0, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("laptop-8", {"rounds": 2, "queries": 4}),
        ("orin-nano-20", {"rounds": 2, "data.clients": 13, "steps": 2}),
        ("mixed-200", {"rounds": 2, "data.clients": 10, "steps": 2, "cohort.minimum": 1}),
        ("metered-1000", {"rounds": 2, "data.clients": 10}),
    ],
)
def test_a_shipped_fleet_runs(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    shipped = load_scenario(SCENARIOS / f"{name}.toml")
    assert shipped.data.clients == int(name.rpartition("-")[2])
    own = {"evaluate.limit": 8, "out": str(tmp_path / "run")}
    config = RunConfig.of(shipped.flat() | changes | own, name)
    result = RunResult.read(simulate(config))
    assert result.fleet is not None
    assert result.final_round == changes["rounds"]
    assert sum(told.reports for told in result.rounds) > 0
    kinds = {(d.device, d.quantization) for d in result.fleet.devices.values()}
    assert len(kinds) == len({(g.device, g.quantization) for g in shipped.fleet.devices})


def test_a_readout_pays_for_the_model_in_the_first_round_alone(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    device = [{"device": "laptop", "share": 1, "link": "wifi", "available": [[0, 24]]}]
    config = config_of(
        settings,
        adapter__layers="readout",
        batch=1000,
        fleet__devices=device,
        fleet__timed_as="tinyllama-1.1b",
        out=str(tmp_path / "run"),
    )
    result = RunResult.read(simulate(config))
    rounds = result.rounds
    seconds = [
        [job.compute for job in entry.fleet.devices.values()] for entry in rounds if entry.fleet
    ]
    assert result.passes == {client: facts.examples for client, facts in result.clients.items()}
    assert len(seconds) == 3
    assert min(seconds[0]) > 20 * max(seconds[1]) > 0
    plain = simulate(
        config_of(settings, adapter__layers="readout", batch=1000, out=str(tmp_path / "plain"))
    )
    assert [r.reports for r in RunResult.read(plain).rounds] == [r.reports for r in rounds]


def test_a_fleet_reports_components_as_the_same_clients_do(
    settings: Settings, tmp_path: Path
) -> None:
    device = [{"device": "laptop", "share": 1, "link": "wifi", "available": [[0, 24]]}]
    own = {"adapter__layers": "readout", "batch": 1000, "queries": 4, "learning_rate": "auto"}
    own |= {"differences": "components", "steps": 0, "cohort__timeout": 300.0}
    fleet = config_of(settings, fleet__devices=device, out=str(tmp_path / "fleet"), **own)
    result = RunResult.read(simulate(fleet))
    plain = RunResult.read(simulate(config_of(settings, out=str(tmp_path / "plain"), **own)))
    assert result.final_digest == plain.final_digest
    assert [r.reports for r in result.rounds] == [r.reports for r in plain.rounds]
    assert [r.reports for r in result.rounds][:3] == [3] * 3
