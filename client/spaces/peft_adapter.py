"""Spaces of adapters computed by PEFT: DoRA and VeRA.

DoRA (Liu et al., 2024) trains LoRA's A and B and, for every output of a layer, the length m of its
row of weights: W' = m·(W + s·B·A)/‖W + s·B·A‖. VeRA (Kopiczko et al., 2024) trains two vectors b
and d for every layer: W' = W + Λ_b·B·Λ_d·A, where A and B are random, frozen and the same in all
layers. P-RGE compares DoRA and VeRA with LoRA and LoRA-FA (table 6).
"""

import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor, nn

from samara.client.spaces.parameter_space import ParameterSpace
from samara.client.spaces.space import FlatSpace, SharedPassSpace, SpaceTensor, layout_of
from samara.shared.errors import ModelError
from samara.shared.model.frozen_a import frozen_a
from samara.shared.model.layer_selection import adapted_layers, chosen_blocks, features
from samara.shared.model.loading import BaseModel
from samara.shared.model.lora_fa import Adapter
from samara.shared.model.peft import CONFIG_FILE, WEIGHTS_FILE
from samara.shared.protocol.directions import query_seeds
from samara.shared.protocol.replay import Backend
from samara.shared.settings.sections import AdapterSettings
from samara.shared.storage.files import make_folder, write_durably

PeftKind = Literal["dora", "vera"]
_ADAPTER = "default"
_SHARED = ("vera_A", "vera_B")
_VECTORS = ("vera_lambda_b", "vera_lambda_d")


class PeftSpace(FlatSpace):
    """A space of all trained parameters of a PEFT adapter, in PEFT's order.

    The adapter's random matrices come from `samara.shared.protocol.directions`, so they are the
    same on every machine.
    """

    config: Any
    _network: nn.Module

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


class DoRASpace(ParameterSpace, PeftSpace):
    """The space of DoRA: A, B and the lengths m of every adapted layer.

    The initial lengths are computed from the weights, so their last bits may differ between
    machines.

    Args:
        base: model into which the adapter is injected, in place.
        settings: adapted layers, rank, alpha and seed.
        backend: replay backend that computes directions.

    Raises:
        ModelError: if PEFT is not installed, or the settings or the adapter do not fit the model.
    """

    kind, portable = "dora", False

    def __init__(self, base: BaseModel, settings: AdapterSettings, backend: Backend) -> None:
        self.config, named = _inject(base, "dora", settings)
        first = min(chosen_blocks(settings.inner_layers, len(base.blocks)))
        super().__init__(base.network, named, backend, settings.distribution, first)


class VeRASpace(SharedPassSpace, PeftSpace):
    """The space of VeRA: the vectors b and d of every adapted layer.

    Args:
        base: model into which the adapter is injected, in place.
        settings: adapted layers, rank and seed.
        backend: backend that draws directions.

    Raises:
        ModelError: if PEFT is not installed, or the settings or the adapter do not fit the model.
    """

    kind = "vera"

    def __init__(self, base: BaseModel, settings: AdapterSettings, backend: Backend) -> None:
        self.config, named = _inject(base, "vera", settings)
        self._network = base.network
        tensors = [SpaceTensor(name, tuple(vector.shape)) for name, vector in named.items()]
        layout = layout_of(tensors, settings.distribution)
        first = min(chosen_blocks(settings.inner_layers, len(base.blocks)))
        theta = torch.cat([vector.float() for vector in named.values()])
        super().__init__(tensors, Adapter(layout, first), layout, theta, backend)
        layer: Any
        for name, layer in base.network.named_modules():
            if isinstance(getattr(layer, "vera_lambda_b", None), nn.ParameterDict):
                layer.adapter, layer.forward = self.adapter, self._by_row(name, layer)

    def _by_row(self, name: str, layer: nn.Module) -> Callable[..., Any]:
        """Return a forward function for an adapted layer that gives each row its perturbation."""
        forward = layer.forward
        held = {vector: getattr(layer, vector)._parameters for vector in _VECTORS}
        before = {vector: parameters[_ADAPTER] for vector, parameters in held.items()}

        def run(x: Tensor) -> Any:
            perturbations = self.adapter.perturbations
            if perturbations is None:
                return forward(x)
            try:
                for vector, parameters in held.items():
                    own = perturbations.tensor(f"{name}.{vector}.{_ADAPTER}")
                    rows = own.repeat_interleave(len(x) // len(own), 0) if len(own) > 1 else own
                    rows = rows.view(len(rows), *[1] * (x.ndim - 2), -1)
                    parameters[_ADAPTER] = rows.to(before[vector].dtype)
                return forward(x)
            finally:
                for vector, parameters in held.items():
                    parameters[_ADAPTER] = before[vector]

        return run


def _inject(
    base: BaseModel, kind: PeftKind, settings: AdapterSettings
) -> tuple[Any, dict[str, Tensor]]:
    """Inject a PEFT adapter into a base model, in place.

    Returns:
        The adapter's PEFT configuration, and its parameters by their names in the network.
    """
    try:
        import peft
    except ImportError as error:
        raise ModelError(
            f"space = {kind} is computed by PEFT, which is not installed; run "
            "pip install 'samara-fl[peft]'"
        ) from error
    layers = adapted_layers(base, settings)
    names = list(layers)
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
    _set_random_matrices(base, settings, layers)
    named = base.network.named_parameters()
    return config, {name: own.detach() for name, own in named if f".{_ADAPTER}" in name}


@torch.no_grad()
def _set_random_matrices(
    base: BaseModel, settings: AdapterSettings, layers: dict[str, nn.Module]
) -> None:
    """Replace the random matrices of an injected adapter by matrices computed from its seed."""
    seeds = query_seeds(settings.seed, 0, 1, max(2, len(layers)))[0]
    sizes = [features(layer) for layer in layers.values()]
    widest = max(own[0] for own in sizes), max(own[1] for own in sizes)
    for name, seed, (inputs, _) in zip(layers, seeds, sizes, strict=False):
        layer: Any = base.body.get_submodule(name)
        if hasattr(layer, "lora_A"):
            _fill(layer.lora_A[_ADAPTER].weight, frozen_a(int(seed), settings.rank, inputs))
        else:  # variance of Kaiming initialization, as in the paper
            a = frozen_a(int(seeds[0]), settings.rank, widest[0])
            b = frozen_a(int(seeds[1]), widest[1], settings.rank)
            _fill(layer.vera_A[_ADAPTER], math.sqrt(2) * a)
            _fill(layer.vera_B[_ADAPTER], math.sqrt(2) * b)


def _fill(tensor: Tensor, values: NDArray[np.float32]) -> None:
    tensor.copy_(torch.from_numpy(values.astype(np.float32)))


def _exported_name(name: str) -> str:
    """Return a parameter's name in PEFT's files, without the name of the adapter."""
    if "lora_magnitude_vector" in name:
        return name.removesuffix(f".{_ADAPTER}.weight")
    return name.replace(f".{_ADAPTER}", "")
