"""Load a safetensors checkpoint straight into a quantized network, one tensor at a time.

The network is built with its parameters on the meta device, where they take no memory. Then every
tensor of the checkpoint is read alone, quantized or put in its place, and dropped. At no time is
more than one tensor held in full precision beside the quantized model.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shared.errors import ModelError
from shared.model.quantized import Quantization, quantized_linear

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_OLD_NAMES = {"gamma": "weight", "beta": "bias", "embed_out": "lm_head"}
_UNUSED = "pooler"
"""No scorer uses BERT's pooler, and checkpoints of masked LMs lack it."""


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Modules that are built inside have their parameters on the meta device, buffers are real."""
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=False)
        register(module, name, parameter)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


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
        network: of transformers, built inside `parameters_on_meta`.
        blocks: its transformer blocks.
        folder: with ``model.safetensors``, or with shards and their index.
        quantization: nf4 or int8.
        device: where it goes.

    Raises:
        ModelError: if a tensor is missing, has another shape, or is not finite.
    """
    files = _files(folder)
    inside = {id(module) for module in blocks.modules()}
    layers = {
        name: module
        for name, module in network.named_modules()
        if id(module) in inside and _is_linear(module)
    }
    weights = {f"{name}.weight": name for name in layers}
    biases = {f"{name}.bias" for name in layers}
    known = _names_in_checkpoint(network, files)
    for name in known:
        if name in biases:
            continue
        if (layer := weights.get(name)) is None:
            _set(network, name, _read(files, known[name]), device)
        else:
            bias = known.get(f"{layer}.bias")
            quantized = quantized_linear(
                _weight(layers[layer], name, _read(files, known[name])).to(device),
                None if bias is None else _read(files, bias),
                quantization,
                network.dtype,
            )
            parent, _, child = layer.rpartition(".")
            setattr(network.get_submodule(parent), child, quantized)
    network.tie_weights()
    _fill_unused(network, device)
    if missing := [name for name, p in network.named_parameters() if p.is_meta]:
        raise ModelError(
            f"{folder}: the checkpoint lacks {', '.join(missing[:5])}"
            f"{' and more' * (len(missing) > 5)}, or calls them otherwise; download the whole "
            "model, or set model.quantization = none"
        )
    network.to(device)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _weight(layer: nn.Module, name: str, tensor: Tensor) -> Tensor:
    """A layer's weight as [out, in]; transformers' Conv1D has it the other way round."""
    _check_shape(name, layer.weight, tensor)  # type: ignore[arg-type]
    return tensor if isinstance(layer, nn.Linear) else tensor.t().contiguous()


def _files(folder: Path) -> dict[str, Path]:
    """Which file holds which tensor."""
    from safetensors import SafetensorError, safe_open

    index = folder / _INDEX
    try:
        if index.is_file():
            names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            return {str(name): folder / Path(str(file)).name for name, file in names.items()}
        with safe_open(folder / _SINGLE, "pt") as file:
            return dict.fromkeys(file.keys(), folder / _SINGLE)
    except FileNotFoundError as error:
        raise ModelError(
            f"{folder}: quantized loading needs {_SINGLE} or {_INDEX}; save the model once with "
            "save_pretrained"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, OSError, SafetensorError) as error:
        raise ModelError(f"{folder}: {_INDEX} or {_SINGLE} is damaged: {error!r}") from error


def _read(files: dict[str, Path], key: str) -> Tensor:
    """One tensor; the file is opened for it alone, so that no mapped pages stay behind."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(files[key], "pt") as file:
            tensor: Tensor = file.get_tensor(key).clone()
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{files[key]}: {key} cannot be read: {error}") from error
    return tensor


def _names_in_checkpoint(network: Any, files: dict[str, Path]) -> dict[str, str]:
    """The checkpoint's name of each parameter that it holds.

    A checkpoint may have been saved with or without the head, and so with or without the prefix of
    the body, and some names have changed over time.
    """

    def plain(name: str) -> str:
        parts = name.removeprefix(f"{network.base_model_prefix}.").split(".")
        return ".".join(_OLD_NAMES.get(part, part) for part in parts)

    in_checkpoint = {plain(key): key for key in files}
    return {
        name: in_checkpoint[plain(name)]
        for name, _ in network.named_parameters(remove_duplicate=False)
        if plain(name) in in_checkpoint
    }


def _set(network: nn.Module, name: str, tensor: Tensor, device: torch.device) -> None:
    parent, _, child = name.rpartition(".")
    module = network.get_submodule(parent)
    expected = module._parameters[child]
    assert expected is not None
    _check_shape(name, expected, tensor)
    value = nn.Parameter(tensor.to(device, expected.dtype), requires_grad=False)
    module._parameters[child] = value


def _check_shape(name: str, expected: Tensor, tensor: Tensor) -> None:
    if expected.shape != tensor.shape:
        raise ModelError(
            f"{name} is {list(tensor.shape)} in the checkpoint and the model's configuration says "
            f"{list(expected.shape)}; config.json and weights belong to different models"
        )


def _fill_unused(network: nn.Module, device: torch.device) -> None:
    for name, parameter in list(network.named_parameters()):
        if parameter.is_meta and _UNUSED in name.split("."):
            parent, _, child = name.rpartition(".")
            zeros = torch.zeros(parameter.shape, dtype=parameter.dtype, device=device)
            network.get_submodule(parent)._parameters[child] = nn.Parameter(zeros, False)
