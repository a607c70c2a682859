"""Low-rank adapters: LoRA, which trains A and B, and LoRA-FA, which trains B alone."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from client.spaces.space import NO_SEEDS, FlatSpace, Run, SequentialSpace, SpaceTensor
from shared.directions import BOTH_SIDES
from shared.model.loading import BaseModel
from shared.model.lora_fa import (
    LoRAFALinear,
    Perturbations,
    PerturbedAdapters,
    frozen_matrices,
    inject,
)
from shared.model.replay_torch import draw_directions
from shared.replay import Backend
from shared.sections import AdapterSettings


class LoRAFASpace(FlatSpace):
    """B of every adapted layer, and the label bias if there is one; many points in a pass.

    Args:
        base: gets the adapters, in place.
        settings: of the adapters.
        labels: number of labels, for the label bias.
        backend: draws directions.

    Raises:
        ModelError: if the settings do not fit the model.
    """

    kind = "lora-fa"

    def __init__(
        self, base: BaseModel, settings: AdapterSettings, labels: int, backend: Backend
    ) -> None:
        adapter = inject(base, settings, labels)
        tensors = [SpaceTensor(t.name, (t.rows, t.columns)) for t in adapter.layout.tensors]
        theta = torch.zeros(adapter.layout.size, device=base.network.device)
        super().__init__(tensors, adapter, theta, backend, settings.distribution)

    def evaluate(
        self,
        run: Run,
        seeds: NDArray[np.uint64] = NO_SEEDS,
        epsilon: float = 0.0,
        signs: tuple[int, ...] = BOTH_SIDES,
    ) -> NDArray[np.float32]:
        """Run a forward engine at all points at once; its schedule groups them into passes."""
        layout = self.adapter.layout
        if not len(seeds):
            return run(Perturbations(layout, self._theta))
        z = draw_directions(self._backend, seeds, self.size, self.distribution, 0, self._device)
        return run(Perturbations(layout, self._theta, z, epsilon, signs))


class LoRASpace(FlatSpace, SequentialSpace):
    """A and B of every adapted layer (MeZO, appendix E.5), and the label bias if there is one.

    All A's come first, then what the adapters' layout holds. A begins as LoRA-FA's frozen A, B at
    zero. The layers hold the A's of the point that was evaluated last.

    Args:
        base: gets the adapters, in place.
        settings: of the adapters.
        labels: number of labels, for the label bias.
        backend: draws directions.

    Raises:
        ModelError: if the settings do not fit the model.
    """

    kind = "lora"

    def __init__(
        self, base: BaseModel, settings: AdapterSettings, labels: int, backend: Backend
    ) -> None:
        adapter = inject(base, settings, labels)
        found = [module for module in base.body.modules() if isinstance(module, LoRAFALinear)]
        by_name = {layer.name: layer for layer in found}
        self._layers = [by_name[t.name] for t in adapter.layout.tensors if t.name in by_name]
        a = frozen_matrices(adapter.layout, [layer.a.shape[1] for layer in self._layers])
        tensors = [
            *(SpaceTensor(f"{layer.name}.A", tuple(layer.a.shape)) for layer in self._layers),
            *(SpaceTensor(t.name, (t.rows, t.columns)) for t in adapter.layout.tensors),
        ]
        begin = [*(matrix.ravel() for matrix in a), np.zeros(adapter.layout.size, np.float32)]
        theta = torch.from_numpy(np.concatenate(begin)).to(base.network.device)
        super().__init__(tensors, adapter, theta, backend, settings.distribution)

    def _sides(self, seed: int, epsilon: float) -> Generator[PerturbedAdapters]:
        for theta in self._around(seed, epsilon):
            yield self._placed(theta)

    @contextmanager
    def _center(self) -> Iterator[PerturbedAdapters]:
        yield self._placed(self._theta)

    def _placed(self, theta: Tensor) -> Perturbations:
        """A's into their layers, rounded to the compute type; the rest as a point."""
        start = 0
        for layer in self._layers:
            layer.a.view(-1).copy_(theta[start : start + layer.a.numel()])
            start += layer.a.numel()
        return Perturbations(self.adapter.layout, theta[start:])
