"""Trajectories of a toy space."""

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from samara.client.spaces.space import FlatSpace, SequentialSpace, SpaceTensor
from samara.client.tuning.descent import SGD, UpdateRule, UpdateStep
from samara.client.tuning.trajectory import make_header
from samara.client.tuning.trajectory_format import TrajectoryHeader
from samara.shared.model.lora_fa import empty_adapter
from samara.shared.model.perturbations import PerturbedAdapters
from samara.shared.protocol.replay_numba import NumbaBackend

FloatArray = NDArray[np.float32]


class ToySpace(FlatSpace, SequentialSpace):
    """A vector without a model; its points are vectors."""

    kind = "lora"

    def __init__(self, size: int = 20_000, portable: bool = True) -> None:
        adapter, self._no_adapters = empty_adapter()
        begin = np.random.default_rng(size).normal(size=size).astype(np.float32)
        tensors = [SpaceTensor("first", (2, 3)), SpaceTensor("second", (size - 6,))]
        theta = torch.from_numpy(begin)
        super().__init__(tensors, adapter, theta, NumbaBackend(1), "gaussian")
        self.portable = portable

    @property
    def theta(self) -> FloatArray:
        return self.values(0, self.size).numpy().copy()

    def _perturbed(
        self, seed: int, epsilon: float, signs: tuple[int, ...]
    ) -> Generator[PerturbedAdapters]:
        raise NotImplementedError

    @contextmanager
    def _unperturbed(self) -> Iterator[PerturbedAdapters]:
        yield self._no_adapters

    def computing_with(self, theta: torch.Tensor) -> AbstractContextManager[PerturbedAdapters]:
        raise NotImplementedError


def steps_of(count: int, most: int = 2, seed: int = 0) -> list[UpdateStep]:
    """Steps with 1 to `most` directions each."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        n = int(rng.integers(1, most + 1))
        seeds = rng.integers(2**64, size=n, dtype=np.uint64)
        gradients = rng.normal(size=n).astype(np.float32)
        found.append(UpdateStep(seeds, gradients, float(np.float32(rng.uniform(0.001, 0.1))), 0.01))
    return found


MODEL = bytes(range(32))


SGD_UPDATE = SGD()


def header_of(space: ToySpace, update: UpdateRule = SGD_UPDATE, **changes: Any) -> TrajectoryHeader:
    fields: dict[str, Any] = {
        "model_id": MODEL,
        "root": 2**64 - 1,
        "epsilon": 0.01,
        "settings_hash": bytes(32),
    }
    return make_header(space, update, **(fields | changes))
