"""All four ways of loading refuse the same checkpoints, and give equal scores for the others."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from crossed import crossed
from safetensors.torch import load_file, save_file
from streams import save_shape
from tiny_models import save_tokenizer

from samara.client.forward.body import PerturbedBody
from samara.client.forward.streamed import StreamedBody
from samara.client.streaming.loading import load_model
from samara.shared.errors import ModelError
from samara.shared.settings.sections import ModelSettings

pytest.importorskip("bitsandbytes", reason="needs the extra samara-fl[quantized]")

ModelFolder = Callable[[str], Path]
Tensors = dict[str, torch.Tensor]
WAYS: dict[str, dict[str, str]] = {
    "memory": {},
    "int8": {"quantization": "int8"},
    "nf4": {"quantization": "nf4"},
    "streamed": {"stream": "disk"},
}
IDS = (7, 9, 11, 13, 15)


def load(folder: Path, way: str, **settings: str) -> Any:
    given = {"path": str(folder), "stream": "off"} | WAYS[way] | settings
    return load_model(ModelSettings.model_validate(given, by_alias=False, by_name=True))


def logits(folder: Path, way: str, **settings: str) -> torch.Tensor:
    """Return the head's output for the base's own hidden states, [tokens, vocabulary]."""
    from samara.shared.model.head import tiled_logits

    model = load(folder, way, **settings)
    stream = model.make_stream(model.base)
    with torch.inference_mode():
        if stream is None:
            hidden = PerturbedBody(model.base, 0)([IDS])[0]
        else:
            staged = StreamedBody(model.base, 0).forward_in_stages([IDS])
            try:
                while True:
                    next(staged)
            except StopIteration as end:
                hidden = end.value[0]
        return torch.cat(list(tiled_logits(model.base, hidden)))


def changed(source: Path, target: Path, change: Callable[[Tensors], Tensors]) -> Path:
    shutil.copytree(source, target)
    file = target / "model.safetensors"
    tensors = {name: tensor.contiguous() for name, tensor in change(load_file(file)).items()}
    save_file(tensors, file, {"format": "pt"})
    return target


def prefixed(prefix: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {prefix + name: tensor for name, tensor in tensors.items()}


def without(part: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: t for name, t in tensors.items() if part not in name}


def beside(name: str, *shape: int) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {name: torch.ones(shape)}


def again(old: str, new: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: (
        tensors | {name.replace(old, new): t.clone() for name, t in tensors.items() if old in name}
    )


REFUSED: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "a wrapper's names": (prefixed("module."), r"lacks lm_head\.weight, model\.embed_tokens"),
    "PEFT's names": (prefixed("base_model.model."), r"lacks lm_head\.weight, model\.embed_tokens"),
    "no head": (without("lm_head"), r"lacks lm_head\.weight"),
    "a norm less": (
        without("layers.1.input_layernorm"),
        r"lacks model\.layers\.1\.input_layernorm",
    ),
    "a layer less": (without("layers.2."), r"lacks model\.layers\.2\."),
    "a layer more": (again("layers.2.", "layers.3."), r"also contains model\.layers\.3\."),
    "a bias": (beside("model.layers.0.self_attn.q_proj.bias", 32), r"contains .*q_proj\.bias"),
    "the head's bias": (beside("lm_head.bias", 30), r"also contains lm_head\.bias"),
    "an adapter": (beside("model.layers.0.mlp.up_proj.lora_A.weight", 2, 32), r"contains .*lora_A"),
    "a copy": (again("model.norm", "ema.model.norm"), r"also contains ema\.model\.norm\.weight"),
    "a tower": (beside("vision.layers.0.mlp.weight", 4, 4), r"contains vision\.layers\.0\.mlp"),
    "another shape": (
        lambda tensors: {n: t[:-1] if "up_proj" in n else t for n, t in tensors.items()},
        r"up_proj.weight has the shape \[47, 32\] in the checkpoint .* \[48, 32\]",
    ),
    "integers": (
        lambda tensors: {n: t.to(torch.int8) if "up_proj" in n else t for n, t in tensors.items()},
        r"already quantized \(model\.layers\.0\.mlp\.up_proj\.weight is stored as I8\)",
    ),
}


@pytest.mark.parametrize(("case", "way"), crossed(REFUSED, WAYS))
def test_what_a_checkpoint_does_not_hold_is_not_made_up(
    case: str, way: str, model_folder: ModelFolder, tmp_path: Path
) -> None:
    change, message = REFUSED[case]
    folder = changed(model_folder("causal"), tmp_path / "changed", change)
    with pytest.raises(ModelError, match=message):
        load(folder, way)


@pytest.mark.parametrize("way", WAYS)
def test_a_configuration_of_more_layers_is_refused(
    way: str, model_folder: ModelFolder, tmp_path: Path
) -> None:
    folder = changed(model_folder("causal"), tmp_path / "changed", dict)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    with pytest.raises(ModelError, match=r"lacks model\.layers\.3\."):
        load(folder, way)


@pytest.mark.parametrize("way", WAYS)
def test_a_body_is_no_masked_language_model(way: str, model_folder: ModelFolder) -> None:
    with pytest.raises(ModelError, match=r"lacks cls\.predictions"):
        load(model_folder("encoder"), way, family="masked")


@pytest.mark.parametrize("way", WAYS)
def test_heads_that_are_not_used_and_old_tables_are_allowed(
    way: str, model_folder: ModelFolder, tmp_path: Path
) -> None:
    masked = model_folder("masked")

    def older(tensors: Tensors) -> Tensors:
        return tensors | {
            "bert.embeddings.position_ids": torch.arange(64)[None],
            "cls.seq_relationship.weight": torch.ones(2, 32),
            "cls.seq_relationship.bias": torch.ones(2),
            "bert.pooler.dense.weight": torch.ones(32, 32),
            "bert.pooler.dense.bias": torch.ones(32),
            "classifier.0.weight": torch.ones(2, 32),
        }

    folder = changed(masked, tmp_path / "older", older)
    torch.testing.assert_close(logits(folder, way), logits(masked, way))
    base = load(folder, way, family="encoder").base
    assert not any(name.startswith("cls") for name, _ in base.network.named_parameters())


@pytest.mark.parametrize("way", WAYS)
def test_a_pooler_that_a_checkpoint_lacks_is_zero(way: str, model_folder: ModelFolder) -> None:
    network = load(model_folder("masked"), way, family="encoder").base.network
    assert not network.pooler.dense.weight.any()
    assert not network.pooler.dense.bias.any()


TIES: dict[str, tuple[bool, Callable[[Tensors], Tensors]]] = {
    "tied, one tensor": (True, dict),
    "tied, twice the same": (True, again("model.embed_tokens", "lm_head")),
    "tied, another head": (
        True,
        lambda t: t | {"lm_head.weight": t["model.embed_tokens.weight"] * 2},
    ),
    "tied, the head alone": (
        True,
        lambda t: {n.replace("model.embed_tokens", "lm_head"): x for n, x in t.items()},
    ),
    "untied": (False, dict),
}


@pytest.mark.parametrize("case", TIES)
def test_the_checkpoint_decides_what_is_tied(case: str, tmp_path: Path) -> None:
    tied, change = TIES[case]
    source = save_shape(tmp_path / "source", "Llama", tied)
    folder = changed(source, tmp_path / "changed", change)
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = plain(input_ids=torch.tensor([IDS])).logits[0]
    torch.testing.assert_close(logits(folder, "memory"), expected)
    torch.testing.assert_close(logits(folder, "streamed"), expected)
    head = plain.lm_head.weight.data
    for way in ("int8", "nf4"):
        network = load(folder, way).base.network
        table, found = network.get_input_embeddings(), network.lm_head
        embeddings = plain.model.embed_tokens.weight.data
        largest = float(torch.cat([head, embeddings]).abs().max())
        step = {"rtol": 0, "atol": largest / 128}
        torch.testing.assert_close(found.dequantized(), head, **step)
        every = torch.arange(table.num_embeddings)
        torch.testing.assert_close(table(every), embeddings, **step)
        assert (found.codes is table.codes) == (tied and "another" not in case)


@pytest.mark.parametrize("way", WAYS)
def test_buffers_of_a_checkpoint_are_read(way: str, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    config = transformers.Gemma4TextConfig(
        vocab_size=save_tokenizer(tmp_path / "source", "causal"),
        num_hidden_layers=2,
        num_key_value_heads=2,
        head_dim=8,
        global_head_dim=8,
        vocab_size_per_layer_input=30,
        hidden_size_per_layer_input=4,
        num_kv_shared_layers=0,
        **sizes,
    )
    torch.manual_seed(0)
    transformers.Gemma4ForCausalLM(config).save_pretrained(tmp_path / "source")

    def scaled(tensors: Tensors) -> Tensors:
        return {n: t * 3 if n.endswith("layer_scalar") else t for n, t in tensors.items()}

    folder = changed(tmp_path / "source", tmp_path / "changed", scaled)
    found = load(folder, way).base.network.state_dict()["model.layers.0.layer_scalar"]
    assert float(found) == 3
    lacking = changed(folder, tmp_path / "lacking", without("layers.1.layer_scalar"))
    with pytest.raises(ModelError, match=r"lacks model\.layers\.1\.layer_scalar"):
        load(lacking, way)


def test_an_old_index_beside_a_whole_file_is_not_read(
    model_folder: ModelFolder, tmp_path: Path
) -> None:
    folder = changed(model_folder("causal"), tmp_path / "two", dict)
    tensors = load_file(folder / "model.safetensors")
    save_file({n: t * 0 for n, t in tensors.items()}, folder / "old.safetensors", {"format": "pt"})
    index = {"weight_map": dict.fromkeys(tensors, "old.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for way in WAYS:
        torch.testing.assert_close(logits(folder, way), logits(model_folder("causal"), way))
