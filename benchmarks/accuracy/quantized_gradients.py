"""Projected gradients of quantized models against those in float32, direction by direction.

    python -m benchmarks.accuracy.quantized_gradients --data DATA --model MODEL

The same 16 examples of SST-2 and the same 200 directions, at adapters on two layers that are not
zero.
"""

import argparse

import numpy as np

from benchmarks.accuracy.seed_policies import SCENARIO
from samara.client.forward.grouping import Schedule
from samara.client.training.model_runtime import load_run
from samara.shared.config import load_scenario
from samara.shared.directions import directions
from samara.shared.frames.instructions import Split
from samara.shared.label_scores import cross_entropy
from samara.shared.model.perturbations import Perturbations

EPSILON, DIRECTIONS, AT_ONCE, EXAMPLES = 0.01, 200, 8, 16
KINDS = (("none", "bfloat16"), ("int8", "float32"), ("nf4", "float32"))


def gradients(settings: list[str], quantization: str, dtype: str) -> np.ndarray:
    """Projected gradients of all directions, float64 [200]."""
    changed = [f"model.quantization={quantization}", f"model.dtype={dtype}"]
    runtime, source = load_run(load_scenario(SCENARIO, [*settings, *changed]))
    data = source.share_of(0, 8).tokenized(Split.TRAIN)
    prompts, labels = data.prompts[:EXAMPLES], data.labels[:EXAMPLES]
    size = runtime.layout.size
    center = np.random.default_rng(0).normal(0, 0.05, size).astype(np.float32)
    found = []
    for start in range(0, DIRECTIONS, AT_ONCE):
        seeds = np.arange(start, start + AT_ONCE, dtype=np.uint64)
        perturbations = Perturbations.from_arrays(
            runtime.layout, center, directions(seeds, size, "gaussian"), EPSILON
        )
        scores = runtime.forward.scores(perturbations, prompts, Schedule("both", 4))
        plus, minus = np.split(cross_entropy(scores, labels), 2)
        found.append((plus - minus) / (2 * EPSILON))
    return np.concatenate(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    arguments = parser.parse_args()
    settings = [
        f"data.path={arguments.data}",
        f"model.path={arguments.model}",
        "data.partition=iid",
        *arguments.settings,
    ]
    expected = gradients(settings, "none", "float32")
    print(f"float32: root mean square {np.sqrt(np.mean(expected**2)):.4f}")
    for quantization, dtype in KINDS:
        found = gradients(settings, quantization, dtype)
        correlation = np.corrcoef(found, expected)[0, 1]
        slope = found @ expected / (expected @ expected)
        print(f"{quantization} in {dtype}: correlation {correlation:.5f}, slope {slope:.4f}")


if __name__ == "__main__":
    main()
