"""First-order methods of `samara tune`: what they compute beside the loop that they share."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tuning import small, tuned, tuning_of

ModelFolder = Callable[[str], Path]


@pytest.mark.parametrize("space", ["full", "lora-fa"])
def test_micro_batches_add_up_to_the_batch(
    space: str, model_folder: ModelFolder, data_file: Path, tmp_path: Path
) -> None:
    settings = small(model_folder("causal"), data_file, tmp_path / "run")
    losses = []
    for size in (0, 1, 3):
        out = str(tmp_path / str(size))
        changes = {"method": "fo-adam", "space": space, "steps": 2, "micro_batch": size}
        result = tuned(tuning_of(settings, out=out, **changes))
        losses.append([point["loss"] for point in result["curve"]])
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    assert losses[2] == pytest.approx(losses[0], abs=1e-4)
    assert abs(losses[0][0] - losses[0][-1]) > 5e-4
