"""Damaged, missing and unusual files of blocks: error messages, and no change of the files."""

import errno
import json
import os
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from streams import save_shape

from samara.client.streaming import loading
from samara.client.streaming.block_store import FileStore, allocate, copy_to_files
from samara.client.streaming.loading import choose_tier, load_model
from samara.client.streaming.packed_block import PackedBlock
from samara.client.streaming.reading import read_directly
from samara.client.streaming.sizes import ModelSizes, read_model_sizes
from samara.client.streaming.stream import BlockStream
from samara.client.streaming.tensor_locations import tensor_locations
from samara.shared.errors import ModelError
from samara.shared.settings.sections import ModelSettings

FILE = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_shape(tmp_path, "Llama", True)


def settings_of(folder: Path, **more: Any) -> ModelSettings:
    given = {"path": str(folder), "stream": "disk"} | more
    return ModelSettings.model_validate(given, by_alias=False, by_name=True)


def stream_of(folder: Path, **more: Any) -> BlockStream:
    loaded = load_model(settings_of(folder, **more))
    assert loaded.store is not None
    return BlockStream(loaded.base, loaded.store)


def through(stream: BlockStream) -> None:
    for block in range(stream.block_count):
        stream.load_block(block)


def test_a_file_that_goes_missing_and_comes_back(folder: Path) -> None:
    stream = stream_of(folder)
    expected = {name: tensor.clone() for name, tensor in stream.load_block(2).items()}
    stream.unload_block()
    (folder / FILE).rename(folder / "away")
    for _ in range(2):
        with pytest.raises(ModelError, match=r"cannot be read: No such file .* put it back"):
            through(stream)
    (folder / "away").rename(folder / FILE)
    tensors = stream.load_block(2)
    assert all(torch.equal(tensors[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("direct", [False, True])
def test_a_file_that_becomes_shorter(
    direct: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "HELD_SHARE", 0.0 if direct else inf)
    stream = stream_of(folder)
    os.truncate(folder / FILE, (folder / FILE).stat().st_size // 2)
    with pytest.raises(
        ModelError, match=r"is truncated: it ends before byte .* get the file again"
    ):
        through(stream)


@settings(max_examples=50)
@given(first=st.integers(0, 20_000), size=st.integers(1, 20_000))
def test_direct_reads_give_the_same_bytes(
    first: int, size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "numbers"
    content = bytes(index * index % 251 for index in range(20_000))
    file.write_bytes(content)
    buffer = bytearray(size)
    if first + size <= len(content):
        read_directly(file, first, memoryview(buffer))
        assert buffer == content[first : first + size]
    else:
        with pytest.raises(ModelError, match="is truncated"):
            read_directly(file, first, memoryview(buffer))


def reads_of(folder: Path, free: int, monkeypatch: pytest.MonkeyPatch) -> set[bool]:
    """Return whether blocks are read directly (O_DIRECT) if `free` bytes of memory are free."""
    monkeypatch.setattr(loading, "free_memory", lambda: free)
    whole, found = os.open, set[bool]()

    def note(file: Any, flags: int, *more: Any) -> int:
        found.add(bool(flags & os.O_DIRECT))
        return whole(file, flags, *more)

    stream = stream_of(folder)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", note)
        through(stream)
    return found


def test_blocks_that_half_of_the_memory_cannot_hold_are_read_directly(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_check_memory", lambda settings: None)
    store = load_model(settings_of(folder)).store
    assert store is not None
    blocks = sum(block.bytes for block in store.packed_blocks)
    assert reads_of(folder, 2 * blocks, monkeypatch) == {False}
    assert reads_of(folder, 2 * blocks - 2, monkeypatch) == {True}


def test_direct_reads_where_there_are_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.open

    def refuse(file: Any, flags: int, *more: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return whole(file, flags, *more)

    monkeypatch.setattr(loading, "HELD_SHARE", 0.0)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(
        ModelError, match=r"does not support direct reads; move the file to a disk of"
    ):
        read_directly(folder / FILE, 0, memoryview(bytearray(1)))
    through(stream_of(folder))


def test_a_truncated_file_is_found_before_anything_is_loaded(folder: Path) -> None:
    os.truncate(folder / FILE, (folder / FILE).stat().st_size - 1)
    with pytest.raises(ModelError, match=r"is truncated: .* and its tensors need"):
        load_model(settings_of(folder))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a complete safetensors file"),
        (b"\x04", "not a complete safetensors file"),
        (b"\xff" * 20, "not a complete safetensors file"),
        (b"\x02" + bytes(7) + b"[]", "header is damaged"),
        (b"\x02" + bytes(7) + b"{]", "header is damaged"),
    ],
)
def test_a_damaged_header(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ModelError, match=message):
        tensor_locations(tmp_path / "a")


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]},
        {"dtype": "F32", "shape": [1]},
        7,
    ],
)
def test_entries_that_do_not_add_up(entry: Any, tmp_path: Path) -> None:
    header = json.dumps({"x": entry}).encode()
    (tmp_path / "a").write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
    with pytest.raises(ModelError, match="header is damaged"):
        tensor_locations(tmp_path / "a")


def test_weights_of_another_type_or_shape(folder: Path) -> None:
    tensors = load_file(folder / FILE)
    name = "model.layers.1.mlp.up_proj.weight"
    for changed, message in (
        (tensors[name].to(torch.int32), r"already quantized \(.*up_proj\.weight is stored as I32"),
        (tensors[name][1:], r"has the shape \[47, 32\] .* and \[48, 32\] in the model"),
    ):
        save_file(tensors | {name: changed.contiguous()}, folder / FILE, {"format": "pt"})
        with pytest.raises(ModelError, match=message):
            stream_of(folder)


def test_a_checkpoint_that_lacks_a_block(folder: Path) -> None:
    tensors = load_file(folder / FILE)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / FILE, {"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks model.layers.1.mlp.up_proj.weight"):
        load_model(settings_of(folder))


def test_a_full_disk_is_reported_and_the_checkpoint_stays_as_it_was(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (folder / FILE).read_bytes()
    loaded = load_model(settings_of(folder))
    assert loaded.store is not None
    store = copy_to_files(loaded.store, tmp_path / "blocks", torch.float32)
    stream = BlockStream(loaded.base, store, torch.float32, writable=True)

    def full(*args: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    next(iter(stream.load_block(0).values())).zero_()
    stream.mark_changed()
    with pytest.raises(ModelError, match="cannot be written: No space left on device; free space"):
        stream.finish_writes()
    assert (folder / FILE).read_bytes() == before


def test_blocks_that_are_only_read_cannot_be_changed(folder: Path) -> None:
    stream = stream_of(folder)
    stream.load_block(0)
    with pytest.raises(AssertionError, match="read-only"):
        stream.mark_changed()


def test_memory_that_is_too_small_is_found_at_the_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "free_memory", lambda: 1000)
    with pytest.raises(ModelError, match="even with streamed blocks, embeddings and head need"):
        load_model(settings_of(folder))
    with pytest.raises(ModelError, match="does not fit into the memory of cpu"):
        allocate(2**60, torch.device("cpu"))


def test_auto_streams_what_does_not_fit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = read_model_sizes(settings_of(folder))
    assert sizes is not None
    weights = sum(tensor.nbytes for tensor in load_file(folder / FILE).values())
    assert sizes.total == weights
    assert sizes.blocks == 4 * sizes.largest
    auto = settings_of(folder, stream="auto")
    for free, tier in ((2 * weights, None), (weights, "disk")):
        monkeypatch.setattr(loading, "free_memory", lambda free=free: free)
        assert choose_tier(auto) == tier
    assert choose_tier(settings_of(folder / "absent", stream="auto")) is None
    assert choose_tier(settings_of(folder, stream="off")) is None
    assert read_model_sizes(settings_of(Path("embedded"))) == ModelSizes(0, 0, 0)


def test_a_slow_disk_is_logged_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    stream = stream_of(folder)
    stream.statistics.bytes, stream.statistics.reading_seconds = 10**9, 10.0
    stream.statistics.waiting_seconds = 8.0
    assert stream.slow_disk_warning(100.0) == ""
    warning = stream.slow_disk_warning(10.0)
    assert warning.startswith("the disk reads 100 MB/s, and the model waited 8.0 of 10.0 s for its")
    stream.statistics.waiting_seconds = 1e9
    with caplog.at_level("WARNING", "samara.stream"):
        for _ in range(5):
            through(stream)
    assert caplog.text.count("the disk reads") == 1


def test_buffers_are_given_back_and_made_again(folder: Path) -> None:
    stream = stream_of(folder)
    expected = {name: tensor.clone() for name, tensor in stream.load_block(1).items()}
    stream.free_buffers()
    tensors = stream.load_block(1)
    assert all(torch.equal(tensors[name], tensor) for name, tensor in expected.items())


def test_pieces_are_read_into_the_right_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from samara.client.streaming import block_store as stores

    monkeypatch.setattr(stores, "PIECE_BYTES", 7)
    tensors = {"a": torch.arange(33.0), "b": torch.arange(5, dtype=torch.int8)}
    save_file(tensors, tmp_path / "x")
    locations = tensor_locations(tmp_path / "x")
    packed_block = PackedBlock.lay_out(
        (name, p.dtype, p.shape, 24) for name, p in locations.items()
    )
    store = FileStore([locations], [packed_block])
    memory = torch.empty(store.largest, dtype=torch.uint8)
    store.fetch(0, memory)
    for name, view in packed_block.views(memory).items():
        assert torch.equal(view, tensors[name])
        assert (view.data_ptr() - memory.data_ptr()) % 64 == 24


def test_masks_and_small_integers_are_read(folder: Path, tmp_path: Path) -> None:
    masks = {
        "mask": torch.tensor([True, False, True]),
        "short": torch.arange(-3, 3, dtype=torch.int16),
        "model.layers.1.self_attn.bias": torch.ones(1, 1, 4, 4, dtype=torch.bool),
    }
    save_file(masks, tmp_path / "masks")
    locations = tensor_locations(tmp_path / "masks")
    packed_block = PackedBlock.lay_out((n, p.dtype, p.shape, 0) for n, p in locations.items())
    store = FileStore([locations], [packed_block])
    memory = torch.empty(store.largest, dtype=torch.uint8)
    store.fetch(0, memory)
    for name, view in packed_block.views(memory).items():
        assert view.dtype == masks[name].dtype
        assert torch.equal(view, masks[name])
    save_file(load_file(folder / FILE) | masks, folder / FILE, {"format": "pt"})
    through(stream_of(folder))


def test_a_type_that_torch_lacks_is_refused_by_its_name(tmp_path: Path) -> None:
    entry = {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}
    header = json.dumps({"layers.0.weight": entry}).encode()
    (tmp_path / "a").write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
    with pytest.raises(
        ModelError, match=r"a: layers\.0\.weight is stored as F99, .* cannot be read"
    ):
        tensor_locations(tmp_path / "a")
