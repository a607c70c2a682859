"""LoRA-FA: y = W·x + (alpha / r)·B·A·x with A frozen and only B trained.

LoRA-FA is Zhang et al., "LoRA-FA: memory-efficient low-rank adaptation" (2023), as used by P-RGE
(section 3.3). A pass carries the rows of P points at once: W·x and A·x are shared, and only the
last small product is per point, one batched matmul with B ± ε·z.

There are two forms of this dual-forwarding layer, which differ in where the perturbed B's come
from: `Perturbations` keeps one master copy and makes them during the forward (P-RGE, section 3.2),
`shared.model.dual_forwarding` keeps all of them (P-RGE, Algorithm 1).
"""

import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor as TorchTensor
from torch import nn

from shared.directions import BOTH_SIDES, DIRECTION_BITS, Domain, normals, query_seeds
from shared.errors import ConfigError, ModelError
from shared.layout import ADAPTER_GROUP, LABEL_BIAS_GROUP, Layout, Tensor
from shared.model.loading import BaseModel
from shared.model.quantized import QuantizedLinear
from shared.sections import AdapterSettings

LABEL_BIAS = "label bias"
ADVICE = "adapter_projections"
"""In a model's config.json: names of the linear layers that its makers advise to adapt."""
_QUERY_AND_VALUE = (
    ("q_proj", "v_proj"),
    ("query", "value"),
    ("q_lin", "v_lin"),
    ("q", "v"),
    ("query_key_value",),
    ("qkv_proj",),
    ("c_attn",),
    ("Wqkv",),
)


class PerturbedAdapters(Protocol):
    """The adapters that a pass is evaluated at, one per point and client."""

    @property
    def layout(self) -> Layout:
        """Names and shapes of the tensors."""

    @property
    def queries(self) -> int:
        """q, directions; 0 for a single point."""

    @property
    def count(self) -> int:
        """P, points of a client: every sign of every query, sign by sign, or 1."""

    @property
    def clients(self) -> int:
        """C, clients that share the pass; usually 1."""

    def select(self, signs: slice, queries: slice) -> "PerturbedAdapters":
        """Those of some signs and some queries."""

    def tensor(self, name: str) -> TorchTensor:
        """One tensor of all of them, float32 [P·C, rows, columns], points outermost."""


@dataclass(frozen=True, eq=False)
class Perturbations:
    """Perturbed adapters B + s·ε·z of one client, or of several clients that share a pass.

    Only the unperturbed adapters B and the directions z are kept; perturbed tensors are computed
    when a layer needs them. The rows of a pass are ordered by sign, then by query, then by client,
    with equally many rows for each. Rows of several clients are computed as rows of several queries
    are: small products with different B's after the shared W·x and A·x.

    Attributes:
        layout: names and shapes of the tensors.
        center: unperturbed adapter, float32 [d]; [C, d] for C clients.
        directions: z, int16 [q, d]; [C, q, d] for C clients; None evaluates the center alone.
        epsilon: size of the perturbation, ε.
        signs: s, +1 and −1, or one of them.
    """

    layout: Layout
    center: TorchTensor
    directions: TorchTensor | None = None
    epsilon: float = 0.0
    signs: tuple[int, ...] = BOTH_SIDES

    @classmethod
    def from_arrays(
        cls,
        layout: Layout,
        center: NDArray[np.float32],
        directions: NDArray[np.int16] | None = None,
        epsilon: float = 0.0,
        device: torch.device | None = None,
        signs: tuple[int, ...] = BOTH_SIDES,
    ) -> Self:
        """Perturbations from numpy arrays, moved to a device."""
        z = None if directions is None else torch.from_numpy(directions).to(device)
        return cls(layout, torch.from_numpy(center).to(device), z, epsilon, signs)

    @property
    def queries(self) -> int:
        """q, or 0 without directions."""
        return 0 if self.directions is None else self.directions.shape[-2]

    @property
    def count(self) -> int:
        """P: signs · q, or 1 without directions."""
        return len(self.signs) * self.queries or 1

    @property
    def clients(self) -> int:
        """The number of clients, C."""
        return len(self.center) if self.center.ndim == 2 else 1

    def select(self, signs: slice, queries: slice) -> Self:
        """Perturbations of some signs and some queries; there must be directions."""
        assert self.directions is not None
        some = self.directions[..., queries, :]
        return replace(self, directions=some, signs=self.signs[signs])

    def tensor(self, name: str) -> TorchTensor:
        """Compute one tensor of all perturbations, float32 [P·C, rows, columns]."""
        elements, rows = self.layout.tensor_slice(name)
        flat = self.center[..., elements]
        if self.directions is not None:
            step = self.directions[..., elements].movedim(-2, 0).to(torch.float32)
            step *= self.epsilon * 2.0**-DIRECTION_BITS
            flat = torch.cat([flat + sign * step for sign in self.signs])
        return flat.reshape(self.count * self.clients, rows, -1)


