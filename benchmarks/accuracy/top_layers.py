"""Adapters on the top layers only: what sharing the layers below gains in time, and what it costs.

    python -m benchmarks.accuracy.top_layers --data DATA --model MODEL --out FOLDER

One client with all of SST-2 takes the same number of steps with adapters on the top 1, 2, 4 and all
layers. The learning rate is in inverse proportion to d, the number of trained elements, which is
what the noise of a step grows with. A step is timed apart, with the outputs of the layers below
computed anew, found in memory, and found on disk in half precision.
"""

import argparse
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.accuracy.seed_policies import SCENARIO
from benchmarks.speed.shapes import timed
from samara.client.forward.grouping import Schedule
from samara.client.training.model_runtime import load_run
from samara.shared.config import RunConfig, load_scenario
from samara.shared.directions import directions
from samara.shared.frames.instructions import Split
from samara.shared.model.perturbations import Perturbations
from samara.shared.result import read_result
from samara.simulations.simulate import simulate

LAYERS = ("top:1", "top:2", "top:4", "all")
RATE_TIMES_SIZE = 0.2 * 6_144
BATCHES = 5


@dataclass(frozen=True)
class Figures:
    """The figures of one choice of layers; seconds are per step."""

    elements: int
    before: float
    after: float
    anew: float
    in_memory: float
    on_disk: float


def measured(settings: dict[str, object], out: Path) -> Figures:
    """Train, and time steps."""

    def config_with(**changes: object) -> RunConfig:
        pairs = settings | {key.replace("_", "-"): value for key, value in changes.items()}
        return load_scenario(SCENARIO, [f"{key}={value}" for key, value in pairs.items()])

    elements = load_run(config_with()).runtime.layout.size
    rate = RATE_TIMES_SIZE / elements
    result = read_result(simulate(config_with(out=out, learning_rate=rate)))
    tests = [e["columns"]["global"] for e in result["evaluations"] if e["split"] == "test"]
    with tempfile.TemporaryDirectory() as folder:
        seconds = [
            seconds_per_step(config_with(**changes))
            for changes in ({}, {"trunk_cache_folder": folder})
        ]
        with patch("samara.shared.config.TRUNK_CACHE_BYTES", 0):
            anew = seconds_per_step(config_with())
    return Figures(elements, tests[0]["accuracy"], tests[-1]["accuracy"], anew, *seconds)


def seconds_per_step(config: RunConfig) -> float:
    """Median over batches that were seen once before."""
    runtime, source = load_run(config)
    data = source.share_of(0, 1).tokenized(Split.TRAIN)
    z = directions(np.arange(config.queries, dtype=np.uint64), runtime.layout.size, "gaussian")
    center = np.zeros(runtime.layout.size, np.float32)
    perturbations = Perturbations.from_arrays(runtime.layout, center, z, config.epsilon)
    schedule = Schedule("both", config.examples_in_pass)
    times = []
    for repetition in range(2 * BATCHES):
        start = config.batch * (repetition % BATCHES)
        prompts = data.prompts[start : start + config.batch]
        step = lambda: runtime.forward.scores(perturbations, prompts, schedule)  # noqa: B023, E731
        times.append(timed(step, torch.device(config.model.torch_device)))
    return median(times[BATCHES:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--rounds", type=int, default=50)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    print("layers       d  zero-shot  accuracy  ms anew  in memory  on disk")
    for layers in LAYERS:
        settings = {
            "rounds": arguments.rounds,
            "data.clients": 1,
            "data.partition": "iid",
            "data.path": arguments.data,
            "model.path": arguments.model,
            "adapter.layers": layers,
            "evaluate.every": 0,
        }
        found = measured(settings, arguments.out / layers.replace(":", "-"))
        print(
            f"{layers:6} {found.elements:7,} {found.before:9.2%} {found.after:9.2%} "
            f"{1e3 * found.anew:8.1f} {1e3 * found.in_memory:10.1f} {1e3 * found.on_disk:8.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
