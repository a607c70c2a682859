"""The space of all parameters of the base model (MeZO, algorithm 1); tied weights count once.

By default θ is a separate float32 copy. The network's parameters are then θ or a perturbation of θ,
rounded to their type. So perturbing and restoring leaves no error, and with half-precision weights
θ keeps updates that are smaller than a weight's last bit.

Without the copy, θ is the network's parameters themselves, as in MeZO. Training then needs only the
memory of inference, but every perturbation leaves rounding errors (docs/concepts/mezo.md).
"""

from bisect import bisect_right
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import accumulate

import torch
from torch import Tensor

from samara.client.spaces.forward_mode import network_derivative_along
from samara.client.spaces.space import LossFunction, SequentialSpace, SpaceTensor
from samara.shared.errors import ModelError
from samara.shared.model.loading import BaseModel
from samara.shared.model.lora_fa import empty_adapter
from samara.shared.model.perturbations import PerturbedAdapters
from samara.shared.protocol.directions import Distribution
from samara.shared.protocol.replay import Backend


class FullSpace(SequentialSpace):
    """The space of all parameters of a network without adapters.

    Without a copy, evaluating with seeds leaves rounding errors in θ. A trajectory records only the
    seeds of its steps, so a run must not evaluate any other seeds.

    Args:
        base: model whose parameters are trained. Networks that share these parameters change too.
        backend: replay backend that computes directions.
        keep_copy: whether to keep θ as a separate float32 copy, 4 bytes per parameter.
        distribution: distribution of the directions.

    Raises:
        ModelError: if the weights are quantized, or not contiguous in memory.
    """

    kind = "full"

    def __init__(
        self,
        base: BaseModel,
        backend: Backend,
        keep_copy: bool = True,
        distribution: Distribution = "gaussian",
    ) -> None:
        check_trainable(base)
        named = list(base.network.named_parameters())
        if any(not parameter.is_contiguous() for _, parameter in named):
            raise ModelError(
                f"{base.folder}: parameters that are not contiguous cannot be trained; choose "
                "another space"
            )
        tensors = [SpaceTensor(name, tuple(parameter.shape)) for name, parameter in named]
        adapter, self._no_adapters = empty_adapter()
        super().__init__(tensors, adapter, base.network.device, backend, distribution)
        self._network = base.network
        self._parameters = [parameter.detach().view(-1) for _, parameter in named]
        self._ends = list(accumulate(map(len, self._parameters)))
        self._copy: Tensor | None = None
        if keep_copy:
            self._copy = torch.empty(self.size, device=self._torch_device)
            for first, count in self.chunks():
                self._copy[first : first + count] = self._read_network(first, count)
        else:
            self.drifts = True
            self.state = f"{str(base.network.dtype).removeprefix('torch.')}, in place"

    def values(self, first: int, count: int) -> Tensor:
        """Return elements of θ from the copy or, without a copy, from the network."""
        if self._copy is not None:
            return self._copy[first : first + count]
        return self._read_network(first, count)

    def assign(self, first: int, values: Tensor) -> None:
        """Set elements of θ in the copy, and rounded to their type in the network."""
        if self._copy is not None:
            self._copy[first : first + len(values)] = values
        self._write_network(first, values)

    def _read_network(self, first: int, count: int) -> Tensor:
        return torch.cat([view.float() for view in self._views(first, count)])

    def _write_network(self, first: int, values: Tensor) -> None:
        """Set a range of the network's parameters to float32 values, rounded to their type."""
        start = 0
        for view in self._views(first, len(values)):
            view.copy_(values[start : start + len(view)])
            start += len(view)

    def _views(self, first: int, count: int) -> Iterator[Tensor]:
        """Yield views of the network's parameters that together cover a range of elements."""
        index = bisect_right(self._ends, first)
        while count:
            parameter = self._parameters[index]
            start = first - (self._ends[index] - len(parameter))
            view = parameter[start : start + count]
            yield view
            first, count, index = first + len(view), count - len(view), index + 1

    def _perturbed(
        self, seed: int, epsilon: float, signs: tuple[int, ...]
    ) -> Generator[PerturbedAdapters]:
        current = 0.0
        try:
            for sign in signs:
                self._move(seed, current, sign * epsilon)
                current = sign * epsilon
                yield self._no_adapters
        finally:
            self._move(seed, current, 0.0)

    @contextmanager
    def _unperturbed(self) -> Iterator[PerturbedAdapters]:
        yield self._no_adapters

    def derivative(self, loss: LossFunction, seed: int) -> tuple[float, float]:
        """Return L(θ) and the derivative of L along a direction that is entirely in memory."""
        parts = [self.perturbation(seed, *part, self.scaling) for part in self.chunks()]
        sizes = [tensor.size for tensor in self.tensors]
        direction = {
            tensor.name: flat.view(tensor.shape).to(parameter.dtype)
            for tensor, flat, parameter in zip(
                self.tensors, torch.split(torch.cat(parts), sizes), self._parameters, strict=True
            )
        }
        return network_derivative_along(lambda: loss(self._no_adapters), self._network, direction)

    def _move(self, seed: int, current: float, target: float) -> None:
        """Move the network from θ + current·z to θ + target·z."""
        for first, count in self.chunks():
            if self._copy is None:
                self._shift(seed, current, target, first, count, self.scaling)
            elif target:
                step = self.perturbation(seed, first, count, self.scaling) * target
                self._write_network(first, self._copy[first : first + count] + step)
            else:
                self._write_network(first, self._copy[first : first + count])


def check_trainable(base: BaseModel) -> None:
    """Raise a `ModelError` if a model's weights are quantized, and so cannot be perturbed."""
    if base.quantization != "none":
        raise ModelError(
            f"{base.folder}: quantized weights cannot be trained; "
            "set model.quantization = none, or choose another space"
        )
