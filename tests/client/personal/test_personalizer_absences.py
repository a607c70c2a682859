"""Newcomers and clients that drop out, with own words and with a fitted intercept."""

from dataclasses import replace
from typing import Any

import pytest
from federations import Settings, config_of, wrap_local_steps
from helpers import RUN_ID
from personalizers import runtime_personalizer

from samara.client.personal.own_words import OwnWords
from samara.client.personal.private_fit import make_private_fit
from samara.client.personal.runtime_learner import RuntimeLearner
from samara.client.training.client_data import ClientData
from samara.client.training.model_runtime import load_run
from samara.server.store import LEDGER_FOLDER
from samara.shared.errors import TrainingError
from samara.shared.protocol.frames.instructions import PERSONAL_TRACK, Split
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.protocol.replay import digest, zero_state
from samara.shared.results.result import RunResult
from samara.shared.settings.config import RunConfig
from samara.simulations.exports.adapter import FinishedRun
from samara.simulations.simulate import simulate

NEWCOMER = 2


@pytest.fixture
def raters(settings: Settings) -> Settings:
    """Users with a fitted intercept."""
    own = {"method": "readout", "adapter.label-bias": True, "personal.rounds": 0}
    return settings | own


@pytest.fixture(params=["own words", "intercept"])
def given_settings(
    request: pytest.FixtureRequest, writers: Settings, raters: Settings
) -> tuple[str, Settings]:
    absent = {"cohort.newcomers": 1, "rounds": 2, "evaluate.every": 0}
    return request.param, (writers if request.param == "own words" else raters) | absent


def made_alone(config: RunConfig, run: FinishedRun, client: int) -> OwnWords | list[int]:
    """Own words, or the model with an intercept, of a client that knows only the last state."""
    runtime, source = load_run(config)
    learner = RuntimeLearner(runtime, source.share_of(client, 3))
    if config.method == "readout":
        *_, before, _ = verify_ledger(run.folder / LEDGER_FOLDER, run.layout)
        state = before.state + make_private_fit(learner, config.terms, before.state)
        return [int(number) for number in state]
    words = learner.own_words(run.model(client))
    assert words is not None
    return words


def test_a_client_that_drops_out_has_what_it_would_have_as_a_newcomer(
    given_settings: tuple[str, Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    column, settings = given_settings

    def steps(plain: Any, runtime: Any, data: Any, instruction: Any, *rest: Any) -> Any:
        if instruction.track != PERSONAL_TRACK and data.client == 1 and instruction.round == 2:
            raise TrainingError("the device has gone away")
        return plain(runtime, data, instruction, *rest)

    wrap_local_steps(monkeypatch, steps)
    config = config_of(settings)
    folder = simulate(config)
    run = FinishedRun.at(folder)
    rounds = {entry.round: entry.reports for entry in run.result.rounds}
    assert (rounds[1], rounds[2]) == (2, 1)
    columns = RunResult.read(folder).evaluations[-1].columns
    assert set(columns[column].clients) == {0, 1, 2}
    assert set(columns["personalized"].clients) == {0, 1, 2}
    for client in range(3):
        alone = made_alone(config, run, client)
        if config.method == "readout":
            assert run.model(client).tolist() == alone
        else:
            own = run.own_words(client)
            assert own is not None
            assert replace(own, made_of="") == alone
            assert columns[column].clients[client].loss < columns["global"].clients[client].loss


def test_a_newcomer_without_own_examples_has_the_common_model(
    given_settings: tuple[str, Settings],
) -> None:
    _, settings = given_settings
    config = config_of(settings)
    runtime, source = load_run(config)
    others = source.share_of(NEWCOMER, 3)
    validation = others.in_split(Split.VALIDATION)
    assert validation
    data = ClientData(NEWCOMER, validation, runtime.tokenize)
    personalizer = runtime_personalizer(runtime, data, config, RUN_ID)
    state = zero_state(runtime.layout.size)
    personalizer.note(2, state, digest(runtime.layout.hash, state))
    assert not personalizer.take()
    private = personalizer.private_state(2, state, digest(runtime.layout.hash, state))
    assert not private.any()
    own = personalizer.own_words(state, private)
    assert own is None or own.change_nothing
