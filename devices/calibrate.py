"""Measure this machine's CPU: memory, matrix products, what lies between them, and overheads.

What is measured are pieces, never whole steps; benchmarks/roofline_check.py then compares the time
model with whole steps. Every figure is the best of several rounds, because other work on a machine
can only slow a piece down. With one thread the processor's own clock is read, so that waiting for
other work does not count.
"""

import time
from collections.abc import Callable
from statistics import fmean
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from scipy.optimize import least_squares
from torch import Tensor, nn

from devices.profile import Compute, DeviceProfile, Memory, PowerMode, Timing
from devices.roofline import BLOCK_LAUNCHES, TRAFFIC
from shared.directions import directions
from shared.errors import ModelError
from shared.machine import cores, peak_memory_bytes
from shared.model.quantized import quantized_linear

_ROUNDS = 7
_LEAST_SECONDS = 2e-3
_COPIED_BYTES = 2**27
_TOKENS = (1, 8, 32, 128, 512)
_PRODUCTS = ((256, 256), (512, 512), (512, 1376), (1024, 1024), (2048, 1024))
_BETWEEN = ((64, 256, 704), (256, 256, 704), (256, 1024, 2816))
"""Tokens, hidden and intermediate features."""
_DEQUANTIZED = (1024, 1024)
_RANK, _LAYERS = 16, 16


def calibrated(name: str, watts: float = 0.0, threads: int = 0) -> DeviceProfile:
    """Measure this machine.

    Args:
        name: of the profile.
        watts: drawn at full load, as its owner knows it; 0 is unknown.
        threads: CPU threads; 0 is one per core.
    """
    import client.trainer  # noqa: F401  what a client has loaded counts as its runtime

    runtime = peak_memory_bytes()
    threads = threads or cores()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            return _measured(name, watts, threads, runtime)
    finally:
        torch.set_num_threads(before)


def _measured(name: str, watts: float, threads: int, runtime: int) -> DeviceProfile:
    clock = time.process_time if threads == 1 else time.perf_counter
    bandwidth, launch = _bandwidth(clock), _launch(clock)
    fp32, full_rows = _products(clock, torch.float32, bandwidth, launch)
    fp16 = _rate(clock, torch.bfloat16)
    nf4, int8, dequantizing = _dequantizing(clock, fp32)
    memory = psutil.virtual_memory()
    here = f"samara device calibrate, {threads} thread{'s' * (threads > 1)}"
    return DeviceProfile(
        name=name,
        description=f"This machine: {threads} of {cores()} cores, measured",
        memory=Memory(
            bytes=memory.total,
            system_bytes=memory.total - memory.available,
            runtime_bytes=runtime,
            bandwidth=bandwidth,
            on_chip_bytes=0,
        ),
        compute=Compute(processor="cpu", fp32=fp32, fp16=fp16, weights="fp32"),
        timing=Timing(
            bandwidth_share=1.0,
            rate_share=1.0,
            full_rows=full_rows,
            activation_share=_between(clock, launch) / bandwidth,
            nf4_operations=nf4,
            int8_operations=int8,
            launch_seconds=launch,
            adapter_seconds=_adapter(clock),
        ),
        power={"load": PowerMode(watts=watts)} if watts else {},
        mode="load" if watts else "",
        sources={
            "memory": f"{here}: psutil; bandwidth is that of copying 128 MiB",
            "memory.on-chip-bytes": "0: caches are in timing.activation-share",
            "compute": f"{here}: products of matrices, fp16 in bfloat16",
            "timing": f"{here}; shares are 1 because reached figures stand for those on paper",
            "timing.nf4-operations": dequantizing,
            "timing.int8-operations": dequantizing,
            **({"power": "given to samara device calibrate"} if watts else {}),
        },
    )


def _best(clock: Callable[[], float], work: Callable[[], object]) -> float:
    """Seconds of some work at its fastest, repeated until a round is long enough to be timed."""
    begun = clock()
    work()
    times = max(1, round(_LEAST_SECONDS / max(clock() - begun, 1e-7)))
    rounds = []
    for _ in range(_ROUNDS):
        begun = clock()
        for _ in range(times):
            work()
        rounds.append((clock() - begun) / times)
    return min(rounds)


