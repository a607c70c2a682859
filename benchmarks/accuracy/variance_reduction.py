"""Ways to a less noisy zeroth-order step, at equal rows: what each gains by its best fixed rate.

    python -m benchmarks.accuracy.variance_reduction --out FOLDER --cell embedded:messages:0 \\
        --cell MODEL:sst2:DATA …

A cell is as in `step_size_grid.py`; adapters have about 5·10³ elements. Every way takes the rows of
500 steps of 4 queries on 4 examples, by each of nine rates √10 apart, side by side. The table shows
the gain of held-out loss by the rate that is best for the way, over seeds, and its ratio to the
plain steps'. What was measured is in FOLDER/ways.jsonl; the same command goes on from there.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.step_size_grid import (
    BATCH,
    DIVERGED,
    EPSILON,
    QUERIES,
    RATES,
    SIZES,
    STEPS,
    moved,
    top_of,
)
from benchmarks.accuracy.top_of_model import Top
from shared.directions import (
    Distribution,
    batch_order,
    directions,
    query_seeds,
    round_root,
)
from shared.events import append_event, read_events

ROWS = 2 * QUERIES * BATCH * STEPS


def four_queries(_: float) -> int:
    return QUERIES


def growing(done: float) -> int:
    """1, 2, 4, 8, 16 directions on 4 examples, a fifth of the rows each."""
    return (1, 2, 4, 8, 16)[min(int(5 * done), 4)]


def orthogonal(z: NDArray[np.int16]) -> NDArray[np.int16]:
    """Directions of one step made orthogonal, each as long as it was."""
    wide = z.astype(np.float64).T
    basis, upper = np.linalg.qr(wide)
    lengths = np.linalg.norm(wide, axis=0) * np.sign(np.diag(upper))
    turned: NDArray[np.int16] = np.rint(basis * lengths).astype(np.int16).T
    return turned


@dataclass(frozen=True)
class Way:
    """How steps are taken.

    Attributes:
        queries: of a step, by the share of all rows that was spent.
        batch: examples of a step.
        distribution: of the directions.
        forward: differences from the loss at the centre, which all directions of a step share, in
            place of central ones: of as many rows, almost twice the directions.
        centred: the g's of a step less their mean, which is the curvature in them.
        shape: what becomes of a step's directions.
        momentum: β of the mean of past steps that is applied.
        kept: steps that try the same directions, each on other examples.
    """

    queries: Callable[[float], int] = four_queries
    batch: int = BATCH
    distribution: Distribution = "gaussian"
    forward: bool = False
    centred: bool = False
    shape: Callable[[NDArray[np.int16]], NDArray[np.int16]] = lambda z: z
    momentum: float = 0.0
    kept: int = 1


WAYS = {
    "plain": Way(),
    "1 query on 16 examples": Way(queries=lambda _: 1, batch=16),
    "16 queries on 1 example": Way(queries=lambda _: 16, batch=1),
    "more queries over time": Way(queries=growing),
    "Rademacher": Way(distribution="rademacher"),
    "orthogonal": Way(shape=orthogonal),
    "momentum 0.9": Way(momentum=0.9),
    "directions tried twice": Way(kept=2),
    "loss at the centre shared": Way(queries=lambda _: 7, forward=True),
    "the same, less the mean g": Way(queries=lambda _: 7, forward=True, centred=True),
}


def gain(top: Top, way: Way, seed: int) -> tuple[list[float | None], float]:
    """Gains of held-out loss by rate, None where it diverged, and the best one's standard error."""
    thetas = torch.zeros(len(RATES), top.layout.size)
    velocity = torch.zeros_like(thetas)
    before = top.losses(thetas[:1], top.splits[1])[0, 0]
    smooth, alive = np.full(len(RATES), before.mean()), np.ones(len(RATES), bool)
    spent = step = 0
    while spent < ROWS:
        queries = way.queries(spent / ROWS)
        root = round_root(seed, 0, 0)
        rows = batch_order(root, 0, step, len(top.splits[0]))[: way.batch]
        seeds = query_seeds(root, 0, 1, queries, first_step=step // way.kept)[0]
        z = way.shape(directions(seeds, top.layout.size, way.distribution))
        losses = top.losses(thetas[alive], rows, z, EPSILON).mean(axis=2)
        plus, minus = np.split(losses, 2, axis=1)
        if way.forward:
            centre = top.losses(thetas[alive], rows).mean(axis=2)
            g = (plus - centre) / EPSILON
            g -= g.mean(axis=1, keepdims=True) if way.centred else 0.0
        else:
            g = (plus - minus) / (2 * EPSILON)
        spent += (queries + 1 if way.forward else 2 * queries) * way.batch
        move = moved(torch.zeros_like(thetas[alive]), -g / queries, z)
        velocity[alive] = way.momentum * velocity[alive] + (1 - way.momentum) * move
        thetas[alive] += torch.from_numpy(RATES[alive, None]).float() * velocity[alive]
        smooth[alive] += 0.05 * (losses.mean(axis=1) - smooth[alive])
        alive &= smooth < DIVERGED * before.mean() + 1
        step += 1
    gains: list[float | None] = [None] * len(RATES)
    errors = np.full(len(RATES), np.nan)
    for run in np.flatnonzero(alive):
        fell = before - top.losses(thetas[run : run + 1], top.splits[1])[0, 0]
        gains[run], errors[run] = float(fell.mean()), fell.std() / np.sqrt(len(fell))
    best = int(np.argmax([-np.inf if value is None else value for value in gains]))
    return gains, float(errors[best])


def best_of(row: dict[str, Any]) -> float:
    return float(max(-np.inf if value is None else value for value in row["gains"]))


def table_of(rows: list[dict[str, Any]]) -> Table:
    """Best gains of every way and cell, mean ± standard deviation over seeds."""
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    table = Table(title="gain of held-out loss by the best rate, and its ratio to plain", box=None)
    table.add_column("way", no_wrap=True)
    for cell in cells:
        model, task, _ = cell.split(":")
        table.add_column(f"{Path(model).name} {Path(task).stem}", justify="right")
    for way in WAYS:
        line = []
        for cell in cells:
            found = {
                name: {
                    row["seed"]: best_of(row)
                    for row in rows
                    if (row["cell"], row["way"]) == (cell, name)
                }
                for name in ("plain", way)
            }
            shared = sorted(set(found["plain"]) & set(found[way]))
            own = np.array([found[way][seed] for seed in shared])
            plain = np.array([found["plain"][seed] for seed in shared])
            spread = own.std(ddof=1) if len(own) > 1 else 0.0
            line.append(
                f"{own.mean():.3f} ± {spread:.3f} ({own.sum() / plain.sum():.0%})" if shared else ""
            )
        table.add_row(way, *line)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cell", action="append", required=True, metavar="MODEL:TASK:DATA")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    if any(cell.count(":") != 2 for cell in arguments.cell):
        parser.error("write a cell as MODEL:TASK:DATA")
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "ways.jsonl"
    rows = read_events(file)
    done = {(row["cell"], row["way"], row["seed"]) for row in rows}
    for cell in arguments.cell:
        model, task, data = cell.split(":")
        top = None
        for seed in range(arguments.seeds):
            for name, way in WAYS.items():
                if (cell, name, seed) in done:
                    continue
                top = top or top_of(model, task, data, SIZES[0])
                gains, error = gain(top, way, seed)
                rows.append({"cell": cell, "way": name, "seed": seed} | {"gains": gains})
                rows[-1]["error"] = error
                append_event(file, rows[-1])
                print(json.dumps(rows[-1]), flush=True)
    Console(width=120).print(table_of(rows))


if __name__ == "__main__":
    main()
