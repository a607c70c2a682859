"""Loading of a safetensors checkpoint straight into a network, one tensor at a time.

The network is built with its parameters on the meta device, where they take no memory. Then every
tensor of the checkpoint is read alone, quantized or assigned, and dropped. Beside the quantized
model at most one tensor exists in full precision. A model whose blocks are streamed gets all other
tensors.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shared.errors import ModelError
from shared.model.damaged_files import damaged
from shared.model.model_folder import find_checkpoint, read_index, weight_files
from shared.model.quantized import Quantization, empty_quantized_linear, quantize_linear

_OLD_NAMES = {"gamma": "weight", "beta": "bias", "embed_out": "lm_head"}
_CACHE_LINE = 64
_UNUSED = "pooler"
"""No scorer uses BERT's pooler, and checkpoints of masked LMs lack it."""
_TABLES = (
    re.compile(r"(^|\.)position_ids$"),
    re.compile(r"(^|\.)(rotary_emb|rotary_pos_emb)\.inv_freq$"),
)
"""Names of tables that older checkpoints hold and that are computed today."""
_MASKS = re.compile(r"(attn|attention)\.(masked_)?bias$")
"""Names of the causal masks that older checkpoints hold."""
_IN_A_STACK = re.compile(r"(^|\.)\d+\.[^.]+\.")
"""A tensor of a numbered layer with parts of its own."""
_SHOWN = 5
"""Most tensors that a message names."""

Shapes = tuple[tuple[int, ...], tuple[int, ...]]
"""The shape of a tensor in the checkpoint, and that which the network has a place for."""


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
) -> None:
    """Fill a network that has its parameters on the meta device, quantizing its blocks' layers.

    Linear layers of the blocks are replaced; embeddings, norms and the head keep the compute type.

    Args:
        network: network of transformers, as `empty_network` makes it.
        blocks: transformer blocks of the network.
        folder: folder with ``model.safetensors``, or with shards and their index.
        quantization: nf4 or int8.
        device: torch device of the network.

    Raises:
        ModelError: if a tensor is missing, has another shape, or is not finite.
    """
    files = _files(folder)
    network.tie_weights()
    groups = _tied_groups(network)
    inside = {id(module) for module in blocks.modules()}
    layers = {
        name: module
        for name, module in network.named_modules()
        if id(module) in inside and _is_linear(module)
    }
    weights = {f"{name}.weight": name for name in layers}
    biases = {f"{name}.bias" for name in layers}
    checkpoint_names = _check_names(network, folder, files, groups)
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
    _tie(network, groups, checkpoint_names)
    network.to(device)


