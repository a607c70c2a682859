"""All parameters of the base (MeZO, algorithm 1), tied weights once.

By default θ is a float32 copy beside the network, and the network's parameters are what a point
rounds to: perturbing and restoring leaves nothing behind, and in the half types θ keeps updates
that are smaller than a weight's last bit. Without the copy the parameters are all there is, as
published: memory of inference, and every perturbation leaves its rounding behind (docs/mezo.md).
"""

from bisect import bisect_right
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import accumulate

import torch
from torch import Tensor

from client.spaces.space import SequentialSpace, SpaceTensor, no_adapter
from shared.directions import Distribution
from shared.errors import ModelError
from shared.model.loading import BaseModel
from shared.model.lora_fa import PerturbedAdapters
from shared.replay import Backend


class FullSpace(SequentialSpace):
    """The parameters of a network without adapters in it.

    Without a copy, whatever is evaluated with seeds leaves its rounding behind. A trajectory knows
    of the steps' own seeds only, so nothing else may be evaluated with any.

    Args:
        base: its network is what moves, with all others that share its weights.
        backend: draws directions.
        keep_copy: keep θ in float32 beside the network, 4 bytes per parameter.
        distribution: of the directions.

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
            raise ModelError(f"{base.folder}: parameters that are not contiguous cannot be trained")
        tensors = [SpaceTensor(name, tuple(parameter.shape)) for name, parameter in named]
        adapter, self._here = no_adapter()
        super().__init__(tensors, adapter, base.network.device, backend, distribution)
        self._parameters = [parameter.detach().view(-1) for _, parameter in named]
        self._ends = list(accumulate(map(len, self._parameters)))
        self._copy: Tensor | None = None
        if keep_copy:
            self._copy = torch.empty(self.size, device=self._device)
            for first, count in self.chunks():
                self._copy[first : first + count] = self._in_network(first, count)
        else:
            self.drifts = True
            self.state = f"{str(base.network.dtype).removeprefix('torch.')}, in place"

    def values(self, first: int, count: int) -> Tensor:
        """Of the copy; without one, of the network."""
        if self._copy is not None:
            return self._copy[first : first + count]
        return self._in_network(first, count)

    def assign(self, first: int, values: Tensor) -> None:
        """In the copy, and rounded in the network."""
        if self._copy is not None:
            self._copy[first : first + len(values)] = values
        self._show(first, values)

    def _in_network(self, first: int, count: int) -> Tensor:
        return torch.cat([piece.float() for piece in self._pieces(first, count)])

    def _show(self, first: int, values: Tensor) -> None:
        """Have the network stand at float32 [count] from an element on."""
        start = 0
        for piece in self._pieces(first, len(values)):
            piece.copy_(values[start : start + len(piece)])
            start += len(piece)

    def _pieces(self, first: int, count: int) -> Iterator[Tensor]:
        """The parts of parameters that a range of elements covers, as views."""
        index = bisect_right(self._ends, first)
        while count:
            parameter = self._parameters[index]
            start = first - (self._ends[index] - len(parameter))
            piece = parameter[start : start + count]
            yield piece
            first, count, index = first + len(piece), count - len(piece), index + 1

    def _sides(self, seed: int, epsilon: float) -> Generator[PerturbedAdapters]:
        stands = 0.0
        try:
            for side in (epsilon, -epsilon):
                self._move(seed, stands, side)
                stands = side
                yield self._here
        finally:
            self._move(seed, stands, 0.0)

    @contextmanager
    def _center(self) -> Iterator[PerturbedAdapters]:
        yield self._here

    def _move(self, seed: int, stands: float, to: float) -> None:
        """From θ + stands·z to θ + to·z."""
        for first, count in self.chunks():
            if self._copy is None:
                self._shift(seed, stands, to, first, count)
            elif to:
                step = self.direction(seed, first, count) * to
                self._show(first, self._copy[first : first + count] + step)
            else:
                self._show(first, self._copy[first : first + count])


def check_trainable(base: BaseModel) -> None:
    """Refuse weights that cannot be moved by a little.

    Raises:
        ModelError: if they are quantized.
    """
    if base.quantization != "none":
        raise ModelError(
            f"{base.folder}: quantized weights cannot be trained; "
            "set model.quantization = none, or another space"
        )
