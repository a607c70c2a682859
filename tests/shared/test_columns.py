"""The columns that an evaluation asks for are those that a client with a model answers."""

import pytest

from samara.shared.columns import GLOBAL, PERSONALIZED, requested_columns
from samara.shared.config import RunConfig
from samara.shared.frames.instructions import Split


def config_of(method: str, best: bool = False) -> RunConfig:
    settings = {"method": method, "evaluate.best": best, "adapter.label-bias": method == "readout"}
    return RunConfig.of(settings, "test")


@pytest.mark.parametrize("method", ["finetune", "ditto", "readout"])
def test_personal_models_are_compared_on_test_examples_alone(method: str) -> None:
    config = config_of(method)
    assert requested_columns(config.terms, Split.VALIDATION, personal=True) == (PERSONALIZED,)
    compared = requested_columns(config.terms, Split.TEST, personal=True)
    assert ("local-only" in compared) == (method == "finetune")
    assert ("intercept" in compared) == (method == "readout")
    assert (compared[0], compared[-1]) == ("base rate", PERSONALIZED)


def test_own_examples_in_context_are_compared_where_they_are_asked_for() -> None:
    terms = RunConfig.of({"evaluate.retrieved": 4}, "test").terms
    assert "icl-personal" in requested_columns(terms, Split.TEST, personal=True)
    assert "icl-personal" not in requested_columns(terms, Split.VALIDATION, personal=True)


def test_fits_choose_the_best_round_where_they_are_asked_for() -> None:
    for split in Split:
        assert requested_columns(config_of("readout").terms, split, personal=False) == (GLOBAL,)
        assert requested_columns(config_of("finetune", best=True).terms, split, False) == (GLOBAL,)
    best = config_of("readout", best=True).terms
    assert requested_columns(best, Split.VALIDATION, False) == (GLOBAL, PERSONALIZED)
    assert requested_columns(best, Split.TEST, False) == (GLOBAL,)
