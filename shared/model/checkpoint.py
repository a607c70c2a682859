"""Loading a safetensors checkpoint into a network, one tensor at a time.

The network is built with its parameters on the meta device, where they take no memory. Then each
tensor of the checkpoint is read, and either quantized or assigned to the network. So at most one
tensor at a time exists in full precision beside the quantized model. If blocks are streamed, only
the tensors outside the blocks are loaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samara.shared.errors import ModelError
from samara.shared.model.completeness import (
    check_names,
    of_another_shape,
    replace_tensor,
    shown,
    tie,
    tied_groups,
)
from samara.shared.model.damaged_files import damaged
from samara.shared.model.depth import is_above
from samara.shared.model.model_folder import find_checkpoint, read_index, weight_files
from samara.shared.model.quantized import Quantization, empty_quantized_linear, quantize_linear

_CACHE_LINE = 64


@dataclass(frozen=True)
class CheckpointEntry:
    """A tensor in a checkpoint.

    Attributes:
        file: file of the checkpoint that holds the tensor.
        key: name of the tensor in the file.
    """

    file: Path
    key: str


def load_quantized(
    network: Any,
    blocks: nn.ModuleList,
    folder: Path,
    quantization: Quantization,
    device: torch.device,
    is_cut: bool = False,
) -> None:
    """Load the weights of a network that has none yet, and quantize its blocks' linear layers.

    Quantized layers replace the linear layers of the blocks. Embeddings, norms and the head keep
    the compute type.

    Args:
        network: transformers network made by `empty_network`.
        blocks: transformer blocks of the network.
        folder: folder with ``model.safetensors``, or with shards and their index.
        quantization: nf4 or int8.
        device: torch device of the network.
        is_cut: whether the checkpoint has further blocks, which are skipped.

    Raises:
        ModelError: if a tensor is missing, is not finite, or has a different shape than in the
            network.
    """
    files = _files_of(network, blocks, folder, is_cut)
    network.tie_weights()
    groups = tied_groups(network)
    inside = {id(module) for module in blocks.modules()}
    layers = {
        name: module
        for name, module in network.named_modules()
        if id(module) in inside and _is_linear(module)
    }
    weights = {f"{name}.weight": name for name in layers}
    biases = {f"{name}.bias" for name in layers}
    checkpoint_names = check_names(network, folder, files, groups)
    for name in checkpoint_names:
        if name in biases:
            continue
        if (layer := weights.get(name)) is None:
            _set(network, name, _read(files, checkpoint_names[name]), device)
        else:
            bias = checkpoint_names.get(f"{layer}.bias")
            quantized = quantize_linear(
                _weight(layers[layer], name, _read(files, checkpoint_names[name])).to(device),
                None if bias is None else _read(files, bias),
                quantization,
                network.dtype,
            )
            parent, _, child = layer.rpartition(".")
            setattr(network.get_submodule(parent), child, quantized)
    tie(network, groups, checkpoint_names)
    network.to(device)


def load_outside_blocks(
    network: Any,
    blocks: nn.ModuleList,
    folder: Path,
    device: torch.device,
    is_cut: bool = False,
) -> list[dict[str, CheckpointEntry]]:
    """Load the weights outside the blocks into a network that has no weights yet.

    Args:
        network: transformers network made by `empty_network`.
        blocks: transformer blocks of the network; their parameters stay on the meta device.
        folder: folder with ``model.safetensors``, or with shards and their index.
        device: torch device of the tensors outside the blocks.
        is_cut: whether the checkpoint has further blocks, which are skipped.

    Returns:
        For each block, a dictionary from a parameter's name in the block to its checkpoint entry.

    Raises:
        ModelError: if a tensor is missing, or has a different shape than in the network.
    """
    files = _files_of(network, blocks, folder, is_cut)
    network.tie_weights()
    groups = tied_groups(network)
    checkpoint_names = check_names(network, folder, files, groups)
    prefixes = {id(module): name for name, module in network.named_modules()}
    inside: list[dict[str, CheckpointEntry]] = []
    streamed: set[str] = set()
    for block in blocks:
        names = {name: f"{prefixes[id(block)]}.{name}" for name, _ in block.named_parameters()}
        if absent := [whole for whole in names.values() if whole not in checkpoint_names]:
            raise ModelError(
                f"{folder}: streamed loading cannot find the tensors {shown(absent)} of a block, "
                "because the checkpoint uses other names; set model.stream = off"
            )
        keys = {name: checkpoint_names[whole] for name, whole in names.items()}
        inside.append({name: CheckpointEntry(files[key], key) for name, key in keys.items()})
        streamed.update(names.values())
    for name, key in checkpoint_names.items():
        if name not in streamed:
            _set(network, name, _read(files, key, as_mapped=True), device)
    tie(network, groups, checkpoint_names)
    for module in network.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(device)
    return inside


def quantize_block(
    block: nn.Module,
    entries: Mapping[str, CheckpointEntry],
    quantization: Quantization,
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, Tensor]:
    """Read a block from its checkpoint, and quantize its linear layers.

    Args:
        block: block with its parameters on the meta device. The function does not change the block.
        entries: checkpoint entries of the block's parameters, by name in the block.
        quantization: nf4 or int8.
        dtype: compute type, and the type of tensors that are not quantized.
        device: torch device that quantizes the layers.

    Returns:
        The block's tensors on the CPU, by name: the parameters outside its linear layers, and the
        buffers of the quantized layers.

    Raises:
        ModelError: if a tensor cannot be read, is not finite, or has a different shape than in the
            block.
    """
    layers = {name: module for name, module in block.named_modules() if _is_linear(module)}
    files = {entry.key: entry.file for entry in entries.values()}
    tensors: dict[str, Tensor] = {}
    for name, parameter in block.named_parameters():
        layer, _, part = name.rpartition(".")
        if layer in layers and part == "bias":
            continue
        tensor = _read(files, entries[name].key)
        if layer not in layers:
            _check_shape(name, parameter, tensor)
            tensors[name] = tensor.to(dtype)
            continue
        bias = entries.get(f"{layer}.bias")
        quantized = quantize_linear(
            _weight(layers[layer], name, tensor).to(device),
            None if bias is None else _read(files, bias.key),
            quantization,
            dtype,
        )
        tensors |= {
            f"{layer}.{buffer}": value.cpu()
            for buffer, value in quantized.named_buffers()
            if value is not None
        }
    return tensors


def replace_with_empty_quantized_layers(
    block: nn.Module, tensors: Mapping[str, Tensor], quantization: Quantization, dtype: torch.dtype
) -> None:
    """Replace a block's linear layers by quantized layers without weights.

    Args:
        block: block with its parameters on the meta device.
        tensors: tensors returned by `quantize_block`, moved to the meta device.
        quantization: nf4 or int8.
        dtype: compute type.
    """
    layers = {name: module for name, module in block.named_modules() if _is_linear(module)}
    for name, layer in layers.items():
        weight: Any = layer.weight
        rows, columns = weight.shape if isinstance(layer, nn.Linear) else weight.shape[::-1]
        layer_tensors = {
            key.rpartition(".")[2]: t for key, t in tensors.items() if _layer_of(key) == name
        }
        parent, _, child = name.rpartition(".")
        empty = empty_quantized_linear(rows, columns, layer_tensors, quantization, dtype)
        setattr(block.get_submodule(parent), child, empty)


def _layer_of(name: str) -> str:
    return name.rpartition(".")[0]


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _weight(layer: nn.Module, name: str, tensor: Tensor) -> Tensor:
    """Return a layer's weight as [out, in]; transformers' Conv1D stores it transposed."""
    _check_shape(name, layer.weight, tensor)  # type: ignore[arg-type]
    return tensor if isinstance(layer, nn.Linear) else tensor.t().contiguous()


def _files_of(network: Any, blocks: nn.ModuleList, folder: Path, is_cut: bool) -> dict[str, Path]:
    """Return the file of each tensor of a checkpoint, without the tensors of skipped blocks."""
    files = _files(folder)
    if not is_cut:
        return files
    is_cut_off = is_above(network, blocks)
    return {name: file for name, file in files.items() if not is_cut_off(name)}


def _files(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor of a checkpoint.

    Raises:
        ModelError: if the checkpoint is not in safetensors, is damaged, or is quantized.
    """
    from safetensors import SafetensorError, safe_open

    checkpoint = find_checkpoint(folder)
    if checkpoint is None or "safetensors" not in checkpoint.name:
        raise ModelError(
            f"{folder}: quantized or streamed loading needs model.safetensors; load the model and "
            "save it with save_pretrained"
        )
    files: dict[str, Path] = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, "pt") as opened:
                files |= dict.fromkeys(opened.keys(), file)
        except (OSError, SafetensorError) as error:
            raise damaged(file, str(error)) from error
    if checkpoint.suffix == ".json":
        named = {name: folder / file for name, file in read_index(checkpoint).items()}
        if absent := [name for name in named if name not in files]:
            raise damaged(named[absent[0]], f"it lacks {shown(absent)}")
    return files


