"""Loading of a model whose blocks stay on disk or in host memory.

Unquantized blocks are read from the checkpoint's files, in their stored types. Blocks are quantized
once, and the result is stored in a folder that all runs share.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from samara.client.streaming.block_store import (
    BlockStore,
    FileStore,
    HostStore,
    copy_to_files,
    write_block_file,
)
from samara.client.streaming.packed_block import ALIGNMENT, PackedBlock
from samara.client.streaming.reading import ReadRange, read, read_directly
from samara.client.streaming.sizes import read_model_sizes
from samara.client.streaming.stream import BlockStream
from samara.client.streaming.tensor_locations import TensorLocation, tensor_locations
from samara.shared.errors import ModelError
from samara.shared.machine.free_memory import free_memory
from samara.shared.model.cache_key import cache_key, model_inputs
from samara.shared.model.checkpoint import (
    CheckpointEntry,
    quantize_block,
    replace_with_empty_quantized_layers,
)
from samara.shared.model.loading import BaseModel, load_base_model, load_without_blocks
from samara.shared.settings.sections import ModelSettings
from samara.shared.storage.files import cache_folder

log = logging.getLogger("samara.stream")

Tier = Literal["host", "disk"]

_FREE_SHARE = 0.25
"""Share of a free memory that must stay free when weights are stored in that memory."""
HELD_SHARE = 0.5
"""Largest total size of blocks that are read through the page cache, as a share of the free memory.
Larger blocks would evict each other's pages and the pages of other processes."""
_BUFFERS = 2
"""Minimum number of blocks in memory at a time."""
_KIND = "quantized blocks 2"


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model, with a store of its blocks if they are streamed.

    Attributes:
        base: model with all its weights, or with placeholders in its blocks if they are streamed.
        store: store of the blocks; None if the model contains its blocks.
    """

    base: BaseModel
    store: BlockStore | None = None

    def make_stream(self, base: BaseModel) -> BlockStream | None:
        """Attach a stream of the blocks to a model and return it; without a store, return None.

        Args:
            base: the loaded model or a copy of its modules.

        Raises:
            ModelError: if store and model do not match.
        """
        return None if self.store is None else BlockStream(base, self.store)

    def make_trainable_store(self, folder: Path, dtype: torch.dtype = torch.float32) -> BlockStore:
        """Return a writable store of the blocks: in memory, or a copy on disk.

        Args:
            folder: folder for a copy on disk; files of an earlier copy are replaced.
            dtype: type for storing and transferring blocks (ZO2, section 5.5).

        Raises:
            ModelError: if there is not enough memory or disk space, or a block cannot be read.
        """
        assert self.store is not None, "all blocks are in the model"
        model_dtype = self.base.network.dtype
        if not self.store.in_memory:
            return copy_to_files(self.store, folder, dtype, model_dtype)
        if all(tensor.dtype == dtype for b in self.store.packed_blocks for tensor in b.tensors):
            return self.store
        pinned = self.base.network.device.type == "cuda"
        return HostStore(self.store, dtype, pinned, model_dtype)


def load_model(settings: ModelSettings, depth: str = "") -> LoadedModel:
    """Load a model, together with a store of its blocks if the settings require streaming.

    Args:
        settings: settings of the model.
        depth: number of the lowest blocks to load, or their share of all blocks; empty for all.

    Raises:
        ModelError: if the model cannot be loaded.
    """
    tier = choose_tier(settings)
    if tier is None:
        kind, dtype = settings.quantization, settings.dtype
        base = load_base_model(
            settings.path, settings.family, settings.torch_device, kind, dtype, depth
        )
        return LoadedModel(base)
    _check_memory(settings)
    base, entries = load_without_blocks(
        settings.path,
        settings.family,
        settings.torch_device,
        settings.quantization,
        settings.dtype,
        depth,
    )
    locations = _locations(settings, base, entries)
    packed = _packed_blocks(base, locations)
    read_range = _choose_reading(locations, packed) if tier == "disk" else read
    store: BlockStore = FileStore(locations, packed, read=read_range)
    if tier == "host":
        pinned = base.network.device.type == "cuda"
        store = HostStore(store, base.network.dtype, pinned)
    log.info(
        "%s: %d blocks of up to %.0f MiB stream from %s",
        base.folder,
        len(store.packed_blocks),
        store.largest / 2**20,
        "the host's memory" if tier == "host" else "disk",
    )
    return LoadedModel(base, store)


def _choose_reading(
    locations: list[dict[str, TensorLocation]], packed: list[PackedBlock]
) -> ReadRange:
    """Return `read_directly` if the disk supports it and memory cannot hold all blocks.

    Otherwise return `read`.
    """
    if sum(block.bytes for block in packed) <= free_memory() * HELD_SHARE:
        return read
    file = next(iter(locations[0].values())).file
    try:
        read_directly(file, 0, memoryview(bytearray(1)))
    except ModelError:
        return read
    return read_directly


def choose_tier(settings: ModelSettings) -> Tier | None:
    """Choose where to store the blocks, or return None if the whole model stays on the device.

    With ``stream = auto`` the model stays on the device if its weights take at most three quarters
    of the device's free memory. Otherwise its blocks are streamed. The blocks of a GPU's model are
    stored in host memory if the weights take at most three quarters of the free host memory. In all
    other cases, blocks are stored on disk.
    """
    if settings.stream == "off":
        return None
    if settings.stream != "auto":
        return settings.stream
    sizes = read_model_sizes(settings)
    if sizes is None:
        return None
    fits_host = sizes.total <= free_memory() * (1 - _FREE_SHARE)
    if settings.torch_device.startswith("cuda") and torch.cuda.is_available():
        if sizes.total <= torch.cuda.mem_get_info(settings.torch_device)[0] * (1 - _FREE_SHARE):
            return None
        return "host" if fits_host else "disk"
    return None if fits_host else "disk"


def _check_memory(settings: ModelSettings) -> None:
    """Check that the embeddings, the head and the buffers of a streamed model fit into memory.

    Raises:
        ModelError: if they do not fit into the free memory of the CPU.
    """
    sizes = read_model_sizes(settings)
    if sizes is None or settings.torch_device != "cpu":
        return  # a GPU's allocator reports a lack of memory
    need, free = sizes.outside + _BUFFERS * sizes.largest, free_memory()
    if need > free:
        raise ModelError(
            f"{settings.path}: even with streamed blocks, embeddings and head need "
            f"{sizes.outside / 2**20:,.0f} MiB and {_BUFFERS} blocks need "
            f"{_BUFFERS * sizes.largest / 2**20:,.0f} MiB, but only {free / 2**20:,.0f} MiB are "
            "free; "
            "free memory, quantize (model.quantization = nf4), or set model.dtype = bfloat16"
        )


def _locations(
    settings: ModelSettings, base: BaseModel, entries: list[dict[str, CheckpointEntry]]
) -> list[dict[str, TensorLocation]]:
    """Return, for each block, the locations of its tensors by name."""
    if settings.quantization != "none":
        return _quantized_locations(settings, base, entries)
    files: dict[Path, dict[str, TensorLocation]] = {}
    locations = []
    for block_entries in entries:
        for entry in block_entries.values():
            if entry.file not in files:
                files[entry.file] = tensor_locations(entry.file)
        locations.append({name: files[e.file][e.key] for name, e in block_entries.items()})
    return locations


def _packed_blocks(
    base: BaseModel, locations: list[dict[str, TensorLocation]]
) -> list[PackedBlock]:
    """Return the layout of each block in memory.

    On a CPU, unquantized tensors keep the alignment that they have in the memory-mapped checkpoint.
    """
    maps = base.network.device.type == "cpu" and base.quantization == "none"
    return [
        PackedBlock.lay_out(
            (
                name,
                location.dtype,
                location.shape,
                location.offset % ALIGNMENT if maps and location.dtype == base.network.dtype else 0,
            )
            for name, location in block_locations.items()
        )
        for block_locations in locations
    ]


def _quantized_locations(
    settings: ModelSettings, base: BaseModel, entries: list[dict[str, CheckpointEntry]]
) -> list[dict[str, TensorLocation]]:
    """Return the locations of quantized blocks, after quantizing and storing missing blocks.

    The function also replaces the model's linear layers with quantized layers on the meta device.
    """
    kind, dtype, device = settings.quantization, base.network.dtype, base.network.device
    folder = stream_folder() / cache_key(_KIND, model=model_inputs(base)).hex()
    locations = []
    for index, (block, block_entries) in enumerate(zip(base.blocks, entries, strict=True)):
        file = folder / f"block-{index:05d}.safetensors"
        if file.exists():
            block_locations = tensor_locations(file)
        else:
            tensors = quantize_block(block, block_entries, kind, dtype, device)
            block_locations = write_block_file(folder, index, tensors)
        placeholders = {
            name: torch.empty(location.shape, dtype=location.dtype, device="meta")
            for name, location in block_locations.items()
        }
        replace_with_empty_quantized_layers(block, placeholders, kind, dtype)
        locations.append(block_locations)
    return locations


def stream_folder() -> Path:
    """Return the cache folder for quantized blocks.

    Raises:
        ModelError: if the user has no home folder.
    """
    try:
        return cache_folder("blocks")
    except RuntimeError as error:
        raise ModelError(
            "blocks cannot be cached without a home folder; set XDG_CACHE_HOME to a folder"
        ) from error
