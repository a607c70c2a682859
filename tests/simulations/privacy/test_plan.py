"""The privacy plan of a run, and the command that shows it."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from samara.command import app
from samara.shared.errors import ConfigError
from samara.shared.settings.config import load_scenario
from samara.shared.terms.privacy import PrivacyTerms
from samara.simulations.privacy.plan import (
    USUAL_EPSILONS,
    PlannedRun,
    plan_of_scenario,
    plan_table,
    warn_of_plan,
)


def one(run: PlannedRun) -> PrivacyTerms:
    (terms,) = run.terms
    return terms


def test_plans_stay_within_the_epsilon_they_are_for() -> None:
    plans = PlannedRun(rounds=40, clients=64, scalars=256).terms
    assert [plan.epsilon for plan in plans] == pytest.approx(USUAL_EPSILONS)
    multipliers = [round(plan.mechanism.noise_multiplier, 2) for plan in plans]
    assert multipliers == [4.03, 13.59, 48.49]
    assert all(math.isinf(plan.epsilon_of_reports) for plan in plans)


def test_the_noise_of_a_mean_falls_with_the_clients_and_not_with_the_scalars() -> None:
    few = PlannedRun(rounds=40, clients=10, scalars=64, epsilon=2.0)
    many = PlannedRun(rounds=40, clients=1000, scalars=256, epsilon=2.0)
    by_scalar = [run.noise_of_a_scalar(one(run)) for run in (few, many)]
    assert by_scalar[0] == pytest.approx(100 * by_scalar[1])
    by_round = [run.noise_of_a_round(one(run)) for run in (few, many)]
    assert by_round[0] == pytest.approx(50 * by_round[1])


def test_a_noise_multiplier_says_what_it_costs() -> None:
    plan = one(PlannedRun(rounds=100, clients=64, scalars=256, noise_multiplier=10.0))
    assert plan.rounds * plan.mechanism.rho == pytest.approx(0.5)
    assert plan.epsilon == pytest.approx(4.7284, abs=1e-4)


def test_a_plan_whose_noise_hides_all_that_its_rounds_say_is_warned_of() -> None:
    few = PlannedRun(rounds=40, clients=64, scalars=256)
    assert warn_of_plan(few).startswith("With ε = 0.5, the noise of all rounds is 2.1 times")
    assert "ε = 8 and 2 and 0.5" in warn_of_plan(replace(few, clients=8))
    assert warn_of_plan(replace(few, clients=1000)) == ""
    # more rounds have more noise each, and as much together
    assert warn_of_plan(replace(few, rounds=400)) == warn_of_plan(few)


def test_local_noise_falls_with_the_root_of_the_clients_alone() -> None:
    central = PlannedRun(rounds=40, clients=64, scalars=256, epsilon=2.0)
    local = replace(central, mode="local")
    assert one(local).epsilon == pytest.approx(2.0) == one(local).epsilon_of_reports
    # twice, since two reports of a client are compared, and √64 by its own noise
    noises = [run.noise_of_a_scalar(one(run)) for run in (central, local)]
    assert noises[1] == pytest.approx(16 * noises[0])


def test_distributed_noise_is_that_of_the_honest_and_says_what_it_is_for_the_server() -> None:
    run = PlannedRun(64 // 2, 100, 256, "distributed", epsilon=2.0, honest_share=0.8, minimum=80)
    central = replace(run, mode="central")
    assert one(run).mechanism.honest == 64
    assert one(run).epsilon == pytest.approx(2.0)
    assert one(run).epsilon_of_reports > 50
    noises = [each.noise_of_a_scalar(one(each)) for each in (central, run)]
    assert noises[1] == pytest.approx(noises[0] * math.sqrt(100 / 64))


def test_the_plan_of_a_scenario_is_that_of_its_run(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        'rounds = 30\nsteps = 4\nqueries = 8\nseed-policy = "shared"\n[data]\nclients = 20\n'
        '[cohort]\nfraction = 0.5\nminimum = 10\n[aggregation]\nrule = "mean"\n'
        '[privacy]\nmode = "distributed"\nepsilon = 3.0\nhonest-share = 0.7\n'
        "[personal]\nrounds = 0\n"
    )
    run = plan_of_scenario(file)
    assert (run.rounds, run.clients, run.scalars, run.mode) == (30, 10, 32, "distributed")
    terms = load_scenario(file).terms.privacy
    assert terms
    assert one(run).mechanism == terms.mechanism
    assert one(run).epsilon == pytest.approx(3.0)
    shown = CliRunner().invoke(app, ["privacy", str(file), "--set", "rounds=60"])
    said = " ".join(shown.output.split())
    assert "60 rounds of 10 clients with 32 scalars each" in said
    assert "The noise of 7 honest clients suffices" in said
    assert "without secure aggregation the server sees single reports" in said


def test_a_scenario_without_privacy_is_planned_as_central(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("rounds = 10\n")
    run = plan_of_scenario(file)
    assert (run.mode, [round(each.epsilon, 6) for each in run.terms]) == ("central", [8, 2, 0.5])


@pytest.mark.parametrize(
    ("epsilon", "multiplier", "delta", "message"),
    [
        (2.0, 1.0, 1e-5, "give only one of them"),
        (0.0, None, 1e-5, "--epsilon 0: must be"),
        (float("nan"), None, 1e-5, "--epsilon nan: must be"),
        (None, float("inf"), 1e-5, "--noise-multiplier inf: must be"),
        (2.0, None, 1.0, "--delta 1: must be above 0"),
        (2.0, None, float("nan"), "--delta nan: must be above 0"),
    ],
)
def test_what_is_no_plan_is_refused(
    epsilon: float | None, multiplier: float | None, delta: float, message: str
) -> None:
    run = PlannedRun(40, 64, 256, "central", epsilon, multiplier, delta)
    with pytest.raises(ConfigError, match=message):
        plan_table(run)


def test_a_refused_share_of_honest_clients_gets_a_share_as_its_example() -> None:
    run = PlannedRun(40, 64, 256, "distributed", honest_share=2.0)
    with pytest.raises(ConfigError, match=r"--honest-share 2: .* at most 1, such as 0\.5"):
        plan_table(run)


def test_the_command_shows_the_plan() -> None:
    result = CliRunner().invoke(app, ["privacy", "--epsilon", "2", "--clients", "1000"])
    assert result.exit_code == 0
    assert "13.59" in result.output
    assert "0.0151" in result.output
    assert "without amplification by sampling" in " ".join(result.output.split())
