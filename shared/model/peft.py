"""Export of an adapter as PEFT's LoRA, which the tools around transformers read.

LoRA-FA is a LoRA with a frozen A: A is regenerated from the layout's seed, B holds the trained
numbers, and alpha / r has the same meaning in both.
"""

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save

from shared.errors import ModelError
from shared.files import write_durably
from shared.layout import ADAPTER_GROUP, Layout
from shared.model.frozen_a import frozen_matrices
from shared.model.layer_selection import features
from shared.model.loading import BaseModel

WEIGHTS_FILE, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"
_TASK_TYPES = {"causal": "CAUSAL_LM", "masked": None, "encoder": "FEATURE_EXTRACTION"}


def write_peft_adapter(
    base: BaseModel, name: str, layout: Layout, numbers: NDArray[np.float32], folder: Path
) -> None:
    """Write an adapter as ``adapter_model.safetensors`` and ``adapter_config.json``.

    Args:
        base: base model of the adapter; only its structure is used.
        name: path or name of the base model, for PEFT's configuration.
        layout: layout of the adapter. A label bias is left out: PEFT has none.
        numbers: trained numbers, float32 [d].
        folder: folder for the files; it is created if it is missing.

    Raises:
        ModelError: if the layout belongs to another model.
        OSError: if the folder cannot be written.
    """
    names = [tensor.name for tensor in layout.tensors if tensor.group == ADAPTER_GROUP]
    modules = dict(base.body.named_modules())
    if missing := [name for name in names if name not in modules]:
        raise ModelError(f"{base.folder}: has no {missing[0]}; the adapter is of another model")
    body = next(name for name, module in base.network.named_modules() if module is base.body)
    prefix = f"{body}." if body else ""
    sizes = [features(modules[name])[0] for name in names]
    weights = {}
    for tensor, a in zip(names, frozen_matrices(layout, sizes), strict=True):
        elements, rows = layout.tensor_slice(tensor)
        b = numbers[elements].reshape(rows, layout.rank)
        key = f"base_model.model.{prefix}{tensor}"
        weights[f"{key}.lora_A.weight"] = torch.from_numpy(a)
        weights[f"{key}.lora_B.weight"] = torch.from_numpy(b.copy())
    settings = {
        "peft_type": "LORA",
        "task_type": _TASK_TYPES[base.family],
        "base_model_name_or_path": name,
        "r": layout.rank,
        "lora_alpha": layout.alpha,
        "target_modules": [prefix + tensor for tensor in names],
        "fan_in_fan_out": any(type(modules[name]).__name__ == "Conv1D" for name in names),
        "bias": "none",
        "lora_dropout": 0.0,
        "use_rslora": False,
        "inference_mode": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_durably(folder / WEIGHTS_FILE, save(weights, {"format": "pt"}))
    write_durably(folder / CONFIG_FILE, (json.dumps(settings, indent=2) + "\n").encode())
