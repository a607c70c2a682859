"""Replay in torch operators, which run on any torch device and can be exported.

All numbers are int64. A product of two 32-bit words keeps all its bits in int64, even if the
highest bit becomes the sign. Shifts use `torch.bitwise_right_shift`, which exporters support.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from samara.shared.errors import ReplayError
from samara.shared.protocol.directions import (
    INDEX_BITS,
    MAX_ORTHOGONAL,
    Distribution,
    Domain,
    check_whole,
    orthogonal_scale,
    orthogonal_stride,
)
from samara.shared.protocol.normal_table import NORMAL_TABLE
from samara.shared.protocol.replay import (
    BACKEND_VARIABLE,
    Backend,
    ScalarGroup,
    check_fits,
    default_backend,
    forced_backend,
    summed,
    zero_state,
)

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_LOW_WORD, _WORD_BITS = 0xFFFFFFFF, 32
_LOW_HALF, _HALF_BITS = 0xFFFF, 16
_ELEMENTS_AT_ONCE = 2**22


def philox4x32(
    first: torch.Tensor,
    seeds: torch.Tensor,
    second: torch.Tensor | None = None,
    domain: Domain = Domain.DIRECTION,
) -> tuple[torch.Tensor, ...]:
    """Compute Philox4x32 with ten rounds, the protocol's random function.

    Args:
        first: word 0 of each counter, int64.
        seeds: keys, int64, broadcast against the counters.
        second: word 1 of each counter, int64; None for zeros.
        domain: word 2 of each counter, the purpose of the random numbers.

    Returns:
        The four words, int64 in 0 … 2³² − 1.
    """
    zero = torch.zeros_like(first + seeds)
    c0, c1, c2, c3 = first + zero, zero, zero + int(domain), zero
    if second is not None:
        c1 = second + zero
    k0 = seeds & _LOW_WORD
    k1 = torch.bitwise_right_shift(seeds, _WORD_BITS) & _LOW_WORD
    for _ in range(10):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        # High bits are cleared only in the words that the next round multiplies.
        c0, c1, c2, c3 = (
            (torch.bitwise_right_shift(product1, _WORD_BITS) ^ c1 ^ k0) & _LOW_WORD,
            product1,
            (torch.bitwise_right_shift(product0, _WORD_BITS) ^ c3 ^ k1) & _LOW_WORD,
            product0,
        )
        k0 = k0 + _KEY_INCREMENTS[0]
        k1 = k1 + _KEY_INCREMENTS[1]
    return c0, c1 & _LOW_WORD, c2, c3 & _LOW_WORD


def directions(
    seeds: torch.Tensor,
    table: torch.Tensor,
    count: int,
    distribution: Distribution,
    first: int = 0,
) -> torch.Tensor:
    """Return the directions z of n seeds in the protocol's order of elements.

    Args:
        seeds: bits of the seeds, int64 [n].
        table: `samara.shared.protocol.normal_table.NORMAL_TABLE` on the seeds' torch device, int16
            [65536].
        count: number of elements.
        distribution: ``gaussian``, ``rademacher`` or ``orthogonal``.
        first: index of the first element, a multiple of `WHOLE_BLOCKS`; 0 for orthogonal
            directions.

    Returns:
        int16 [n, count]; multiply by 2⁻¹¹.

    Raises:
        ReplayError: if orthogonal directions are too long, or only a part of them is requested.
    """
    if distribution == "orthogonal":
        check_whole(count, first)
        return _orthogonal(seeds, count)
    size, counters = (2048, 256) if distribution == "gaussian" else (8192, 64)
    blocks = -(-count // size)
    counter = counters * (first // size) + torch.arange(counters * blocks, device=seeds.device)
    words = torch.stack(philox4x32(counter, seeds[:, None]), dim=-1)
    by_block = words.view(len(seeds), blocks, counters, 4).transpose(2, 3)
    if distribution == "gaussian":
        high = torch.bitwise_right_shift(by_block, _HALF_BITS)
        halves = torch.stack([by_block & _LOW_HALF, high], dim=3)
        return table[halves.reshape(len(seeds), size * blocks)[:, :count]]
    bit_index = torch.arange(32, device=seeds.device)[:, None, None]
    bits = torch.bitwise_right_shift(by_block[:, :, None], bit_index) & 1
    return (bits.reshape(len(seeds), size * blocks)[:, :count] * 4096 - 2048).to(torch.int16)


def _orthogonal(seeds: torch.Tensor, count: int) -> torch.Tensor:
    """Return orthogonal directions, int16 [n, count], as `directions.orthogonal` does in numpy."""
    device = seeds.device
    index = (seeds & (MAX_ORTHOGONAL - 1))[:, None]
    keys = torch.bitwise_right_shift(seeds, INDEX_BITS) & (2 ** (64 - INDEX_BITS) - 1)
    rows = index % count * orthogonal_stride(count) % count
    sizes = [1 << bit for bit in reversed(range(count.bit_length())) if count >> bit & 1]
    begin = 0
    z = torch.zeros((len(seeds), count), dtype=torch.int64, device=device)
    for size in sizes:
        is_inside = (rows >= begin) & (rows < begin + size)
        common = (rows - begin).clamp(0, size - 1) & torch.arange(size, device=device)
        for half in (16, 8, 4, 2, 1):
            common = common ^ torch.bitwise_right_shift(common, half)
        hadamard = (1 - 2 * (common & 1)) * orthogonal_scale(count, size)
        z[:, begin : begin + size] = torch.where(is_inside, hadamard, 0)
        begin += size
    counter = torch.arange(-(-count // 128), device=device)
    cycles = torch.div(index, count, rounding_mode="floor")
    words = torch.stack(philox4x32(counter, keys[:, None], cycles, Domain.ORTHOGONAL_SIGN), dim=-1)
    bits = torch.bitwise_right_shift(words[..., None], torch.arange(32, device=device)) & 1
    signs = 2 * bits.reshape(len(seeds), -1)[:, :count] - 1
    return (z * signs).to(torch.int16)


def fold(
    state: torch.Tensor,
    seeds: torch.Tensor,
    coefficients: torch.Tensor,
    table: torch.Tensor,
    distribution: Distribution,
) -> torch.Tensor:
    """Return state + Σ c·z(seed) modulo 2⁶⁴, without changing the state.

    The sum is exact in torch. It is not exact in ExecuTorch's portable kernels, which sum in
    floating point.

    Args:
        state: state, int64 [d].
        seeds: bits of the seeds, int64 [n].
        coefficients: coefficients c, int64 [n], unit 2⁻⁴⁰.
        table: as for `directions`.
        distribution: distribution of the directions.

    Returns:
        int64 [d].
    """
    z = directions(seeds, table, state.shape[0], distribution).to(torch.int64)
    return state + (coefficients[:, None] * z).sum(0)


def shrink(state: torch.Tensor, bits: int) -> torch.Tensor:
    """Return state − (state >> bits), int64 [d], without changing the state."""
    return state - torch.bitwise_right_shift(state, bits)


class TorchBackend:
    """The replay backend on a torch device; see `samara.shared.protocol.replay.Backend`.

    Attributes:
        device: torch device that computes.
    """

    name = "torch"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._table = torch.from_numpy(NORMAL_TABLE.copy()).to(device)

    def fold(
        self,
        state: NDArray[np.int64],
        seeds: NDArray[np.uint64],
        coefficients: NDArray[np.int64],
        distribution: Distribution,
    ) -> None:
        """Compute Σ c·z on the torch device, and add it to the state in place."""
        state += self.sum_on_device(seeds, coefficients, len(state), distribution).cpu().numpy()

    def directions(
        self, seeds: NDArray[np.uint64], count: int, distribution: Distribution, first: int = 0
    ) -> NDArray[np.int16]:
        """Return the directions of n seeds from element `first` on, int16 [n, count]."""
        z: NDArray[np.int16] = self.draw_on_device(seeds, count, distribution, first).cpu().numpy()
        return z

    def sum_on_device(
        self,
        seeds: NDArray[np.uint64],
        coefficients: NDArray[np.int64],
        count: int,
        distribution: Distribution,
    ) -> torch.Tensor:
        """Return Σ c·z(seed) modulo 2⁶⁴ on the torch device, int64 [count]."""
        total = torch.zeros(count, dtype=torch.int64, device=self.device)
        keys, factors = self._bits(seeds), torch.from_numpy(coefficients).to(self.device)
        for some in _slices(len(seeds), count):
            total = fold(total, keys[some], factors[some], self._table, distribution)
        return total

    def draw_on_device(
        self, seeds: NDArray[np.uint64], count: int, distribution: Distribution, first: int = 0
    ) -> torch.Tensor:
        """Return the directions of n seeds on the torch device, int16 [n, count]."""
        z = torch.empty((len(seeds), count), dtype=torch.int16, device=self.device)
        keys = self._bits(seeds)
        for some in _slices(len(seeds), count):
            z[some] = directions(keys[some], self._table, count, distribution, first)
        return z

    def _bits(self, seeds: NDArray[np.uint64]) -> torch.Tensor:
        return torch.from_numpy(seeds.view(np.int64)).to(self.device)


class CudaBackend(TorchBackend):
    """The replay backend on a GPU, by kernels that need the extra ``samara-fl[cuda]``.

    A round has only a few orthogonal directions, so torch's operators compute them.
    """

    name = "cuda"

    def __init__(self, device: torch.device) -> None:
        """Create the backend.

        Raises:
            ImportError: if Triton cannot be loaded.
        """
        import samara.shared.model.replay_cuda as kernels

        super().__init__(device)
        self._kernels = kernels

    def sum_on_device(
        self,
        seeds: NDArray[np.uint64],
        coefficients: NDArray[np.int64],
        count: int,
        distribution: Distribution,
    ) -> torch.Tensor:
        """Return Σ c·z(seed) modulo 2⁶⁴ on the GPU, int64 [count]."""
        if distribution == "orthogonal":
            return super().sum_on_device(seeds, coefficients, count, distribution)
        factors = torch.from_numpy(coefficients).to(self.device)
        return self._kernels.fold(self._bits(seeds), factors, self._table, count, distribution)

    def draw_on_device(
        self, seeds: NDArray[np.uint64], count: int, distribution: Distribution, first: int = 0
    ) -> torch.Tensor:
        """Return the result of `directions` as a tensor on the GPU."""
        if distribution == "orthogonal":
            return super().draw_on_device(seeds, count, distribution, first)
        return self._kernels.directions(self._bits(seeds), self._table, count, distribution, first)


def _slices(seeds: int, count: int) -> list[slice]:
    """Return slices of seeds whose directions together have a limited number of elements."""
    at_once = max(1, _ELEMENTS_AT_ONCE // max(1, count))
    return [slice(start, start + at_once) for start in range(0, seeds, at_once)]


def draw_directions(
    backend: Backend,
    seeds: NDArray[np.uint64],
    count: int,
    distribution: Distribution,
    first: int,
    device: torch.device,
) -> torch.Tensor:
    """Return directions on a torch device; a `TorchBackend` generates them there.

    Args:
        backend: result of `backend_for` for the device.
        seeds: seeds, uint64 [n].
        count: number of elements.
        distribution: distribution of the directions.
        first: index of the first element, a multiple of `WHOLE_BLOCKS`; 0 for orthogonal
            directions.
        device: torch device of the result.

    Returns:
        int16 [n, count]; multiply by 2⁻¹¹.
    """
    if isinstance(backend, TorchBackend):
        return backend.draw_on_device(seeds, count, distribution, first)
    return torch.from_numpy(backend.directions(seeds, count, distribution, first)).to(device)


def replay_on_device(
    state: torch.Tensor,
    groups: Sequence[ScalarGroup],
    distribution: Distribution,
    backend: Backend,
) -> torch.Tensor:
    """Replay groups on the state's torch device, as `samara.shared.protocol.replay.replay` does.

    With a `TorchBackend`, only the state's least and greatest number are copied to the host.

    Args:
        state: state before, int64 [d]; it is not changed.
        groups: groups of (seeds, coefficients).
        distribution: distribution of the directions.
        backend: result of `backend_for` for the state's torch device.

    Returns:
        The state after, int64 [d].

    Raises:
        ReplayError: if the changes could leave the exact range.
    """
    ends = torch.stack(torch.aminmax(state)).cpu().numpy()
    check_fits(ends, [block for _, block in groups])
    seeds, coefficients = summed(groups)
    if isinstance(backend, TorchBackend):
        return backend.sum_on_device(seeds, coefficients, len(state), distribution).add_(state)
    total = zero_state(len(state))
    backend.fold(total, seeds, coefficients, distribution)
    return torch.from_numpy(total).to(state.device).add_(state)


def backend_for(device: torch.device, threads: int = 0) -> Backend:
    """Return the backend that the environment forces, or the fastest backend for a model's device.

    Args:
        device: torch device of the model.
        threads: largest number of CPU threads of a call; 0 lets the backend choose.

    Raises:
        ReplayError: if the forced backend does not exist or cannot be loaded.
    """
    forced = forced_backend()
    if forced == "torch":
        return TorchBackend(device)
    if forced == "cuda" or (not forced and device.type == "cuda"):
        try:
            return CudaBackend(device)
        except ImportError as error:
            if forced:
                raise ReplayError(
                    f"{BACKEND_VARIABLE}=cuda: triton cannot be loaded: {error}; run pip install "
                    "'samara-fl[cuda]'"
                ) from error
            return TorchBackend(device)
    return default_backend(threads)
