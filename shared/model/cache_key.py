"""Keys of cached values: each is a hash of all inputs of the value's computation."""

import hashlib
import json
from functools import cache
from importlib.metadata import version
from typing import Any

import torch

from samara.shared.model.loading import BaseModel
from samara.shared.model.quantized import Int8Embedding
from samara.shared.model.scorers import Scorer


def cache_key(kind: str, **inputs: object) -> bytes:
    """Return a 32-byte hash of all inputs of a cached value.

    Args:
        kind: kind of the value, including the version of its computation and file format.
        inputs: all inputs of the computation by name: JSON values, bytes and tensors.
    """
    content = json.dumps([kind, inputs], sort_keys=True, default=_as_json)
    return hashlib.sha256(content.encode()).digest()


def model_inputs(base: BaseModel) -> dict[str, object]:
    """Return the properties of a model and a machine that decide the model's outputs.

    The last bits of outputs depend on library versions, on the device and, on a CPU, on its
    instruction set. They also depend on the number of torch's threads, which is not included,
    because it may change after loading. Callers add it if it matters.
    """
    quantized_by = ["bitsandbytes"] if base.quantization != "none" else []
    has_tables = isinstance(base.network.get_input_embeddings(), Int8Embedding)
    return {
        "model_id": base.model_id,
        "family": base.family,
        "pooling": str(base.pooling),
        "quantization": base.quantization + " with int8 tables" * has_tables,
        "dtype": str(base.network.dtype),
        "attention": getattr(base.network.config, "_attn_implementation", None),
        "device": _device(base.network.device),
        "versions": {name: _version(name) for name in ("torch", "transformers", *quantized_by)},
    }


def scorer_inputs(scorer: Scorer) -> dict[str, object]:
    """Return the properties of a scorer that decide the scores of prompts."""
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
    """Convert bytes or a tensor to a JSON value that depends on its content.

    Raises:
        TypeError: if the value is neither bytes nor a tensor.
    """
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, torch.Tensor):
        numbers = value.detach().cpu().reshape(-1).view(torch.uint8).numpy()
        content = hashlib.sha256(numbers.tobytes()).hexdigest()
        return {"tensor": content, "shape": list(value.shape), "dtype": str(value.dtype)}
    raise TypeError(f"a cache key cannot be made from {type(value).__name__}")
