"""How many scalars of how many examples find two groups with swapped labels? By true gradients.

    python -m benchmarks.accuracy.cluster_budget --data DATA --model MODEL --out FILE --seeds 12

The gradients of sentences at the base are taken once (kept in FILE), so that many divisions of
SST-2 among clients can be tried for next to nothing: clients answer as they would, with losses to
first order in ε. benchmarks/accuracy/cluster_groups.py has a few such cases with real losses.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.cluster_groups import right
from benchmarks.accuracy.frozen_baseline import Frozen
from benchmarks.accuracy.linear_model import Texts
from server.rounds.clustering import cluster_clients
from server.rounds.clusters import clustering_instruction, clustering_steps_and_batch
from shared.config import RunConfig
from shared.sections import AdapterSettings, ModelSettings
from shared.tasks.catalog import load_task
from shared.tasks.partition import partition
from shared.tasks.rows import Example

TASK, CLIENTS, RANK, DRAW = "sst2", 8, 4, 99


def sentences(data: Path, model: str, file: Path, count: int) -> Texts:
    """So many training sentences, drawn at random; their gradients from a file if it is there."""
    lines = (data / "train.jsonl").read_text(encoding="utf-8").splitlines()
    drawn = np.random.default_rng(DRAW).permutation(len(lines))[:count]
    rows = [json.loads(lines[index]) for index in drawn]
    if not file.exists():
        settings = ModelSettings.model_validate({"path": model, "max-length": 64})
        frozen = Frozen(TASK, settings, AdapterSettings(rank=RANK, alpha=4.0))
        texts = [load_task(TASK).render({"text": row["text"]}) for row in rows]
        np.save(file, np.stack([frozen.gradient(text).astype(np.float32) for text in texts]))
    found = np.load(file).astype(np.float64)
    return Texts(found[:, :-1], found[:, -1], np.array([int(row["label"]) for row in rows]))


def placed_right(here: Texts, config: RunConfig, alpha: float) -> int:
    """Clients that are with most of their kind, by the division of the run's seed."""
    places = [Example(str(i), int(own), "", "train") for i, own in enumerate(here.labels)]
    shares = partition(places, "dirichlet", CLIENTS, alpha, config.seed)
    asked = clustering_instruction(config, bytes(8), bytes(32), bytes(32))
    found = {}
    for device, share in enumerate(shares):
        own = here.some(np.array([int(example.text) for example in share]))
        found[device] = replace(own, labels=own.labels ^ device % 2).scalars(asked, device)
    return right(cluster_clients(found, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--alphas", type=float, nargs="+", default=[5.0, 1.0])
    parser.add_argument("--rounds", type=int, nargs="+", default=[4, 8, 16, 32, 64])
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--sentences", type=int, default=2400)
    given = parser.parse_args()
    here = sentences(given.data, given.model, given.out, given.sentences)
    table = Table("alpha", "rounds", "scalars", "batch", "losses", "all right", "clients right")
    for alpha in given.alphas:
        for rounds in given.rounds:
            settings = {"steps": 4, "queries": 8, "batch": 8, "cohort.clustering-rounds": rounds}
            configs = [
                RunConfig.of(settings | {"seed": s}, "benchmark") for s in range(given.seeds)
            ]
            config = configs[0]
            steps, batch = clustering_steps_and_batch(config)
            of_seeds = [placed_right(here, own, alpha) for own in configs]
            table.add_row(
                f"{alpha:g}",
                str(rounds),
                str(steps * config.queries),
                str(batch),
                f"{steps * (config.queries + 1) * batch:,}",
                f"{of_seeds.count(CLIENTS)} of {given.seeds}",
                f"{np.mean(of_seeds) / CLIENTS:.0%}",
            )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
