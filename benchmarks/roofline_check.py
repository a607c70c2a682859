"""Predicted against measured P-RGE steps on this machine's CPU: six shapes, three batch sizes.

    samara device calibrate --threads 1 --out this-machine.toml
    python benchmarks/roofline_check.py this-machine.toml

The profile comes from pieces (products, copies, small operations), the measurement from whole steps
of models with random weights: the two extreme groupings, one thread, the processor's own clock,
the best of several. The profile is not changed by what is seen here.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.shapes import SHAPES, config_of
from benchmarks.step import Bench, StepBench
from client.forward.grouping import Schedule
from devices.profile import load_device
from devices.roofline import Workload, step_time
from devices.shape import shape_of_config

CHECKED = (
    "llama-tiny",
    "llama-small",
    "llama-deep",
    "llama-34m",
    "llama-shared-keys",
    "llama-wide",
)
BATCHES = (1, 2, 4)
SEQUENCE, QUERIES, RANK, REPETITIONS = 32, 2, 4, 7


def measured(bench: Bench, batch: int, mode: str) -> float:
    """Seconds of a step at its best."""
    step = bench.p_rge(bench.prompts(batch, SEQUENCE), Schedule(mode))  # type: ignore[arg-type]
    step()
    seconds = []
    for _ in range(REPETITIONS):
        begun = time.process_time()
        step()
        seconds.append(time.process_time() - begun)
    return min(seconds)


def rows(profile: str, shape: str) -> list[dict[str, Any]]:
    """Predict and measure all steps of a shape."""
    device = load_device(profile)
    bench = Bench(
        StepBench(shape, "none", "float32", "cpu", QUERIES, BATCHES, (SEQUENCE,), "all", RANK, 1, 1)
    )
    known = shape_of_config(config_of(shape), Path(shape), "causal")
    found = []
    for batch in BATCHES:
        for mode in ("sequential", "both"):
            work = Workload(
                sequence=SEQUENCE,
                batch=batch,
                queries=QUERIES,
                mode=mode,  # type: ignore[arg-type]
                quantization="fp32",
                rank=RANK,
                supervised=1,
            )
            predicted, seconds = step_time(known, device, work).total, measured(bench, batch, mode)
            found.append(
                {
                    "shape": shape,
                    "B": batch,
                    "mode": mode,
                    "predicted": predicted,
                    "measured": seconds,
                    "error": predicted / seconds - 1,
                }
            )
    return found


def main() -> None:
    import torch

    parser = argparse.ArgumentParser()
    parser.add_argument("profile")
    parser.add_argument("--shape", choices=SHAPES, action="append", help="default: six")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for shape in arguments.shape or CHECKED:
        for row in rows(arguments.profile, shape):
            found.append(row)
            print(
                f"{row['shape']:18} B={row['B']} {row['mode']:10} predicted "
                f"{row['predicted'] * 1e3:8.2f} ms, measured {row['measured'] * 1e3:8.2f} ms, "
                f"{row['error']:+.1%}",
                flush=True,
            )
    for mode in ("sequential", "both"):
        errors = [abs(row["error"]) for row in found if row["mode"] == mode]
        print(f"{mode}: mean error {fmean(errors):.1%}, median {median(errors):.1%}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
