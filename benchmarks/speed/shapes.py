"""Models of known shapes with random weights: nothing is downloaded, only shapes matter here."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn

from samara.devices.hardware.model_shape import BUILT_IN
from samara.shared.model.layer_selection import is_linear
from samara.shared.model.loading import BaseModel
from samara.shared.model.products import use_faster_products
from samara.shared.model.quantized import Quantization, quantize_linear
from samara.shared.tasks.kinds import ClassificationTask

SHAPES: dict[str, dict[str, int]] = {
    "llama-tiny": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 176,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    },
    "llama-34m": {
        "vocab_size": 8_192,
        "hidden_size": 512,
        "intermediate_size": 1_376,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
    },
    "llama-110m": {
        "vocab_size": 16_000,
        "hidden_size": 768,
        "intermediate_size": 2_048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
    },
    "llama-small": {
        "vocab_size": 1_024,
        "hidden_size": 128,
        "intermediate_size": 352,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    },
    "llama-deep": {
        "vocab_size": 2_048,
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
    },
    "llama-shared-keys": {
        "vocab_size": 4_096,
        "hidden_size": 768,
        "intermediate_size": 2_048,
        "num_hidden_layers": 4,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
    },
    "llama-wide": {
        "vocab_size": 2_048,
        "hidden_size": 1_024,
        "intermediate_size": 2_816,
        "num_hidden_layers": 2,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
    },
    **BUILT_IN,
}
_CONTEXT = 2_048
_DEVIATION = 0.02

TASK = ClassificationTask.model_validate(
    {
        "name": "random tokens",
        "text": "{text}",
        "question": " {word}",
        "words": ["w10", "w11"],
        "labels": [0, 1],
    }
)


def config_of(shape: str) -> Any:
    """The transformers configuration of a shape."""
    from transformers import LlamaConfig

    sizes = {"max_position_embeddings": _CONTEXT, **SHAPES[shape]}
    return LlamaConfig(**sizes, bos_token_id=1)


def tokenizer_of(shape: str) -> Any:
    """A tokenizer of made-up words that fill the vocabulary: w2, w3 …"""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{index}": index for index in range(2, SHAPES[shape]["vocab_size"])}
    words |= {"<unk>": 0, "<s>": 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", pad_token="<unk>", unk_token="<unk>"
    )


def random_base(
    shape: str, quantization: Quantization, dtype: torch.dtype, device: torch.device
) -> BaseModel:
    """A model made in its final form, layer by layer."""
    from transformers import LlamaForCausalLM

    with init_empty_weights(include_buffers=False):
        network: Any = LlamaForCausalLM._from_config(config_of(shape), dtype=dtype)
    if quantization != "none":
        for name, module in list(network.model.layers.named_modules()):
            if is_linear(module):
                weight = _random(name, module.weight, torch.float32).to(device)
                parent, _, child = name.rpartition(".")
                layer = quantize_linear(weight, None, quantization, dtype)
                setattr(network.model.layers.get_submodule(parent), child, layer)
    for name, parameter in list(network.named_parameters()):
        parent, _, child = name.rpartition(".")
        value = _random(name, parameter, dtype).to(device)
        network.get_submodule(parent)._parameters[child] = nn.Parameter(value, False)
    network.to(device).eval()
    use_faster_products(network)
    network.config.use_cache = False
    return BaseModel(
        Path(shape),
        bytes(32),
        "causal",
        network,
        tokenizer_of(shape),
        quantization=quantization,
    )


def write_checkpoint(shape: str, folder: Path, shard_bytes: int, dtype: torch.dtype) -> None:
    """Write a Hugging Face folder of random weights, never holding more than a shard.

    Args:
        shape: a name in `SHAPES`.
        folder: an empty one.
        shard_bytes: a shard is closed when it has grown to this.
        dtype: of the weights.
    """
    from safetensors.torch import save_file
    from transformers import LlamaForCausalLM

    with init_empty_weights(include_buffers=False):
        network: Any = LlamaForCausalLM._from_config(config_of(shape))
    places: dict[str, str] = {}
    for number, shard in enumerate(_shards(network, shard_bytes, dtype)):
        file = f"model-{number:05d}.safetensors"
        save_file(shard, folder / file, {"format": "pt"})
        places |= dict.fromkeys(shard, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    settings = config_of(shape)
    settings.architectures = ["LlamaForCausalLM"]
    settings.save_pretrained(folder)
    tokenizer_of(shape).save_pretrained(folder)


def _shards(
    network: nn.Module, shard_bytes: int, dtype: torch.dtype
) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    for name, parameter in network.named_parameters():
        shard[name] = _random(name, parameter, dtype)
        if sum(tensor.nbytes for tensor in shard.values()) >= shard_bytes:
            yield shard
            shard = {}
    if shard:
        yield shard


def _random(name: str, parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """Ones for a norm, otherwise normal numbers; the same for the same name."""
    if parameter.ndim == 1:
        return torch.ones(parameter.shape, dtype=dtype)
    generator = torch.Generator().manual_seed(sum(name.encode()))
    numbers = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
    return numbers.mul_(_DEVIATION).to(dtype)


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds that some work takes, until the device has finished it."""
    import time

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begun = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun
