"""Steps along whole gradients of adapters inside a model, by step size and by loss.

    python -m benchmarks.accuracy.whole_gradients --data SOURCES --model MODEL --out FOLDER \\
        [--set-name trec6] [--layers top:2] [--rates 2,3,5] [--steps 15]

Every step is gradient descent along the mean gradient of 8 groups of 16 training examples, like the
groups of 8 clients with equally many examples. New examples are drawn for each step, but all rates
and losses use the same examples. The profiled loss has a separate shift in each group. SOURCES is
the folder of source data that `data_sets` describes. FOLDER/rows.jsonl has one line for each loss
and rate. Existing lines are not measured again.
"""

import argparse
from itertools import product
from pathlib import Path

import numpy as np
from scipy.special import softmax
from sklearn.metrics import roc_auc_score

from benchmarks.accuracy.data_sets import DATA_SETS
from benchmarks.accuracy.rows import Rows
from samara.client.forward.grouping import Schedule
from samara.client.training.model_runtime import load_run
from samara.shared.model.perturbations import Perturbations
from samara.shared.protocol.frames.instructions import Split
from samara.shared.settings.config import RunConfig

GROUPS, GROUP = 8, 16


def main() -> None:
    """Measure all losses and rates that the file lacks, and write a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--set-name", default="trec6")
    parser.add_argument("--layers", default="top:2")
    parser.add_argument("--rates", default="2,3,5")
    parser.add_argument("--steps", type=int, default=15)
    given = parser.parse_args()
    settings = {
        **DATA_SETS[given.set_name].prepare(given.data, given.out / "data"),
        "data.limit": 1000,
        "model.path": given.model,
        "adapter.layers": given.layers,
        "adapter.rank": 4,
        "adapter.alpha": 4,
        "threads": 1,
        "memory-budget": 2**29,
        "out": str(given.out / "run"),
    }
    runtime, source = load_run(RunConfig.of(settings, "whole gradients"))
    data = source.share_of(0, 1)
    train, test = data.tokenized(Split.TRAIN), data.tokenized(Split.TEST)
    rows = Rows(given.out / "rows.jsonl")
    for is_profiled, rate in product((False, True), map(float, given.rates.split(","))):
        cell = {"set": given.set_name, "layers": given.layers, "steps": given.steps}
        cell |= {"profiled": is_profiled, "rate": rate}
        if rows.find(**cell):
            continue
        rng = np.random.default_rng(0)
        weights = np.zeros(runtime.layout.size, np.float32)
        for _ in range(given.steps):
            drawn = rng.choice(len(train.prompts), GROUPS * GROUP, replace=False)
            gradient = np.zeros(len(weights))
            for group in drawn.reshape(GROUPS, GROUP):
                _, (own,) = runtime.forward.loss_gradients(
                    Perturbations.from_arrays(runtime.layout, weights[None]),
                    [train.prompts[index] for index in group],
                    train.labels[group][None],
                    is_profiled=is_profiled,
                )
                gradient += own / GROUPS
            weights = (weights - rate * gradient).astype(np.float32)
        center = Perturbations.from_arrays(runtime.layout, weights)
        schedule = Schedule("both", GROUP)
        scores = runtime.forward.scores(center, test.prompts, schedule, whole=True)[0]
        shares = softmax(scores.astype(np.float64), axis=1)
        known = shares[:, 1] if shares.shape[1] == 2 else shares
        rows.add(
            cell
            | {
                "accuracy": float((scores.argmax(axis=1) == test.labels).mean()),
                "auc": float(roc_auc_score(test.labels, known, multi_class="ovr")),
            }
        )


if __name__ == "__main__":
    main()
