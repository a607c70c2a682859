"""The model that is shipped with Samara: found wherever it runs, and fit for the messages."""

from pathlib import Path

import pytest
import torch

from samara.client.training.model_runtime import load_run
from samara.shared.errors import ModelError
from samara.shared.model import model_folder
from samara.shared.model.loading import load_base_model
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.replay import zero_state
from samara.shared.settings.config import RunConfig
from samara.shared.settings.sections import EMBEDDED_MODEL
from samara.shared.tasks.messages import LABEL_WORDS, WORDS, pretraining_text


def test_it_is_small_and_knows_every_word() -> None:
    base = load_base_model(EMBEDDED_MODEL)
    assert base.family == "causal"
    assert sum(file.stat().st_size for file in base.folder.iterdir()) <= 12 * 2**20
    for text in [*pretraining_text(100, 2), *map(" ".join, WORDS.values()), *LABEL_WORDS]:
        assert base.tokenizer.unk_token_id not in base.tokenizer(text)["input_ids"]
    assert all(torch.isfinite(p).all() for p in base.network.parameters())


def test_it_takes_a_community_for_the_public() -> None:
    """Without training, it is better than chance, but far from a community's own agreement."""
    config = RunConfig.of({"threads": 1}, "test")
    runtime, source = load_run(config)
    hits = []
    for client in range(config.data.clients):
        data = source.share_of(client, config.data.clients).tokenized(Split.TEST)
        scores = runtime.scores(zero_state(runtime.layout.size), data.prompts)
        hits.append((scores.argmax(axis=1) == data.labels).mean())
    assert 0.52 < sum(hits) / len(hits) < 0.7


def test_code_without_the_weights_names_their_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(model_folder, "_EMBEDDED_FOLDER", tmp_path)
    with pytest.raises(
        ModelError, match=f"{tmp_path}: the embedded model is missing; install Samara"
    ):
        load_base_model("embedded")
