"""The columns that an evaluation requests are those that a client with a model answers."""

import pytest

from samara.shared.protocol.frames.instructions import Split
from samara.shared.settings.config import RunConfig
from samara.shared.terms.columns import GLOBAL, PERSONALIZED


def config_of(method: str, best: bool = False) -> RunConfig:
    settings = {"method": method, "evaluate.best": best, "adapter.label-bias": method == "readout"}
    return RunConfig.of(settings, "test")


@pytest.mark.parametrize("method", ["finetune", "ditto", "readout"])
def test_personal_models_are_compared_on_test_examples_alone(method: str) -> None:
    config = config_of(method)
    assert config.terms.requested_columns(Split.VALIDATION, personal=True) == (PERSONALIZED,)
    compared = config.terms.requested_columns(Split.TEST, personal=True)
    assert ("local-only" in compared) == (method == "finetune")
    assert ("intercept" in compared) == (method == "readout")
    assert (compared[0], compared[-1]) == ("base rate", PERSONALIZED)


def test_own_examples_in_context_are_compared_where_they_are_asked_for() -> None:
    terms = RunConfig.of({"evaluate.retrieved": 4}, "test").terms
    assert "icl-personal" in terms.requested_columns(Split.TEST, personal=True)
    assert "icl-personal" not in terms.requested_columns(Split.VALIDATION, personal=True)


def test_fits_choose_the_best_round_where_they_are_asked_for() -> None:
    for split in Split:
        assert config_of("readout").terms.requested_columns(split, personal=False) == (GLOBAL,)
        assert config_of("finetune", best=True).terms.requested_columns(split, False) == (GLOBAL,)
    best = config_of("readout", best=True).terms
    assert best.requested_columns(Split.VALIDATION, False) == (GLOBAL, PERSONALIZED)
    assert best.requested_columns(Split.TEST, False) == (GLOBAL,)
