"""Weight-only quantization: loading directly in quantized form, and steps on the result."""

import builtins
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import init_empty_weights
from safetensors.torch import load_file, save_file
from tiny_models import ARCHITECTURES, save_tokenizer

from samara.client.forward.body import PerturbedBody
from samara.client.forward.trunk_cache import make_trunk_cache
from samara.shared.errors import ModelError
from samara.shared.model import quantized
from samara.shared.model.loading import load_base_model, load_structure
from samara.shared.model.lora_fa import inject
from samara.shared.model.quantized import (
    Int8Embedding,
    Int8Head,
    Int8Linear,
    Nf4Linear,
    QuantizedLinear,
    quantize_linear,
    quantize_tables,
    token_tables,
)
from samara.shared.settings.sections import AdapterSettings

pytest.importorskip("bitsandbytes", reason="needs the extra samara-fl[quantized]")

ModelFolder = Callable[[str], Path]

KINDS = {"nf4": Nf4Linear, "int8": Int8Linear}


def random_weight(rows: int = 48, columns: int = 64) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("kind", "error"), [("nf4", 0.12), ("int8", 0.011)])
def test_a_quantized_layer_is_close_and_linear(kind: Any, error: float, dtype: torch.dtype) -> None:
    weight, bias = random_weight(), torch.arange(48.0)
    layer = quantize_linear(weight, bias, kind, dtype)
    assert (layer.in_features, layer.out_features) == (64, 48)
    found = layer.dequantized()
    assert found.dtype == dtype
    relative = (found.float() - weight).norm() / weight.norm()
    assert 0 < float(relative) < error
    x = torch.randn(2, 3, 64).to(dtype)
    expected = torch.nn.functional.linear(x, found, bias.to(dtype))
    torch.testing.assert_close(layer(x), expected)
    # No rounding of inputs: a small change is answered in proportion.
    if dtype == torch.float32:
        change = layer(x * (1 + 1e-4)) - layer(x)
        torch.testing.assert_close(change, 1e-4 * (expected - bias), rtol=0.05, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_zeros_stay_zero(kind: Any) -> None:
    weight = random_weight()
    weight[5] = 0
    found = quantize_linear(weight, None, kind, torch.float32).dequantized()
    assert torch.isfinite(found).all()
    assert not found[5].any()


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_not_finite_are_refused(kind: Any) -> None:
    weight = random_weight()
    weight[3, 4] = torch.inf
    with pytest.raises(ModelError, match="not finite"):
        quantize_linear(weight, None, kind, torch.float32)


def test_sizes_are_what_the_formats_promise() -> None:
    def bytes_of(layer: torch.nn.Module) -> int:
        return sum(buffer.nbytes for buffer in layer.buffers())

    weight = random_weight(64, 128)
    nf4 = quantize_linear(weight, None, "nf4", torch.float32)
    int8 = quantize_linear(weight, None, "int8", torch.float32)
    assert bytes_of(nf4) == weight.numel() // 2 + 4 * weight.numel() // 64
    assert bytes_of(int8) == weight.numel() + 4 * 64


def folder_of(name: str, tmp_path: Path, model_folder: ModelFolder) -> Path:
    if name not in ARCHITECTURES:
        return model_folder({"Llama": "causal", "BERT": "masked"}.get(name, name))
    family, build, _ = ARCHITECTURES[name]
    torch.manual_seed(0)
    build(save_tokenizer(tmp_path, family)).save_pretrained(tmp_path)
    return tmp_path


def logits_of(folder: Path, **loading: Any) -> torch.Tensor:
    base = load_base_model(str(folder), **loading)
    ids = torch.tensor([[7, 9, 11, 13, 15]])
    with torch.inference_mode():
        output = base.network(input_ids=ids)
    found: torch.Tensor = output[0]
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*ARCHITECTURES, "Llama", "BERT", "encoder"])
def test_loading_is_the_same_as_quantizing_what_transformers_loads(
    name: str, kind: Any, tmp_path: Path, model_folder: ModelFolder
) -> None:
    folder = folder_of(name, tmp_path, model_folder)
    plain = load_base_model(str(folder))
    blocks = {id(module) for module in plain.blocks.modules()}
    replaced = 0
    for path, module in list(plain.network.named_modules()):
        transposed = type(module).__name__ == "Conv1D"
        if id(module) in blocks and (isinstance(module, torch.nn.Linear) or transposed):
            weight: Any = module.weight
            parent, _, child = path.rpartition(".")
            layer = quantize_linear(
                weight.t().contiguous() if transposed else weight,
                module.bias,  # type: ignore[arg-type]
                kind,
                torch.float32,
            )
            setattr(plain.network.get_submodule(parent), child, layer)
            replaced += 1
    replaced += len(token_tables(plain.network)) - 1  # the head
    quantize_tables(plain.network)
    ids = torch.tensor([[7, 9, 11, 13, 15]])
    with torch.inference_mode():
        expected = plain.network(input_ids=ids)[0]
    loaded = load_base_model(str(folder), quantization=kind)
    found = [m for m in loaded.network.modules() if isinstance(m, QuantizedLinear)]
    assert len(found) == replaced > 0
    torch.testing.assert_close(logits_of(folder, quantization=kind), expected)
    assert not torch.equal(expected, logits_of(folder))


