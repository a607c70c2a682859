"""Bytes to accuracy: updates under compression, and a whole benchmark on a small model."""

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import layout_of
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmarks.accuracy import bytes_to_accuracy
from benchmarks.accuracy.bytes_to_accuracy import (
    CENTRAL,
    COMPRESSIONS,
    METHODS,
    SHARED,
    FedAvg,
    Level,
    in_8_bits,
    kept_count,
    largest_kept,
    measure,
    reached,
)
from benchmarks.accuracy.rows import Rows
from samara.shared.settings.config import RunConfig
from samara.simulations.simulate import simulate

SIZE = 300
LAYOUT = layout_of(SIZE)
UPDATES = arrays(np.float32, SIZE, elements=st.floats(-1e3, 1e3, width=32))


@given(UPDATES)
def test_8_bits_are_off_by_half_a_level_at_most(update: np.ndarray) -> None:
    level = np.abs(update).max() / 127
    received = in_8_bits(LAYOUT, update)
    assert np.abs(received - update).max() <= 0.51 * level
    assert len(np.unique(received)) <= 255


@given(UPDATES)
def test_the_largest_hundredth_arrives_as_it_is(update: np.ndarray) -> None:
    received = largest_kept(LAYOUT, update)
    kept = received != 0
    assert kept.sum() <= kept_count(LAYOUT) == 3
    assert (received[kept] == update[kept]).all()
    assert np.abs(received).max(initial=0) == np.abs(update).max()
    assert np.sort(np.abs(update))[-3:].sum() == pytest.approx(np.abs(received).sum())


def test_bytes_are_those_of_values_scales_and_indices() -> None:
    sizes = {name: compression.size(LAYOUT) for name, compression in COMPRESSIONS.items()}
    assert sizes == {
        "FedAvg": 4 * SIZE,
        "FedAvg, 8 bits": SIZE + 4 * len(LAYOUT.tensors),
        "FedAvg, top 1 %": 3 * 4 + 4,  # three indices of nine bits
    }


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_what_a_compression_leaves_out_is_sent_later(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every client's update is the same in each round; after many rounds all of it has arrived."""
    update, rounds = np.linspace(1, 2, SIZE, dtype=np.float32), 400
    monkeypatch.setattr(FedAvg, "__init__", lambda self: None)
    federation = FedAvg()  # type: ignore[call-arg]
    federation._runtime = argparse.Namespace(layout=LAYOUT)  # type: ignore[assignment]
    federation._shares = np.full(bytes_to_accuracy.CLIENTS, 1 / 8, np.float32)
    monkeypatch.setattr(FedAvg, "_trained", lambda self, theta, *_: theta + update)
    (*_, last) = federation.run(1.0, COMPRESSIONS[name], rounds)
    assert last / (rounds * update) == pytest.approx(1, abs=0.4)


def test_a_target_is_reached_at_the_first_model_as_accurate() -> None:
    row = {"points": [[1, 10, 0.4], [2, 20, 0.6], [4, 40, 0.5]]}
    assert [reached(row, target) for target in (0.4, 0.5, 0.7)] == [10, 20, float("inf")]


@pytest.mark.parametrize(("layers", "long_rounds"), [("readout:auto", 0), ("top:1", 1)])
def test_every_method_is_measured_once(
    layers: str, long_rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedKSeed is left out if there are no long rounds. Defaults are measured once.

    Inside a model FedKSeed reports differences, and the other federations of scalars do not.
    """
    gradients: set[tuple[str, bool]] = set()

    def simulated(config: RunConfig) -> Path:
        gradients.add((config.gradients, config.seed_policy == "pool"))
        return simulate(config)

    monkeypatch.setattr(bytes_to_accuracy, "simulate", simulated)
    adapter: dict[str, Any] = {"adapter.layers": layers}
    level = Level("messages", False, adapter, rounds=2, long_rounds=long_rounds)
    monkeypatch.setattr(bytes_to_accuracy, "LEVELS", {"small": level})
    monkeypatch.setattr(bytes_to_accuracy, "CLIENTS", 2)
    monkeypatch.setitem(bytes_to_accuracy.DIVISION, "data.limit", 24)
    monkeypatch.setattr(bytes_to_accuracy, "RATES", (0.1,))
    given_ = argparse.Namespace(
        objective="cross-entropy",
        data=tmp_path,
        model="embedded",
        out=tmp_path,
        levels=["small"],
        seeds=[0],
    )
    measure(given_, METHODS)
    rows = list(Rows(tmp_path / "cells.jsonl"))
    left_out = {CENTRAL} if long_rounds else {SHARED, "FedKSeed"}
    methods = [method for method in METHODS if method not in left_out]
    assert [row["method"] for row in rows] == methods
    inside = {("exact", False), ("differences", True)}
    assert gradients == (inside if long_rounds else {("differences", False)})
    for row in rows:
        sizes = [size for _, size, _ in row["points"]]
        assert sizes == sorted(sizes)
        assert all(0 <= accuracy <= 1 for *_, accuracy in row["points"])
        assert sizes[0] >= row["up"]
    with (tmp_path / "points.csv").open() as lines:
        assert len(list(csv.DictReader(lines))) == sum(len(row["points"]) for row in rows)
    assert (tmp_path / "table.md").read_text().count("| small |") == len(methods)
    assert (tmp_path / "bytes_to_accuracy.png").stat().st_size > 1000
    monkeypatch.delattr(bytes_to_accuracy, "Bench")
    measure(given_, METHODS)
