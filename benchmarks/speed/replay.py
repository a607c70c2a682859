"""The speed of computing and replaying directions, compared with MeZO's loop.

MeZO's loop (Malladi et al., 2023) is this: for every seed, reset torch's generator, draw a
float32 normal for every tensor, and add a multiple of it. Measurements are interleaved, repetition
by repetition, and ratios are computed within a repetition. Changes of the machine's clock or load
therefore affect all measurements equally. Figures are medians.
"""

import os
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.table import Table

from benchmarks.interleaved import interleaved, median_ratio
from benchmarks.speed.shapes import timed
from samara.shared.errors import ConfigError
from samara.shared.model.replay_torch import CudaBackend, TorchBackend
from samara.shared.protocol.directions import Distribution
from samara.shared.protocol.replay import Backend
from samara.shared.protocol.replay_numpy import NumpyBackend

Shapes = list[tuple[int, int]]

ADAPTERS: dict[str, Shapes] = {
    "minilm-top2": [(384, 4)] * 4,
    "minilm": [(384, 16)] * 12,
    "tinyllama": [(2048, 16), (256, 16)] * 22,
    "llama2-7b": [(4096, 16)] * 64,
}
"""Shapes of the matrices B on query and value projections, by name of the model."""

PEER_LOOP = "peer loop"


class _Subject(NamedTuple):
    """A measurement of some work on a backend, with its number of elements."""

    work: str
    backend: str
    distribution: str
    run: Callable[[], object]


def measured(
    adapters: Sequence[str], seeds: int, threads: int, repetitions: int
) -> list[dict[str, Any]]:
    """Measure replay and directions, and return rows of figures.

    Args:
        adapters: names in `ADAPTERS`.
        seeds: number of seeds replayed together.
        threads: CPU threads; 0 means one per core.
        repetitions: repetitions of all measurements.

    Returns:
        One row per adapter, work, backend and distribution. `elements_per_second` counts every
        element of every direction.

    Raises:
        ConfigError: if an adapter's name is unknown.
    """
    unknown = [name for name in adapters if name not in ADAPTERS]
    if unknown:
        raise ConfigError(
            f"--adapter {unknown[0]}: there is no such adapter; use one of {', '.join(ADAPTERS)}"
        )
    threads = threads or os.cpu_count() or 1
    torch.set_num_threads(threads)
    rows = []
    for name in adapters:
        shapes = ADAPTERS[name]
        size = sum(rows * columns for rows, columns in shapes)
        subjects = _subjects(shapes, size, seeds, threads)
        for subject in subjects:
            subject.run()  # compiles, and allocates memory
        works = {subject: subject.run for subject in subjects}
        seconds = interleaved(works, repetitions, lambda run: timed(run, torch.device("cpu")))
        peer = next(seconds[subject] for subject in subjects if subject.work == PEER_LOOP)
        rows += [
            {
                "work": subject.work,
                "backend": subject.backend,
                "distribution": subject.distribution,
                "d": size,
                "seeds": seeds,
                "threads": threads,
                "elements_per_second": median(size * seeds / one for one in own),
                "ratio_over_peer_loop": median_ratio(peer, own),
            }
            for subject, own in seconds.items()
        ]
    return rows


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the rows as a table."""
    first = rows[0]
    threads = f"{first['threads']} thread{'s' * (first['threads'] > 1)}"
    shown = Table(title=f"{first['seeds']} seeds on {threads}; million elements of directions/s")
    for column in ("d", "work", "backend", "distribution", "million/s", "× peers"):
        shown.add_column(column, justify="right")
    previous = first["d"]
    for row in rows:
        if row["d"] != previous:
            shown.add_section()
        previous = row["d"]
        shown.add_row(
            f"{row['d']:,}",
            *(row[key] for key in ("work", "backend", "distribution")),
            f"{row['elements_per_second'] / 1e6:,.1f}",
            f"{row['ratio_over_peer_loop']:,.1f}",
        )
    return shown


def _backends(threads: int) -> list[Backend]:
    from samara.shared.protocol.replay_numba import NumbaBackend

    backends: list[Backend] = [NumpyBackend(), NumbaBackend(threads)]
    backends.append(TorchBackend(torch.device("cpu")))
    if torch.cuda.is_available():
        backends.append(CudaBackend(torch.device("cuda")))
    return backends


def _subjects(shapes: Shapes, size: int, count: int, threads: int) -> list[_Subject]:
    rng = np.random.default_rng(0)
    seeds = rng.integers(2**63, size=count, dtype=np.uint64)
    coefficients = rng.integers(-(2**31) + 1, 2**31, size=count)
    weights = [torch.zeros(shape) for shape in shapes]
    state, copy = np.zeros(size, np.int64), np.zeros(size, np.int64)

    def peer_loop() -> None:
        for seed, coefficient in zip(seeds.tolist(), coefficients.tolist(), strict=True):
            torch.manual_seed(seed)
            for weight in weights:
                z = torch.normal(mean=0.0, std=1.0, size=weight.shape)
                weight.add_(z, alpha=coefficient * 2.0**-40)

    def randn() -> None:
        for seed in seeds.tolist():
            torch.manual_seed(seed)
            torch.randn(size)

    def copies() -> None:
        for _ in range(count):
            np.copyto(copy, state)

    def replay(backend: Backend, distribution: Distribution) -> Callable[[], None]:
        return lambda: backend.fold(state, seeds, coefficients, distribution)

    def directions(backend: Backend, distribution: Distribution) -> Callable[[], object]:
        return lambda: backend.directions(seeds, size, distribution)

    distributions: tuple[Distribution, ...] = ("gaussian", "rademacher")
    return [
        _Subject(PEER_LOOP, "torch", "gaussian", peer_loop),
        _Subject("randn", "torch", "gaussian", randn),
        _Subject("copy of state", "numpy", "none", copies),
        *(
            _Subject(work, backend.name, distribution, make(backend, distribution))
            for backend in _backends(threads)
            for distribution in distributions
            for work, make in (("replay", replay), ("directions", directions))
        ),
    ]
