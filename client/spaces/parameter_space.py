"""Spaces of selected parameters of a network, which are set from θ while the model computes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from samara.client.spaces.space import SequentialFlatSpace, SpaceTensor
from samara.shared.model.lora_fa import empty_adapter
from samara.shared.model.perturbations import PerturbedAdapters
from samara.shared.protocol.directions import Distribution
from samara.shared.protocol.replay import Backend


class ParameterSpace(SequentialFlatSpace):
    """The space of selected parameters of a network, in a given order.

    θ is a separate float32 vector, rounded to the parameters' type for a forward pass.

    Args:
        network: network that owns the parameters.
        named: parameters by their names in the network; a parameter that is tied to one of them is
            not trained.
        backend: replay backend that computes directions.
        distribution: distribution of the directions.
        first_block: index of the lowest block whose output depends on the parameters.
    """

    def __init__(
        self,
        network: nn.Module,
        named: Mapping[str, Tensor],
        backend: Backend,
        distribution: Distribution,
        first_block: int = 0,
    ) -> None:
        adapter, self._no_adapters = empty_adapter(first_block)
        self._network = network
        tensors = [SpaceTensor(name, tuple(tensor.shape)) for name, tensor in named.items()]
        theta = torch.cat([tensor.detach().float().reshape(-1) for tensor in named.values()])
        super().__init__(tensors, adapter, theta, backend, distribution)

    @contextmanager
    def computing_with(self, theta: Tensor) -> Iterator[PerturbedAdapters]:
        """Set the parameters inside the context to a vector, float32 [d], rounded to their type."""
        before: list[tuple[dict[str, Any], str, Tensor]] = []
        flats = torch.split(theta, [tensor.size for tensor in self.tensors])
        try:
            for tensor, flat in zip(self.tensors, flats, strict=True):
                own, name = self._place(tensor.name)
                before.append((own, name, own[name]))
                own[name] = flat.view(tensor.shape).to(own[name].dtype)
            yield self._no_adapters
        finally:
            for own, name, value in before:
                own[name] = value

    def _place(self, name: str) -> tuple[dict[str, Any], str]:
        """Return the parameter dictionary of a parameter's module, and the key there."""
        owner, _, own_name = name.rpartition(".")
        return self._network.get_submodule(owner)._parameters, own_name
