"""The quality of private parts fitted to fewer examples, alone and in a live client's status."""

from pathlib import Path

import numpy as np
import pytest
from federations import Live, Settings, config_of
from hypothesis import given, settings
from hypothesis import strategies as st
from residents import device_settings, resident
from scipy.linalg import helmert
from typer.testing import CliRunner

from samara.client.personal.few_examples import COUNTS, quality_by_examples
from samara.client.personal.lbfgs import fit_softmax
from samara.client.personal.softmax_fit import Examples, fit_private_part
from samara.client.questions.model_in_use import quality_of_model_in_use
from samara.client.questions.personal_model import PersonalModels
from samara.client.trainer.trainer_service import serve_trainer
from samara.devices.live.commands import app as client_app
from samara.server.app import serve
from samara.shared.protocol.frames.instructions import Split
from samara.shared.tasks.label_scores import cross_entropy

CLIENT = 7


def examples_of(count: int, seed: int, intercept: float = 0.0) -> Examples:
    """Examples of two labels; the larger the intercept, the more often the second label occurs."""
    random = np.random.default_rng(seed)
    labels = (random.normal(size=count) < intercept).astype(np.int64)
    return Examples(np.zeros((count, 2)), labels, random.normal(size=(count, 3)))


@given(st.integers(1, 45), st.integers(0, 9), st.integers(0, 3))
@settings(max_examples=10, deadline=None)
def test_the_last_number_is_the_private_part_of_all_examples(
    count: int, validated: int, seed: int
) -> None:
    train, validation = examples_of(count, seed), examples_of(validated, seed + 1)
    found = quality_by_examples(train, validation, fit_softmax)
    if not validated:
        assert found == ()
        return
    assert [one.examples for one in found] == [*(n for n in COUNTS if n < count), count]
    fit = fit_private_part(train, helmert(2), fit_softmax)
    scores = validation.offsets + fit.added_scores(validation.features, helmert(2))
    right = scores.argmax(axis=1) == validation.labels
    losses = cross_entropy(scores[None].astype(np.float32), validation.labels)
    assert found[-1].accuracy == pytest.approx(right.mean())
    assert found[-1].loss == pytest.approx(float(losses.mean()), rel=1e-4)


def test_more_examples_of_one_label_are_seen_to_help() -> None:
    train, validation = examples_of(60, 0, intercept=1.5), examples_of(200, 1, intercept=1.5)
    found = quality_by_examples(train, validation, fit_softmax)
    assert [one.examples for one in found] == [5, 10, 20, 40, 60]
    assert found[-1].loss < found[0].loss < np.log(2)


def test_an_owner_sees_the_quality_by_examples_of_a_live_client(
    settings: Settings, short: Path
) -> None:
    theirs = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    own = {"method": "readout", "adapter.layers": "readout", "adapter.label-bias": True}
    more = {"rounds": 2, "evaluate.every": 0, "cohort.available": 1, "personal.rounds": 0}
    config = config_of(settings | theirs | own | more)
    home, socket = short / "h", short / "t.sock"
    home.mkdir()
    device_settings(settings, CLIENT, home).write()
    trainer = resident(settings, CLIENT, home)
    with serve_trainer(lambda: trainer, socket):
        serve(config, Live([socket], config))
    found = quality_of_model_in_use(home)
    assert [one.examples for one in found][-1] == len(trainer.data.in_split(Split.TRAIN))
    assert [one.examples for one in found][:2] == [5, 10]
    models, validation = PersonalModels(trainer).of(), trainer.data.tokenized(Split.VALIDATION)
    personal = models.states["personal"]
    assert personal is not None
    scores = models.runtime.scores(personal, validation.prompts)
    assert found[-1].accuracy == pytest.approx((scores.argmax(axis=1) == validation.labels).mean())
    loss = cross_entropy(scores[None], validation.labels).mean()
    assert found[-1].loss == pytest.approx(float(loss), rel=1e-4)
    shown = CliRunner().invoke(client_app, ["status", "--name", "a", "--home", str(home)])
    assert "training examples" in shown.output
    assert f"{found[0].loss:.3f}" in shown.output