def _bandwidth(clock: Callable[[], float]) -> float:
    source = torch.ones(_COPIED_BYTES // 4)
    target = torch.empty_like(source)
    return 2 * _COPIED_BYTES / _best(clock, lambda: target.copy_(source))


def _launch(clock: Callable[[], float]) -> float:
    """Of small operations: a sum, a product of matrices, a change of shape that copies."""
    x, weight = torch.ones(1, 8), torch.ones(8, 8)
    works: list[Callable[[], object]] = [
        lambda: x + x,
        lambda: nn.functional.linear(x, weight),
        lambda: torch.cat((x, x), dim=-1),
    ]
    return fmean(_best(clock, work) for work in works)


def _products(
    clock: Callable[[], float], dtype: torch.dtype, bandwidth: float, launch: float
) -> tuple[float, float]:
    """(operations/s, tokens below which it gets no faster), of products of several shapes."""
    found = []
    for inputs, outputs in _PRODUCTS:
        weight = torch.randn(outputs, inputs, dtype=dtype)
        for tokens in _TOKENS:
            x = torch.randn(tokens, inputs, dtype=dtype)
            seconds = _best(clock, lambda x=x, w=weight: nn.functional.linear(x, w))
            found.append((inputs, outputs, tokens, seconds))
    inputs, outputs, tokens, seconds = np.array(found).T
    moved = 4 * (inputs * outputs + tokens * (inputs + outputs)) / bandwidth

    def errors(x: NDArray[np.float64]) -> NDArray[np.float64]:
        rate, full = np.exp(x)
        busy = 2 * inputs * outputs * np.maximum(tokens, full) / rate
        large = tokens > 1  # a single token is a different kernel, and no step has one
        ratio: NDArray[np.float64] = np.log((launch + np.maximum(moved, busy)) / seconds)[large]
        return ratio

    best = least_squares(errors, np.log([5e10, 4.0]), loss="soft_l1", diff_step=1e-3)
    rate, full = np.exp(best.x)
    return float(rate), max(1.0, float(full))


def _rate(clock: Callable[[], float], dtype: torch.dtype) -> float:
    weight, x = torch.randn(512, 512).to(dtype), torch.randn(128, 512).to(dtype)
    return 2 * 512 * 512 * 128 / _best(clock, lambda: nn.functional.linear(x, weight))


def _between(clock: Callable[[], float], launch: float) -> float:
    """Bytes/s, as the time model counts bytes, of what a Llama block does between its products."""
    rates = []
    for tokens, hidden, wide in _BETWEEN:
        x, weight = torch.randn(tokens, hidden), torch.ones(hidden)
        gate, up = torch.randn(2, tokens, wide)
        turn = torch.randn(2, tokens, hidden)

        def norm(x: Tensor, weight: Tensor) -> Tensor:
            return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

        def rotated(x: Tensor, turn: Tensor) -> Tensor:
            first, second = x.chunk(2, -1)
            return x * turn[0] + torch.cat((-second, first), -1) * turn[1]

        def work(
            x: Tensor = x,
            weight: Tensor = weight,
            turn: Tensor = turn,
            gate: Tensor = gate,
            up: Tensor = up,
        ) -> Any:
            norm(x, weight), norm(x, weight), rotated(x, turn), rotated(x, turn)
            return x + x, x + x, nn.functional.silu(gate) * up

        entries = tokens * (4 * 2 * hidden + 3 * (hidden + wide))
        seconds = max(_best(clock, work) - BLOCK_LAUNCHES * launch, 1e-7)
        rates.append((TRAFFIC - 1) * entries * 4 / seconds)
    return fmean(rates)


def _dequantizing(clock: Callable[[], float], fp32: float) -> tuple[float, float, str]:
    """Operations at the fp32 rate per NF4 and per INT8 weight, and where they come from."""
    weight = torch.randn(_DEQUANTIZED)
    try:
        nf4 = quantized_linear(weight, None, "nf4", torch.float32)
        int8 = quantized_linear(weight, None, "int8", torch.float32)
    except ModelError:
        return 100.0, 10.0, "assumed: bitsandbytes is not installed, so nothing could be measured"
    each = fp32 / weight.numel()
    seconds = _best(clock, nf4.dequantized), _best(clock, int8.dequantized)
    return seconds[0] * each, seconds[1] * each, "samara device calibrate, of 1024 × 1024 weights"


def _adapter(clock: Callable[[], float]) -> float:
    """Of drawing and applying one direction of one adapted layer, many layers together."""
    elements = _LAYERS * _RANK * 1024
    state = np.zeros(elements, np.float32)
    seeds = np.zeros(1, np.uint64)

    def work() -> None:
        z = directions(seeds, elements, "gaussian")
        state[:] -= np.float32(1e-6) * z[0]

    return _best(clock, work) / _LAYERS
