"""Spaces of low-rank adapters: LoRA, which trains A and B, and LoRA-FA, which trains B alone."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from samara.client.spaces.space import SharedPassSpace, SpaceTensor
from samara.shared.model.frozen_a import frozen_matrices
from samara.shared.model.loading import BaseModel
from samara.shared.model.lora_fa import Adapter, LoRAFALinear, inject
from samara.shared.protocol.layout import ADAPTER_GROUP, Layout
from samara.shared.protocol.layout import Tensor as LayoutTensor
from samara.shared.protocol.replay import Backend
from samara.shared.settings.sections import AdapterSettings


class LowRankSpace(SharedPassSpace):
    """A space of low-rank adapters.

    Args:
        adapter: adapters in the model.
        layout: names and shapes of the tensors of θ.
        theta: float32 [d] on the model's torch device, the initial θ.
        backend: replay backend that computes directions.
    """

    def __init__(self, adapter: Adapter, layout: Layout, theta: Tensor, backend: Backend) -> None:
        tensors = [SpaceTensor(t.name, (t.rows, t.columns)) for t in layout.tensors]
        super().__init__(tensors, adapter, layout, theta, backend)


class LoRAFASpace(LowRankSpace):
    """The space of B of every adapted layer and, if configured, of the label bias.

    Args:
        base: model into which the adapters are inserted, in place.
        settings: settings of the adapters.
        labels: number of labels, for the label bias.
        backend: replay backend that computes directions.

    Raises:
        ModelError: if the settings do not fit the model.
    """

    kind = "lora-fa"

    def __init__(
        self, base: BaseModel, settings: AdapterSettings, labels: int, backend: Backend
    ) -> None:
        adapter = inject(base, settings, labels)
        theta = torch.zeros(adapter.layout.size, device=base.network.device)
        super().__init__(adapter, adapter.layout, theta, backend)


class LoRASpace(LowRankSpace):
    """The space of A and B of every adapted layer (MeZO, appendix E.5), and of the label bias.

    All matrices A come first, then the tensors of the adapters' layout. A starts as the frozen A of
    LoRA-FA, and B starts as zero.

    Args:
        base: model into which the adapters are inserted, in place.
        settings: settings of the adapters.
        labels: number of labels, for the label bias.
        backend: backend that draws directions.

    Raises:
        ModelError: if the settings do not fit the model.
    """

    kind = "lora"

    def __init__(
        self, base: BaseModel, settings: AdapterSettings, labels: int, backend: Backend
    ) -> None:
        adapter = inject(base, settings, labels)
        adapted = [module for module in base.body.modules() if isinstance(module, LoRAFALinear)]
        by_name = {layer.name: layer for layer in adapted}
        layers = [by_name[t.name] for t in adapter.layout.tensors if t.name in by_name]
        a = frozen_matrices(adapter.layout, [layer.a.shape[1] for layer in layers])
        a_tensors = [
            LayoutTensor(layer.a_name, layer.a.shape[0], layer.a.shape[1], ADAPTER_GROUP)
            for layer in layers
        ]
        layout = replace(adapter.layout, tensors=(*a_tensors, *adapter.layout.tensors))
        initial = [*(matrix.ravel() for matrix in a), np.zeros(adapter.layout.size, np.float32)]
        theta = torch.from_numpy(np.concatenate(initial)).to(base.network.device)
        super().__init__(adapter, layout, theta, backend)
