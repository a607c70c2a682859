"""How many scalars of how many examples find two groups with swapped labels? By true gradients.

    python -m benchmarks.cluster_budget --data DATA --model MODEL --out FILE --seeds 12

The gradients of sentences at the base are taken once (kept in FILE), so that many divisions of
SST-2 among clients can be tried for next to nothing: clients answer as they would, with losses to
first order in ε. benchmarks/cluster_groups.py has a few such cases with real losses.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.cluster_groups import right
from benchmarks.frozen_baseline import Frozen
from client.estimators.prge import Trial, carried_out
from client.own_steps import OwnSteps
from server.clusters import asked_scalars, finding
from server.groups import grouped
from shared.config import AdapterSettings, ModelSettings, RunConfig
from shared.directions import directions
from shared.frames import TrainInstruction
from shared.tasks.catalog import load_task
from shared.tasks.partition import partition
from shared.tasks.rows import Example

TASK, CLIENTS, RANK, DRAW = "sst2", 8, 4, 99
UNIT = 2.0**-11
"""Of directions."""


@dataclass(frozen=True, eq=False)
class Sentences:
    """Sentences at the base.

    Attributes:
        labels: int64 [n], 1 is positive.
        margins: float64 [n], the score of positive less that of negative.
        gradients: float32 [n, d], of the margins.
    """

    labels: NDArray[np.int64]
    margins: NDArray[np.float64]
    gradients: NDArray[np.float32]

    @classmethod
    def of(cls, data: Path, model: str, file: Path, count: int) -> "Sentences":
        """So many training sentences, drawn at random; from a file if it is there."""
        lines = (data / "train.jsonl").read_text(encoding="utf-8").splitlines()
        drawn = np.random.default_rng(DRAW).permutation(len(lines))[:count]
        rows = [json.loads(lines[index]) for index in drawn]
        if not file.exists():
            settings = ModelSettings.model_validate({"path": model, "max-length": 64})
            frozen = Frozen(TASK, settings, AdapterSettings(rank=RANK, alpha=4.0))
            texts = [load_task(TASK).render({"text": row["text"]}) for row in rows]
            np.save(file, np.stack([frozen.gradient(text).astype(np.float32) for text in texts]))
        found = np.load(file)
        labels = np.array([int(row["label"]) for row in rows])
        return cls(labels, found[:, -1].astype(np.float64), found[:, :-1])


@dataclass(frozen=True, eq=False)
class Client:
    """One client's sentences, with labels of its own."""

    here: Sentences
    which: NDArray[np.int64]
    labels: NDArray[np.int64]
    epsilon: float

    def losses_of(self, trial: Trial) -> NDArray[np.float64]:
        """Of a trial, to first order in ε."""
        rows, labels = self.which[trial.batch], self.labels[trial.batch]
        chance = 1 / (1 + np.exp(-self.here.margins[rows]))
        loss = float(-np.log(np.where(labels == 1, chance, 1 - chance)).mean())
        if not len(trial.seeds):
            return np.array([loss])
        gradients = self.here.gradients[rows]
        slope = (chance - labels) @ gradients / len(rows)
        z = directions(trial.seeds, gradients.shape[1], "gaussian") * UNIT
        return np.concatenate([loss + sign * self.epsilon * (z @ slope) for sign in trial.signs])

    def scalars(self, asked: TrainInstruction, device: int) -> NDArray[np.float64]:
        """What it reports, float64 [steps, q]."""
        own = OwnSteps(asked, device, self.labels, classes=2)
        for _ in range(asked.steps):
            own.taken(carried_out(own.estimator(), self.losses_of))
        return own.report(bytes(8)).gradients.astype(np.float64)


def placed_right(here: Sentences, config: RunConfig, alpha: float) -> int:
    """Clients that are with most of their kind, by the division of the run's seed."""
    places = [Example(str(i), int(own), "", "train") for i, own in enumerate(here.labels)]
    shares = partition(places, "dirichlet", CLIENTS, alpha, config.seed)
    asked = finding(config, bytes(8), bytes(32), bytes(32))
    found = {}
    for device, share in enumerate(shares):
        which = np.array([int(example.text) for example in share])
        client = Client(here, which, here.labels[which] ^ device % 2, asked.epsilon)
        found[device] = client.scalars(asked, device)
    return right(grouped(found, 2))


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
    here = Sentences.of(given.data, given.model, given.out, given.sentences)
    table = Table("alpha", "rounds", "scalars", "batch", "losses", "all right", "clients right")
    for alpha in given.alphas:
        for rounds in given.rounds:
            settings = {"steps": 4, "queries": 8, "batch": 8, "cohort.grouping-rounds": rounds}
            configs = [
                RunConfig.of(settings | {"seed": s}, "benchmark") for s in range(given.seeds)
            ]
            config = configs[0]
            steps, batch = asked_scalars(config)
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
