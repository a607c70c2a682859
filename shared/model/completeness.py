"""Checks that a checkpoint is complete, and matching of its tensors with a network's.

All ways of loading use these checks: whole in memory, quantized, or with streamed blocks.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samara.shared.errors import ModelError

_OLD_NAMES = {"gamma": "weight", "beta": "bias", "embed_out": "lm_head"}
_UNUSED = "pooler"
"""Name of BERT's pooler. No scorer uses the pooler, and checkpoints of masked LMs lack it."""
_TABLES = (
    re.compile(r"(^|\.)position_ids$"),
    re.compile(r"(^|\.)(rotary_emb|rotary_pos_emb)\.inv_freq$"),
)
"""Name patterns of tables in older checkpoints that networks now compute themselves."""
_MASKS = re.compile(r"(attn|attention)\.(masked_)?bias$")
"""Name pattern of causal masks in older checkpoints."""
_IN_A_STACK = re.compile(r"(^|\.)\d+\.[^.]+\.")
"""Pattern of the name of a tensor in a submodule of a numbered layer."""
_SHOWN = 5
"""Largest number of tensors named in a message."""

Shapes = tuple[tuple[int, ...], tuple[int, ...]]
"""Two shapes of a tensor: in the checkpoint, and in the network."""


def check_names(
    network: Any, folder: Path, files: dict[str, Path], groups: list[list[str]]
) -> dict[str, str]:
    """Check that a checkpoint is complete, and match its tensors with those of a network.

    Args:
        network: transformers network.
        folder: folder of the checkpoint.
        files: file of each tensor of the checkpoint, by the tensor's name.
        groups: groups of names that share one parameter, from `tied_groups`.

    Returns:
        The name in the checkpoint of each tensor of the network.

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
    """Return a function that maps tensor names in a checkpoint to names in a network.

    A checkpoint saved without a head lacks the prefix of the body in its names. Some names have
    also changed over time; transformers lists these changes since version 5.

    Raises:
        ModelError: raised by the returned function, if a tensor of the network must be computed
            from several tensors of the checkpoint.
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
                f"{key} is stored in a different form than the model uses, and quantized or "
                "streamed loading cannot convert it; set model.quantization = none and "
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


def tied_groups(network: nn.Module) -> list[list[str]]:
    """Return groups of names that share one parameter."""
    names: dict[int, list[str]] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def tie(network: nn.Module, groups: list[list[str]], held: Collection[str]) -> None:
    """Make the tensors of each group one parameter, unless the checkpoint holds different values.

    Args:
        network: network with the loaded tensors, changed in place.
        groups: groups of names that share one parameter, from `tied_groups`.
        held: names of tensors in the checkpoint.
    """
    for group in groups:
        parameters = dict(network.named_parameters(remove_duplicate=False))
        source = next((parameters[n] for n in group if n in held and n in parameters), None)
        if source is None or source.is_meta:
            continue
        for name in group:
            if name in parameters and (name not in held or torch.equal(parameters[name], source)):
                replace_tensor(network, name, source)


def check_complete(
    network: Any,
    folder: Path,
    missing: Collection[str],
    unexpected: Collection[str],
    misshapen: Mapping[str, Shapes],
) -> None:
    """Check that a checkpoint contains exactly the tensors that a network uses.

    The checkpoint may also contain heads that the network lacks, and tensors that the network's
    class ignores.

    Args:
        network: transformers network.
        folder: folder of the checkpoint.
        missing: names of the network's tensors that the checkpoint lacks.
        unexpected: names of the checkpoint's tensors that the network lacks.
        misshapen: the two shapes of each tensor whose shapes differ, by name.

    Raises:
        ModelError: if a tensor is missing, unexpected or misshapen. The message names the tensors.
    """
    computed = [*_TABLES, *_patterns(network, "_keys_to_ignore_on_load_missing")]
    lacking = [
        name
        for name in missing
        if not _is_unused(name) and not any(pattern.search(name) for pattern in computed)
    ]
    if lacking:
        raise ModelError(
            f"{folder}: the checkpoint lacks {shown(lacking)}, or uses other names for them; "
            "download the whole model with its own config.json, which names the model's class "
            "under architectures"
        )
    for name, shapes in sorted(misshapen.items()):
        if not _is_unused(name):
            raise of_another_shape(name, *shapes)
    body = network.base_model
    prefix = f"{network.base_model_prefix}."
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
            f"{folder}: the checkpoint also contains {shown(foreign)}, and the model of its "
            "config.json lacks them; config.json and weights belong to different models; download "
            "both again"
        )


def fill_unused(network: nn.Module, names: Collection[str]) -> None:
    """Fill the unused tensors of a pooler with zeros, because a checkpoint may lack them.

    Args:
        network: network to change.
        names: names of all tensors missing in the checkpoint.
    """
    for name, parameter in list(network.named_parameters()):
        if name in names and _is_unused(name):
            zeros = torch.zeros(parameter.shape, dtype=parameter.dtype)
            replace_tensor(network, name, nn.Parameter(zeros, False))


def _patterns(network: nn.Module, attribute: str) -> Iterator[re.Pattern[str]]:
    """Yield the name patterns in an attribute of a network's class."""
    for pattern in getattr(network, attribute, None) or ():
        yield re.compile(pattern)


def _is_unused(name: str) -> bool:
    return _UNUSED in name.split(".")


def _is_foreign(network: nn.Module, body: nn.Module, prefix: str, name: str) -> bool:
    """Return whether a surplus tensor is of another architecture, and not of an unused head."""
    own = {part.partition(".")[0] for part in body.state_dict()}
    in_body = name.startswith(prefix) or name.partition(".")[0] in own
    parts = name.split(".")
    expected = network.state_dict().keys()
    is_copy = any(".".join(parts[start:]) in expected for start in range(1, len(parts) - 1))
    parent = ".".join(parts[:-1])
    in_module = bool(parent) and parent in {path for path, _ in network.named_modules()}
    return in_body or is_copy or in_module or bool(_IN_A_STACK.search(name))


def shown(names: Collection[str]) -> str:
    """List the first few names for a message, in natural order."""
    in_order = sorted(names, key=_natural)
    return ", ".join(in_order[:_SHOWN]) + " and more" * (len(names) > _SHOWN)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts layer 2 before layer 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


def replace_tensor(network: nn.Module, name: str, value: Tensor) -> None:
    """Replace a parameter or a buffer of a network."""
    parent, _, child = name.rpartition(".")
    module = network.get_submodule(parent)
    tensors: dict[str, Any] = module._parameters if child in module._parameters else module._buffers
    tensors[child] = value


def of_another_shape(name: str, stored: tuple[int, ...], expected: tuple[int, ...]) -> ModelError:
    """Return the error for a tensor whose shape differs between checkpoint and network."""
    return ModelError(
        f"{name} has the shape {list(stored)} in the checkpoint and {list(expected)} in the "
        "model's configuration; config.json and weights belong to different models; download both "
        "again"
    )
