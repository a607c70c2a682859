"""LoRA-FA: y = W·x + (alpha / r)·B·A·x with A frozen and only B trained.

LoRA-FA comes from Zhang et al., "LoRA-FA: memory-efficient low-rank adaptation" (2023). P-RGE uses
it too (section 3.3). A forward pass holds the rows of P perturbations in one batch. In the first
adapted layer all perturbations share W·x and A·x. Only the last small product, one batched matmul
with B ± ε·z, is computed for each perturbation. Plain LoRA trains A too: if the perturbed adapters
contain a tensor for a layer's A, it replaces the frozen A, and the perturbations share only W·x.

Two modules supply the perturbed matrices B. `samara.shared.model.perturbations` stores one master
copy of B, and computes the perturbed matrices during the forward pass (P-RGE, section 3.2).
`samara.shared.model.dual_forwarding` stores all perturbed matrices (P-RGE, Algorithm 1).
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor as TorchTensor
from torch import nn

from samara.shared.errors import ConfigError, ModelError
from samara.shared.model.damping import damping_recipe
from samara.shared.model.frozen_a import frozen_matrices
from samara.shared.model.layer_selection import adapted_layers, chosen_blocks, features
from samara.shared.model.loading import BaseModel
from samara.shared.model.perturbations import Perturbations, PerturbedAdapters
from samara.shared.protocol.basis import Basis, read_basis
from samara.shared.protocol.layout import (
    ADAPTER_GROUP,
    LABEL_BIAS_GROUP,
    READOUT_GROUP,
    Layout,
    Tensor,
)
from samara.shared.protocol.start import Start, read_start
from samara.shared.settings.sections import AdapterSettings

LABEL_BIAS = "label bias"
READOUT = "readout"


class LoRAFALinear(nn.Module):
    """A frozen linear layer with the perturbed adapters of a pass.

    A pass holds n rows for each of P perturbations of each of C clients. The input x is [P·C·n, …,
    in], ordered by perturbation and then by client. The output is [P·C·n, …, out]. A is [r, in], or
    [P·C, r, in] if A is trained. B is [P·C, out, r].
    """

    a: TorchTensor

    def __init__(self, base: nn.Module, a: TorchTensor, name: str, adapter: "Adapter") -> None:
        super().__init__()
        self.base = base
        self.register_buffer("a", a, persistent=False)
        self.name = name
        self._adapter = [adapter]  # torch registers no submodule inside a list

    @property
    def adapter(self) -> "Adapter":
        """The adapter that the layer belongs to."""
        return self._adapter[0]

    @property
    def a_name(self) -> str:
        """The name of the layer's A among the tensors of adapters that train A."""
        return f"{self.name}.A"

    def forward(self, x: TorchTensor) -> TorchTensor:
        """Compute W·x + scale·B·(A·x) with the perturbed B of each row, and its A if A is trained.

        At the pass's first adapted layer, x has the same rows for all perturbations. So W·x and,
        with a frozen A, A·x are computed for the rows of one perturbation only.
        """
        perturbations = self.adapter.perturbations
        if perturbations is None:
            output: TorchTensor = self.base(x)
            return output
        rows = len(x)
        shared = self.adapter.is_shared_across_perturbations(x)
        distinct = x[: rows // perturbations.count] if shared else x
        b = perturbations.tensor(self.name).to(x.dtype)
        groups = perturbations.clients * (1 if shared else perturbations.count)
        projected = self._project(x, distinct, perturbations)
        by_perturbation = self.base(distinct).reshape(groups, -1, b.shape[1])
        if shared and perturbations.clients > 1:
            by_perturbation = by_perturbation.repeat(perturbations.count, 1, 1)
        added = torch.baddbmm(
            by_perturbation, projected, b.transpose(1, 2), alpha=self.adapter.scale
        )
        return added.view(*x.shape[:-1], -1)

    def _project(
        self, x: TorchTensor, distinct: TorchTensor, perturbations: PerturbedAdapters
    ) -> TorchTensor:
        """Return A·x for the rows of every perturbation and client, [P·C, n, r].

        Args:
            x: all rows, as in `forward`.
            distinct: `x`, or the rows of one perturbation if the rows of all are equal.
            perturbations: perturbed adapters of the pass.
        """
        groups = perturbations.count * perturbations.clients
        a = self.a
        if perturbations.layout.has(self.a_name):
            trained = perturbations.tensor(self.a_name).to(x.dtype)
            if groups > 1:
                by_group = x.reshape(groups, -1, x.shape[-1])
                return torch.bmm(by_group, trained.transpose(1, 2))
            a = trained[0]
        projected = nn.functional.linear(distinct, a)
        if distinct is x:
            return projected.reshape(groups, -1, len(a))
        projected = projected.reshape(perturbations.clients, -1, len(a))
        if perturbations.clients == 1:
            return projected.expand(perturbations.count, -1, -1)
        return projected.repeat(perturbations.count, 1, 1)


@dataclass(eq=False)
class ForwardPass:
    """The state of a forward pass that may be suspended while other passes run.

    Attributes:
        perturbations: perturbed adapters of the pass.
        first_input: input of the first adapted layer of the pass; None before this layer has run.
    """

    perturbations: PerturbedAdapters
    first_input: weakref.ref[TorchTensor] | None = None


class Adapter:
    """LoRA-FA on selected layers of a base model. The adapter is inactive outside a forward pass.

    Attributes:
        layout: names and shapes of the trained tensors.
        first_block: index of the lowest adapted block; without an adapted block, the number of
            blocks. The blocks below this index are the trunk.
        basis: basis of the adapters' tensors; None without a basis.
        start: initial weights of the adapter; None to start from the base model.
        packs: whether several sequences may share a row of a forward pass.
        perturbations: perturbed adapters of the current pass; None outside a pass.
    """

    def __init__(
        self,
        layout: Layout,
        first_block: int,
        basis: Basis | None = None,
        start: Start | None = None,
        packs: bool = True,
    ) -> None:
        self.layout, self.first_block = layout, first_block
        self.basis, self.start, self.packs = basis, start, packs
        self.scale = layout.alpha / layout.rank
        self.perturbations: PerturbedAdapters | None = None
        self._first_input: weakref.ref[TorchTensor] | None = None

    @contextmanager
    def using(self, perturbations: PerturbedAdapters) -> Iterator[None]:
        """Use these perturbed adapters in the one forward pass that runs inside the context."""
        with self.resume(ForwardPass(perturbations)):
            yield

    @contextmanager
    def resume(self, forward_pass: ForwardPass) -> Iterator[None]:
        """Continue a suspended forward pass inside the context, and suspend it at the end."""
        self.perturbations, self._first_input = forward_pass.perturbations, forward_pass.first_input
        try:
            yield
        finally:
            forward_pass.first_input = self._first_input
            self.perturbations = self._first_input = None

    def is_shared_across_perturbations(self, x: TorchTensor) -> bool:
        """Return whether a tensor is the input of the pass's first adapted layer."""
        if self._first_input is None:
            self._first_input = weakref.ref(x)
        return self._first_input() is x


def inject(base: BaseModel, settings: AdapterSettings, labels: int) -> Adapter:
    """Inject LoRA-FA layers into a base model, in place.

    A readout becomes part of the layout, but changes no layer of the model.

    Args:
        base: model whose matching linear layers are wrapped.
        settings: projections and blocks to adapt, rank, alpha, and the seed of A.
        labels: number of scores of a row, for label bias and readout; 0 if this number varies.

    Raises:
        ModelError: if no layer matches, or a named block does not exist; or if the basis or the
            start cannot be read or belongs to another model or adapter.
        ConfigError: if a label bias or a readout is requested without labels, or the readout's
            damping file cannot be read.
    """
    if settings.label_bias and labels < 2:
        raise ConfigError(
            "adapter.label-bias: the task's rows do not choose between the same labels; set "
            "adapter.label-bias = false, or choose a classification task"
        )
    if settings.has_readout and labels < 2:
        raise ConfigError(
            f"adapter.layers = {settings.layers}: the task's rows do not choose between the same "
            "labels, so every query of a readout would compute scores for the whole vocabulary; "
            "set adapter.layers = top:1, or choose a classification task"
        )
    layers = adapted_layers(base, settings)
    tensors = [
        Tensor(name, features(module)[1], settings.rank, ADAPTER_GROUP)
        for name, module in layers.items()
    ]
    if settings.has_readout:
        tensors.append(Tensor(READOUT, labels - 1, base.features, READOUT_GROUP))
    if settings.label_bias:
        tensors.append(Tensor(LABEL_BIAS, labels, 1, LABEL_BIAS_GROUP))
    layout = Layout(
        tuple(tensors),
        settings.rank,
        settings.alpha,
        settings.seed,
        settings.distribution,
        damping=damping_recipe(settings.damping) if settings.has_readout else None,
    )
    basis = read_basis(settings.basis) if settings.basis else None
    if basis is not None:
        _check_origin(basis, base, layout)
        layout = replace(layout, basis=basis.reference)
    start = read_start(settings.start) if settings.start else None
    if start is not None:
        start.check_origin(layout, base.model_id)
        layout = replace(layout, start=start.sha256)
    chosen = chosen_blocks(settings.inner_layers, len(base.blocks))
    adapter = Adapter(layout, min(chosen, default=len(base.blocks)), basis, start)
    sizes = [features(module)[0] for module in layers.values()]
    matrices = frozen_matrices(layout, sizes)
    for a, (name, module) in zip(matrices, layers.items(), strict=True):
        parent, _, child = name.rpartition(".")
        frozen = torch.from_numpy(a).to(base.network.device, base.network.dtype)
        wrapped = LoRAFALinear(module, frozen, name, adapter)
        setattr(base.body.get_submodule(parent), child, wrapped)
    return adapter


def _check_origin(basis: Basis, base: BaseModel, layout: Layout) -> None:
    """Check that a basis belongs to this model and adapter."""
    for name, origin, expected in (
        ("model", basis.origin.model_id, base.model_id.hex()),
        ("adapter", basis.origin.adapter_hash, layout.adapter_hash.hex()),
    ):
        if origin != expected:
            raise ModelError(
                f"adapter.basis: this basis was made for {name} {origin[:12]}, but the run has "
                f"{name} {expected[:12]}; write a basis for these settings with samara adapter "
                "basis"
            )
    if basis.element_count != layout.adapter_element_count:
        raise ModelError(
            f"adapter.basis: this basis is for {basis.element_count:,} elements, but the adapter "
            f"has {layout.adapter_element_count:,}; write a basis with samara adapter basis"
        )


def empty_adapter(first_block: int = 0) -> tuple[Adapter, Perturbations]:
    """Return an adapter without tensors, and perturbations that leave the model unchanged.

    Args:
        first_block: index of the block that counts as the lowest adapted block.
    """
    layout = Layout((), 1, 1.0, 0, "gaussian")
    return Adapter(layout, first_block), Perturbations(layout, torch.zeros(0))
