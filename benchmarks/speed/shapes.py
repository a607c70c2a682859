"""Models of known shapes with random weights, which need no download."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samara.client.streaming.block_store import BlockStore
from samara.client.streaming.packed_block import PackedBlock
from samara.devices.hardware.built_in_shapes import BUILT_IN
from samara.shared.model.layer_selection import is_linear
from samara.shared.model.loading import BaseModel, empty_network
from samara.shared.model.products import use_faster_products
from samara.shared.model.quantized import Quantization, quantize_linear
from samara.shared.model.structure import blocks_of, body_of
from samara.shared.tasks.kinds import ClassificationTask


def _llama(
    vocabulary: int, hidden: int, intermediate: int, blocks: int, heads: int, key_heads: int
) -> dict[str, int]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": blocks,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
    }


SHAPES: dict[str, dict[str, int]] = {
    "llama-tiny": _llama(512, 64, 176, 4, 4, 4),
    "llama-34m": _llama(8_192, 512, 1_376, 8, 8, 8),
    "llama-small": _llama(1_024, 128, 352, 6, 4, 4),
    "llama-deep": _llama(2_048, 256, 704, 12, 8, 8),
    "llama-shared-keys": _llama(4_096, 768, 2_048, 4, 12, 4),
    "llama-wide": _llama(2_048, 1_024, 2_816, 2, 16, 4),
    "opt-tiny": {
        "vocab_size": 512,
        "hidden_size": 32,
        "word_embed_proj_dim": 32,
        "ffn_dim": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    },
    **BUILT_IN,
}
"""Dimensions of models by name."""
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
    """Return the transformers configuration of a shape."""
    from transformers import LlamaConfig, OPTConfig

    sizes = {"max_position_embeddings": _CONTEXT, **SHAPES[shape]}
    kind: Any = OPTConfig if shape.startswith("opt-") else LlamaConfig
    return kind(**sizes, bos_token_id=1)


def tokenizer_of(shape: str) -> Any:
    """Return a tokenizer whose vocabulary consists of artificial words: w2, w3 …"""
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
    shape: str,
    quantization: Quantization,
    dtype: torch.dtype,
    device: torch.device,
    without_blocks: bool = False,
) -> BaseModel:
    """Return a model with random weights, created in its final form on its device.

    Args:
        shape: a name in `SHAPES`.
        quantization: quantization of the linear layers in the blocks of a Llama.
        dtype: dtype of the other weights.
        device: torch device of the model, where the random numbers are drawn.
        without_blocks: whether the blocks keep their placeholders on the meta device.
    """
    network = empty_network(config_of(shape), "causal", dtype)
    blocks = blocks_of(body_of(network), Path(shape))
    if quantization != "none":
        for name, module in list(blocks.named_modules()):
            if is_linear(module):
                weight = _random(name, module.weight, torch.float32, device)
                parent, _, child = name.rpartition(".")
                layer = quantize_linear(weight, None, quantization, dtype)
                setattr(blocks.get_submodule(parent), child, layer)
    placeholders = {id(parameter) for parameter in blocks.parameters() if without_blocks}
    for name, parameter in list(network.named_parameters()):
        if id(parameter) not in placeholders:
            parent, _, child = name.rpartition(".")
            value = nn.Parameter(_random(name, parameter, dtype, device), False)
            network.get_submodule(parent)._parameters[child] = value
    network.tie_weights()
    for module in network.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(device)
    network.eval()
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
    """Write a Hugging Face folder of random weights, with at most one shard in memory.

    Args:
        shape: a name in `SHAPES`.
        folder: empty folder.
        shard_bytes: size at which a shard is complete.
        dtype: type of the weights.
    """
    from safetensors.torch import save_file

    network = empty_network(config_of(shape), "causal", torch.float32)
    places: dict[str, str] = {}
    for number, shard in enumerate(_shards(network, shard_bytes, dtype)):
        file = f"model-{number:05d}.safetensors"
        save_file(shard, folder / file, {"format": "pt"})
        places |= dict.fromkeys(shard, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    settings = config_of(shape)
    settings.architectures = [type(network).__name__]
    settings.save_pretrained(folder)
    tokenizer_of(shape).save_pretrained(folder)


def _shards(
    network: nn.Module, shard_bytes: int, dtype: torch.dtype
) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    for name, parameter in network.named_parameters():
        shard[name] = _random(name, parameter, dtype, torch.device("cpu"))
        if sum(tensor.nbytes for tensor in shard.values()) >= shard_bytes:
            yield shard
            shard = {}
    if shard:
        yield shard


def _random(name: str, parameter: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return ones for a norm, else normal numbers that depend only on the name and the device."""
    if parameter.ndim == 1:
        return torch.full(parameter.shape, float(not name.endswith("bias")), dtype=dtype).to(device)
    generator = torch.Generator(device).manual_seed(sum(name.encode()))
    numbers = torch.randn(parameter.shape, generator=generator, dtype=torch.float32, device=device)
    return numbers.mul_(_DEVIATION).to(dtype)


class RandomStore(BlockStore):
    """A store of a model's blocks, which draws the weights of `random_base` when they are fetched.

    Args:
        base: model whose blocks are placeholders.
        device: torch device that draws.
    """

    def __init__(self, base: BaseModel, device: torch.device) -> None:
        self._device = device
        full_names = {id(p): name for name, p in base.network.named_parameters()}
        self._names = [
            {name: full_names[id(p)] for name, p in block.named_parameters()}
            for block in base.blocks
        ]
        self.packed_blocks = [
            PackedBlock.lay_out(
                (name, parameter.dtype, tuple(parameter.shape), 0)
                for name, parameter in block.named_parameters()
            )
            for block in base.blocks
        ]

    @property
    def in_memory(self) -> bool:
        """False, because blocks do not exist before they are fetched."""
        return False

    def host_buffer(self, block: int, staging_buffer: Tensor | None) -> Tensor:
        """Return the part of the staging buffer that the block uses."""
        assert staging_buffer is not None
        return staging_buffer[: self.packed_blocks[block].bytes]

    def fetch(self, block: int, host_buffer: Tensor) -> None:
        """Draw the weights of a block."""
        for name, view in self.packed_blocks[block].views(host_buffer).items():
            full_name = self._names[block][name]
            view.copy_(_random(full_name, view, view.dtype, self._device))

    def write_back(self, block: int, host_buffer: Tensor) -> None:
        """Raise an error, because random blocks are read-only."""
        raise AssertionError("random blocks are only read")


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds until the device has finished some work."""
    import time

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begun = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun
