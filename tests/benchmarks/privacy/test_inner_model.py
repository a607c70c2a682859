"""Adapters inside a model in the privacy measurements: linear texts, and passes."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.privacy.inner_model import InnerModel
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
