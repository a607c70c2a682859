"""The step size that is found against nine fixed ones: gain of held-out loss for equal rows.

    python -m benchmarks.accuracy.step_size_grid --out FOLDER --cell embedded:messages:0 \\
        --cell MODEL:sst2:DATA --cell MODEL:trec6:DATA …

A cell is a model, a task and its data (of the embedded model the seed of a community of writers);
each is run for two sizes of adapter and two seeds. Nine fixed rates, √10 apart, take 500 steps of 4
directions on 4 examples, side by side, and `auto` takes as many steps as the same number of rows
allows: the losses at the centre count. What was measured is in FOLDER/cells.jsonl at once, and the
same command goes on from there; --seconds ends it in between.
"""

import argparse
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.rows import Row, Rows
from benchmarks.accuracy.top_of_model import CausalTop, EncoderTop, Top
from samara.client.tuning.settings import TuneSettings
from samara.shared.directions import (
    DIRECTION_BITS,
    batch_order,
    directions,
    query_seeds,
    round_root,
)
from samara.shared.model.loading import load_base_model
from samara.shared.sections import EMBEDDED_MODEL
from samara.shared.step_size import Observation, StepSize

QUERIES, BATCH, STEPS, EPSILON = 4, 4, 500, 0.01
RATES = 10.0 ** np.arange(-3.5, 0.75, 0.5)
SIZES = (5_200, 70_000)
SEEDS = (0, 1)
TRAIN, HELD_OUT, LENGTH = 1000, 400, 48
DIVERGED = 4.0
"""Times the loss at the start, plus 1: a fixed rate whose smoothed loss is beyond is left."""


def drawn(top: Top, seed: int, step: int) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
    """Examples int64 [B] and directions int16 [q, d] of a step, the same for every rate."""
    root = round_root(seed, 0, 0)
    rows = batch_order(root, 0, step, len(top.splits[0]))[:BATCH]
    seeds = query_seeds(root, 0, 1, QUERIES, first_step=step)[0]
    return rows, directions(seeds, top.layout.size, "gaussian")


def moved(thetas: torch.Tensor, change: NDArray[np.float64], z: NDArray[np.int16]) -> torch.Tensor:
    """θ + Σ change·z of every run."""
    shares = torch.from_numpy(change.astype(np.float32))
    return thetas + shares @ (torch.from_numpy(z).float() * 2.0**-DIRECTION_BITS)


