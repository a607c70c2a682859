"""Keys of kept values: a key is a hash of everything that its value is a function of."""

import hashlib
import json
from functools import cache
from importlib.metadata import version
from typing import Any

import torch

from samara.shared.model.loading import BaseModel
from samara.shared.model.scorers import Scorer


def cache_key(kind: str, **inputs: object) -> bytes:
    """Return 32 bytes that change with every input of a kept value.

    Args:
        kind: kind of the value, and the version of the way in which it is computed and written.
        inputs: everything that it is a function of: JSON values, bytes and tensors.
    """
    content = json.dumps([kind, inputs], sort_keys=True, default=_as_json)
    return hashlib.sha256(content.encode()).digest()


def model_inputs(base: BaseModel) -> dict[str, object]:
    """Return what the outputs of a model are a function of, beside what it reads.

    Their last bits depend on the versions of libraries, on the device, and, on a CPU, on its
    instructions. The number of torch's threads, by which matrix products on a CPU are divided,
    may change later: where it counts, it is an input of its own.
    """
    quantized_by = ["bitsandbytes"] if base.quantization != "none" else []
    return {
        "model_id": base.model_id,
        "family": base.family,
        "pooling": str(base.pooling),
        "quantization": base.quantization,
        "dtype": str(base.network.dtype),
        "attention": getattr(base.network.config, "_attn_implementation", None),
        "device": _device(base.network.device),
        "versions": {name: _version(name) for name in ("torch", "transformers", *quantized_by)},
    }


def scorer_inputs(scorer: Scorer) -> dict[str, object]:
    """Return what the scores of prompts are a function of, beside the model."""
    own: dict[str, object] = {
        name: value
        for name, value in vars(scorer).items()
        if isinstance(value, (str, int, tuple, list, torch.Tensor))
    }
    return {"kind": type(scorer).__name__} | own


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda {torch.cuda.get_device_name(device)}"
    return f"{device.type} {torch.backends.cpu.get_cpu_capability()}"


@cache
def _version(name: str) -> str:
    return torch.__version__ if name == "torch" else version(name)


def _as_json(value: Any) -> object:
    """Return a value that JSON does not have as one that it has, by its content.

    Raises:
        TypeError: if it is neither bytes nor a tensor.
    """
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, torch.Tensor):
        numbers = value.detach().cpu().reshape(-1).view(torch.uint8).numpy()
        content = hashlib.sha256(numbers.tobytes()).hexdigest()
        return {"tensor": content, "shape": list(value.shape), "dtype": str(value.dtype)}
    raise TypeError(f"{type(value).__name__} is no input that a key can be made of")