def _read(files: dict[str, Path], key: str, as_mapped: bool = False) -> Tensor:
    """Open a checkpoint's file, read one tensor and close the file, so that no pages stay mapped.

    Args:
        files: file of each tensor.
        key: name of the tensor.
        as_mapped: whether to align the tensor in memory as `from_pretrained` would. The alignment
            changes the last bits of matrix products.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(files[key], "pt") as file:
            mapped: Tensor = file.get_tensor(key)
            tensor = _copy_with_alignment(mapped) if as_mapped else mapped.clone()
    except (OSError, SafetensorError) as error:
        raise damaged(files[key], f"{key} cannot be read: {error}") from error
    return tensor


def _copy_with_alignment(mapped: Tensor) -> Tensor:
    """Copy a tensor to new memory with the same alignment to cache lines."""
    memory = torch.empty(mapped.nbytes + _CACHE_LINE, dtype=torch.uint8)
    start = (mapped.data_ptr() - memory.data_ptr()) % _CACHE_LINE
    copy = memory[start : start + mapped.nbytes].view(mapped.dtype).view(mapped.shape)
    return copy.copy_(mapped)


def _set(network: nn.Module, name: str, tensor: Tensor, device: torch.device) -> None:
    parent, _, child = name.rpartition(".")
    expected = getattr(network.get_submodule(parent), child)
    value = tensor.to(device, expected.dtype)
    is_parameter = isinstance(expected, nn.Parameter)
    replace_tensor(network, name, nn.Parameter(value, False) if is_parameter else value)


def _check_shape(name: str, expected: Tensor, tensor: Tensor) -> None:
    if expected.shape != tensor.shape:
        raise of_another_shape(name, tuple(tensor.shape), tuple(expected.shape))
