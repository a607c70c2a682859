"""A step on texts against a step on labels of the same rows: seconds and memory of its passes.

    python -m benchmarks.speed.text_rows TEXTS --model MODEL [--batch 32] [--vocabulary N]

TEXTS is a file of rows with a text. The same rows are scored as labels (the question of SST-2 after
the text: one token is read), as plain texts (every token is read), and as plain texts that are not
packed. Repetitions are interleaved, and seconds are medians; memory is the peak of a step's passes
beside the weights. Passes are divided as in a run, with adapters in the top block. With N the model
gets a vocabulary of N tokens; those that it did not have are in no text.
"""

import argparse
import json
from collections import defaultdict
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.speed.shapes import timed
from samara.client.forward.body import PerturbedBody
from samara.client.forward.grouping import Schedule
from samara.client.forward.peak_memory import keep_freed_memory, measure_peak_memory
from samara.client.forward.resident import ResidentForward
from samara.client.forward.trunk_cache import make_trunk_cache
from samara.shared.directions import directions
from samara.shared.layout import Layout
from samara.shared.model.loading import load_base_model
from samara.shared.model.lora_fa import inject
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.scorers import Prompt, scorer_for
from samara.shared.sections import AdapterSettings
from samara.shared.tasks.catalog import load_task

CPU, CACHE_BYTES = torch.device("cpu"), 2**28


def main() -> None:
    """Measure, and print a line for each kind of rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--queries", type=int, default=16)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=0, help="0 is the model's own")
    arguments = parser.parse_args()
    keep_freed_memory()
    rows = arguments.texts.read_text(encoding="utf-8").splitlines()
    spread = np.linspace(0, len(rows) - 1, arguments.batch).astype(int)
    texts = [json.loads(rows[index])["text"] for index in spread]
    schedule = Schedule("both", arguments.micro_batch)
    engine = partial(_engine, arguments.model, arguments.vocabulary, texts)
    measured = {
        "labels": engine("sst2", False),
        "texts": engine("texts", True),
        "texts, not packed": engine("texts", False),
    }
    seconds: dict[str, list[float]] = defaultdict(list)
    peaks: dict[str, int] = {}
    for repetition in range(1 + arguments.repetitions):
        for name, (forward, layout, prompts) in measured.items():
            z = directions(np.arange(arguments.queries, dtype=np.uint64), layout.size, "gaussian")
            center = np.zeros(layout.size, np.float32)
            moved = Perturbations.from_arrays(layout, center, z, 0.01)
            step = partial(forward.scores, moved, prompts, schedule)
            if repetition:
                seconds[name].append(timed(step, CPU))
                continue
            step()  # which fills the cache of the trunk
            with measure_peak_memory(CPU) as peak:
                step()
            peaks[name] = peak.bytes
    plain = median(seconds["labels"])
    print("| rows | tokens read | seconds a step | ratio | MiB of a pass |\n|---|---|---|---|---|")
    for name, (_, _, prompts) in measured.items():
        tokens = sum(len(positions) for one in prompts for positions in one.supervised)
        took = median(seconds[name])
        print(
            f"| {name} | {tokens:,} | {took:.2f} | {took / plain:.2f} | {peaks[name] / 2**20:.0f} |"
        )


def _engine(
    model: Path, vocabulary: int, texts: list[str], task: str, packs: bool
) -> tuple[ResidentForward, Layout, list[Prompt]]:
    """Return a forward engine, the layout of its adapter, and the rows of a task."""
    base = load_base_model(str(model))
    if vocabulary:
        base.network.resize_token_embeddings(vocabulary, mean_resizing=False)
    with torch.inference_mode():
        scorer = scorer_for(base, load_task(task), 256, PerturbedBody(base, 0))
    adapter = inject(base, AdapterSettings(layers="top:1"), scorer.labels)
    cache = make_trunk_cache(base, adapter.first_block, CACHE_BYTES)
    body = PerturbedBody(base, adapter.first_block, cache, packs)
    prompts = [scorer.prompt("" if task == "texts" else one, [one]) for one in texts]
    return ResidentForward(adapter, scorer, body), adapter.layout, prompts


if __name__ == "__main__":
    main()
