"""Federations with clients that send false reports: the run continues, and names them."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from false_reports import FORGERIES, HostileApp
from federations import Settings, config_of

from samara.server.app import serve
from samara.server.rounds.aggregation import TOO_LARGE
from samara.server.rounds.evaluation import TRIMMED_ACCURACY
from samara.server.store import read_layout, replay_run
from samara.shared.protocol.replay import digest
from samara.shared.results.result import read_result
from samara.shared.settings.config import RunConfig
from samara.simulations.engines.in_process import InProcessGrid

CLIENTS = 5


def run(
    settings: Settings,
    hostile: Collection[int],
    forgery: str,
    lies_in_evaluations: bool = False,
    **changes: Any,
) -> Path:
    config = config_of(settings, data__clients=CLIENTS, rounds=2, **changes)
    app = HostileApp(hostile, forgery, lies_in_evaluations)
    return serve(config, InProcessGrid(app, CLIENTS, config.flat()))


def largest_weight(folder: Path) -> float:
    *_, last = replay_run(folder)
    return float(np.abs(last.state).max() * 2.0**-51)


@pytest.mark.parametrize("forgery", FORGERIES)
@pytest.mark.parametrize(
    "changes",
    [
        {"learning_rate": "auto"},
        {"learning_rate": 0.1, "seed_policy": "shared"},
        pytest.param({"learning_rate": 0.1}, marks=pytest.mark.exhaustive),
        pytest.param(
            {"learning_rate": "auto", "seed_policy": "shared"}, marks=pytest.mark.exhaustive
        ),
        pytest.param(
            {"learning_rate": "auto", "seed_policy": "pool"}, marks=pytest.mark.exhaustive
        ),
    ],
    ids=lambda changes: " ".join(map(str, changes.values())),
)
def test_a_federation_survives_false_reports(
    forgery: str, changes: Settings, settings: Settings
) -> None:
    """Every round is in the ledger, no weight is huge, and only the last round may be reverted."""
    folder = run(settings, {1, 3}, forgery, **changes)
    result = read_result(folder)
    assert result["final_round"] == 2
    assert [event["reports"] for event in result["rounds"]] == [CLIENTS, CLIENTS]
    assert not any(event["problem"] or event["refused"] for event in result["rounds"])
    assert all(0 < event["loss"] < 2 for event in result["rounds"])
    assert largest_weight(folder) < 1
    *_, last = replay_run(folder)
    assert digest(read_layout(folder).hash, last.state).hex() == result["final_digest"]


@pytest.mark.parametrize(
    "changes",
    [
        {"aggregation__rule": "multi-krum"},
        {"aggregation__rule": "centered-clipping", "seed_policy": "pool"},
        {"aggregation__rule": "trimmed-mean", "seed_policy": "shared"},
        {"aggregation__rule": "median", "seed_policy": "shared"},
    ],
    ids=lambda changes: " ".join(changes.values()),
)
def test_other_rules_survive_them_too(changes: Settings, settings: Settings) -> None:
    folder = run(settings, {1, 3}, "everything", learning_rate=0.1, **changes)
    result = read_result(folder)
    assert result["final_round"] == 2
    assert largest_weight(folder) < 1
    assert all(0 < event["loss"] < 2 for event in result["rounds"])


def test_a_mean_is_set_by_one_client(settings: Settings) -> None:
    """A mean believes every report, which is why the other rules exist."""
    honest = run(settings, (), "-g", learning_rate=0.1, aggregation__rule="mean")
    hostile = run(
        settings | {"out": f"{settings['out']}-hostile"},
        {1},
        "-100 g",
        learning_rate=0.1,
        aggregation__rule="mean",
    )
    assert largest_weight(hostile) > 5 * largest_weight(honest)


@pytest.mark.parametrize(
    ("forgery", "objective"),
    [
        ("everything", "cross-entropy"),
        ("-g, 10^6 examples", "cross-entropy"),
        ("everything", "profiled-cross-entropy"),
    ],
)
def test_three_hostile_clients_of_ten_leave_most_of_the_gain_by_default_alone(
    forgery: str, objective: str, tmp_path: Path
) -> None:
    """A readout of the embedded model.

    A mean gains nothing; at best the run returns to its start.
    """
    gains = {}
    for rule in (RunConfig().aggregation.rule, "mean"):
        changes: Settings = {"data__clients": 10, "rounds": 10, "steps": 4, "personal__rounds": 0}
        changes |= {"aggregation__rule": rule, "evaluate__every": 10, "threads": 1}
        changes |= {"objective": objective}
        config = config_of({"out": str(tmp_path / rule)}, **changes)
        folder = serve(config, InProcessGrid(HostileApp(range(3), forgery), 10, config.flat()))
        tests = [e for e in read_result(folder)["evaluations"] if e["split"] == "test"]
        before, after = (tests[i]["columns"]["global"]["accuracy"] for i in (0, -1))
        gains[rule] = after - before
    assert gains.pop("mean") <= 0
    (gain,) = gains.values()
    assert gain > 0.05


def test_a_report_too_large_for_the_state_is_left_out_alone(settings: Settings) -> None:
    """Under a mean, the report would otherwise make the whole round fail."""
    folder = run(settings, {1}, "g = 10^6", learning_rate=0.1, aggregation__rule="mean")
    for event in read_result(folder)["rounds"]:
        assert event["reports"] == CLIENTS - 1
        assert event["refused"] == {"1": TOO_LARGE}
        assert event["problem"] == ""
    assert largest_weight(folder) < 1


def test_evaluations_are_bounded_by_what_a_client_introduced(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "samara.server")
    folder = run(settings, {1}, "-g", lies_in_evaluations=True)
    result = read_result(folder)
    for event in result["evaluations"]:
        assert "the evaluation counts 1000000 examples in column" in event["refused"]["1"]
        assert "but the client's hello declared" in event["refused"]["1"]
        for column in event["columns"].values():
            assert "1" not in column["clients"]
            assert 0 <= column[TRIMMED_ACCURACY] <= 1
    assert "accuracy, mean of the clients: global" in caplog.text
