"""A measurement of owners' gains over their own base rates, on texts with labels of several people.

    python -m benchmarks.accuracy.people --sets FOLDER/popquorn,FOLDER/multipico --model MODEL \\
        --out OUT [--splits random,text] [--seeds 0,1,2] [--plot FILE.png] [--set rounds=20]

A set is a folder with `rows.jsonl`, one line per example with `user`, `text` and `label` (or any
other form that a task and `data.path` can name, such as a CSV file), and with `task.toml`. Every
user is a client. `rater_sets` makes three sets from public sources.

The federation's columns come from a simulated run of the method readout. The only difference from a
normal run: the model runs once for each text, even if several users have the text.
`people_references` computes the other columns, on the same splits and features.

OUT/people.jsonl has a line per set, split and seed, with the accuracy of every user; the same
command continues. The program prints means over the users, each averaged over the seeds. It also
prints paired differences to two references: the best that a client can compute alone, and the best
of all. Both are chosen by their printed test accuracy, so that the gain is not overstated.
"""

import argparse
import logging
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.people_curves import curve_table, curves, draw_curves
from benchmarks.accuracy.people_features import remembered_rows
from benchmarks.accuracy.people_references import SPLITS, Person, references
from benchmarks.accuracy.prior_by_em import fitted_by_em
from benchmarks.accuracy.rows import Row, Rows
from samara.client.personal.softmax_fit import Examples
from samara.shared.protocol.frames.instructions import Split
from samara.shared.settings.config import RunConfig
from samara.shared.settings.setting import parse_assignment
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.data import load_examples
from samara.shared.terms.columns import (
    BASE_RATE,
    GLOBAL,
    INTERCEPT,
    LABEL_BIAS,
    PERSONALIZED,
    ZERO_SHOT,
)
from samara.simulations.comparison.statistics import paired_difference
from samara.simulations.exports.adapter import FinishedRun
from samara.simulations.simulate import load_simulation, simulate

SETTINGS: dict[str, Any] = {
    "method": "readout",
    "adapter.layers": "readout",
    "adapter.label-bias": True,
    "differences": "components",
    "rounds": 20,
    "queries": 32,
    "evaluate.every": 20,
    "data.partition": "user",
    "threads": 1,
}
"""Settings of a run that differ from the defaults."""
COLUMNS = (BASE_RATE, ZERO_SHOT, LABEL_BIAS, GLOBAL, INTERCEPT, PERSONALIZED)
"""Columns of a run that are shown."""
ALONE = ("majority", BASE_RATE, ZERO_SHOT, LABEL_BIAS)
"""References without other people's texts. The only common information is the majority label."""
POOLED = ("common probe", "base rate + words", "common probe + intercepts")
"""References that need all texts in one place."""
BESIDE = "pooled, then private"
"""Name of the row of a common model that is trained on all texts in one place."""
ROWS = (*ALONE, *POOLED, BESIDE, GLOBAL, INTERCEPT, PERSONALIZED)
"""Names of the first rows of a table, in order. All other rows come after them."""


class Cell(NamedTuple):
    """A set of texts, divided by one rule and seed."""

    folder: Path
    split: str
    seed: int


def measure(cell: Cell, model: str, out: Path, settings: dict[str, Any], with_curves: bool) -> Row:
    """Return the accuracy of every user by every method, NaN for users without test examples."""
    config = settings_of(cell, model, out, settings)
    folder = simulate(config)
    people = people_of(config, folder)
    run = FinishedRun.at(folder).result
    columns = next(e.columns for e in reversed(run.evaluations) if e.split == "test")
    found = {
        name: [
            columns[name].clients[client].accuracy if client in columns[name].clients else np.nan
            for client in range(config.data.clients)
        ]
        for name in COLUMNS
    }
    found |= references(people)
    evidence: dict[str, float] = {}
    if people[0].train.offsets.shape[1] == 2:
        by_em, evidence = fitted_by_em(people)
        found |= by_em
    examples = {
        split: sum(len(person.parts[index].labels) for person in people)
        for index, split in enumerate(SPLITS)
    }
    return {
        "set": cell.folder.name,
        "split": cell.split,
        "seed": cell.seed,
        "users": config.data.clients,
        "examples": examples,
        "accuracy": found,
        "prior": evidence,
        "curves": curves(people) if with_curves else {},
        "bytes_up": run.bytes_up / config.data.clients,
    }


