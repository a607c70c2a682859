"""CPU seconds and bits of a readout's representations, by the rows that share a pass.

    python -m benchmarks.speed.batches_by_length MODEL TASK TEXTS THREADS

Each row runs alone, with rows of equal token count, or as in the product, padded.
"""

import json
import sys
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from samara.client.forward.readout import make_base_engine, run_base
from samara.client.forward.setup import make_scorer
from samara.shared.model.loading import load_base_model
from samara.shared.tasks.catalog import load_task

ROWS, TOGETHER, REPETITIONS = 200, 16, 3
Numbers = NDArray[np.float32]

model, task_name, texts, threads = sys.argv[1:]
torch.set_num_threads(int(threads))
task = load_task(task_name).model_copy(update={"form": "chat"})
base = load_base_model(model, "causal", depth="20")
scorer = make_scorer(base, task, 256)
rows = [json.loads(line) for line in Path(texts).read_text().splitlines()[:ROWS]]
prompts = [scorer.prompt(row["text"]) for row in rows]
engine = make_base_engine(base, scorer, streamed=False)
lengths = [len(prompt.sequences[0]) for prompt in prompts]


def alone() -> Numbers:
    """Run each row alone."""
    return np.concatenate([run_base(engine, [prompt], 0) for prompt in prompts])


def of_one_length() -> Numbers:
    """Run rows of equal length together."""
    numbers = np.empty((ROWS, scorer.labels + base.features), np.float32)
    order = sorted(range(ROWS), key=lambda i: lengths[i])
    for _, group in groupby(order, key=lambda i: lengths[i]):
        chosen = list(group)
        for start in range(0, len(chosen), TOGETHER):
            own = chosen[start : start + TOGETHER]
            numbers[own] = run_base(engine, [prompts[i] for i in own], 0)
    return numbers


def padded() -> Numbers:
    """Run rows sorted by length, padded, as in the product."""
    return run_base(engine, prompts, TOGETHER)


ways: dict[str, Callable[[], Numbers]] = {
    "alone": alone,
    "one length": of_one_length,
    "padded (the product)": padded,
}
results: dict[str, list[tuple[float, float, Numbers]]] = {name: [] for name in ways}
for _ in range(REPETITIONS + 1):
    for name, way in ways.items():
        begun, wall = time.process_time(), time.perf_counter()
        found = way()
        spent = time.process_time() - begun
        results[name].append((spent, time.perf_counter() - wall, found))
reference = results["alone"][0][2]
print(
    f"{task_name}, {threads} threads, {sum(lengths)} tokens, {len(set(lengths))} lengths, "
    f"prefix {len(scorer.prefix)}"
)
for name, (_, *measured) in results.items():
    differing = np.mean([(one != reference).any(axis=1).mean() for *_, one in measured])
    most = max(float(np.abs(one - reference).max()) for *_, one in measured)
    seconds = " ".join(f"{cpu:.2f}" for cpu, *_ in measured)
    walls = " ".join(f"{wall:.2f}" for _, wall, _ in measured)
    print(
        f"  {name:22} CPU s {seconds}; wall {walls}; rows with other bits {differing:.1%}, "
        f"largest difference {most:.2g}"
    )
