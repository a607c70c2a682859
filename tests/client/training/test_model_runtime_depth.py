"""A runtime under settings of another depth: the model is loaded again, and has no scores."""

from typing import Any

import numpy as np
import pytest

from samara.client.training.model_runtime import load_run
from samara.client.training.text_generation import Sampling, generate
from samara.shared.errors import QuestionError
from samara.shared.model.lora_fa import empty_adapter
from samara.shared.settings.config import RunConfig


@pytest.fixture
def whole(readout: dict[str, Any]) -> RunConfig:
    return RunConfig.of(readout, "test")


def test_another_depth_is_another_model(whole: RunConfig) -> None:
    cut = whole.with_values({"adapter.layers": "readout:2/3"})
    first = load_run(whole).runtime
    second = first.under(cut)
    third = second.under(whole)
    prompts = [first.tokenize(example) for example in first.examples(1)[:6]]
    assert [r.base.depth for r in (first, second, third)] == [0, 2, 0]
    assert first.model_id == third.model_id != second.model_id
    assert first.layout == second.layout
    for runtime in (first, second, third):
        runtime.prepare(prompts)
    np.testing.assert_array_equal(first.features(prompts), third.features(prompts))
    assert not np.allclose(first.features(prompts), second.features(prompts))
    assert not second.forward.base_scores(prompts).any()  # type: ignore[union-attr]
    assert first.forward.base_scores(prompts).any()  # type: ignore[union-attr]


def test_a_cut_model_writes_no_text(whole: RunConfig) -> None:
    runtime = load_run(whole.with_values({"adapter.layers": "readout:1"})).runtime
    _, adapter = empty_adapter()
    with pytest.raises(
        QuestionError, match=r"readout:1: the blocks that write text are not loaded"
    ):
        next(generate(runtime, adapter, [6, 7], Sampling(4)))
