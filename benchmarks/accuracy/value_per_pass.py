"""Accuracy against example passes through the model, bytes and seconds, on many data sets.

    python -m benchmarks.accuracy.value_per_pass --data SOURCES --model MODEL --out FOLDER \\
        [--sets sst2,trec6] [--clients 1,8,64] [--seeds 0,1,2] [--alpha 5] [--set rounds=20] \\
        [--condition default --condition exact:gradients=exact --condition few:steps=4,queries=8]

SOURCES is the folder of source data that `data_sets` describes. Each run is a run of `samara
simulate` in this process. It sets data, model, clients, seed, their Dirichlet partition and the
settings of a condition. With `--alpha inf`, the partition is the run's own division, by users or at
random. There are no private rounds, which do not change the global model, unless `personal.rounds`
is set. A condition is a name with settings; `--set` applies to all conditions. `cells` explains
cells, probes and options.

FOLDER/rows.jsonl has one line per run. Runs in this file are not repeated, so the same command
continues. In a line `client_accuracy` has the mean accuracy over clients of the global model, and
of personal models if there are private rounds. FOLDER/rows.md has the means over the seeds. Passes
are the mean number of a client's rows through the model. Bytes are all bytes that a client sends
and receives in a run, including evaluations.
"""

import shutil
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.cells import measure_cells, read_arguments
from benchmarks.accuracy.rows import Row
from samara.client.training.model_runtime import load_run
from samara.server.store import replay_run
from samara.shared.protocol.frames.instructions import Split
from samara.shared.results.result import RunResult
from samara.shared.settings.config import RunConfig
from samara.shared.tasks.profiled_loss import fitted_shift
from samara.simulations.simulate import simulate


def main() -> None:
    measure_cells(read_arguments(__doc__), run, render_table)


def run(config: RunConfig) -> Row:
    """Run a federation, return its costs and accuracies, and remove its folder."""
    shutil.rmtree(config.out, ignore_errors=True)
    begun, processor = time.monotonic(), time.process_time()
    result = RunResult.read(simulate(config))
    seconds, processor = time.monotonic() - begun, time.process_time() - processor
    found = [event for event in result.evaluations if "global" in event.columns]
    globals_ = [(event.round, event.split, event.columns["global"]) for event in found]
    test = [column for _, split, column in globals_ if split == "test"]
    models = [event.columns for event in found if event.split == "test"][-1]
    scalars = result.scalar_ratios
    figures = test_figures(config)
    shutil.rmtree(config.out, ignore_errors=True)
    return {
        "zero_shot": test[0].accuracy,
        "accuracy": test[-1].accuracy,
        "macro_f1": test[-1].macro_f1,
        **figures,
        "loss": test[-1].loss,
        "client_accuracy": {name: column.mean_client_accuracy for name, column in models.items()},
        "validation": {
            number: column.accuracy for number, split, column in globals_ if split == "validation"
        },
        "passes": result.mean_passes,
        "bytes_up": result.bytes_up / config.data.clients,
        "bytes_down": result.bytes_down / config.data.clients,
        "elements": result.elements,
        "scalar_ratio": scalars.mean if scalars else None,
        "seconds": round(seconds, 1),
        "processor_seconds": round(processor, 1),
    }


def test_figures(config: RunConfig) -> Row:
    """Return figures of the last global model on all clients' test examples.

    `auc` is the area under the ROC curve. With more than two labels, it is the mean over labels,
    each against all others. `shifted_accuracy` is the accuracy after adding a shift to all scores:
    the mean of the clients' shifts, each fitted to a client's training examples as the profiled
    loss fits a shift to a batch.
    """
    from scipy.special import softmax
    from sklearn.metrics import roc_auc_score

    (*_, last) = replay_run(Path(config.out))
    runtime, source = load_run(config)
    count, shift, examples = config.data.clients, 0.0, 0
    for client in range(count):
        train = source.share_of(client, count).tokenized(Split.TRAIN)
        (own,) = fitted_shift(runtime.scores(last.state, train.prompts)[None], train.labels)
        shift, examples = shift + len(train.labels) * own, examples + len(train.labels)
    whole = {"data.partition": "iid", "data.clients": 1}
    runtime, source = load_run(RunConfig.of(config.flat() | whole, "figures"))
    data = source.share_of(0, 1).tokenized(Split.TEST)
    scores = runtime.scores(last.state, data.prompts).astype(np.float64)
    shares = softmax(scores, axis=1)
    ranked = shares[:, 1] if shares.shape[1] == 2 else shares
    right = (scores + shift / examples).argmax(axis=1) == data.labels
    return {
        "auc": float(roc_auc_score(data.labels, ranked, multi_class="ovr")),
        "shifted_accuracy": float(right.mean()),
    }


def render_table(rows: Iterable[Row]) -> str:
    """Return a Markdown table of means over seeds, with a line per cell and condition."""
    groups: defaultdict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        setting = " ".join(f"{key}={value}" for key, value in row["set"].items())
        cell = row["data_set"], row["labels"], row["examples"], row["clients"], row["alpha"]
        groups[*cell, row["condition"], setting].append(row)
    lines = [
        "| data | labels | examples | clients | α | condition | settings | seeds | zero-shot | "
        "accuracy | probe CV | probe | difference | passes | bytes up | bytes down | seconds |",
        "|---" * 17 + "|",
    ]
    for key, group in groups.items():
        mean = {name: np.mean([row[name] for row in group]) for name in _AVERAGED}
        lines.append(
            "| " + " | ".join(map(str, key)) + f" | {len(group)} | {mean['zero_shot']:.1%} | "
            f"{mean['accuracy']:.1%} | {mean['probe_cv']:.1%} | {mean['probe']:.1%} | "
            f"{100 * (mean['accuracy'] - mean['probe_cv']):+.1f} | {mean['passes']:,.0f} | "
            f"{mean['bytes_up']:,.0f} | {mean['bytes_down']:,.0f} | {mean['seconds']:.0f} |"
        )
    return "\n".join(lines) + "\n"


_AVERAGED = (
    *("zero_shot", "accuracy", "probe_cv", "probe", "passes"),
    *("bytes_up", "bytes_down", "seconds"),
)


if __name__ == "__main__":
    main()
