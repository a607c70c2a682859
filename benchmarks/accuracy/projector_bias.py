"""Relative bias of learned projectors, on the gradient that they learn from and on another one.

    python -m benchmarks.accuracy.projector_bias MODEL DATA model.layers.5.self_attn.q_proj.weight

MODEL is a causal LM, DATA a folder of SST-2. Both gradients are those of eight sentences.
"""

import sys

import numpy as np
import torch
from torch import Tensor, nn

from samara.client.offload.linear_layers import linear_weights
from samara.client.offload.projector_learning import learn_projectors, relative_bias
from samara.client.offload.projectors import ProjectorPair
from samara.client.tuning.settings import TuneSettings
from samara.client.tuning.tuning_setup import TuningSetup
from samara.shared.model.lora_fa import empty_adapter

STEPS = (0, 10, 20, 50, 100, 200)
SENTENCES = 8
GAMMA = 1e-4


def gradients(model: str, data: str, name: str) -> list[Tensor]:
    """Return the gradients of a weight matrix on the first two batches."""
    given = {"optimizer": "zero-offload", "space": "linear", "task": "sst2", "batch": SENTENCES}
    given |= {"model.path": model, "data.path": data, "threads": 1, "data.test": 8}
    setup = TuningSetup(TuneSettings.of(given | {"data.validation": 8}, "bias").complete(1))
    weight = linear_weights(setup.base.network)[name].requires_grad_(True)
    adapter, unadapted = empty_adapter()
    forward, train = setup.make_forward(adapter), setup.splits["train"]
    found: list[Tensor] = []
    for step in range(2):
        batch = setup.batch(step)
        scores = forward.score_pass(unadapted, [train.prompts[index] for index in batch])[0]
        labels = torch.from_numpy(train.labels[batch].astype(np.int64))
        found += torch.autograd.grad(nn.functional.cross_entropy(scores, labels), weight)
    return found


def main() -> None:
    """Print a table."""
    learned_from, other = gradients(*sys.argv[1:4])
    rows, columns = learned_from.shape
    print(f"{rows} × {columns}; bias after steps {STEPS}, on the other gradient before and after")
    for part in (8, 4):
        for nonzeros in (4, 16):
            size = columns // part
            device = learned_from.device
            drawn = ProjectorPair.random((rows, columns), size, nonzeros, (0,), device)
            results = [learn_projectors(drawn, learned_from, 0, GAMMA, steps) for steps in STEPS]
            first, last = results[0].projectors, results[-1].projectors
            biases = " | ".join(f"{result.bias:.3f}" for result in results)
            others = " | ".join(f"{relative_bias(each, other):.3f}" for each in (first, last))
            random = relative_bias(drawn, learned_from)
            print(f"| {size} | {nonzeros} | {random:.1f} | {biases} | {others} |", flush=True)


if __name__ == "__main__":
    main()
