"""The rounding that perturbing and restoring in place leaves in parameters (docs/concepts/mezo.md).

    python -m benchmarks.accuracy.drift [--model FOLDER] [--steps 1000] [--epsilon 0.001]

No loss is computed and no step is taken. Parameters only change to θ + ε·z, to θ − ε·z and back,
with a new z each time.
"""

import numpy as np
import torch

from benchmarks.arguments import arguments
from samara.client.spaces.full import FullSpace
from samara.shared.model.loading import Dtype, load_base_model
from samara.shared.model.replay_torch import backend_for
from samara.shared.settings.sections import EMBEDDED_MODEL

DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16", "float16")


def drift(model: str, dtype: Dtype, steps: int, epsilon: float) -> tuple[float, float]:
    """Return the root mean square of the remaining errors, and of the parameters around their
    mean.
    """
    base = load_base_model(model, dtype=dtype)
    space = FullSpace(base, backend_for(torch.device("cpu")), keep_copy=False)
    seeds = np.arange(steps, dtype=np.uint64)
    left, spread = 0.0, 0.0
    for first, count in space.chunks():
        before = space.values(first, count).double()
        space.repeat_perturbations(seeds, epsilon, first, count)
        left += float((space.values(first, count).double() - before).square().sum())
        spread += float((before - before.mean()).square().sum())
    return (left / space.size) ** 0.5, (spread / space.size) ** 0.5


def main() -> None:
    options = arguments(__doc__, model=EMBEDDED_MODEL, steps=1000, epsilon=0.001)
    print(f"{'type':9} {'left behind':>12} {'spread':>9} {'ratio':>9}")
    for dtype in DTYPES:
        left, spread = drift(options.model, dtype, options.steps, options.epsilon)
        print(f"{dtype:9} {left:12.2e} {spread:9.2e} {left / spread:9.2e}")


if __name__ == "__main__":
    main()
