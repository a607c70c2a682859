"""A random Llama in a GGUF file, in llama.cpp's format."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

gguf = pytest.importorskip("gguf", reason="needs the extra samara-fl[gguf]")

TOKENS = ["<s>", "</s>", "a", "b", "c", "d", "Ġ", "ab", "Ġc", "!"]
HIDDEN, INNER, HEADS, BLOCKS = 64, 96, 2, 2


def quantized(writer: "gguf.GGUFWriter", name: str, values: NDArray[np.float32]) -> NDArray:
    """Add a tensor in Q8_0, and return the dequantized float32 numbers."""
    packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    return gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0)


def write_model(
    file: Path, architecture: str = "llama", seed: int = 0
) -> dict[str, NDArray[np.float32]]:
    """Write a random Llama with a byte-level tokenizer; return tensors by transformers' names."""
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(BLOCKS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_merges(["a b", "Ġ c"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    known = {}

    def add(name: str, theirs: str, *shape: int) -> None:
        values = random.normal(0, 0.2, shape).astype(np.float32)
        known[theirs] = quantized(writer, name, values)

    add("token_embd.weight", "model.embed_tokens.weight", len(TOKENS), HIDDEN)
    add("output.weight", "lm_head.weight", len(TOKENS), HIDDEN)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for block in range(BLOCKS):
        ours, theirs = f"blk.{block}", f"model.layers.{block}"
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{ours}.{name}.weight", np.ones(HIDDEN, np.float32))
        for name in "qkv":
            add(
                f"{ours}.attn_{name}.weight",
                f"{theirs}.self_attn.{name}_proj.weight",
                HIDDEN,
                HIDDEN,
            )
        add(f"{ours}.attn_output.weight", f"{theirs}.self_attn.o_proj.weight", HIDDEN, HIDDEN)
        for name in ("gate", "up"):
            add(f"{ours}.ffn_{name}.weight", f"{theirs}.mlp.{name}_proj.weight", INNER, HIDDEN)
        add(f"{ours}.ffn_down.weight", f"{theirs}.mlp.down_proj.weight", HIDDEN, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return known
