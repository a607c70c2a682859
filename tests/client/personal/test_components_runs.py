"""Whole runs whose clients report components of their own updates."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import (
    RecordingGrid,
    Settings,
    config_of,
    grid_of,
    serve_until_recording,
)

from samara.client.protocol.signed_runs import _describe_differences, _round_of
from samara.client.training.model_runtime import load_run
from samara.server.app import serve
from samara.server.store import replay_run
from samara.shared.errors import ConfigError
from samara.shared.protocol.frames.instructions import TrainInstruction
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.layout import READOUT_GROUP, Layout, Tensor
from samara.shared.protocol.ledger.personal_file import PersonalFile
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.round_delta import ConsecutiveSeeds
from samara.shared.protocol.step_size import STEP_SIZE_FILE, component_rate
from samara.shared.protocol.wire import Kind, kind_of
from samara.shared.results.result import RunResult, read_result
from samara.shared.results.traffic import SENDS_UPDATE, traffic_of
from samara.shared.settings.config import RunConfig
from samara.shared.terms.run_terms import RunTerms
from samara.simulations.exports.adapter import FinishedRun
from samara.simulations.planning.plan import describe_plan
from samara.simulations.simulate import simulate

COMPONENTS: dict[str, Any] = {
    "adapter__layers": "readout",
    "differences": "components",
    "steps": 0,
    "queries": 4,
    "batch": 1000,
    "learning_rate": "auto",
}
PRIVATE = {
    "privacy__mode": "central",
    "privacy__noise_multiplier": 2.0,
    "aggregation__rule": "mean",
    "method": "global",
}
MASKED = PRIVATE | {
    "privacy__mode": "distributed",
    "privacy__secure_aggregation": True,
    "privacy__honest_share": 1.0,
    "cohort__minimum": 3,
}


def components(settings: Settings, **changes: Any) -> RunConfig:
    return config_of(settings, **(COMPONENTS | changes))


def test_a_run_sends_q_numbers_a_round_and_its_ledger_replays(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    config = components(settings)
    assert (config.steps, config.seed_policy) == (1, "shared")
    assert config.adapter.distribution == "orthogonal"
    grid = grid_of(config, RecordingGrid)
    assert isinstance(grid, RecordingGrid)
    grid.traffic = []
    folder = serve(config, grid)
    assert "components of the client's own update along 4 directions" in caplog.text
    assert "epsilon" not in caplog.text
    frames = [frame for frame in grid.traffic if frame[:2] and _is_of(frame, Kind.REPORT)]
    assert len(frames) == 9
    assert {Report.decode(frame).gradients.shape for frame in frames} == {(1, 4)}
    *_, last = replay_run(folder)
    assert last.round >= 3
    sources = [
        group.source for record in read_ledger(folder / "ledger") for group in record.delta.groups
    ]
    first = []
    for source in sources:
        assert isinstance(source, ConsecutiveSeeds)
        assert source.count == 4
        first.append(source.root)
    np.testing.assert_array_equal(np.diff(first[:3]), 4)
    losses = [event["loss"] for event in read_result(folder)["rounds"]]
    assert losses[2] < losses[0]


def _is_of(frame: bytes, kind: Kind) -> bool:
    try:
        return kind_of(frame) is kind
    except Exception:
        return False


def test_a_killed_run_goes_on_to_the_same_state(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_result(simulate(components(settings)))["final_digest"]
    other = components(settings, out=str(tmp_path / "other"))
    serve_until_recording(other, 2, monkeypatch)
    assert read_result(serve(other, grid_of(other)))["final_digest"] == whole


def test_private_rounds_alone_take_components(settings: Settings) -> None:
    folder = simulate(components(settings, method="local", rounds=1, personal__rounds=1))
    result = read_result(folder)
    assert not result["rounds"]
    assert (folder / "clients" / "0" / f"personal_{STEP_SIZE_FILE}").exists()


@pytest.mark.parametrize("rule", ["mean", "median", "trimmed-mean", "multi-krum"])
def test_every_rule_aggregates_components(settings: Settings, rule: str) -> None:
    result = read_result(simulate(components(settings, aggregation__rule=rule, rounds=1)))
    assert result["rounds"][0]["reports"] == 3


def test_more_components_than_trained_numbers_are_refused(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="components per round are more than the"):
        simulate(components(settings, queries=1000))


@pytest.mark.parametrize("fewer", [0, 1])
def test_plan_and_result_say_when_a_report_is_the_whole_update(
    settings: Settings, fewer: int
) -> None:
    size = load_run(components(settings)).runtime.layout.size
    config = components(settings, queries=size - fewer, rounds=1)
    runtime, source = load_run(config)
    shares = [source.share_of(client, config.data.clients) for client in range(config.data.clients)]
    assert (SENDS_UPDATE in describe_plan(config, runtime, shares, Path())) == (not fewer)
    said = traffic_of(RunResult.read(simulate(config))).sentences()
    assert (SENDS_UPDATE in said) == (not fewer)


@pytest.mark.parametrize("privacy", [PRIVATE, MASKED])
def test_noise_and_masks_are_those_of_q_scalars(
    settings: Settings, privacy: dict[str, Any]
) -> None:
    folder = simulate(components(settings, rounds=2, **privacy))
    *_, last = replay_run(folder)
    assert last.round == 2


def test_private_rounds_take_all_directions_and_have_a_file(settings: Settings) -> None:
    folder = simulate(components(settings, personal__rounds=2, rounds=1))
    lines = (folder / "clients" / "0" / f"personal_{STEP_SIZE_FILE}").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert losses[1] < losses[0]
    run = FinishedRun.at(folder)
    file = run.personal_file(0)
    assert isinstance(file, PersonalFile)
    again = PersonalFile.decode(file.encode())
    np.testing.assert_array_equal(again.state(run.layout), run.personal_state(0))


def test_the_method_readout_keeps_its_bias_private(settings: Settings) -> None:
    folder = simulate(components(settings, method="readout", adapter__label_bias=True, rounds=1))
    assert read_result(folder)["rounds"][0]["reports"] == 3


def layout_of(labels: int) -> Layout:
    tensor = Tensor("readout", labels - 1, 384, READOUT_GROUP)
    return Layout((tensor,), 1, 1.0, 0, "orthogonal")


def test_the_rate_is_the_same_time_for_all_rounds_and_directions() -> None:
    two, six = layout_of(2), layout_of(6)
    assert component_rate(two, 40, 32) == pytest.approx(5 * 384 / (40 * 32))
    assert component_rate(two, 10, 128) == component_rate(two, 40, 32)
    assert component_rate(six, 40, 128) == pytest.approx(15 * 5 * 384 / (40 * 128))


def test_the_rate_grows_with_the_clients_that_train_together() -> None:
    two = layout_of(2)
    assert component_rate(two, 40, 32, 8) == component_rate(two, 40, 32)
    assert component_rate(two, 40, 32, 120) == pytest.approx(15 * component_rate(two, 40, 32))


def test_the_server_counts_the_clients_that_train(settings: Settings) -> None:
    folder = simulate(components(settings, rounds=1, cohort__newcomers=1))
    run = FinishedRun.at(folder)
    rate = component_rate(run.layout, 1, 4, 2)
    assert read_result(folder)["rounds"][0]["learning_rate"] == pytest.approx(rate, rel=1e-6)


def test_a_signed_scenario_leads_to_these_rounds(settings: Settings) -> None:
    terms = RunTerms.of(components(settings).flat())
    asked = terms.instruction(
        bytes(8), 2, bytes(32), bytes(32), learning_rate=3.0, clip=0.0, curvature_every=0
    )
    assert TrainInstruction.decode(asked.encode()) == asked
    assert _describe_differences(asked, _round_of(terms, asked)) == ""
    assert terms.projected_gradients == 3 * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adapter__layers": "top:1"}, "set adapter.layers to readout"),
        ({"seed_policy": "independent"}, "set seed-policy to shared"),
        ({"gradients": "exact"}, "set gradients to differences"),
        ({"steps": 2}, "covers one step"),
        ({"adapter__distribution": "gaussian"}, "leave adapter.distribution out"),
        ({"differences": "central", "adapter__distribution": "orthogonal"}, "leave adapter"),
    ],
)
def test_what_does_not_go_together_is_refused(
    settings: Settings, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        components(settings, **changes)
