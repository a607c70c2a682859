"""The readout of the benchmark of false reports, on generated representations."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.faults.attacked_cases import Case, Outcome, add_run, read_runs
from benchmarks.faults.false_reports import FORGERIES
from benchmarks.faults.hostile_reports import ROUNDS, Clients, Examples, World, train
from benchmarks.faults.hostile_tables import costs_table, mishaps, worst_table
from samara.server.rounds.aggregation import hostile_count
from samara.shared.config import RunConfig
from samara.shared.layout import READOUT_GROUP, Layout, Tensor

CLIENTS, EXAMPLES, SIZE = 8, 40, 12


@pytest.fixture(scope="module")
def world() -> World:
    rng = np.random.default_rng(0)
    base, truth = rng.normal(size=(2, SIZE))
    splits = {}
    for name in ("train", "validation", "test"):
        features = rng.normal(size=(CLIENTS * EXAMPLES, SIZE)) / np.sqrt(SIZE)
        signs = np.sign(features @ (base + 2 * truth) + rng.normal(size=len(features)) / 4)
        starts = np.arange(0, len(features), EXAMPLES)
        splits[name] = Examples(features, features @ base, signs, starts)
    tensor = Tensor("readout", SIZE, 1, READOUT_GROUP)
    return World(**splits, layout=Layout((tensor,), 1, 1.0, 0, "gaussian"))


@pytest.fixture(scope="module")
def clients(world: World) -> Clients:
    return Clients(world)


def case(rule: str, rate: str, attack: str, hostile: int) -> Case:
    return Case("messages", CLIENTS, 0, rule, rate, attack, hostile)


@pytest.mark.parametrize("rate", ["auto", "fixed"])
@pytest.mark.parametrize("attack", FORGERIES)
def test_no_attack_reverts_a_round_of_the_default_or_ends_it(
    attack: str, rate: str, world: World, clients: Clients
) -> None:
    rule = RunConfig().aggregation.rule
    outcome = train(world, clients, case(rule, rate, attack, hostile_count(CLIENTS)))
    assert (outcome.unused, outcome.reverts, outcome.ended) == (0, 0, 0)
    assert outcome.after > outcome.before


def test_a_report_that_does_not_fit_is_left_out_as_by_a_server(
    world: World, clients: Clients
) -> None:
    outcome = train(world, clients, case("mean", "fixed", "g = 10^6", 1))
    assert (outcome.left_out, outcome.unused, outcome.ended) == (ROUNDS, 0, 0)
    assert outcome.after > outcome.before


def test_a_run_without_usable_reports_ends_as_on_a_server(world: World, clients: Clients) -> None:
    outcome = train(world, clients, case("mean", "fixed", "g = 10^6", CLIENTS))
    rounds = RunConfig().cohort.empty_rounds
    assert (outcome.unused, outcome.ended) == (rounds, rounds)
    assert outcome.after == outcome.before


def test_a_run_returns_to_the_validated_round_with_the_lowest_loss(
    world: World, clients: Clients
) -> None:
    """Labels are as the weights of the start say, so that every step harms."""
    margins = world.validation.margins
    opposed = replace(world, validation=replace(world.validation, signs=np.sign(margins)))
    best = train(world, clients, case("median-norm", "fixed", "none", 0))
    returned = train(opposed, clients, case("median-norm", "fixed", "none", 0))
    assert best.best in (10, 20, ROUNDS)
    assert (returned.best, returned.after) == (0, returned.before)


def test_runs_are_read_as_they_were_written_and_costs_are_of_the_same_seed(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    runs = {}
    for seed, (honest, attacked) in enumerate([(80.0, 70.0), (60.0, 58.0), (70.0, 67.0)]):
        quiet = case("mean", "auto", "none", 0)._replace(seed=seed)
        runs[quiet] = Outcome(59.0, honest, 0, 0, 0, 0, 0, 30)
        runs[quiet._replace(attack="-g", hostile=1)] = Outcome(59.0, attacked, 2, 0, 1, 3, 0, 20)
    for key, outcome in runs.items():
        add_run(file, key, outcome)
    assert read_runs(file) == runs
    assert "| −g, 1 | −5.0 ± 10.8 |" in costs_table(runs)
    assert "| `mean`, auto | 70.0 | −5.0 ± 10.8† (−g) |" in worst_table(runs)
    (line,) = mishaps(runs)
    expected = "6 runs; 1 below zero-shot (the lowest by -1.0), 3 with reverts (at most 3 rounds"
    assert expected in line