@pytest.mark.parametrize("name", [*ARCHITECTURES, "Llama", "BERT", "encoder"])
def test_token_tables_have_8_bits(name: str, tmp_path: Path, model_folder: ModelFolder) -> None:
    folder = folder_of(name, tmp_path, model_folder)
    plain = load_base_model(str(folder)).network
    found = load_base_model(str(folder), quantization="int8").network
    table, head = found.get_input_embeddings(), found.get_output_embeddings()
    every = torch.arange(table.num_embeddings)
    expected = plain.get_input_embeddings()(every)
    step = expected.abs().amax(1, keepdim=True) / 128
    assert ((table(every) - expected).abs() <= 1.001 * step).all()
    if head is None:
        assert plain.get_output_embeddings() is None
        return
    own = plain.get_output_embeddings()
    assert (head.codes is table.codes) == (own.weight is plain.get_input_embeddings().weight)
    step = own.weight.abs().amax(1, keepdim=True) / 128
    assert ((head.dequantized() - own.weight).abs() <= 1.001 * step).all()
    x = torch.randn(3, own.in_features, generator=torch.Generator().manual_seed(0))
    exact = torch.nn.functional.linear(x, head.dequantized(), own.bias)
    torch.testing.assert_close(head(x), exact)
    torch.testing.assert_close(head.dequantized_layer()(x), exact)


@pytest.mark.parametrize("part", ["table", "head"])
def test_tables_of_unknown_classes_stay(part: str, model_folder: ModelFolder) -> None:
    class Unknown(torch.nn.Embedding if part == "table" else torch.nn.Linear):  # type: ignore[misc]
        pass

    network = load_base_model(str(model_folder("causal"))).network
    module = network.get_input_embeddings() if part == "table" else network.get_output_embeddings()
    module.__class__ = Unknown
    tables = network.get_input_embeddings(), network.get_output_embeddings()
    quantize_tables(network)
    assert (network.get_input_embeddings(), network.get_output_embeddings()) == tables


def test_scaled_embeddings_keep_their_factor() -> None:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    network = Gemma3ForCausalLM(config).requires_grad_(False)
    every = torch.arange(50)
    expected = network.get_input_embeddings()(every)
    quantize_tables(network)
    table = network.get_input_embeddings()
    assert table.factor == 4
    assert table.codes is network.get_output_embeddings().codes
    torch.testing.assert_close(
        table(every), expected, rtol=0, atol=float(expected.abs().max()) / 250
    )


def test_a_quantized_table_tells_a_networks_type_if_nothing_else_does() -> None:
    codes = torch.nn.Parameter(torch.ones(4, 3, dtype=torch.int8), requires_grad=False)
    table = Int8Embedding(codes, torch.ones(4, 1), 1.0, torch.bfloat16)
    assert [p.dtype for p in table.parameters() if p.is_floating_point()] == [torch.bfloat16]


def test_a_head_is_dequantized_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = torch.randint(-127, 128, (10, 4), dtype=torch.int8)
    head = Int8Head(codes, torch.rand(10, 1), torch.arange(10.0), torch.float32)
    x = torch.randn(2, 3, 4)
    whole = head(x)
    assert whole.shape == (2, 3, 10)
    monkeypatch.setattr(quantized, "_TILE_ROWS", 4)
    torch.testing.assert_close(head(x), whole)
    torch.testing.assert_close(head.rows([7, 2]), head.dequantized()[[7, 2]])


