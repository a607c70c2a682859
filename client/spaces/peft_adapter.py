"""Spaces of adapters computed by PEFT: DoRA and VeRA.

DoRA (Liu et al., 2024) trains LoRA's A and B and, for every output of a layer, the length m of its
row of weights: W' = m·(W + s·B·A)/‖W + s·B·A‖. VeRA (Kopiczko et al., 2024) trains two vectors b
and d for every layer: W' = W + Λ_b·B·Λ_d·A, where A and B are random, frozen and the same in all
layers. P-RGE compares DoRA and VeRA with LoRA and LoRA-FA (table 6).
"""

import json
import math
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor, nn

from samara.client.spaces.parameter_space import ParameterSpace
from samara.shared.errors import ModelError
from samara.shared.model.frozen_a import frozen_a
from samara.shared.model.layer_selection import adapted_layers, chosen_blocks, features
from samara.shared.model.loading import BaseModel
from samara.shared.model.peft import CONFIG_FILE, WEIGHTS_FILE
from samara.shared.protocol.directions import query_seeds
from samara.shared.protocol.replay import Backend
from samara.shared.settings.sections import AdapterSettings
from samara.shared.storage.files import make_folder, write_durably

PeftKind = Literal["dora", "vera"]
_ADAPTER = "default"
_SHARED = ("vera_A", "vera_B")


class PeftSpace(ParameterSpace):
    """The space of all trained parameters of a PEFT adapter, in PEFT's order.

    The random matrices come from `samara.shared.protocol.directions`, so they are the same on every
    machine. DoRA's initial lengths are computed from the weights, so they may differ between
    machines.

    Args:
        base: model into which the adapter is injected, in place.
        kind: kind of the adapter.
        settings: adapted layers, rank and seed; only DoRA uses alpha.
        backend: backend that draws directions.

    Raises:
        ModelError: if PEFT is not installed, or the settings or the adapter do not fit the model.
    """

    def __init__(
        self, base: BaseModel, kind: PeftKind, settings: AdapterSettings, backend: Backend
    ) -> None:
        self.kind, self.portable = kind, kind != "dora"
        layers = adapted_layers(base, settings)
        self.config = _inject(base, kind, settings, list(layers))
        _set_random_matrices(base, settings, layers)
        named = {
            name: parameter.detach()
            for name, parameter in base.network.named_parameters()
            if f".{_ADAPTER}" in name
        }
        chosen = chosen_blocks(settings.inner_layers, len(base.blocks))
        super().__init__(base.network, named, backend, settings.distribution, min(chosen))

    def write(self, folder: Path, base: str) -> None:
        """Write the adapter in PEFT's file format.

        Args:
            folder: folder for the files, created if missing.
            base: path or name of the base model.

        Raises:
            OSError: if the folder cannot be written.
        """
        weights = {
            "base_model.model." + _exported_name(name): tensor.cpu()
            for name, tensor in self.named_tensors()
        }
        if self.kind == "vera":
            layer = next(module for module in self._network.modules() if hasattr(module, "vera_A"))
            for name in _SHARED:
                weights[f"base_model.{name}"] = getattr(layer, name)[_ADAPTER].cpu().clone()
        self.config.base_model_name_or_path, self.config.inference_mode = base, True
        content = {
            key: sorted(value) if isinstance(value, set) else value
            for key, value in self.config.to_dict().items()
        }
        make_folder(folder)
        write_durably(folder / WEIGHTS_FILE, save(weights, {"format": "pt"}))
        write_durably(folder / CONFIG_FILE, (json.dumps(content, indent=2) + "\n").encode())


def _inject(base: BaseModel, kind: PeftKind, settings: AdapterSettings, names: list[str]) -> Any:
    """Inject a PEFT adapter into a base model, in place, and return its configuration."""
    try:
        import peft
    except ImportError as error:
        raise ModelError(
            f"space = {kind} is computed by PEFT, which is not installed; run "
            "pip install 'samara-fl[peft]'"
        ) from error
    body = next(name for name, module in base.network.named_modules() if module is base.body)
    wanted = {
        "r": settings.rank,
        "target_modules": [f"{body}.{name}" if body else name for name in names],
        "fan_in_fan_out": any(
            type(base.body.get_submodule(name)).__name__ == "Conv1D" for name in names
        ),
    }
    config: Any
    if kind == "dora":
        config = peft.LoraConfig(**wanted, lora_alpha=settings.alpha, use_dora=True)
    else:
        config = peft.VeraConfig(**wanted, projection_prng_key=settings.seed % 2**32)
    try:
        with warnings.catch_warnings():
            # PEFT uses parts of transformers that are deprecated.
            warnings.simplefilter("ignore", FutureWarning)
            peft.get_peft_model(base.network, config, autocast_adapter_dtype=False)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise ModelError(
            f"{base.folder}: PEFT cannot adapt the layers by {kind}: {error}; choose another space"
        ) from error
    return config


@torch.no_grad()
def _set_random_matrices(
    base: BaseModel, settings: AdapterSettings, layers: dict[str, nn.Module]
) -> None:
    """Replace an injected adapter's random matrices with matrices drawn from its seed."""
    seeds = query_seeds(settings.seed, 0, 1, max(2, len(layers)))[0]
    sizes = [features(layer) for layer in layers.values()]
    widest = max(own[0] for own in sizes), max(own[1] for own in sizes)
    for name, seed, (inputs, _) in zip(layers, seeds, sizes, strict=False):
        layer: Any = base.body.get_submodule(name)
        if hasattr(layer, "lora_A"):
            _fill(layer.lora_A[_ADAPTER].weight, frozen_a(int(seed), settings.rank, inputs))
        else:  # with the variance of Kaiming initialization, as in the paper
            a = frozen_a(int(seeds[0]), settings.rank, widest[0])
            b = frozen_a(int(seeds[1]), widest[1], settings.rank)
            _fill(layer.vera_A[_ADAPTER], math.sqrt(2) * a)
            _fill(layer.vera_B[_ADAPTER], math.sqrt(2) * b)


def _fill(tensor: Tensor, values: NDArray[np.float32]) -> None:
    tensor.copy_(torch.from_numpy(values.astype(np.float32)))


def _exported_name(name: str) -> str:
    """Return a parameter's name in PEFT's files, which omits the adapter's name."""
    if "lora_magnitude_vector" in name:
        return name.removesuffix(f".{_ADAPTER}.weight")
    return name.replace(f".{_ADAPTER}", "")
