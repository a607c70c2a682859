"""Models in GGUF files: converted once, equal to what the file holds, and refused by name."""

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from samara.shared.errors import ModelError
from samara.shared.model import gguf_file
from samara.shared.model.loading import load_base_model
from samara.shared.model.model_folder import find_model_folder, model_id_of

gguf = pytest.importorskip("gguf", reason="needs the extra samara-fl[gguf]")

TOKENS = ["<s>", "</s>", "a", "b", "c", "d", "Ġ", "ab", "Ġc", "!"]
HIDDEN, INNER, HEADS, BLOCKS = 64, 96, 2, 2


def quantized(writer: "gguf.GGUFWriter", name: str, values: NDArray[np.float32]) -> NDArray:
    """Add a tensor in Q8_0 and return the float32 numbers that it stands for."""
    packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    return gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0)


def write_model(file: Path, architecture: str = "llama") -> dict[str, NDArray[np.float32]]:
    """Write a random Llama with a byte-level tokenizer; return tensors by transformers' names."""
    random = np.random.default_rng(0)
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


def unpermuted(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Undo the order in which llama.cpp keeps the rows of q and k for rotary positions."""
    halves = weight.reshape(HEADS, HIDDEN // HEADS // 2, 2, HIDDEN).swapaxes(1, 2)
    return halves.reshape(HIDDEN, HIDDEN)


@pytest.fixture
def file(tmp_path: Path, empty_cache: None) -> Path:
    write_model(tmp_path / "model.gguf")
    return tmp_path / "model.gguf"


def test_a_model_holds_the_numbers_of_its_file(
    tmp_path: Path, empty_cache: None, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "model.gguf"
    known = write_model(file)
    base = load_base_model(str(file))
    assert base.family == "causal"
    assert base.model_id == hashlib.sha256(file.read_bytes()).digest() == model_id_of(str(file))
    assert base.token_ids("ab c!") == (7, 8, 9)
    weights = base.network.state_dict()
    for name, values in known.items():
        is_rotated = name.endswith(("q_proj.weight", "k_proj.weight"))
        expected = torch.from_numpy(unpermuted(values) if is_rotated else values)
        assert torch.equal(weights[name], expected), name
    assert "MB of float32" in caplog.text


def test_a_file_is_converted_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = find_model_folder(str(file))
    monkeypatch.setattr(gguf_file, "_convert", lambda *_: pytest.fail("converted again"))
    moved = file.rename(file.with_name("other.gguf"))
    assert find_model_folder(str(moved)) == folder
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]


def test_an_interrupted_conversion_leaves_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(gguf_file, "sync_folder", stop)
        with pytest.raises(ModelError, match=r"cannot be written: No space left.*make room"):
            find_model_folder(str(file))
    assert find_model_folder(str(file)).is_dir()


def test_two_processes_may_convert_at_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert = gguf_file._convert

    def overtaken(source: Path, folder: Path) -> None:
        monkeypatch.setattr(gguf_file, "_convert", convert)
        assert find_model_folder(str(source)).is_dir()
        convert(source, folder)

    monkeypatch.setattr(gguf_file, "_convert", overtaken)
    folder = find_model_folder(str(file))
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]


def test_files_that_are_no_models_are_refused_by_name(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"nothing")
    with pytest.raises(ModelError, match=r"other\.gguf: is no GGUF file"):
        find_model_folder(str(other))
    other.write_bytes(file.read_bytes()[:600])
    with pytest.raises(ModelError, match=r"other\.gguf: is damaged; download it again"):
        find_model_folder(str(other))
    write_model(other, "unheard-of")
    with pytest.raises(ModelError, match=r"other\.gguf: transformers cannot read this GGUF"):
        find_model_folder(str(other))
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModelError, match=r"install samara-fl\[gguf\]"):
        find_model_folder(str(file))