@pytest.mark.parametrize("part", ["embed_tokens", "lm_head"])
def test_tables_that_are_not_finite_are_refused(
    part: str, tmp_path: Path, model_folder: ModelFolder
) -> None:
    def damaged(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        name = next(name for name in tensors if part in name)
        return tensors | {name: tensors[name].clone().index_fill_(0, torch.tensor(3), torch.nan)}

    folder = copy_with(model_folder("causal"), tmp_path / "damaged", damaged)
    with pytest.raises(ModelError, match="not finite"):
        load_base_model(str(folder), quantization="nf4")


@pytest.mark.parametrize("kind", KINDS)
def test_shards_are_read_like_one_file(
    kind: Any, tmp_path: Path, model_folder: ModelFolder
) -> None:
    folder = model_folder("causal")
    base = load_base_model(str(folder))
    shutil.copytree(folder, tmp_path / "sharded")
    (tmp_path / "sharded" / "model.safetensors").unlink()
    base.network.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    torch.testing.assert_close(
        logits_of(tmp_path / "sharded", quantization=kind),
        logits_of(folder, quantization=kind),
        rtol=0,
        atol=0,
    )


def copy_with(
    folder: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> Path:
    shutil.copytree(folder, target)
    file = target / "model.safetensors"
    save_file(change(load_file(file)), file, {"format": "pt"})
    return target


def test_names_of_older_checkpoints_are_understood(
    tmp_path: Path, model_folder: ModelFolder
) -> None:
    def older(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            ): tensor
            for name, tensor in tensors.items()
        }

    folder = model_folder("masked")
    old = copy_with(folder, tmp_path / "old", older)
    torch.testing.assert_close(
        logits_of(old, quantization="int8"), logits_of(folder, quantization="int8")
    )


def test_an_encoder_is_read_from_a_masked_language_model(
    tmp_path: Path, model_folder: ModelFolder
) -> None:
    folder = tmp_path / "encoder"
    shutil.copytree(model_folder("masked"), folder)
    (folder / "modules.json").write_text("[]")
    base = load_base_model(str(folder), quantization="int8")
    assert base.family == "encoder"
    assert not any(parameter.is_meta for parameter in base.network.parameters())


def test_a_checkpoint_that_lacks_a_tensor_is_refused(
    tmp_path: Path, model_folder: ModelFolder
) -> None:
    gone = "model.layers.1.mlp.up_proj.weight"
    folder = copy_with(
        model_folder("causal"),
        tmp_path / "lacking",
        lambda tensors: {name: t for name, t in tensors.items() if name != gone},
    )
    with pytest.raises(ModelError, match=rf"lacks {gone}"):
        load_base_model(str(folder), quantization="nf4")


def test_a_checkpoint_of_another_shape_is_refused(
    tmp_path: Path, model_folder: ModelFolder
) -> None:
    folder = copy_with(
        model_folder("causal"),
        tmp_path / "other",
        lambda tensors: {
            name: t[:-1].clone() if name.endswith("up_proj.weight") else t
            for name, t in tensors.items()
        },
    )
    with pytest.raises(ModelError, match=r"up_proj.weight has the shape \[47, 32\].*\[48, 32\]"):
        load_base_model(str(folder), quantization="nf4")


@pytest.mark.parametrize("damage", ["index", "file", "missing shard"])
def test_damaged_checkpoints_are_named(
    damage: str, tmp_path: Path, model_folder: ModelFolder
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(model_folder("causal"), folder)
    index = folder / "model.safetensors.index.json"
    if damage == "index":
        index.write_text("{")
    elif damage == "missing shard":
        index.write_text(json.dumps({"weight_map": {"lm_head.weight": "gone.safetensors"}}))
    else:
        (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match=r"damaged|gone\.safetensors"):
        load_base_model(str(folder), quantization="nf4")


def test_only_safetensors_can_be_quantized(tmp_path: Path, model_folder: ModelFolder) -> None:
    folder = tmp_path / "pickled"
    shutil.copytree(model_folder("causal"), folder)
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="save_pretrained"):
        load_base_model(str(folder), quantization="nf4")


def test_without_the_extra_the_message_names_it(
    monkeypatch: pytest.MonkeyPatch, model_folder: ModelFolder
) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name.startswith("bitsandbytes"):
            raise ImportError("No module named 'bitsandbytes'")
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModelError, match=r"samara-fl\[quantized\].*Jetson.*CAPABILITY=87"):
        load_base_model(str(model_folder("causal")), quantization="nf4")
    load_base_model(str(model_folder("causal")))


def test_a_build_without_kernels_for_the_device_is_found_first(
    monkeypatch: pytest.MonkeyPatch, model_folder: ModelFolder
) -> None:
    class Wrong:
        @staticmethod
        def quantize_4bit(*_: Any, **__: Any) -> Any:
            raise RuntimeError("CUDA error: no kernel image is available\nand more")

    monkeypatch.setattr(quantized, "_bitsandbytes", lambda: Wrong)
    with pytest.raises(ModelError, match=r"no kernel image.*Jetson"):
        load_base_model(str(model_folder("causal")), quantization="nf4")


def test_a_structure_takes_no_memory_and_modules_made_later_are_real(
    model_folder: ModelFolder,
) -> None:
    base = load_structure(str(model_folder("causal")))
    assert all(parameter.is_meta for parameter in base.network.parameters())
    assert not any(buffer.is_meta for buffer in base.network.buffers())
    with pytest.raises(ZeroDivisionError), init_empty_weights(include_buffers=False):
        _ = 1 // 0
    assert not torch.nn.Linear(2, 2).weight.is_meta


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["causal", "masked", "encoder"])
def test_adapters_sit_on_quantized_layers(
    family: str, kind: Any, model_folder: ModelFolder
) -> None:
    plain = load_base_model(str(model_folder(family)))
    loaded = load_base_model(str(model_folder(family)), quantization=kind)
    settings = AdapterSettings(layers="top:2")
    assert inject(loaded, settings, 2).layout.hash == inject(plain, settings, 2).layout.hash
    assert loaded.model_id == plain.model_id
    PerturbedBody(loaded, 1, make_trunk_cache(loaded, 1, 2**20))([(7, 8, 9), (10, 11)])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_cuda_dequantizes_to_the_same_weights(kind: Any) -> None:
    on_cpu = quantize_linear(random_weight(), None, kind, torch.float32).dequantized()
    on_gpu = quantize_linear(random_weight().cuda(), None, kind, torch.float32).dequantized()
    np.testing.assert_allclose(on_gpu.cpu(), on_cpu, rtol=0, atol=1e-2 if kind == "int8" else 1e-5)
