"""One process, several runs: a file that a run's settings name may change between the runs."""

from pathlib import Path
from typing import Any

import pytest

from samara.client.protocol.simulated_client import RunCache
from samara.shared.settings.config import RunConfig


@pytest.mark.parametrize(
    "key",
    ["model.path", "data.path", "task", "adapter.start", "adapter.basis", "adapter.damping"],
)
def test_what_was_loaded_is_forgotten_when_a_file_changes(
    key: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "named.jsonl"
    file.write_text("before")
    own = {key: str(file)} | ({"adapter.layers": "readout"} if key == "adapter.damping" else {})
    config = RunConfig.of(settings | own, "test").model_copy()
    runs = RunCache()
    runs.clear_if_changed(config)
    loaded = runs.catch_up
    runs.clear_if_changed(config)
    assert runs.catch_up is loaded
    file.write_text("after that")
    runs.clear_if_changed(config)
    assert runs.catch_up is not loaded
