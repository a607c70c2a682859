"""One folder of representations for two tasks: each task gets its own scores."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from samara.client.training.model_runtime import load_run
from samara.shared.settings.config import RunConfig

TASK = """
kind = "classification"
name = "mood"
text = "{text}"
question = " it was {word} ."
words = WORDS
labels = [0, 1]
"""


@pytest.mark.parametrize("family", ["encoder", "causal", "masked"])
def test_swapped_words_swap_the_scores(
    family: str,
    model_folder: Callable[[str], Path],
    settings: dict[str, Any],
    tmp_path: Path,
) -> None:
    def scores(words: str, folder: str) -> NDArray[np.float32]:
        task = tmp_path / f"{abs(hash(words))}.toml"
        task.write_text(TASK.replace("WORDS", words))
        own = settings | {
            "model.path": str(model_folder(family)),
            "task": str(task),
            "adapter.layers": "readout",
            "trunk-cache-folder": folder,
            "out": str(tmp_path / f"{folder and 'kept'}-{abs(hash(words))}"),
        }
        runtime, data = load_run(RunConfig.of(own, "test"))
        examples = data.share_of(0, 3).examples[:8]
        return runtime.base_scores([runtime.tokenize(example) for example in examples])

    folder = str(tmp_path / "representations")
    first = scores('["terrible", "great"]', folder)
    swapped = scores('["great", "terrible"]', folder)
    np.testing.assert_allclose(swapped, first[:, ::-1], atol=1e-5)
    assert np.abs(swapped - first).max() > 1e-3
    np.testing.assert_array_equal(scores('["terrible", "great"]', folder), first)
