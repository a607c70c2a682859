"""Forward passes per client until a federation has gained so many points, by number of clients.

    python benchmarks/clients_to_target.py --model MODEL --task trec --data DATA --out FOLDER

Every client has an equal share of the training examples, drawn at random. In a round each takes one
step of 8 queries on 8 examples from the common state, along its own directions or along those that
all share, and the mean of all is applied, as the server does. Fixed rates √10 apart run side by
side; the one that arrives first counts. A forward pass is one example through the model once.
Adapters of about 1,500 elements are on the last
projection that carries them (see `top_of_model.py`). What was
measured is in FOLDER/arrivals.jsonl; the same command goes on from there.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.step_size_grid import DIVERGED, EPSILON, gradients, moved, top_of
from benchmarks.top_of_model import Top
from shared.directions import batch_order, directions, query_seeds, round_root
from shared.events import append_event, read_events

QUERIES, BATCH, SIZE = 8, 8, 1_500
RATES = 10.0 ** np.arange(-1, 1.25, 0.5)
CLIENTS = (1, 4, 16, 64)
EVALUATE = 1.1
"""Rounds between two evaluations grow by this factor."""


def accuracy(top: Top, thetas: torch.Tensor) -> NDArray[np.float64]:
    """Share of held-out examples that every run decides rightly, [R]."""
    return np.array([float(top.decides(theta[None], top.splits[1]).mean()) for theta in thetas])


def moves(
    top: Top, thetas: torch.Tensor, shards: list[NDArray[np.int64]], shared: bool, root: int
) -> tuple[torch.Tensor, NDArray[np.float64]]:
    """What a round adds to every run at η = 1, [R, d], and the mean loss of its points, [R]."""
    batches = [
        shard[batch_order(root, client, 0, len(shard))[:BATCH]]
        for client, shard in enumerate(shards)
    ]
    if shared:
        batches = [np.concatenate(batches)]
    total, level = torch.zeros_like(thetas), np.zeros(len(thetas))
    for client, rows in enumerate(batches):
        seeds = query_seeds(root, 0 if shared else client + 1, 1, QUERIES)[0]
        z = directions(seeds, top.layout.size, "gaussian")
        losses = top.losses(thetas, rows, z, EPSILON).mean(axis=2)
        share = -gradients(losses) / (QUERIES * len(batches))
        total = moved(total, share, z)
        level += losses.mean(axis=1) / len(batches)
    return total, level


def arrival(
    top: Top, clients: int, shared: bool, seed: int, points: float, most: int
) -> dict[str, Any]:
    """The first round after which a rate has gained so many points, within so many rounds."""
    order = np.random.default_rng(seed).permutation(top.splits[0])
    shards = np.array_split(order, clients)
    thetas = torch.zeros(len(RATES), top.layout.size)
    before = accuracy(top, thetas[:1])[0]
    start = smooth = None
    alive = np.ones(len(RATES), bool)
    best, due = before, 1.0
    for number in range(1, most + 1):
        root = round_root(seed, number, 0)
        move, level = moves(top, thetas[alive], shards, shared, root)
        thetas[alive] += torch.from_numpy(RATES[alive, None]).float() * move
        if start is None or smooth is None:
            start = float(level.mean())
            smooth = np.full(len(RATES), start)
        smooth[alive] += 0.05 * (level - smooth[alive])
        alive &= smooth < DIVERGED * start + 1
        if number >= due or number == most:
            due = max(number + 1, number * EVALUATE)
            found = accuracy(top, thetas)
            best = max(best, float(found.max()))
            if found.max() >= before + points / 100:
                break
    arrived = bool(best >= before + points / 100)
    return {
        "clients": clients,
        "policy": "shared" if shared else "independent",
        "seed": seed,
        "before": float(before),
        "best": best,
        "rounds": number,
        "passes": number * 2 * QUERIES * BATCH,
        "arrived": arrived,
        "rate": float(RATES[int(found.argmax())]),
    }


def table_of(rows: list[dict[str, Any]]) -> Table:
    """Median of the seeds; a ≥ where one of them did not arrive."""
    table = Table(title="forward passes per client until the target", box=None)
    for column in ("clients", "seeds", "rounds", "passes per client", "passes in all", "η"):
        table.add_column(column, justify="right")
    for policy in ("independent", "shared"):
        for clients in CLIENTS:
            found = [r for r in rows if (r["clients"], r["policy"]) == (clients, policy)]
            if not found:
                continue
            late = "" if all(row["arrived"] for row in found) else "≥ "
            rounds, passes = (
                float(np.median([row[key] for row in found])) for key in ("rounds", "passes")
            )
            table.add_row(
                str(clients),
                policy,
                f"{late}{rounds:,.0f}",
                f"{late}{passes:,.0f}",
                f"{late}{passes * clients:,.0f}",
                ", ".join(f"{row['rate']:.2g}" for row in found),
            )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("--model", "--task", "--data"):
        parser.add_argument(name, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--train", type=int, default=4_800, help="examples of all clients")
    parser.add_argument("--held-out", type=int, default=500)
    parser.add_argument("--points", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--most", type=int, default=2_000, help="rounds after which a run is left")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "arrivals.jsonl"
    rows = read_events(file)
    done = {(row["clients"], row["policy"], row["seed"]) for row in rows}
    top = top_of(
        arguments.model, arguments.task, arguments.data, SIZE, arguments.train, arguments.held_out
    )
    for seed in range(arguments.seeds):
        for clients in reversed(CLIENTS):
            for shared in (False, True):
                if (clients, "shared" if shared else "independent", seed) in done:
                    continue
                rows.append(arrival(top, clients, shared, seed, arguments.points, arguments.most))
                append_event(file, rows[-1])
                print(json.dumps(rows[-1]), flush=True)
    Console(width=100).print(table_of(rows))


if __name__ == "__main__":
    main()
