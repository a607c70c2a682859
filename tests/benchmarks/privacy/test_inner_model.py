"""Adapters inside a model in the privacy measurements: linear texts, and passes."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.privacy.inner_model import InnerModel
from benchmarks.privacy.true_gradients import true_updates
from samara.shared.frames.instructions import Split


@pytest.fixture(scope="module")
def model() -> InnerModel:
    return InnerModel({"data.limit": 24, "adapter.layers": "top:1", "adapter.rank": 2})


def test_linear_texts_are_the_model_around_its_base(model: InnerModel, tmp_path: Path) -> None:
    file = tmp_path / "texts.npz"
    linear = model.linear_texts(Split.TRAIN, file)
    base = np.zeros(model.size)
    np.testing.assert_allclose(model.texts_at(Split.TRAIN, base).margins, linear.margins, atol=1e-4)
    step = 2e-3 * np.random.default_rng(0).standard_normal(model.size)
    moved = model.texts_at(Split.TRAIN, step).margins - linear.margins
    np.testing.assert_allclose(moved, linear.gradients @ step, atol=0.05 * np.abs(moved).max())
    again = model.linear_texts(Split.TRAIN, file)
    np.testing.assert_array_equal(again.gradients, linear.gradients)


def test_slopes_are_those_of_each_text_at_its_own_state(model: InnerModel, tmp_path: Path) -> None:
    linear = model.linear_texts(Split.TRAIN, tmp_path / "texts.npz")
    chosen = np.array([5, 2, 11])
    states = np.zeros((3, model.size), np.float32)
    slopes = model.slopes(Split.TRAIN, chosen, states)
    for text, slope in zip(chosen, slopes, strict=True):
        expected = linear.some(np.array([text])).slope(np.zeros(model.size))
        np.testing.assert_allclose(slope, expected, atol=1e-5)
    states[1] = 0.1
    other = model.slopes(Split.TRAIN, chosen, states)
    np.testing.assert_allclose(other[[0, 2]], slopes[[0, 2]], atol=1e-5)
    assert np.abs(other[1] - slopes[1]).max() > 1e-4


def test_local_steps_follow_true_gradients(model: InnerModel) -> None:
    parts = [np.array([0, 1, 2]), np.array([3])]
    start, rng = np.zeros(model.size), np.random.default_rng(0)
    updates = true_updates(model, parts, rng, start, 0.1)
    for own, update in zip(parts, updates, strict=True):
        before, after = (
            model.texts_at(Split.TRAIN, numbers).some(own).loss(start)
            for numbers in (start, start - update)
        )
        assert after < before
