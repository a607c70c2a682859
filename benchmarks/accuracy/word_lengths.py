"""Zero-shot accuracy with the mean and with the sum of the log-likelihoods of a label's tokens.

    python -m benchmarks.accuracy.word_lengths MODEL TASK TEXTS FORM WORD[,WORD...] ...

`-` means the task's own words. The label bias is fitted to one half of the 200 texts and added to
the scores of the other half, and conversely.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from samara.client.forward.grouping import Schedule
from samara.client.forward.setup import make_scorer
from samara.client.forward.streamed import make_forward_engine
from samara.shared.model.loading import load_base_model
from samara.shared.model.lora_fa import empty_adapter
from samara.shared.model.scorers import CausalScorer
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.kinds import ClassificationTask
from samara.shared.tasks.profiled_loss import fitted_shift

torch.set_num_threads(1)
model, name, texts, form, *lists = sys.argv[1:]
base = load_base_model(model)
rows = [json.loads(line) for line in Path(texts).read_text().splitlines()[:200]]
labels = np.array([row["label"] for row in rows], np.int64)
half = np.random.default_rng(0).permutation(len(rows)) % 2
adapter, none = empty_adapter()
for given in lists:
    task = load_task(name).model_copy(update={"form": form})
    if given != "-":
        task = task.model_copy(update={"words": tuple(given.split(","))})
    scorer = make_scorer(base, task, 256)
    assert isinstance(task, ClassificationTask)
    assert isinstance(scorer, CausalScorer)
    engine = make_forward_engine(base, adapter, scorer, False)
    prompts = [scorer.prompt(row["text"]) for row in rows]
    mean = engine.scores(none, prompts, Schedule("both", 16), whole=True)[0]
    counts = np.array([len(tokens) for tokens in scorer.label_tokens], np.float32)
    for rule, scores in {"mean": mean, "sum": mean * counts}.items():
        shifted = scores.copy()
        for own in range(2):
            shift = fitted_shift(scores[None, half != own], labels[half != own])[0]
            shifted[half == own] += shift.astype(np.float32)
        plain, biased = (100 * np.mean(s.argmax(1) == labels) for s in (scores, shifted))
        print(
            f"{name} {form} {task.words} tokens {counts.tolist()} {rule}: {plain:.1f}, "
            f"with a label bias {biased:.1f}",
            flush=True,
        )
