"""The settings of differential privacy: requirements, derived values, and the run id."""

import math
from typing import Any

import pytest

from samara.shared.errors import ConfigError, ScenarioError
from samara.shared.privacy.accountant import epsilon_of, rho_of
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import identity_bytes
from samara.shared.terms.privacy import PrivacyTerms

CENTRAL: dict[str, Any] = {
    "privacy.mode": "central",
    "seed-policy": "shared",
    "aggregation.rule": "mean",
}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "central needs privacy.epsilon or privacy.noise-multiplier"),
        ({"privacy.epsilon": 2.0, "evaluate.best": True}, "evaluations without noise"),
        (
            {"privacy.epsilon": 2.0, "privacy.noise-multiplier": 1.0},
            "40 rounds with noise multiplier 1 cost 48.8, over 2",
        ),
        ({"privacy.epsilon": 2.0, "aggregation.rule": "median-norm"}, "set aggregation.rule to"),
        ({"privacy.epsilon": 2.0, "seed-policy": "independent"}, "set seed-policy to shared"),
        ({"privacy.epsilon": 2.0, "method": "cluster"}, "choose another method"),
        ({"privacy.epsilon": 2.0, "privacy.delta": 0.0}, "privacy.delta"),
        ({"privacy.epsilon": 2.0, "privacy.clip": 0.0}, "privacy.clip"),
        ({"privacy.epsilon": 2.0, "privacy.mode": "global"}, "privacy.mode"),
        ({"privacy.epsilon": 2.0, "privacy.mode": "distributed"}, "needs the share of a round's"),
        (
            {"privacy.noise-multiplier": 1e5, "privacy.mode": "local"},
            "1e\\+05 is more noise than the numbers of a client's report can hold",
        ),
        (
            {"privacy.epsilon": 8.0, "privacy.noise-multiplier": 4.1, "privacy.mode": "local"},
            "over 8; take fewer rounds",
        ),
    ],
)
def test_what_is_no_plan_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig.of(CENTRAL | settings, "test")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("privacy.honest-share", 100.0, "is not a number from 0 to 1"),
        ("privacy.honest-share", 0.0, "without honest clients a sum has no noise"),
        ("privacy.honest-share", math.nan, "is not a number"),
        ("privacy.bucket", 10**5, "above cohort.minimum"),
        ("privacy.bucket", 2, "is below 3"),
        ("privacy.clip", math.inf, "is not a number"),
        ("privacy.epsilon", math.nan, "is not a number"),
        ("privacy.noise-multiplier", -1.0, "is not a number"),
        ("cohort.minimum", 0, "is not a whole number from 1"),
    ],
)
def test_a_server_cannot_have_a_client_take_little_noise_for_much(
    key: str, value: float, message: str
) -> None:
    """A phone reads settings from a server, which may differ from those of any `RunConfig`."""
    sent = {"privacy.mode": "distributed", "privacy.epsilon": 8.0, "privacy.honest-share": 0.8}
    sent |= {"cohort.minimum": 16, "privacy.secure-aggregation": True}
    terms = PrivacyTerms.of(sent, 40, 256)
    assert terms is not None
    assert terms.mechanism.honest == 12
    with pytest.raises(ScenarioError, match=message):
        PrivacyTerms.of(sent | {key: value}, 40, 256)


def test_an_epsilon_gives_the_least_noise_for_all_rounds() -> None:
    config = RunConfig.of(CENTRAL | {"privacy.epsilon": 2.0}, "test")
    assert config.terms.privacy
    multiplier = config.terms.privacy.mechanism.noise_multiplier
    assert multiplier == pytest.approx(13.59, abs=0.01)
    assert epsilon_of(rho_of(multiplier, 40), 1e-5) == pytest.approx(2.0)


def test_a_noise_multiplier_alone_has_the_budget_of_its_rounds() -> None:
    config = RunConfig.of(CENTRAL | {"privacy.noise-multiplier": 2.0}, "test")
    assert config.terms.privacy
    mechanism = config.terms.privacy.mechanism
    assert (mechanism.noise_multiplier, config.privacy.budget(40, mechanism)) == (2.0, 5.0)


def test_the_run_id_names_the_stage_and_runs_without_it_keep_theirs() -> None:
    assert b"privacy" not in identity_bytes(RunConfig())
    config = RunConfig.of(CENTRAL | {"privacy.epsilon": 2.0}, "test")
    assert b'"privacy.mode":"central"' in identity_bytes(config).replace(b": ", b":")


def test_evaluations_are_off_unless_they_are_asked_for() -> None:
    private = CENTRAL | {"privacy.epsilon": 2.0}
    assert RunConfig().privacy.allows_evaluation
    config = RunConfig.of(private, "test")
    assert not config.privacy.allows_evaluation
    assert config.evaluate.best is False
    measured = RunConfig.of(private | {"privacy.evaluation": "exact"}, "test")
    assert measured.privacy.allows_evaluation
    assert (config.features["privacy"], measured.features["privacy"]) == ("central", "measured")