def load_outside_blocks(
    network: Any, blocks: nn.ModuleList, folder: Path, device: torch.device
) -> list[dict[str, CheckpointEntry]]:
    """Fill a network that has its parameters on the meta device, except for its blocks.

    Args:
        network: network of transformers, as `empty_network` makes it.
        blocks: transformer blocks of the network; their parameters stay on the meta device.
        folder: folder with ``model.safetensors``, or with shards and their index.
        device: torch device of the other tensors.

    Returns:
        For each block, the checkpoint entry of each parameter by its name in the block.

    Raises:
        ModelError: if a tensor is missing or has another shape.
    """
    files = _files(folder)
    network.tie_weights()
    groups = _tied_groups(network)
    checkpoint_names = _check_names(network, folder, files, groups)
    prefixes = {id(module): name for name, module in network.named_modules()}
    inside: list[dict[str, CheckpointEntry]] = []
    streamed: set[str] = set()
    for block in blocks:
        names = {name: f"{prefixes[id(block)]}.{name}" for name, _ in block.named_parameters()}
        if absent := [whole for whole in names.values() if whole not in checkpoint_names]:
            raise ModelError(
                f"{folder}: {_shown(absent)} of a block stand elsewhere in the checkpoint, which "
                "streamed loading cannot follow; set model.stream = off"
            )
        keys = {name: checkpoint_names[whole] for name, whole in names.items()}
        inside.append({name: CheckpointEntry(files[key], key) for name, key in keys.items()})
        streamed.update(names.values())
    for name, key in checkpoint_names.items():
        if name not in streamed:
            _set(network, name, _read(files, key, as_mapped=True), device)
    _tie(network, groups, checkpoint_names)
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
    """Return a block's tensors after quantizing its linear layers, on the CPU.

    Args:
        block: block with its parameters on the meta device; it is not changed.
        entries: checkpoint entries of its parameters.
        quantization: nf4 or int8.
        dtype: compute type, and the type of tensors that are not quantized.
        device: torch device that quantizes the layers.

    Raises:
        ModelError: if a tensor cannot be read, has another shape, or is not finite.
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
        tensors: as `quantized_block` gives them, on the meta device.
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


def check_complete(
    network: Any,
    folder: Path,
    missing: Collection[str],
    unexpected: Collection[str],
    misshapen: Mapping[str, Shapes],
) -> None:
    """Check that a checkpoint holds a network: every tensor that a pass computes with, and no more.

    Heads that are not in the network are allowed, and so is what its class says to ignore.

    Args:
        network: network of transformers.
        folder: folder of the checkpoint.
        missing: names of the network's tensors that the checkpoint lacks.
        unexpected: names in the checkpoint that the network has no tensor for.
        misshapen: tensors of another shape, by their names.

    Raises:
        ModelError: naming the tensors.
    """
    computed = [*_TABLES, *_patterns(network, "_keys_to_ignore_on_load_missing")]
    lacking = [
        name
        for name in missing
        if not _is_unused(name) and not any(pattern.search(name) for pattern in computed)
    ]
    if lacking:
        raise ModelError(
            f"{folder}: the checkpoint lacks {_shown(lacking)}, or calls them otherwise; download "
            "the whole model with its own config.json, or set model.family to what the model is"
        )
    for name, shapes in sorted(misshapen.items()):
        if not _is_unused(name):
            raise _of_another_shape(name, *shapes)
    body, prefix = network.base_model, f"{network.base_model_prefix}."
    ignored = [
        *_TABLES,
        _MASKS,
        *_patterns(network, "_keys_to_ignore_on_load_unexpected"),
        *_patterns(body, "_keys_to_ignore_on_load_unexpected"),
    ]
    foreign = [
        name
        for name in unexpected
        if not any(pattern.search(name) for pattern in ignored)
        and not _is_unused(name)
        and _is_foreign(network, body, prefix, name)
    ]
    if foreign:
        raise ModelError(
            f"{folder}: the checkpoint also holds {_shown(foreign)}, for which the model of its "
            "config.json has no place; config.json and weights belong to different models"
        )


def fill_unused(network: nn.Module, names: Collection[str]) -> None:
    """Fill the tensors of a pooler, which no scorer uses, with zeros: a checkpoint may lack it.

    Args:
        network: network whose tensors are read.
        names: names of all tensors that are not in the checkpoint.
    """
    for name, parameter in list(network.named_parameters()):
        if name in names and _is_unused(name):
            zeros = torch.zeros(parameter.shape, dtype=parameter.dtype)
            _replace(network, name, nn.Parameter(zeros, False))


def _patterns(network: nn.Module, attribute: str) -> Iterator[re.Pattern[str]]:
    """Yield the patterns of names that a class says to ignore."""
    for pattern in getattr(network, attribute, None) or ():
        yield re.compile(pattern)


def _is_unused(name: str) -> bool:
    return _UNUSED in name.split(".")


def _is_foreign(network: nn.Module, body: nn.Module, prefix: str, name: str) -> bool:
    """Tell a tensor that shows another architecture from a head that is not in the network."""
    own = {part.partition(".")[0] for part in body.state_dict()}
    in_body = name.startswith(prefix) or name.partition(".")[0] in own
    parts = name.split(".")
    expected = network.state_dict().keys()
    is_copy = any(".".join(parts[start:]) in expected for start in range(1, len(parts) - 1))
    parent = ".".join(parts[:-1])
    in_module = bool(parent) and parent in {path for path, _ in network.named_modules()}
    return in_body or is_copy or in_module or bool(_IN_A_STACK.search(name))


def _shown(names: Collection[str]) -> str:
    in_order = sorted(names, key=_natural)
    return ", ".join(in_order[:_SHOWN]) + " and more" * (len(names) > _SHOWN)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sorting key by which layer 2 comes before layer 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _weight(layer: nn.Module, name: str, tensor: Tensor) -> Tensor:
    """Return a layer's weight as [out, in]; transformers' Conv1D stores it transposed."""
    _check_shape(name, layer.weight, tensor)  # type: ignore[arg-type]
    return tensor if isinstance(layer, nn.Linear) else tensor.t().contiguous()


def _files(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor of a checkpoint.

    Raises:
        ModelError: if it is not in safetensors, is damaged, or is quantized.
    """
    from safetensors import SafetensorError, safe_open

    checkpoint = find_checkpoint(folder)
    if checkpoint is None or "safetensors" not in checkpoint.name:
        raise ModelError(
            f"{folder}: quantized or streamed loading needs model.safetensors; save the model "
            "once with save_pretrained"
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
            raise damaged(named[absent[0]], f"it lacks {_shown(absent)}")
    return files


def _read(files: dict[str, Path], key: str, as_mapped: bool = False) -> Tensor:
    """Read one tensor; the file is opened for it alone, so that no pages stay mapped.

    Args:
        files: file of each tensor.
        key: name of the tensor.
        as_mapped: whether to keep the alignment that the tensor has if `from_pretrained` maps the
            file; the last bits of a product depend on it.
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
    """Copy a tensor to memory with the same alignment to cache lines."""
    memory = torch.empty(mapped.nbytes + _CACHE_LINE, dtype=torch.uint8)
    start = (mapped.data_ptr() - memory.data_ptr()) % _CACHE_LINE
    copy = memory[start : start + mapped.nbytes].view(mapped.dtype).view(mapped.shape)
    return copy.copy_(mapped)


def _check_names(
    network: Any, folder: Path, files: dict[str, Path], groups: list[list[str]]
) -> dict[str, str]:
    """Return the checkpoint's name of each of a network's tensors, after checking that it is whole.

    Raises:
        ModelError: as in `check_complete`.
    """
    own = network.state_dict()
    rename = _renaming(network, own)
    renamed = {key: rename(key) for key in files}
    names = {name: key for key, name in renamed.items() if name in own}
    tied = {name for group in groups if any(n in names for n in group) for name in group}
    missing = own.keys() - names.keys() - tied
    shapes = _shapes(files)
    misshapen = {
        name: (shapes[key], tuple(own[name].shape))
        for name, key in names.items()
        if shapes[key] != tuple(own[name].shape)
    }
    unexpected = [name for name in renamed.values() if name not in own]
    check_complete(network, folder, missing, unexpected, misshapen)
    fill_unused(network, [*missing, *misshapen])
    return {name: key for name, key in names.items() if name not in misshapen}


def _renaming(network: Any, own: Collection[str]) -> Callable[[str], str]:
    """Return the function from a name in a checkpoint to that in a network.

    A checkpoint may have been saved with or without the head, and so with or without the prefix of
    the body, and some names have changed over time: transformers knows these since version 5.

    Raises:
        ModelError: from the function, if a tensor must be computed from several of the checkpoint.
    """
    prefix = f"{network.base_model_prefix}."

    def placed(name: str) -> str:
        forms = (name, name.removeprefix(prefix), prefix + name)
        return next((form for form in forms if form in own), name)

    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, rename_source_key
    except ImportError:
        return lambda key: placed(".".join(_OLD_NAMES.get(part, part) for part in key.split(".")))
    transforms = get_model_conversion_mapping(network)
    converters = [one for one in transforms if isinstance(one, WeightConverter)]
    renamings = [one for one in transforms if not isinstance(one, WeightConverter)]

    def rename(key: str) -> str:
        name, pattern = rename_source_key(key, renamings, converters)
        if placed(name) not in own and placed(key) in own:
            return placed(key)
        if pattern is not None:
            raise ModelError(
                f"{key} is stored in another form than the model computes with, which quantized "
                "and streamed loading cannot change; set model.quantization = none and "
                "model.stream = off"
            )
        return placed(name)

    return rename


def _shapes(files: Mapping[str, Path]) -> dict[str, tuple[int, ...]]:
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in set(files.values()):
        with safe_open(file, "pt") as opened:
            keys = opened.keys()
            shapes |= {key: tuple(opened.get_slice(key).get_shape()) for key in keys}
    return shapes


def _tied_groups(network: nn.Module) -> list[list[str]]:
    """Return the names of each parameter that has several."""
    names: dict[int, list[str]] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def _tie(network: nn.Module, groups: list[list[str]], held: Collection[str]) -> None:
    """Tie tensors as the checkpoint does, by its values: those that differ are not tied.

    Args:
        network: network whose tensors are read.
        groups: names of tensors that its class ties.
        held: names of tensors that the checkpoint holds.
    """
    for group in groups:
        parameters = dict(network.named_parameters(remove_duplicate=False))
        source = next((parameters[n] for n in group if n in held and n in parameters), None)
        if source is None or source.is_meta:
            continue
        for name in group:
            if name in parameters and (name not in held or torch.equal(parameters[name], source)):
                _replace(network, name, source)


def _set(network: nn.Module, name: str, tensor: Tensor, device: torch.device) -> None:
    parent, _, child = name.rpartition(".")
    expected = getattr(network.get_submodule(parent), child)
    value = tensor.to(device, expected.dtype)
    is_parameter = isinstance(expected, nn.Parameter)
    _replace(network, name, nn.Parameter(value, False) if is_parameter else value)


def _replace(network: nn.Module, name: str, value: Tensor) -> None:
    """Put a parameter or a buffer in the place of another one."""
    parent, _, child = name.rpartition(".")
    module = network.get_submodule(parent)
    tensors: dict[str, Any] = module._parameters if child in module._parameters else module._buffers
    tensors[child] = value


def _check_shape(name: str, expected: Tensor, tensor: Tensor) -> None:
    if expected.shape != tensor.shape:
        raise _of_another_shape(name, tuple(tensor.shape), tuple(expected.shape))


def _of_another_shape(name: str, stored: tuple[int, ...], expected: tuple[int, ...]) -> ModelError:
    return ModelError(
        f"{name} is {list(stored)} in the checkpoint and the model's configuration says "
        f"{list(expected)}; config.json and weights belong to different models"
    )