def settings_of(cell: Cell, model: str, out: Path, settings: dict[str, Any]) -> RunConfig:
    """Return the settings of a run in which every user of a set is a client."""
    path, task = cell.folder / "rows.jsonl", str(cell.folder / "task.toml")
    users = {example.user for example in load_examples(str(path), load_task(task), 0)}
    own = {"task": task, "data.path": str(path), "data.clients": len(users)}
    own |= {"model.path": model, "data.split": cell.split, "seed": cell.seed}
    own |= {"data.seed": cell.seed, "cohort.available": len(users)}
    own |= {"out": str(out / "runs" / f"{cell.folder.name}-{cell.split}-{cell.seed}")}
    return RunConfig.of(SETTINGS | settings | own, "people")


def people_of(config: RunConfig, folder: Path) -> list[Person]:
    """Return every user's texts, and examples with the scores of a finished run's model."""
    loaded, state = load_simulation(config), FinishedRun.at(folder).global_state()
    runtime, labels = loaded.runtime, loaded.runtime.label_count
    people = []
    for share in loaded.shares:
        parts, texts = [], []
        for split in (Split.TRAIN, Split.VALIDATION, Split.TEST):
            prompts = share.tokenized(split).prompts
            texts.append([example.text for example in share.in_split(split)])
            scores = np.zeros((0, labels))
            features = np.zeros((0, runtime.base.features))
            if prompts:
                runtime.prepare(prompts)
                scores = runtime.scores(state, prompts).astype(np.float64)
                features = runtime.features(prompts).astype(np.float64)
            parts.append(Examples(scores, share.labels(split), features))
        people.append(Person(parts, texts))
    return people


def by_user(rows: Sequence[Row]) -> dict[str, NDArray[np.float64]]:
    """Return each method's accuracy for every user, averaged over the seeds with test examples."""
    methods = rows[0]["accuracy"]
    means = {}
    for method in (*filter(methods.__contains__, ROWS), *sorted(methods.keys() - set(ROWS))):
        values = np.array([row["accuracy"][method] for row in rows], np.float64)
        known = ~np.isnan(values).all(axis=0)
        means[method] = np.nanmean(values[:, known], axis=0)
    return means


def table_of(rows: Sequence[Row], title: str) -> Table:
    """Return the table of one set and one kind of split."""
    means = by_user(rows)

    def best(names: Sequence[str]) -> str:
        return max(names, key=lambda name: float(means[name].mean()))

    against = dict.fromkeys((best(ALONE), best((*ALONE, *POOLED)), INTERCEPT))
    heads = [f"against {name}" for name in against]
    table = Table("", "accuracy, %", *heads, title=title)
    for name, values in means.items():
        cells = []
        for other in against:
            one = paired_difference(values, means[other])
            told = f"{100 * one.mean:+.1f} ({100 * one.low:.1f} … {100 * one.high:.1f})"
            cells.append("" if name == other else told)
        table.add_row(name, f"{100 * values.mean():.1f}", *cells)
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sets", type=_folders, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--splits", type=lambda text: text.split(","), default=["random", "text"])
    parser.add_argument("--seeds", type=_numbers, default=[0, 1, 2])
    parser.add_argument("--plot", type=Path, help="PNG of the accuracy by own examples, by text")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    given = parser.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    rows = Rows(given.out / "people.jsonl")
    settings = dict(map(parse_assignment, given.settings))
    for folder in given.sets:
        with remembered_rows(given.out / f"{folder.name}.npz") as texts:
            for split, seed in product(given.splits, given.seeds):
                if rows.find(set=folder.name, split=split, seed=seed):
                    continue
                cell, first = Cell(folder, split, seed), seed == given.seeds[0]
                with_curves = split == "text" and first  # curves take as long as everything else
                rows.add(measure(cell, given.model, given.out, settings, with_curves))
                texts.write()
    console, drawn = Console(width=140, highlight=False), {}
    for folder, split in product(given.sets, given.splits):
        own = [row for row in rows if (row["set"], row["split"]) == (folder.name, split)]
        title = f"{folder.name}, {split}: {own[0]['users']} users, {len(own)} splits"
        console.print(table_of(own, title))
        for row in (row for row in own if row["curves"]):
            drawn[folder.name] = row["curves"]
            console.print(curve_table(row["curves"], f"{folder.name}: accuracy, %"))
    if given.plot and drawn:
        draw_curves(drawn, given.plot)


def _folders(text: str) -> list[Path]:
    return [Path(part) for part in text.split(",")]


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
