"""Two groups of clients who mean the opposite by a label: are they found by scalars alone?

    python -m benchmarks.accuracy.cluster_groups --data DATA --model MODEL --out FOLDER

Sentences of SST-2 are dealt by a Dirichlet distribution; every other client's labels are swapped.
What the server is told is what it always is: projected gradients. Every run is in FOLDER, and the
same command goes on from there; --set changes settings of all runs.
"""

import argparse
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from samara.server.rounds.clustering import cosine_similarities, distinctive_parts
from samara.server.rounds.clusters import ASSIGNMENTS_FILE, ClusterAssignments
from samara.shared.config import RunConfig
from samara.shared.result import RunResult
from samara.shared.settings import parse_assignment
from samara.shared.tasks.partition import partition
from samara.shared.tasks.rows import Example
from samara.simulations.simulate import simulate

KEPT = {"train": 2400, "validation": 160, "test": 400}


def swapped(data: str, folder: Path, clients: int, alpha: float, seed: int) -> list[float]:
    """Write a folder of users' sentences; returns each user's share of positive ones."""
    examples = _sentences(data, seed)
    shares = partition(examples, "dirichlet", clients, alpha, seed)
    folder.mkdir(parents=True, exist_ok=True)
    for split in KEPT:
        lines = [
            json.dumps({"text": e.text, "label": e.label ^ client % 2, "user": f"user{client:02}"})
            for client, own in enumerate(shares)
            for e in own
            if e.split == split
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    train = [[e.label for e in own if e.split == "train"] for own in shares]
    return [float(np.mean(labels)) for labels in train]


def _sentences(data: str, seed: int) -> list[Example]:
    """Sentences as they stand, so many of each split, drawn by the seed."""
    rng, found = np.random.default_rng(seed), []
    for split, count in KEPT.items():
        lines = (Path(data) / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
        for index in rng.permutation(len(lines))[:count]:
            row = json.loads(lines[index])
            found.append(Example(row["text"], int(row["label"]), "", split))
    return found


def right(groups: dict[int, int]) -> int:
    """Clients that are on the side of most of their kind."""
    same = sum(cluster == device % 2 for device, cluster in groups.items())
    return max(same, len(groups) - same)


def contrast(file: Path) -> tuple[float, float]:
    """Mean cosine of what two clients' scalars do not have in common: of one kind, of two kinds."""
    scalars = ClusterAssignments.read(file).scalars
    devices = sorted(scalars)
    cosines = cosine_similarities(distinctive_parts([scalars[device] for device in devices]))
    alike = np.equal.outer([d % 2 for d in devices], [d % 2 for d in devices])
    own = ~np.eye(len(devices), dtype=np.bool_)
    return float(cosines[alike & own].mean()), float(cosines[~alike].mean())


def accuracy(folder: Path) -> float:
    """Mean over clients, of the global or cluster's model in the end."""
    (column,) = RunResult.read(folder).evaluations[-1].columns.values()
    return column.mean_client_accuracy


def configured(
    place: Path, method: str, clients: int, seed: int, model: str, changed: Mapping[str, Any]
) -> RunConfig:
    """A run by a method on the users in a place."""
    settings: dict[str, Any] = {
        "method": method,
        "task": "sst2",
        "data.path": str(place / "data"),
        "data.clients": clients,
        "model.path": model,
        "adapter.rank": 4,
        "adapter.alpha": 4.0,
        "learning-rate": 0.2,
        "steps": 4,
        "queries": 8,
        "batch": 8,
        "evaluate.every": 0,
        "personal.rounds": 0,
        "seed": seed,
        "out": str((place / method).resolve()),
    }
    return RunConfig.of(settings | dict(changed), "benchmark")


def _place(out: Path, alpha: float, seed: int) -> Path:
    return out / f"alpha-{alpha:g}-seed-{seed}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--alphas", type=float, nargs="+", default=[5.0, 1.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--methods", nargs="+", default=["cluster", "global"])
    parser.add_argument("--set", action="append", default=[], dest="settings")
    given = parser.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    cases = [(alpha, seed) for alpha in given.alphas for seed in given.seeds]
    settings = dict(map(parse_assignment, given.settings))
    positive = {}
    for method in given.methods:
        for alpha, seed in cases:
            place = _place(given.out, alpha, seed)
            shares = swapped(given.data, place / "data", given.clients, alpha, seed)
            positive[alpha, seed] = f"{min(shares):.0%} – {max(shares):.0%}"
            simulate(configured(place, method, given.clients, seed, given.model, settings))
    table = Table("alpha", "seed", "positive, %", "clients placed right", "cosine alike, opposed")
    for method in given.methods:
        table.add_column(f"{method}, %")
    for alpha, seed in cases:
        place = _place(given.out, alpha, seed)
        reached = [f"{accuracy(place / method):.1%}" for method in given.methods]
        found = ["", ""]
        if "cluster" in given.methods:
            groups = RunResult.read(place / "cluster").groups
            alike, opposed = contrast(place / "cluster" / ASSIGNMENTS_FILE)
            found = [f"{right(groups)} of {len(groups)}", f"{alike:+.2f}, {opposed:+.2f}"]
        table.add_row(f"{alpha:g}", str(seed), positive[alpha, seed], *found, *reached)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
