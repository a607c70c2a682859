"""The arithmetic model of a readout's rounds agrees with what it is a model of."""

from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import check_grad

from benchmarks.accuracy.cells import Cell, settings_of
from benchmarks.accuracy.readout_rounds import (
    Clients,
    Examples,
    Variant,
    pooled,
    run,
    tempered,
)
from benchmarks.accuracy.readout_shortfall import measure, redivided
from samara.shared.config import RunConfig
from samara.shared.frames.instructions import Split


def examples_of(seed: int, count: int = 40, labels: int = 3, features: int = 5) -> Examples:
    random = np.random.default_rng(seed)
    phi = random.normal(size=(count, features)).astype(np.float32)
    right = (phi[:, :labels] + random.normal(0, 0.5, (count, labels))).argmax(axis=1)
    return Examples(phi, random.normal(0, 0.3, (count, labels)).astype(np.float32), right)


def test_slope_and_curvature_are_those_of_the_loss() -> None:
    part, random = examples_of(0), np.random.default_rng(1)
    start = random.normal(0, 0.3, (2, 5))

    def loss(flat: np.ndarray) -> float:
        return part.loss_and_slope(flat.reshape(2, 5).astype(np.float32))[0]

    def slope(flat: np.ndarray) -> np.ndarray:
        return part.loss_and_slope(flat.reshape(2, 5).astype(np.float32))[1].ravel()

    assert check_grad(loss, slope, start.ravel(), epsilon=1e-2) < 0.02
    bends = [
        (slope(start.ravel() + 0.02 * e) - slope(start.ravel() - 0.02 * e)) @ e / 0.04
        for e in np.eye(10)
    ]
    assert part.loss_and_slope(start.astype(np.float32))[2] == pytest.approx(sum(bends), rel=0.01)


@pytest.mark.parametrize("variant", [Variant(), Variant(exact=True), Variant(correction=True)])
def test_rounds_learn_what_clients_hold(variant: Variant) -> None:
    clients = {split: [examples_of(10 * split + client) for client in range(3)] for split in Split}
    config = RunConfig.of({"rounds": 20, "steps": 4, "queries": 8, "evaluate.every": 5}, "test")
    result = run(config, clients, variant)
    assert result["end"]["accuracy"] > 0.65
    assert result["end"]["loss"] < 0.8
    assert result["best"]["round"] in (0, 5, 10, 15, 20)


def test_hostile_clients_are_only_bounded_by_the_rule() -> None:
    clients = {split: [examples_of(10 * split + client) for client in range(5)] for split in Split}
    settings = {"rounds": 20, "steps": 4, "queries": 8, "evaluate.every": 5}
    losses = [
        run(
            RunConfig.of(settings | {"aggregation.rule": rule}, "test"), clients, Variant(hostile=1)
        )
        for rule in ("median-norm", "mean")
    ]
    assert losses[0]["end"]["loss"] < losses[1]["end"]["loss"]


def test_a_temperature_suits_the_labels_and_changes_no_answer() -> None:
    clients: Clients = {split: [examples_of(split)] for split in Split}
    loud = {
        split: [Examples(part.features, 64 * part.base, part.labels) for part in parts]
        for split, parts in clients.items()
    }
    zero = np.zeros((2, 5), np.float32)
    before, after = pooled(loud[Split.TEST]), pooled(tempered(loud)[Split.TEST])
    assert after.judge(zero)[0] == before.judge(zero)[0]
    assert after.judge(zero)[1] < before.judge(zero)[1]


def test_a_temperature_that_lowers_the_loss_by_chance_is_not_used() -> None:
    """Eight examples whose loss one of them alone would lower say nothing of the others."""
    labels = np.array([0, 0, 0, 0, 0, 0, 0, 1])
    part = Examples(
        np.zeros((8, 2), np.float32), np.tile(np.float32([3, 0]), (8, 1)), labels.astype(np.int64)
    )
    clients: Clients = {split: [part] for split in Split}
    softer = Examples(part.features, part.base / 2, labels)
    zero = np.zeros((1, 2), np.float32)
    assert softer.judge(zero)[1] < part.judge(zero)[1]
    assert tempered(clients) is clients


def test_examples_are_divided_anew_into_the_same_sizes() -> None:
    clients = {
        split: [examples_of(10 * split + client, 30 + client) for client in range(3)]
        for split in Split
    }
    anew, again, other = redivided(clients, 0), redivided(clients, 0), redivided(clients, 1)
    for split in Split:
        sizes = [len(part.labels) for part in clients[split]]
        assert [len(part.labels) for part in anew[split]] == sizes
        np.testing.assert_array_equal(pooled(anew[split]).base, pooled(again[split]).base)
    before, after, third = (
        pooled(part for split in Split for part in some[split]) for some in (clients, anew, other)
    )
    rows = np.lexsort(before.features.T), np.lexsort(after.features.T)
    for field in ("features", "base", "labels"):
        np.testing.assert_array_equal(
            getattr(before, field)[rows[0]], getattr(after, field)[rows[1]]
        )
    assert not np.array_equal(after.features, third.features)


def test_differences_over_divisions_have_the_error_of_their_mean() -> None:
    clients = {split: [examples_of(10 * split + client) for client in range(3)] for split in Split}
    config = RunConfig.of({"rounds": 4, "steps": 2, "queries": 8, "evaluate.every": 2}, "test")
    measured = measure(config, clients, [0], 3)
    assert measured["tests"] == 120
    mean, error = measured["difference"]["no scores"]
    accuracy = measured["accuracy"]
    assert mean == pytest.approx(accuracy["no scores"] - accuracy["probe CV"])
    assert 0 < error < 0.2


@pytest.mark.parametrize(
    ("clients", "alpha", "partition"),
    [(8, 0.5, "dirichlet"), (8, np.inf, "auto"), (1, 0.5, "iid"), (1, np.inf, "auto")],
)
def test_an_infinite_alpha_leaves_the_division_to_the_run(
    clients: int, alpha: float, partition: str, tmp_path: Path
) -> None:
    config = settings_of(Namespace(model="", out=tmp_path), Cell("sst2", clients, alpha), {})
    assert (config.data.clients, config.data.partition) == (clients, partition)
    assert config.data.alpha == (alpha if alpha < np.inf else RunConfig.of({}, "").data.alpha)
