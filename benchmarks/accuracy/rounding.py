"""Differences between the groupings' projected gradients, in units of rounding of the compute type.

    python -m benchmarks.accuracy.rounding [--shape llama-34m]

A loss is rounded to about u times its size, so a projected gradient to about u / ε: the table shows
the largest difference between any two groupings, times ε / u. The tests allow ten times as much.
"""

import argparse

import numpy as np
import torch

from benchmarks.speed.shapes import SHAPES, TASK, random_base
from samara.client.forward.body import PerturbedBody
from samara.client.forward.grouping import GROUPINGS, Schedule
from samara.client.forward.resident import ResidentForward
from samara.shared.directions import directions
from samara.shared.label_scores import cross_entropy
from samara.shared.model.lora_fa import inject
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.scorers import CausalScorer, Prompt
from samara.shared.sections import AdapterSettings

EPSILON, QUERIES, STEPS = 0.01, 4, 10
LENGTHS = (5, 9, 14, 14, 23, 30)


def largest_difference(shape: str, dtype: torch.dtype) -> tuple[float, float]:
    """Largest |Δg| and root mean square of g over ten steps."""
    base = random_base(shape, "none", dtype, torch.device("cpu"))
    scorer = CausalScorer(base, TASK, 64)
    adapter = inject(base, AdapterSettings(layers="top:1", rank=4), 2)
    forward = ResidentForward(adapter, scorer, PerturbedBody(base, 0))
    rng = np.random.default_rng(0)
    prompts = [Prompt((tuple(rng.integers(12, 500, n).tolist()),), ((n - 1,),)) for n in LENGTHS]
    labels = np.arange(len(prompts)) % 2
    center = rng.normal(0, 0.5, adapter.layout.size).astype(np.float32)
    worst, squares = 0.0, []
    for step in range(STEPS):
        seeds = np.arange(step * QUERIES, (step + 1) * QUERIES, dtype=np.uint64)
        z = directions(seeds, adapter.layout.size, "gaussian")
        perturbations = Perturbations.from_arrays(adapter.layout, center, z, EPSILON)
        found = []
        for grouping in GROUPINGS:
            for micro_batch in (0, 2, 1):
                scores = forward.scores(perturbations, prompts, Schedule(grouping, micro_batch))
                plus, minus = np.split(cross_entropy(scores, labels), 2)
                found.append((plus - minus) / (2 * EPSILON))
        worst = max(worst, float(np.ptp(found, axis=0).max()))
        squares.append(np.mean(np.square(found[0])))
    return worst, float(np.sqrt(np.mean(squares)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="llama-tiny", choices=SHAPES)
    shape = parser.parse_args().shape
    print(f"{'type':9} {'u':>8} {'largest |Δg|':>13} {'· ε / u':>8} {'typical |g|':>12}")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        unit = torch.finfo(dtype).eps / 2
        worst, typical = largest_difference(shape, dtype)
        name = str(dtype).removeprefix("torch.")
        scaled = worst * EPSILON / unit
        print(f"{name:9} {unit:8.1e} {worst:13.2e} {scaled:8.2f} {typical:12.2e}")


if __name__ == "__main__":
    main()
