"""Predicted against measured P-RGE steps on this machine's CPU: six shapes, three batch sizes.

    python -m benchmarks.devices.roofline_check [--json FILE]

The prediction uses only times of pieces: products, copies, small operations and an empty pass
(`samara.devices.hardware.calibrate`). The measurement times whole steps of models with random
weights. Pieces and steps are timed in turn in one process and one thread, in processor seconds. The
shortest time of each counts. No parameter is fitted to a step.
"""

import json
from pathlib import Path
from statistics import fmean, median

import torch

from benchmarks.arguments import arguments
from benchmarks.speed.shapes import config_of
from benchmarks.speed.step import Bench, StepBench
from samara.client.forward.grouping import Schedule
from samara.devices.hardware.calibrate import (
    Microbenchmark,
    Microbenchmarks,
    Stopwatch,
    microbenchmarks,
    profile_from_times,
)
from samara.devices.hardware.model_shape import shape_of_config
from samara.devices.hardware.roofline import Grouping, Workload, step_time

CHECKED = (
    "llama-tiny",
    "llama-small",
    "llama-deep",
    "llama-34m",
    "llama-shared-keys",
    "llama-wide",
)
BATCHES = (1, 2, 4)
GROUPINGS: tuple[Grouping, ...] = ("sequential", "both")
SEQUENCE, QUERIES, RANK, SWEEPS = 32, 2, 4, 5


def steps() -> Microbenchmarks:
    """Return a step of every shape, batch size and grouping."""
    works: Microbenchmarks = {}
    for number, shape in enumerate(CHECKED):
        bench = Bench(
            StepBench(
                shape, "none", "float32", "cpu", QUERIES, BATCHES, (SEQUENCE,), "all", RANK, 1, 1
            )
        )
        for batch in BATCHES:
            for index, grouping in enumerate(GROUPINGS):
                prompts = bench.prompts(batch, SEQUENCE)
                works[Microbenchmark("step", (number, batch, index))] = bench.p_rge(
                    prompts, Schedule(grouping)
                )
    return works


def main() -> None:
    given = arguments(__doc__, json=Path | None)
    torch.set_num_threads(1)
    stopwatch, works = Stopwatch(1), microbenchmarks() | steps()
    for _ in range(SWEEPS):
        stopwatch.sweep(works)
    device = profile_from_times("this-machine", stopwatch.best, 0.0, 1, 1)
    print(f"{device.memory.bandwidth / 1e9:.1f} GB/s, {device.compute.fp32 / 1e9:.0f} Gop/s")
    print(device.timing)
    known = {shape: shape_of_config(config_of(shape), Path(shape), "causal") for shape in CHECKED}
    errors: dict[str, list[float]] = {grouping: [] for grouping in GROUPINGS}
    found = []
    for piece, measured in stopwatch.best.items():
        if piece.what != "step":
            continue
        number, batch, index = piece.sizes
        shape, grouping = CHECKED[number], GROUPINGS[index]
        work = Workload(
            sequence=SEQUENCE,
            batch=batch,
            queries=QUERIES,
            grouping=grouping,
            quantization="fp32",
            rank=RANK,
            supervised=1,
        )
        predicted = step_time(known[shape], device, work).total
        error = predicted / measured - 1
        errors[grouping].append(abs(error))
        found.append({"shape": shape, "B": batch, "grouping": grouping})
        found[-1] |= {"predicted": predicted, "measured": measured}
        print(
            f"{shape:18} B={batch} {grouping:10} predicted {predicted * 1e3:7.1f} ms, "
            f"measured {measured * 1e3:7.1f} ms, {error:+.1%}"
        )
    for name, values in errors.items():
        print(f"{name}: mean error {fmean(values):.1%}, median {median(values):.1%}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
