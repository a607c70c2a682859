"""Calibration of a device profile by microbenchmarks of this machine's CPU.

The microbenchmarks time memory copies, matrix products, the operations between products, and
overheads. They never time whole steps; docs/measurements/devices.md compares the time model with
whole steps. All microbenchmarks run in turn several times. The shortest time of each is used,
because other processes can only slow a microbenchmark down. With one thread, CPU time is measured
instead of wall time.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean
from typing import NamedTuple

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from scipy.optimize import least_squares
from torch import Tensor, nn

from samara.client.forward.body import PerturbedBody
from samara.client.forward.resident import ResidentForward
from samara.devices.hardware.profile import Compute, DeviceProfile, Memory, PowerMode, Timing
from samara.devices.hardware.roofline import ADAPTER_LAUNCHES, BLOCK_LAUNCHES, TRAFFIC
from samara.shared.errors import ModelError
from samara.shared.machine.process import cores, peak_memory_bytes
from samara.shared.model.loading import load_base_model
from samara.shared.model.lora_fa import inject
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.products import linear
from samara.shared.model.quantized import quantize_linear
from samara.shared.model.scorers import CausalScorer, Prompt
from samara.shared.protocol.directions import directions
from samara.shared.settings.sections import EMBEDDED_MODEL, AdapterSettings
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.kinds import ClassificationTask
from samara.shared.tasks.messages import EMBEDDED_DATA

SWEEPS = 9
_LEAST_SECONDS = 2e-3
_COPIED_BYTES = 2**27
_TOKENS = (8, 32, 128, 512)
_WEIGHTS_BYTES = 2**26
_PRODUCTS = ((256, 256), (512, 512), (512, 1376), (1024, 1024), (2048, 1024))
_BETWEEN = ((64, 256, 704), (256, 256, 704), (256, 1024, 2816))
"""Sizes of the operations between products: tokens, hidden and intermediate features."""
_DEQUANTIZED = 1024
_HALF = (128, 512)
_RANK = 16
_LAYERS = 16


class Microbenchmark(NamedTuple):
    """The key of a microbenchmark: the name of the timed operation, and its sizes."""

    what: str
    sizes: tuple[int, ...] = ()


Microbenchmarks = dict[Microbenchmark, Callable[[], object]]


class Stopwatch:
    """Records the shortest time of each microbenchmark.

    Args:
        threads: number of threads, which is also set in torch. With one thread, CPU time is
            measured. With more threads, wall time is measured.
    """

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self._clock = time.process_time if threads == 1 else time.perf_counter
        self._times: dict[Microbenchmark, int] = {}
        self.best: dict[Microbenchmark, float] = {}

    @torch.inference_mode()
    def sweep(self, works: Mapping[Microbenchmark, Callable[[], object]]) -> None:
        """Time every microbenchmark once more; repeat short microbenchmarks for at least 2 ms."""
        for piece, work in works.items():
            if piece not in self._times:
                self._seconds(work, 1)
                self._times[piece] = max(1, round(_LEAST_SECONDS / self._seconds(work, 1)))
            seconds = self._seconds(work, self._times[piece])
            self.best[piece] = min(seconds, self.best.get(piece, seconds))

    def _seconds(self, work: Callable[[], object], times: int) -> float:
        start = self._clock()
        for _ in range(times):
            work()
        return max((self._clock() - start) / times, 1e-7)


def calibrate_cpu(name: str, watts: float = 0.0, threads: int = 0) -> DeviceProfile:
    """Measure this machine's CPU and return its profile.

    Args:
        name: name of the profile.
        watts: power draw at full load in watts, given by the user; 0 means unknown.
        threads: CPU threads; 0 means one per core.
    """
    runtime = peak_memory_bytes()
    before = torch.get_num_threads()
    threads = threads or cores()
    stopwatch = Stopwatch(threads)
    works = microbenchmarks()
    try:
        for _ in range(SWEEPS):
            stopwatch.sweep(works)
    finally:
        torch.set_num_threads(before)
    return profile_from_times(name, stopwatch.best, watts, threads, runtime)


@torch.inference_mode()
def microbenchmarks() -> Microbenchmarks:
    """Return all microbenchmarks, each with the function that it times."""
    source = torch.ones(_COPIED_BYTES // 4)
    x = torch.ones(1, 8)
    weight = torch.ones(8, 8)
    works: Microbenchmarks = {
        Microbenchmark("copy"): partial(torch.empty_like(source).copy_, source),
        Microbenchmark("small", (0,)): partial(torch.add, x, x),
        Microbenchmark("small", (1,)): partial(nn.functional.linear, x, weight),
        Microbenchmark("small", (2,)): partial(torch.cat, (x, x), dim=-1),
        Microbenchmark("draw and apply"): _draw_and_apply,
    }
    tokens, features = _HALF
    half = torch.randn(tokens, features).bfloat16(), torch.randn(features, features).bfloat16()
    works[Microbenchmark("half", _HALF)] = partial(nn.functional.linear, *half)
    for inputs, outputs in _PRODUCTS:
        count = -(-_WEIGHTS_BYTES // (4 * inputs * outputs))
        # The weights exceed every cache, as a model's weights do.
        weights = [torch.randn(outputs, inputs) for _ in range(count)]
        for tokens in _TOKENS:
            work = partial(_products, torch.randn(tokens, inputs), weights)
            works[Microbenchmark("products", (inputs, outputs, tokens, count))] = work
    for sizes in _BETWEEN:
        works[Microbenchmark("between", sizes)] = _between(*sizes)
    return works | _quantized() | _forward()


def _products(x: Tensor, weights: list[Tensor]) -> None:
    for weight in weights:
        linear(x, weight)


def _draw_and_apply() -> None:
    """Draw and apply one direction to many adapted layers."""
    z = directions(np.zeros(1, np.uint64), _LAYERS * _RANK * 1024, "gaussian")
    state = np.zeros(z.shape[1], np.float32)
    state -= np.float32(1e-6) * z[0]


def _between(tokens: int, hidden: int, wide: int) -> Callable[[], object]:
    """Return a function that runs the operations of a Llama block between its matrix products."""
    x = torch.randn(tokens, hidden)
    weight = torch.ones(hidden)
    gate, up = torch.randn(2, tokens, wide)
    turn = torch.randn(2, tokens, hidden)

    def norm() -> Tensor:
        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def rotated() -> Tensor:
        first, second = x.chunk(2, -1)
        return x * turn[0] + torch.cat((-second, first), -1) * turn[1]

    def work() -> object:
        return norm(), norm(), rotated(), rotated(), x + x, x + x, nn.functional.silu(gate) * up

    return work


def _quantized() -> Microbenchmarks:
    """Return microbenchmarks of dequantizing NF4 and INT8 weights; empty without bitsandbytes."""
    weight = torch.randn(_DEQUANTIZED, _DEQUANTIZED)
    try:
        return {
            Microbenchmark("nf4", (weight.numel(),)): quantize_linear(
                weight, None, "nf4", torch.float32
            ).dequantized,
            Microbenchmark("int8", (weight.numel(),)): quantize_linear(
                weight, None, "int8", torch.float32
            ).dequantized,
        }
    except ModelError:
        return {}


def _forward() -> Microbenchmarks:
    """Return microbenchmarks of the embedded model on two tokens, with one block and with all."""
    blocks = len(load_base_model(EMBEDDED_MODEL).blocks)
    task = load_task(EMBEDDED_DATA)
    assert isinstance(task, ClassificationTask)
    works: Microbenchmarks = {}
    for count in (1, blocks):
        cut = load_base_model(EMBEDDED_MODEL)
        del cut.blocks[count:]
        cut.network.config.num_hidden_layers = count
        scorer = CausalScorer(cut, task, 16)
        settings = AdapterSettings(projections="q_proj,v_proj", layers="all")
        adapter = inject(cut, settings, scorer.labels)
        size = adapter.layout.size
        z = directions(np.zeros(1, np.uint64), size, "gaussian")
        perturbations = Perturbations.from_arrays(
            adapter.layout, np.zeros(size, np.float32), z, 0.01
        )
        forward = ResidentForward(adapter, scorer, PerturbedBody(cut, 0))
        works[Microbenchmark("pass", (count,))] = partial(
            forward.scores, perturbations, [Prompt(((10, 11),), ((1,),))]
        )
    return works


def profile_from_times(
    name: str, best: Mapping[Microbenchmark, float], watts: float, threads: int, runtime: int
) -> DeviceProfile:
    """Return the device profile implied by the best times of the microbenchmarks.

    Args:
        name: name of the profile.
        best: seconds of every microbenchmark.
        watts: power draw at full load in watts; 0 means unknown.
        threads: number of threads during the measurement.
        runtime: bytes of memory of a process that has loaded a client's libraries.
    """
    bandwidth = 2 * _COPIED_BYTES / best[Microbenchmark("copy")]
    smallest = fmean(seconds for piece, seconds in best.items() if piece.what == "small")
    fp32, full_rows = _rate(best, bandwidth, smallest)
    tokens, features = _HALF
    (few, shallow), (many, deep) = sorted(
        (piece.sizes[0], seconds) for piece, seconds in best.items() if piece.what == "pass"
    )
    block = (deep - shallow) / (many - few)
    of_a_block = BLOCK_LAUNCHES + 7 + 2 * ADAPTER_LAUNCHES
    dequantized = {
        piece.what: seconds / piece.sizes[0] * fp32
        for piece, seconds in best.items()
        if piece.what in ("nf4", "int8")
    }
    memory = psutil.virtual_memory()
    here = f"samara device calibrate, {threads} thread{'s' * (threads > 1)}"
    dequantizing = "of 1024 × 1024 weights" if dequantized else "assumed, without bitsandbytes"
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
        compute=Compute(
            processor="cpu",
            fp32=fp32,
            fp16=2 * tokens * features**2 / best[Microbenchmark("half", _HALF)],
            weights="fp32",
        ),
        timing=Timing(
            bandwidth_share=1.0,
            rate_share=1.0,
            full_rows=full_rows,
            activation_share=_between_bandwidth(best, smallest) / bandwidth,
            nf4_operations=dequantized.get("nf4", 100.0),
            int8_operations=dequantized.get("int8", 100.0),
            launch_seconds=max(block / of_a_block, smallest),
            pass_seconds=max(0.0, shallow - few * block),
            adapter_seconds=best[Microbenchmark("draw and apply")] / _LAYERS,
        ),
        power={"load": PowerMode(watts=watts)} if watts else {},
        mode="load" if watts else "",
        sources={
            "memory": f"{here}: psutil; bandwidth is that of copying 128 MiB",
            "memory.on-chip-bytes": "0, because timing.activation-share includes the caches",
            "compute": f"{here}: products of matrices, fp16 in bfloat16",
            "timing": f"{here}; shares are 1, because the rates are measured",
            "timing.nf4-operations": f"{here}: {dequantizing}",
            "timing.int8-operations": f"{here}: {dequantizing}",
            **({"power": "given to samara device calibrate"} if watts else {}),
        },
    )


def _rate(
    best: Mapping[Microbenchmark, float], bandwidth: float, smallest: float
) -> tuple[float, float]:
    """Return the fitted operations/s, and the token count below which products get no faster."""
    measurements = [
        (*piece.sizes[:3], seconds / piece.sizes[3])
        for piece, seconds in best.items()
        if piece.what == "products"
    ]
    inputs, outputs, tokens, seconds = np.array(measurements, np.float64).T
    moved = 4 * (inputs * outputs + tokens * (inputs + outputs)) / bandwidth

    def errors(x: NDArray[np.float64]) -> NDArray[np.float64]:
        rate, full = np.exp(x)
        busy = 2 * inputs * outputs * np.maximum(tokens, full) / rate
        ratio: NDArray[np.float64] = np.log((smallest + np.maximum(moved, busy)) / seconds)
        return ratio

    fit = least_squares(errors, np.log([5e10, 16.0]), loss="soft_l1", diff_step=1e-2)
    rate, full = np.exp(fit.x)
    return float(rate), max(1.0, float(full))


def _between_bandwidth(best: Mapping[Microbenchmark, float], smallest: float) -> float:
    """Return the bytes/s of the operations between products, using the time model's byte count."""
    rates = []
    for piece, seconds in best.items():
        if piece.what == "between":
            tokens, hidden, wide = piece.sizes
            entries = tokens * (4 * 2 * hidden + 3 * (hidden + wide))
            busy = max(seconds - BLOCK_LAUNCHES * smallest, seconds / 10)
            rates.append((TRAFFIC - 1) * entries * 4 / busy)
    return fmean(rates)
