"""CPU seconds of a language model's passes in float32 and bfloat16, interleaved.

    python -m benchmarks.speed.half_types MODEL TEXTS

A readout after two thirds of the blocks reads 24 texts. Adapters on the top block take steps on 16
texts with 4 directions. The first step also computes the outputs of the lower blocks.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from samara.client.forward.grouping import Schedule
from samara.client.forward.readout import make_base_engine, run_base
from samara.client.forward.resident import ResidentForward
from samara.client.forward.setup import make_scorer
from samara.client.forward.streamed import make_forward_engine
from samara.client.forward.trunk_cache import make_trunk_cache
from samara.shared.model.loading import load_base_model
from samara.shared.model.lora_fa import inject
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.replay_torch import backend_for, draw_directions
from samara.shared.settings.sections import AdapterSettings
from samara.shared.tasks.catalog import load_task

CPU = torch.device("cpu")
DTYPES: tuple[Literal["float32", "bfloat16"], ...] = "float32", "bfloat16"

torch.set_num_threads(1)
model, file = sys.argv[1:]
task = load_task("sst2").model_copy(update={"form": "chat"})
texts = [json.loads(line)["text"] for line in Path(file).read_text().splitlines()[:24]]
ways: dict[tuple[str, str], Callable[[], NDArray[np.float32]]] = {}
engines: dict[str, ResidentForward] = {}


def add_ways(dtype: Literal["float32", "bfloat16"]) -> None:
    """Add the passes of one type to all ways."""
    cut = load_base_model(model, dtype=dtype, depth="2/3")
    scorer = make_scorer(cut, task, 256)
    rows = [scorer.prompt(text) for text in texts]
    engine = make_base_engine(cut, scorer, streamed=False)
    ways["readout", dtype] = partial(run_base, engine, rows, 16)

    whole = load_base_model(model, dtype=dtype)
    scorer = make_scorer(whole, task, 256, compares=True)
    batch = [scorer.prompt(text) for text in texts[:16]]
    adapter = inject(whole, AdapterSettings(layers="top:1"), scorer.labels)
    layout = adapter.layout
    seeds = np.arange(4, dtype=np.uint64)
    z = draw_directions(backend_for(CPU), seeds, layout.size, layout.distribution, 0, CPU)
    moved = Perturbations(layout, torch.zeros(layout.size), z, 0.01)

    def first_step() -> NDArray[np.float32]:
        cache = make_trunk_cache(whole, adapter.first_block, 2**30)
        engines[dtype] = make_forward_engine(whole, adapter, scorer, False, cache)
        return engines[dtype].scores(moved, batch, Schedule())

    def later_step() -> NDArray[np.float32]:
        return engines[dtype].scores(moved, batch, Schedule())

    ways["top:1, first step", dtype] = first_step
    ways["top:1, later step", dtype] = later_step


for one in DTYPES:
    add_ways(one)
found: dict[tuple[str, str], NDArray[np.float32]] = {}
seconds: dict[tuple[str, str], list[float]] = {key: [] for key in ways}
for _ in range(4):
    for key, way in ways.items():
        begun = time.process_time()
        found[key] = way()
        seconds[key].append(time.process_time() - begun)
for key, (_, *values) in sorted(seconds.items()):
    print(*key, " ".join(f"{value:.3f}" for value in values))
a, b = (found["readout", dtype][:, 2:] for dtype in DTYPES)
cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
print(f"mean cosine of the representations {cosines.mean():.5f}")
