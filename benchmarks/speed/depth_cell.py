"""Costs of a readout at a depth: CPU seconds of a pass, memory, bytes of weights.

    python -m benchmarks.speed.depth_cell MODEL TEXTS [DEPTH]

A pass reads 24 film sentences, 16 at a time.
"""

import json
import resource
import sys
import time
from itertools import chain
from pathlib import Path

import torch

from samara.client.forward.readout import make_base_engine, run_base
from samara.client.forward.setup import make_scorer
from samara.shared.model.loading import load_base_model
from samara.shared.tasks.catalog import load_task

torch.set_num_threads(1)
model, texts, depth = (*sys.argv[1:], "")[:3]
base = load_base_model(model, depth=depth)
scorer = make_scorer(base, load_task("sst2"), 256)
lines = Path(texts).read_text().splitlines()[:24]
prompts = [scorer.prompt(json.loads(line)["text"]) for line in lines]
engine = make_base_engine(base, scorer, streamed=False)
seconds = []
for _ in range(4):
    begun = time.process_time()
    run_base(engine, prompts, 16)
    seconds.append(time.process_time() - begun)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
tensors = chain(base.network.parameters(), base.network.buffers())
weights = sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())
tokens = sum(len(prompt.sequences[0]) for prompt in prompts)
print(
    f"{Path(model).name} {depth or 'last'}: {len(base.blocks)} blocks, {tokens} tokens, "
    f"CPU s {' '.join(f'{s:.2f}' for s in seconds[1:])}, peak {peak:.0f} MiB, "
    f"weights {weights / 2**20:.1f} MiB",
    flush=True,
)
