"""The plan of a run's privacy, and the command that shows it."""

import pytest
from typer.testing import CliRunner

from samara.command import app
from shared.errors import ConfigError
from simulations.privacy_plan import USUAL_EPSILONS, plan_privacy


def test_plans_stay_within_the_epsilon_they_are_for() -> None:
    plans = plan_privacy(None, None, 1e-5, rounds=40, clients=64, scalars=256)
    assert [plan.epsilon for plan in plans] == pytest.approx(USUAL_EPSILONS)
    assert [round(plan.noise_multiplier, 2) for plan in plans] == [4.03, 13.59, 48.49]


def test_the_noise_of_a_mean_falls_with_the_clients_and_not_with_the_scalars() -> None:
    (few,) = plan_privacy(2.0, None, 1e-5, rounds=40, clients=10, scalars=64)
    (many,) = plan_privacy(2.0, None, 1e-5, rounds=40, clients=1000, scalars=256)
    assert few.noise_of_a_scalar == pytest.approx(100 * many.noise_of_a_scalar)
    assert few.noise_of_a_round == pytest.approx(50 * many.noise_of_a_round)


def test_a_noise_multiplier_says_what_it_costs() -> None:
    (plan,) = plan_privacy(None, 10.0, 1e-5, rounds=100, clients=64, scalars=256)
    assert plan.rho == pytest.approx(0.5)
    assert plan.epsilon == pytest.approx(4.7284, abs=1e-4)


@pytest.mark.parametrize(
    ("epsilon", "multiplier", "delta", "message"),
    [
        (2.0, 1.0, 1e-5, "give one"),
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
    with pytest.raises(ConfigError, match=message):
        plan_privacy(epsilon, multiplier, delta, rounds=40, clients=64, scalars=256)


def test_the_command_shows_the_plan() -> None:
    result = CliRunner().invoke(app, ["privacy", "plan", "--epsilon", "2", "--clients", "1000"])
    assert result.exit_code == 0
    assert "13.59" in result.output
    assert "0.0151" in result.output
    assert "no amplification by sampling is claimed" in " ".join(result.output.split())
