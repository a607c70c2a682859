"""MeZO steps on streamed parameters, each variant without one optimization of ZO2 (ZO2, table 4).

    OMP_NUM_THREADS=1 python -m benchmarks.speed.streamed_ablations [--shape llama-34m] [--turns 3]

Blocks are stored on disk as float32. Turns are interleaved. Tokens per second are medians, and a
ratio is the median of the ratios within a turn. Variants differ in time, but not in results.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.interleaved import interleaved, median_ratio
from benchmarks.speed.shapes import SHAPES, TASK, timed, write_checkpoint
from samara.client.forward.body import PerturbedBody
from samara.client.forward.grouping import Schedule
from samara.client.forward.resident import ResidentForward
from samara.client.forward.streamed import make_forward_engine
from samara.client.spaces.full import FullSpace
from samara.client.spaces.space import Space
from samara.client.spaces.streamed import StreamedFullSpace
from samara.client.streaming.loading import load_model
from samara.client.streaming.stream import Scheduling
from samara.client.tuning.descent import SGD, Descent, UpdateStep
from samara.shared.model.replay_torch import backend_for
from samara.shared.model.scorers import CausalScorer, Prompt
from samara.shared.settings.sections import ModelSettings
from samara.shared.tasks.label_scores import cross_entropy

EPSILON, RATE = 1e-3, 1e-6
CPU = torch.device("cpu")
RESIDENT, ZO2 = "MeZO", "ZO2"
VARIANTS: dict[str, dict[str, Any]] = {
    ZO2: {},
    "no scheduler overlap": {"scheduling": Scheduling(overlap=False)},
    "no reusable memory": {"scheduling": Scheduling(reuse=False)},
    "no efficient update": {"deferred": False},
}

Step = Callable[[], object]


def make_step(folder: Path, blocks: Path, variant: str, tokens: int) -> Step:
    """Return a function that takes a step on one example, resident or streamed from the disk.

    Args:
        folder: model folder.
        blocks: folder for its trained blocks.
        variant: resident, or a name in `VARIANTS`.
        tokens: tokens of the example.
    """
    stream = "off" if variant == RESIDENT else "disk"
    settings = {"path": str(folder), "stream": stream}
    loaded = load_model(ModelSettings.model_validate(settings, by_alias=False, by_name=True))
    base, backend = loaded.base, backend_for(CPU, threads=1)
    forward: ResidentForward
    space: Space
    scorer = CausalScorer(base, TASK, tokens)
    if variant == RESIDENT:
        space = FullSpace(base, backend)
        forward = ResidentForward(space.adapter, scorer, PerturbedBody(base, 0))
    else:
        store = loaded.make_trainable_store(blocks)
        space = StreamedFullSpace(base, store, backend, **VARIANTS[variant])
        forward = make_forward_engine(base, space.adapter, scorer, True, None, space)
    return mezo_step(space, forward, 1, tokens)


def mezo_step(
    space: Space, forward: ResidentForward, batch: int, tokens: int
) -> Callable[[], float]:
    """Return a function that takes a step on random tokens, and returns its projected gradient.

    Args:
        space: space of the trained parameters.
        forward: forward engine that was built with the space's adapter.
        batch: number of examples.
        tokens: tokens of an example.
    """
    ids = np.random.default_rng(batch * tokens).integers(12, 500, (batch, tokens))
    prompts = [Prompt((tuple(row),), ((tokens - 1,),)) for row in ids.tolist()]
    descent, labels = Descent(space, SGD()), np.arange(batch) % 2

    def step() -> float:
        seeds = np.array([len(descent.history)], np.uint64)
        scores = space.evaluate(
            lambda adapters: forward.scores(adapters, prompts, Schedule("sequential")),
            seeds,
            EPSILON,
        )
        plus, minus = np.split(cross_entropy(scores, labels), 2)
        gradients = ((plus - minus) / (2 * EPSILON)).astype(np.float32)
        descent.step(UpdateStep(seeds, gradients, RATE, EPSILON))
        return float(gradients[0])

    return step


def measure(shape: str, tokens: int, turns: int, folder: Path) -> dict[str, list[float]]:
    """Return the seconds of every variant's steps, turn by turn."""
    model = folder / "model"
    model.mkdir()
    write_checkpoint(shape, model, 2**30, torch.float32)
    steps = {
        name: make_step(model, folder / name.replace(" ", "-"), name, tokens)
        for name in (RESIDENT, *VARIANTS)
    }
    seconds = interleaved(steps, turns + 1, lambda step: timed(step, torch.device("cpu")))
    # the first turn fills caches and pages
    return {name: own[1:] for name, own in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--shape", default="llama-34m", choices=SHAPES)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(given.shape, given.tokens, given.turns, Path(folder))
    table = Table(title=f"{given.shape}, one example of {given.tokens} tokens", box=None)
    for column in ("", "tokens/s", "of MeZO"):
        table.add_column(column, justify="right")
    for name, own in seconds.items():
        ratio = median_ratio(seconds[RESIDENT], own)
        table.add_row(name, f"{given.tokens / statistics.median(own):.0f}", f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
