"""Export of an adapter or a prefix to PEFT's files, which transformers' tools can read.

LoRA-FA is a LoRA with a frozen A, so PEFT reads it as LoRA. The export generates A from the
layout's seed. B holds the trained numbers. If A was trained too, the caller passes the trained A.
"""

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save

from samara.shared.errors import ModelError
from samara.shared.model.loading import BaseModel
from samara.shared.model.low_rank_factors import low_rank_factors
from samara.shared.protocol.layout import Layout
from samara.shared.storage.files import write_durably

WEIGHTS_FILE, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"
_COUNTS_OF_EXPERTS = "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"
_NAMES_OF_EXPERTS = "gate_proj", "up_proj", "down_proj"
_STATE_SPACES = "falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h"
_NAMES_IN_STATE_SPACES = "out_proj", "conv1d"
"""Names of layers that PEFT refuses to adapt in state-space models."""
_TASK_TYPES = {"causal": "CAUSAL_LM", "masked": None, "encoder": "FEATURE_EXTRACTION"}


def write_peft_adapter(
    base: BaseModel,
    name: str,
    layout: Layout,
    numbers: NDArray[np.float32],
    folder: Path,
    trained_a: Sequence[NDArray[np.float32]] | None = None,
) -> None:
    """Write an adapter as ``adapter_model.safetensors`` and ``adapter_config.json``.

    Args:
        base: base model of the adapter; only its structure is used.
        name: path or name of the base model, for PEFT's configuration.
        layout: layout of the adapter. A label bias is left out, because PEFT has none.
        numbers: trained numbers, float32 [d].
        folder: folder for the files; it is created if it is missing.
        trained_a: A of every adapted layer, float32 [r, in]; None for the frozen matrices.

    Raises:
        ModelError: if the layout belongs to another model, or PEFT would misread the adapter.
        OSError: if the folder cannot be written.
    """
    layers = list(low_rank_factors(base, layout, numbers, trained_a))
    names = [layer.name for layer in layers]
    _check_readable(base, names)
    body = next(name for name, module in base.network.named_modules() if module is base.body)
    prefix = f"{body}." if body else ""
    weights = {}
    for layer in layers:
        key = f"base_model.model.{prefix}{layer.name}"
        weights[f"{key}.lora_A.weight"] = torch.from_numpy(layer.a.copy())
        weights[f"{key}.lora_B.weight"] = torch.from_numpy(layer.b.copy())
    settings = {
        "peft_type": "LORA",
        "task_type": _task_type(base),
        "base_model_name_or_path": name,
        "r": layout.rank,
        "lora_alpha": layout.alpha,
        "target_modules": [prefix + name for name in names],
        "fan_in_fan_out": any(type(layer.module).__name__ == "Conv1D" for layer in layers),
        "bias": "none",
        "lora_dropout": 0.0,
        "use_rslora": False,
        "inference_mode": True,
    }
    _write(folder, weights, settings)


def _task_type(base: BaseModel) -> str | None:
    """Return PEFT's task type for a model, or None if the model does not accept `inputs_embeds`."""
    takes_embeddings = "inputs_embeds" in inspect.signature(base.network.forward).parameters
    return _TASK_TYPES[base.family] if takes_embeddings else None


def _check_readable(base: BaseModel, names: Sequence[str]) -> None:
    """Raise a ModelError if PEFT would refuse the layers, or mistake them for expert weights."""
    config = base.network.config.get_text_config()
    refused = [n for n in names if n.rpartition(".")[2] in _NAMES_IN_STATE_SPACES]
    if refused and base.network.config.model_type in _STATE_SPACES:
        raise ModelError(
            f"{base.folder}: PEFT does not adapt {refused[0]} of a state-space model; export the "
            "whole model, or adapt other layers"
        )
    has_experts = any(hasattr(config, name) for name in _COUNTS_OF_EXPERTS)
    if has_experts and (taken := [n for n in names if n.rpartition(".")[2] in _NAMES_OF_EXPERTS]):
        raise ModelError(
            f"{base.folder}: PEFT would mistake {taken[0]} for a part of the model's experts and "
            "load a different adapter; export the whole model, or adapt only the attention"
        )


def write_peft_prefix(
    base: BaseModel, name: str, prefix: NDArray[np.float32], folder: Path
) -> None:
    """Write a prefix in PEFT's format for prefix tuning.

    Args:
        base: base model of the prefix; only its structure is used.
        name: path or name of the base model, for PEFT's configuration.
        prefix: keys and values of m tokens in every layer, float32 [2·layers, heads, m, features of
            a head].
        folder: folder for the files; it is created if it is missing.

    Raises:
        OSError: if the folder cannot be written.
    """
    parts, heads, length, head_features = prefix.shape
    # A row of PEFT's embedding belongs to a token. It holds key and value of each layer, by head.
    embeddings = np.ascontiguousarray(prefix.transpose(2, 0, 1, 3)).reshape(length, -1)
    settings = {
        "peft_type": "PREFIX_TUNING",
        "task_type": _TASK_TYPES[base.family],
        "base_model_name_or_path": name,
        "num_virtual_tokens": length,
        "token_dim": heads * head_features,
        "num_transformer_submodules": 1,
        "num_attention_heads": heads,
        "num_layers": parts // 2,
        "prefix_projection": False,
        "inference_mode": True,
    }
    _write(folder, {"prompt_embeddings": torch.from_numpy(embeddings)}, settings)


def _write(folder: Path, weights: Mapping[str, torch.Tensor], settings: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_durably(folder / WEIGHTS_FILE, save(dict(weights), {"format": "pt"}))
    write_durably(folder / CONFIG_FILE, (json.dumps(settings, indent=2) + "\n").encode())
