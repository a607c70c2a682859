"""Generation of several texts in shared passes."""

from typing import Any

import pytest

from samara.client.forward.resident import ResidentForward
from samara.client.training.model_runtime import load_run
from samara.client.training.text_generation import Sampling, generate, generate_together
from samara.shared.model.lora_fa import empty_adapter
from samara.shared.settings.config import RunConfig


def test_texts_that_share_passes_are_those_written_alone(
    readout: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = load_run(RunConfig.of(readout, "test")).runtime
    _, adapter = empty_adapter()
    alone = Sampling(12)
    first = "".join(generate(runtime, adapter, [6, 7], alone))
    prompts = [
        ([6, 7], alone),
        ([6, 7, 8], alone),
        ([9, 7], Sampling(3)),  # ends before the others of its length
        ([6, 7], Sampling(12, temperature=1.0, seed=1)),
        ([6, 7], Sampling(12, stop=(first.split()[2],))),
        ([9, 7], Sampling(0)),
    ]
    expected = ["".join(generate(runtime, adapter, *prompt)) for prompt in prompts]
    passes: list[int] = []
    whole = ResidentForward.next_logits

    def counted(self: ResidentForward, adapter: Any, texts: Any, cache: Any = None) -> Any:
        passes.append(len(texts))
        return whole(self, adapter, texts, cache)

    monkeypatch.setattr(ResidentForward, "next_logits", counted)
    assert generate_together(runtime, adapter, prompts) == expected
    assert passes == [5] * 12 + [1] * 12
    assert len(set(expected)) == len(prompts)