class LoRAFALinear(nn.Module):
    """A frozen linear layer with the adapters of the points of a pass.

    Shapes: x [P·C·n, S, in] with the rows of a point side by side, and of a client within it
    → [P·C·n, S, out]; A [r, in]; B [P·C, out, r].
    """

    a: TorchTensor

    def __init__(self, base: nn.Module, a: TorchTensor, name: str, adapter: "Adapter") -> None:
        super().__init__()
        self.base = base
        self.register_buffer("a", a, persistent=False)
        self.name = name
        self._adapter = [
            adapter
        ]  # in a list, so that it is not registered as a part of this module

    def forward(self, x: TorchTensor) -> TorchTensor:
        """W·x + scale·B·(A·x), with B of the row's point.

        Before the first adapter of a pass the rows of all points are alike: there W·x and A·x are
        computed for those of one point only.
        """
        perturbations = self._adapter[0].perturbations
        if perturbations is None:
            output: TorchTensor = self.base(x)
            return output
        rows, length = x.shape[:2]
        alike = self._adapter[0].is_shared_across_perturbations(x)
        own = x[: rows // perturbations.count] if alike else x
        b = perturbations.tensor(self.name).to(x.dtype)
        groups = perturbations.clients * (1 if alike else perturbations.count)
        projected = nn.functional.linear(own, self.a).view(groups, -1, b.shape[2])
        by_perturbation = self.base(own).view(groups, -1, b.shape[1])
        if alike and perturbations.clients == 1:
            projected = projected.expand(perturbations.count, -1, -1)
        elif alike:
            projected = projected.repeat(perturbations.count, 1, 1)
            by_perturbation = by_perturbation.repeat(perturbations.count, 1, 1)
        added = torch.baddbmm(
            by_perturbation, projected, b.transpose(1, 2), alpha=self._adapter[0].scale
        )
        return added.view(rows, length, -1)


@dataclass(eq=False)
class ForwardPass:
    """A pass that may rest while others go on.

    Attributes:
        points: that it is evaluated at.
        first_input: of its first adapted layer, if it has come that far.
    """

    perturbations: PerturbedAdapters
    first_input: weakref.ref[TorchTensor] | None = None


class Adapter:
    """LoRA-FA on chosen layers of a base model; without points the base speaks unchanged.

    Attributes:
        layout: of the trained tensors.
        first_block: index of the lowest block that is adapted; those below are the trunk.
        points: what the pass under way is evaluated at.
    """

    def __init__(self, layout: Layout, first_block: int) -> None:
        self.layout, self.first_block = layout, first_block
        self.scale = layout.alpha / layout.rank
        self.perturbations: PerturbedAdapters | None = None
        self._first_input: weakref.ref[TorchTensor] | None = None

    @contextmanager
    def using(self, perturbations: PerturbedAdapters) -> Iterator[None]:
        """Evaluate the one pass inside the block at these points."""
        with self.resume(ForwardPass(perturbations)):
            yield

    @contextmanager
    def resume(self, one: ForwardPass) -> Iterator[None]:
        """Go on with a pass, which rests again at the end."""
        self.perturbations, self._first_input = one.perturbations, one.first_input
        try:
            yield
        finally:
            one.first_input = self._first_input
            self.perturbations = self._first_input = None

    def is_shared_across_perturbations(self, x: TorchTensor) -> bool:
        """Whether an adapted layer's input is that of the first one in this pass."""
        if self._first_input is None:
            self._first_input = weakref.ref(x)
        return self._first_input() is x


def inject(base: BaseModel, settings: AdapterSettings, labels: int) -> Adapter:
    """Put LoRA-FA layers into a base model, in place.

    Args:
        base: the model; its linear layers that match are wrapped.
        settings: which projections of which blocks, rank, alpha, A's seed.
        labels: scores of a row, for the optional label bias; 0 if rows differ.

    Raises:
        ModelError: naming the candidates if nothing matches, or a block that does not exist.
        ConfigError: if a label bias is wanted where there are no labels.
    """
    if settings.label_bias and labels < 2:
        raise ConfigError(
            "adapter.label-bias: the task's rows do not choose between the same labels; "
            "set it to false, or choose a classification"
        )
    found = adapted_layers(base, settings)
    tensors = [
        Tensor(name, features(module)[1], settings.rank, ADAPTER_GROUP)
        for name, module in found.items()
    ]
    if settings.label_bias:
        tensors.append(Tensor(LABEL_BIAS, labels, 1, LABEL_BIAS_GROUP))
    layout = Layout(
        tuple(tensors), settings.rank, settings.alpha, settings.seed, settings.distribution
    )
    adapter = Adapter(layout, min(_chosen_blocks(settings.layers, len(base.blocks))))
    sizes = [features(module)[0] for module in found.values()]
    matrices = frozen_matrices(layout, sizes)
    for a, (name, module) in zip(matrices, found.items(), strict=True):
        parent, _, child = name.rpartition(".")
        frozen = torch.from_numpy(a).to(base.network.device, base.network.dtype)
        wrapped = LoRAFALinear(module, frozen, name, adapter)
        setattr(base.body.get_submodule(parent), child, wrapped)
    return adapter


def frozen_matrices(layout: Layout, in_features: Sequence[int]) -> list[NDArray[np.float32]]:
    """The frozen A of every adapted layer, float32 [rank, in], in the layout's order."""
    seeds = query_seeds(layout.a_seed, 0, 1, len(in_features))[0]
    return [
        frozen_a(int(seed), layout.rank, size)
        for seed, size in zip(seeds, in_features, strict=True)
    ]


def frozen_a(seed: int, rank: int, features: int) -> NDArray[np.float32]:
    """The frozen matrix A of a layer, float32 [rank, in], entries N(0, 1/in)."""
    numbers = normals(np.array([seed], np.uint64), rank * features, Domain.LORA_A)
    scale = np.float32(2.0**-DIRECTION_BITS / math.sqrt(features))
    return (numbers.astype(np.float32) * scale).reshape(rank, features)


def adapted_layers(base: BaseModel, settings: AdapterSettings) -> dict[str, nn.Module]:
    """The linear layers of the body that the settings choose, by name.

    Raises:
        ModelError: naming the candidates if nothing matches, or a block that does not exist.
    """
    chosen = _chosen_blocks(settings.layers, len(base.blocks))
    prefixes = {_name_of(base.body, base.blocks[index]): index for index in chosen}
    wanted = _advised(base) if settings.projections == "auto" else settings.projections
    return _matching(base.body, prefixes, wanted, str(base.folder))


def _chosen_blocks(layers: str, count: int) -> list[int]:
    if layers == "all":
        return list(range(count))
    if layers.startswith("top:"):
        wanted = int(layers.removeprefix("top:"))
        chosen = list(range(count - wanted, count))
    else:
        chosen = sorted({int(index) for index in layers.split(",")})
    if chosen[0] < 0 or chosen[-1] >= count:
        raise ModelError(
            f"adapter.layers = {layers}: the model has {count} blocks, 0 to {count - 1}"
        )
    return chosen


def _name_of(body: nn.Module, wanted: nn.Module) -> str:
    names: dict[int, str] = {id(module): name for name, module in body.named_modules()}
    return names[id(wanted)]


def features(module: nn.Module) -> tuple[int, int]:
    """(in, out) of a linear layer; transformers' Conv1D keeps its weight transposed."""
    if isinstance(module, nn.Linear | QuantizedLinear):
        return module.in_features, module.out_features
    weight = module.weight
    assert isinstance(weight, TorchTensor)
    return weight.shape[0], weight.shape[1]


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer, plain, quantized or GPT-2's transposed one."""
    return isinstance(module, nn.Linear | QuantizedLinear) or type(module).__name__ == "Conv1D"


def _advised(base: BaseModel) -> str:
    advice = getattr(base.network.config, ADVICE, None)
    if advice is None:
        return "auto"
    if not isinstance(advice, list) or not all(isinstance(name, str) for name in advice):
        raise ModelError(
            f"{base.folder / 'config.json'}: {ADVICE} is {advice!r} and must be a list of names; "
            "correct it, or set adapter.projections"
        )
    return ",".join(advice)


def _matching(
    body: nn.Module, prefixes: dict[str, int], projections: str, folder: str
) -> dict[str, nn.Module]:
    linear = {
        name: module
        for prefix in prefixes
        for name, module in body.named_modules()
        if name.startswith(prefix + ".") and is_linear(module)
    }
    endings = {name.rpartition(".")[2] for name in linear}
    if projections == "auto":
        wanted = next((set(names) for names in _QUERY_AND_VALUE if endings >= set(names)), set())
    else:
        wanted = {name.strip() for name in projections.split(",")}
    if not wanted or wanted - endings:
        missing = ", ".join(sorted(wanted - endings)) or "query and value projections"
        raise ModelError(
            f"{folder}: no linear layer called {missing}; "
            f"set adapter.projections to some of: {', '.join(sorted(endings))}"
        )
    return {name: module for name, module in linear.items() if name.rpartition(".")[2] in wanted}
