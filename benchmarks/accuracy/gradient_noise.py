"""What the projected gradients of single examples are made of, at zero-shot.

    python -m benchmarks.accuracy.gradient_noise --data DATA --model MODEL

Directions are those of seeds 0, 1, 2 …; examples are the first training ones of the SST-2 scenario.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from client.forward.grouping import Schedule
from client.training.model_runtime import load_run
from shared.config import load_scenario
from shared.directions import directions
from shared.frames.instructions import Split
from shared.model.lora_fa import Perturbations

SCENARIO = Path(__file__).parents[2] / "simulations" / "scenarios" / "sst2.toml"
EPSILON, DIRECTIONS, AT_ONCE, EXAMPLES = 0.02, 64, 8, 192


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", required=True)
    arguments = parser.parse_args()
    settings = [f"data.path={arguments.data}", f"model.path={arguments.model}"]
    runtime, source = load_run(load_scenario(SCENARIO, [*settings, "data.partition=iid"]))
    data, layout = source.share_of(0, 8).tokenized(Split.TRAIN), runtime.layout
    prompts, labels = data.prompts[:EXAMPLES], data.labels[:EXAMPLES]
    center = np.zeros(layout.size, np.float32)

    def losses(perturbations: Perturbations) -> np.ndarray:
        scores = torch.from_numpy(
            runtime.forward.scores(perturbations, prompts, Schedule(micro_batch=8))
        ).double()
        return -scores.log_softmax(-1)[:, torch.arange(len(labels)), labels].numpy()

    middle = losses(Perturbations.from_arrays(layout, center)).mean()
    gradients, curvatures = [], []
    for start in range(0, DIRECTIONS, AT_ONCE):
        z = directions(np.arange(start, start + AT_ONCE, dtype=np.uint64), layout.size, "gaussian")
        plus, minus = np.split(losses(Perturbations.from_arrays(layout, center, z, EPSILON)), 2)
        gradients.append((plus - minus) / (2 * EPSILON))
        curvatures.append((plus.mean(1) + minus.mean(1) - 2 * middle) / EPSILON**2)
    g = np.concatenate(gradients)
    means = np.stack([g[:, labels == label].mean(1) for label in (0, 1)])
    energy = np.sort((g**2).mean(0))[::-1]
    print(f"E[g²] of one example                  {(g**2).mean():.3f}")
    print(f"  of that, the labels' mean gradients {(means[labels] ** 2).mean():.3f}")
    print(f"  of that, within a label             {((g - means[labels].T) ** 2).mean():.3f}")
    print(f"squared norm of the mean gradient     {(g.mean(1) ** 2).mean():.4f}")
    print(
        f"share of the 10 % loudest examples    {energy[: EXAMPLES // 10].sum() / energy.sum():.0%}"
    )
    print(f"curvature (L₊ + L₋ − 2L₀)/ε²          {np.concatenate(curvatures).mean():.2f}")


if __name__ == "__main__":
    main()
