"""Load a model whose blocks stay where they are: the base, and the store of its blocks.

Blocks that are not quantized are read from the checkpoint as it lies on the disk, in its own types.
Quantized ones are made once and kept, in a folder that other runs use too.
"""

import logging
import os
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import torch

from client.streaming.block_store import (
    BlockStore,
    FileStore,
    HostStore,
    copy_to_files,
    write_block_file,
)
from client.streaming.packed_block import ALIGNMENT, PackedBlock
from client.streaming.reading import read, read_directly
from client.streaming.sizes import free_memory, read_model_sizes
from client.streaming.stream import BlockStream
from client.streaming.tensor_locations import TensorLocation, tensor_locations
from shared.errors import ModelError
from shared.model.checkpoint import (
    CheckpointEntry,
    quantize_block,
    replace_with_empty_quantized_layers,
)
from shared.model.loading import BaseModel, load_base_model, load_without_blocks
from shared.sections import ModelSettings

log = logging.getLogger("samara.stream")

Tier = Literal["host", "disk"]

_LEFT_FREE = 0.25
"""Of the free memory that weights may not take, if they are to stay in it."""
_BUFFERS = 2
"""Blocks that are in memory at least."""
_FORMAT = 1
"""Of the folders of quantized blocks."""


@dataclass(frozen=True)
class LoadedModel:
    """A model, and the blocks that it lacks.

    Attributes:
        base: with all its weights, or with placeholders in its blocks.
        store: of its blocks; None if the model has them.
    """

    base: BaseModel
    store: BlockStore | None = None

    def make_stream(self, base: BaseModel) -> BlockStream | None:
        """Have the blocks of the base, or of a twin of it, come when they are called.

        Raises:
            ModelError: if there is no memory for the stream's buffers.
        """
        return None if self.store is None else BlockStream(base, self.store)

    def make_trainable_store(self, folder: Path, dtype: torch.dtype = torch.float32) -> BlockStore:
        """The blocks where they may be changed: in memory, or a copy on disk.

        Args:
            folder: for the copy; its older files are replaced.
            dtype: that they are kept in, and travel in (ZO2, section 5.5).

        Raises:
            ModelError: if there is not enough room, or a block cannot be read.
        """
        assert self.store is not None, "all blocks are in the model"
        model = self.base.network.dtype
        if not self.store.in_memory:
            return copy_to_files(self.store, folder, dtype, model)
        if all(part.dtype == dtype for b in self.store.packed_blocks for part in b.parts):
            return self.store
        pinned = self.base.network.device.type == "cuda"
        return HostStore(self.store, dtype, pinned, model)


def load_model(settings: ModelSettings) -> LoadedModel:
    """Load a model as its settings say, streamed or not.

    Raises:
        ModelError: if it cannot be loaded.
    """
    tier = choose_tier(settings)
    if tier is None:
        kind, dtype = settings.quantization, settings.dtype
        base = load_base_model(settings.path, settings.family, settings.torch_device, kind, dtype)
        return LoadedModel(base)
    _check_room(settings)
    base, origins = load_without_blocks(
        settings.path, settings.family, settings.torch_device, settings.quantization, settings.dtype
    )
    places = _places(settings, base, origins)
    how = read_directly if settings.stream_direct else read
    store: BlockStore = FileStore(places, _packed_blocks(base, places), read=how)
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


def choose_tier(settings: ModelSettings) -> Tier | None:
    """Where the blocks are to wait; None if the whole model stays on the device.

    With ``auto`` the model stays if its weights take at most three quarters of what is free there,
    otherwise its blocks wait in the host's memory by the same rule, and otherwise on disk.
    """
    if settings.stream == "off":
        return None
    if settings.stream != "auto":
        return settings.stream
    sizes = read_model_sizes(settings)
    if sizes is None:
        return None
    fits_host = sizes.total <= free_memory() * (1 - _LEFT_FREE)
    if settings.torch_device.startswith("cuda") and torch.cuda.is_available():
        if sizes.total <= torch.cuda.mem_get_info(settings.torch_device)[0] * (1 - _LEFT_FREE):
            return None
        return "host" if fits_host else "disk"
    return None if fits_host else "disk"


def _check_room(settings: ModelSettings) -> None:
    """What of a streamed model is always in memory fits it.

    Raises:
        ModelError: otherwise.
    """
    sizes = read_model_sizes(settings)
    if sizes is None or settings.torch_device != "cpu":
        return  # a device's own allocator says what it lacks
    need, free = sizes.outside + _BUFFERS * sizes.largest, free_memory()
    if need > free:
        raise ModelError(
            f"{settings.path}: even with streamed blocks, embeddings and head take "
            f"{sizes.outside / 2**20:,.0f} MiB and {_BUFFERS} blocks "
            f"{_BUFFERS * sizes.largest / 2**20:,.0f} MiB, and {free / 2**20:,.0f} MiB are free; "
            "free memory, quantize (model.quantization = nf4), or set model.dtype = bfloat16"
        )


def _places(
    settings: ModelSettings, base: BaseModel, origins: list[dict[str, CheckpointEntry]]
) -> list[dict[str, TensorLocation]]:
    if settings.quantization != "none":
        return _quantized_places(settings, base, origins)
    files: dict[Path, dict[str, TensorLocation]] = {}
    places = []
    for own in origins:
        for origin in own.values():
            if origin.file not in files:
                files[origin.file] = tensor_locations(origin.file)
        places.append({name: files[at.file][at.key] for name, at in own.items()})
    return places


def _packed_blocks(base: BaseModel, places: list[dict[str, TensorLocation]]) -> list[PackedBlock]:
    """How blocks lie in memory: on a CPU as in a resident model, which maps what it can."""
    maps = base.network.device.type == "cpu" and base.quantization == "none"
    return [
        PackedBlock.lay_out(
            (
                name,
                place.dtype,
                place.shape,
                place.first % ALIGNMENT if maps and place.dtype == base.network.dtype else 0,
            )
            for name, place in own.items()
        )
        for own in places
    ]


def _quantized_places(
    settings: ModelSettings, base: BaseModel, origins: list[dict[str, CheckpointEntry]]
) -> list[dict[str, TensorLocation]]:
    """Of quantized blocks, which are made if they are not there; the model gets room for them."""
    kind, dtype, device = settings.quantization, base.network.dtype, base.network.device
    identity = (
        f"{base.model_id.hex()[:16]}-{kind}-{settings.dtype}-{device.type}"
        f"-{version('bitsandbytes')}-{_FORMAT}"
    )
    folder = stream_folder(settings) / identity
    places = []
    for index, (block, own) in enumerate(zip(base.blocks, origins, strict=True)):
        file = folder / f"block-{index:05d}.safetensors"
        if file.exists():
            found = tensor_locations(file)
        else:
            found = write_block_file(folder, index, quantize_block(block, own, kind, dtype, device))
        empty = {
            name: torch.empty(place.shape, dtype=place.dtype, device="meta")
            for name, place in found.items()
        }
        replace_with_empty_quantized_layers(block, empty, kind, dtype)
        places.append(found)
    return places


def stream_folder(settings: ModelSettings) -> Path:
    """Where blocks are kept that are not in the checkpoint as they are needed.

    Raises:
        ModelError: if nobody says where, and there is no home.
    """
    if settings.stream_folder:
        return Path(settings.stream_folder).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "samara" / "blocks"
    except RuntimeError as error:
        raise ModelError("there is no home folder for blocks; set model.stream-folder") from error