def gradients(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """[R, q] of mean losses [R, 2q]."""
    plus, minus = np.split(losses, 2, axis=1)
    difference: NDArray[np.float64] = (plus - minus) / (2 * EPSILON)
    return difference


def fixed(top: Top, seed: int) -> NDArray[np.float64]:
    """Held-out losses after all steps, [rates, examples]; NaN where it diverged."""
    thetas = torch.zeros(len(RATES), top.layout.size)
    start = float(top.losses(thetas[:1], top.splits[1]).mean())
    smooth, alive = np.full(len(RATES), start), np.ones(len(RATES), bool)
    for step in range(STEPS):
        rows, z = drawn(top, seed, step)
        losses = top.losses(thetas[alive], rows, z, EPSILON).mean(axis=2)
        change = -RATES[alive, None] * gradients(losses) / QUERIES
        thetas[alive] = moved(thetas[alive], change, z)
        smooth[alive] += 0.05 * (losses.mean(axis=1) - smooth[alive])
        alive &= smooth < DIVERGED * start + 1
    after = np.full((len(RATES), len(top.splits[1])), np.nan)
    for run in np.flatnonzero(alive):
        after[run] = top.losses(thetas[run : run + 1], top.splits[1])[0, 0]
    return after


def found(top: Top, seed: int, given: float | None = None) -> tuple[NDArray[np.float64], list[int]]:
    """Held-out losses of `auto`, [examples], and the steps that were returns."""
    theta = torch.zeros(1, top.layout.size)
    size, rows_left, kept, returns = (
        StepSize(STEPS, given, EPSILON),
        2 * QUERIES * BATCH * STEPS,
        [theta],
        [],
    )
    step = 0
    while rows_left >= (2 * QUERIES + 1) * BATCH:
        rows, z = drawn(top, seed, step)
        losses = top.losses(theta, rows, z, EPSILON).mean(axis=2)
        rows_left -= 2 * QUERIES * BATCH
        curvature = None
        if size.measures_curvature(step, QUERIES):
            middle = float(top.losses(theta, rows).mean())
            curvature = 2 * (float(losses.mean()) - middle) / EPSILON**2
            rows_left -= BATCH
        g = size.clipped(gradients(losses)[0].astype(np.float32))
        rate = size.learning_rate
        size = size.after(Observation.from_step(float(losses.mean()), g, rate, curvature))
        if size.back_to is None:
            theta = moved(theta, -rate * g[None].astype(np.float64) / QUERIES, z)
        else:
            theta = kept[size.back_to]
            returns.append(step + 1)
        kept.append(theta)
        step += 1
    return top.losses(theta, top.splits[1])[0, 0], returns


def top_of(
    model: str, task: str, data: str, size: int, train: int = TRAIN, held_out: int = HELD_OUT
) -> Top:
    """A model with adapters of about so many elements, and so many examples."""
    family = "causal"
    settings: dict[str, Any] = {"task": task, "threads": 1}
    settings |= {"model.max-length": LENGTH, "data.test": held_out, "data.train": train}
    if model == EMBEDDED_MODEL:
        width = 768
    else:
        settings |= {"model.path": model, "data.path": data}
        base = load_base_model(model, "auto", "cpu", "none", "float32")
        family, config = base.family, base.network.config
        width = config.hidden_size if family == "encoder" else 2 * config.intermediate_size
    settings["adapter.rank"] = round(size / width)
    if family == "causal":
        settings["adapter.projections"] = "gate_proj,up_proj"
    kind = EncoderTop if family == "encoder" else CausalTop
    return kind(
        TuneSettings.of(
            settings | {"seed": int(data) if model == EMBEDDED_MODEL else 0}, "cell"
        ).complete(1)
    )


def measured(cell: str, size: int, seed: int, top: Top) -> Row:
    """One row."""
    nowhere = torch.zeros(1, top.layout.size)
    before = top.losses(nowhere, top.splits[1])[0, 0]
    gains = before - fixed(top, seed)
    own, returns = found(top, seed)
    return {
        "cell": cell,
        "size": size,
        "seed": seed,
        "elements": top.layout.size,
        "before": float(before.mean()),
        "gains": [None if np.isnan(gain) else float(gain) for gain in gains.mean(axis=1)],
        "errors": (gains.std(axis=1) / np.sqrt(len(before))).tolist(),
        "auto": float((before - own).mean()),
        "returns": returns,
    }


def table_of(rows: Iterable[Row]) -> Table:
    """Shares of the best fixed rate's gain, and those cells apart whose best gain is noise."""
    table = Table(title="gain of held-out loss: the best of nine fixed rates, and auto", box=None)
    for column in ("cell", "d", "seed", "best η", "gain", "s.e.", "auto", "share", "returns"):
        table.add_column(column, justify="left" if column == "cell" else "right")
    shares = []
    for row in rows:
        gains = [-np.inf if gain is None else gain for gain in row["gains"]]
        best = int(np.argmax(gains))
        clear = gains[best] > 2 * row["errors"][best]
        share = row["auto"] / gains[best]
        if clear:
            shares.append(share)
        table.add_row(
            row["cell"],
            f"{row['elements']:,}",
            str(row["seed"]),
            f"{RATES[best]:.2g}",
            f"{gains[best]:.3f}",
            f"{row['errors'][best]:.3f}",
            f"{row['auto']:.3f}",
            f"{share:.0%}" if clear else "noise",
            str(len(row["returns"])),
        )
    if shares:
        table.caption = f"{len(shares)} cells: mean {np.mean(shares):.0%}, worst {min(shares):.0%}"
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cell", action="append", required=True, metavar="MODEL:TASK:DATA")
    parser.add_argument("--seconds", type=float, default=np.inf)
    arguments = parser.parse_args()
    if any(cell.count(":") != 2 for cell in arguments.cell):
        parser.error("write a cell as MODEL:TASK:DATA")
    torch.set_num_threads(1)
    rows, end = Rows(arguments.out / "cells.jsonl"), time.monotonic() + arguments.seconds
    for cell in arguments.cell:
        for size in SIZES:
            open_seeds = [seed for seed in SEEDS if not rows.find(cell=cell, size=size, seed=seed)]
            if not open_seeds or time.monotonic() > end:
                continue
            model, task, data = cell.split(":")
            top = top_of(model, task, data, size)
            for seed in open_seeds:
                rows.add(measured(cell, size, seed, top))
    Console(width=120).print(table_of(rows))


if __name__ == "__main__":
    main()
