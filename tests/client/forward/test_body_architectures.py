"""The body's hooks work for model families that name and call their parts differently."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import ARCHITECTURES, save_tokenizer

from samara.client.forward.body import PerturbedBody
from samara.client.forward.resident import ResidentForward
from samara.client.forward.trunk_cache import make_trunk_cache
from samara.shared.errors import ModelError
from samara.shared.model.loading import load_base_model
from samara.shared.model.lora_fa import inject
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.scorers import scorer_for
from samara.shared.protocol.directions import directions
from samara.shared.settings.sections import AdapterSettings
from samara.shared.tasks.kinds import ClassificationTask


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_points_in_one_pass_on_every_architecture(name: str, tmp_path: Path) -> None:
    family, build, projections = ARCHITECTURES[name]
    torch.manual_seed(0)
    build(save_tokenizer(tmp_path, family)).save_pretrained(tmp_path)
    task = ClassificationTask.model_validate(
        {
            "name": "test",
            "text": "{text}",
            "question": " it was {word} .",
            "words": ["terrible", "great"],
            "labels": [0, 1],
        }
    )
    base = load_base_model(str(tmp_path))
    assert base.family == family
    with torch.inference_mode():
        scorer = scorer_for(base, task, 32, PerturbedBody(base, 0))
    texts = ("the film was good", "a day", "the meal was not very cold ! a walk")
    prompts = [scorer.prompt(text) for text in texts]
    adapter = inject(base, AdapterSettings.model_validate({"layers": "top:2"}), 2)
    assert {tensor.name.rpartition(".")[2] for tensor in adapter.layout.tensors} == projections
    size = adapter.layout.size
    center = np.random.default_rng(1).normal(0, 0.5, size).astype(np.float32)
    z = directions(np.arange(3, dtype=np.uint64), size, "gaussian")
    first = adapter.first_block
    engine = ResidentForward(
        adapter, scorer, PerturbedBody(base, first, make_trunk_cache(base, first, 2**20))
    )
    plain = ResidentForward(adapter, scorer, PerturbedBody(base, 0))
    together = engine.scores(Perturbations.from_arrays(adapter.layout, center, z, 0.25), prompts)
    for point in range(6):
        sign = 1 if point < 3 else -1
        moved = center + np.float32(sign * 0.25 / 2048) * z[point % 3].astype(np.float32)
        for index, prompt in enumerate(prompts):
            alone = plain.scores(Perturbations.from_arrays(adapter.layout, moved), [prompt])
            np.testing.assert_allclose(together[point, index], alone[0, 0], atol=5e-5)
    assert np.abs(together[0] - together[3]).max() > 1e-4


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_behind_its_attention_the_last_block_goes_on_with_what_is_read(
    name: str, tmp_path: Path
) -> None:
    family, build, _ = ARCHITECTURES[name]
    torch.manual_seed(0)
    build(save_tokenizer(tmp_path, family)).save_pretrained(tmp_path)
    base = load_base_model(str(tmp_path))
    sequences = [(5, 6, 7, 8, 9), (9, 8, 7), (4, 5, 6, 7)]
    lengths: list[int] = []

    def note(_: Any, __: Any, output: Any) -> None:
        lengths.append((output[0] if isinstance(output, tuple) else output).shape[1])

    with torch.inference_mode():
        body = PerturbedBody(base, 0)
        whole = body(sequences)
        base.blocks[-1].register_forward_hook(note)
        for supervised in ([(4,), (2,), (0,)], [(3, 4), (2,), (0, 1, 2)]):
            read = body(sequences, 1, supervised)
            assert read.shape == whole.shape
            for row, places in enumerate(supervised):
                torch.testing.assert_close(
                    read[row, list(places)], whole[row, list(places)], atol=1e-5, rtol=1e-4
                )
    # GPT-2 gives its output the shape of its input, OPT's layers see tokens without sequences.
    assert lengths == ([5, 5] if name in ("GPT-2", "OPT") else [1, 1])


def test_positions_behind_the_padding_index_are_not_counted(tmp_path: Path) -> None:
    family, build, _ = ARCHITECTURES["RoBERTa"]
    build(save_tokenizer(tmp_path, family)).save_pretrained(tmp_path)
    base = load_base_model(str(tmp_path))
    assert base.context == 63
    task = ClassificationTask.model_validate(
        {
            "name": "test",
            "text": "{text}",
            "question": " it was {word} .",
            "words": ["terrible", "great"],
            "labels": [0, 1],
        }
    )
    with torch.inference_mode():
        body = PerturbedBody(base, 0)
        scorer = scorer_for(base, task, 500, body)
        (ids,) = scorer.prompt("film " * 500).sequences
        assert len(ids) == 63
        assert torch.isfinite(body([ids])).all()


@pytest.mark.parametrize("name", ["GPT-2", "GPT-NeoX"])
def test_fused_projections_are_named_where_q_and_v_are_asked_for(name: str, tmp_path: Path) -> None:
    family, build, (fused,) = ARCHITECTURES[name]
    build(save_tokenizer(tmp_path, family)).save_pretrained(tmp_path)
    base = load_base_model(str(tmp_path))
    settings = AdapterSettings(layers="top:1", projections="q_proj,v_proj")
    with pytest.raises(ModelError, match=rf"q_proj, v_proj.*some of: .*{fused}"):
        inject(base, settings, 2)
