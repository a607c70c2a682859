"""Relative bias of learned projectors, on the gradient that they learn from and on unseen ones.

    python -m benchmarks.accuracy.projector_bias MODEL DATA model.layers.5.self_attn.q_proj.weight

MODEL is a causal LM, DATA a folder of SST-2. The gradients are those of 8, 64 and 256 sentences,
and of 8 and 256 others.
"""

import sys

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samara.client.offload.linear_layers import linear_weights
from samara.client.offload.projector_learning import learn_projectors, relative_bias
from samara.client.offload.projectors import ProjectorPair
from samara.client.tuning.settings import TuneSettings
from samara.client.tuning.tuning_setup import TuningSetup
from samara.shared.model.lora_fa import empty_adapter

STEPS = (0, 50, 200)
SAMPLES = (8, 64, 256)
UNSEEN = (8, 256)
GAMMA = 1e-4
_IN_PASS = 16


def gradients(model: str, data: str, name: str) -> tuple[list[Tensor], list[Tensor]]:
    """Return the gradients of a weight matrix on samples of each size, and on unseen ones."""
    given = {"optimizer": "zero-offload", "space": "linear", "task": "sst2", "threads": 1}
    given |= {"model.path": model, "data.path": data, "data.test": 8, "data.validation": 8}
    setup = TuningSetup(TuneSettings.of(given, "bias").complete(1))
    weight = linear_weights(setup.base.network)[name].requires_grad_(True)
    adapter, unadapted = empty_adapter()
    forward, train = setup.make_forward(adapter), setup.splits["train"]
    order = setup.batch(0, 0, max(SAMPLES) + max(UNSEEN))

    def gradient(sample: NDArray[np.int64]) -> Tensor:
        whole = torch.zeros_like(weight)
        for start in range(0, len(sample), _IN_PASS):
            part = sample[start : start + _IN_PASS]
            scores = forward.score_pass(unadapted, [train.prompts[index] for index in part])[0]
            labels = torch.from_numpy(train.labels[part].astype(np.int64))
            loss = nn.functional.cross_entropy(scores, labels, reduction="sum") / len(sample)
            whole += torch.autograd.grad(loss, weight)[0]
        return whole

    seen, unseen = order[: max(SAMPLES)], order[max(SAMPLES) :]
    return [gradient(seen[:size]) for size in SAMPLES], [gradient(unseen[:size]) for size in UNSEEN]


def main() -> None:
    """Print a table."""
    samples, unseen = gradients(*sys.argv[1:4])
    rows, columns = samples[0].shape
    print(f"{rows} × {columns}; s, r, |S|; bias after steps {STEPS}; after the last on {UNSEEN}")
    for part, nonzeros in ((8, 4), (8, 16), (4, 16), (2, 16)):
        size = columns // part
        drawn = ProjectorPair.random((rows, columns), size, nonzeros, (0,), samples[0].device)
        for count, sample in zip(SAMPLES, samples, strict=True):
            results = [learn_projectors(drawn, sample, 0, GAMMA, steps) for steps in STEPS]
            biases = " | ".join(f"{result.bias:.3f}" for result in results)
            last = results[-1].projectors
            others = " | ".join(f"{relative_bias(last, other):.3f}" for other in unseen)
            print(f"| {size} | {nonzeros} | {count} | {biases} | {others} |", flush=True)


if __name__ == "__main__":
    main()
