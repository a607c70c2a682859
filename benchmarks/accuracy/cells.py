"""Cells, conditions and limits that measurements of the defaults share, and the loop over them.

A cell is a data set and its division among clients. A condition is a name with settings. The limits
of a cell are logistic regressions by scikit-learn on the features φ(h) of all clients together:
`probe CV`, whose C is the best of eight in three-fold cross-validation on the training examples,
and `probe`, with C = 1. The seed of a run does not change the division of the data, so that runs
share representations on disk. The division has the seed 0, or that of `--set data.seed=1`.
"""

import argparse
import json
import logging
import shutil
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.accuracy.data_sets import DATA_SETS
from benchmarks.accuracy.rows import Row, Rows
from benchmarks.arguments import arguments
from samara.client.training.model_runtime import load_run
from samara.shared.protocol.frames.instructions import Split
from samara.shared.settings.config import TRUNK_CACHES, RunConfig
from samara.shared.settings.setting import parse_assignment

STRENGTHS = np.logspace(-3, 4, 8)
"""Values of C for the probe with cross-validation, from strong to weak regularization."""
CACHE_BYTES = 2**32


class Cell(NamedTuple):
    """A data set and its division among clients."""

    data_set: str
    clients: int
    alpha: float


def read_arguments(description: str | None) -> argparse.Namespace:
    """Read the options of `measure_cells` from the command line."""
    return arguments(
        description,
        data=Path,
        model=str,
        out=Path,
        sets=list(DATA_SETS),
        clients=[1, 8, 64],
        seeds=[0, 1, 2],
        alpha=[5.0],
        condition=[],
        set=[],
    )


def measure_cells(
    given: argparse.Namespace, run: Callable[[RunConfig], Row], render: Callable[[Rows], str]
) -> None:
    """Run every condition on every cell, and write the rows and their table.

    Existing rows of the file are not measured again, so the same command continues.

    Args:
        given: options of `read_arguments`.
        run: function that runs settings and returns figures.
        render: function that returns the table of rows.
    """
    logging.getLogger("flwr").setLevel(logging.WARNING)
    path = given.out / "rows.jsonl"
    rows = Rows(path)
    common = dict(map(parse_assignment, given.set))
    conditions = dict(map(parse_condition, given.condition or ["default"]))
    for name, clients, alpha in product(given.sets, given.clients, given.alpha):
        where = DATA_SETS[name].prepare(given.data, given.out / "data")
        cell = Cell(name, clients, alpha)
        limits: Row = {}
        for (condition, own), seed in product(conditions.items(), given.seeds):
            settings = common | own
            key = json.dumps([*cell, condition, settings, seed])
            if rows.find(key=key):
                continue
            config = settings_of(given, cell, {"data.seed": 0} | where | settings | {"seed": seed})
            limits = limits or measure_limits(config)
            row = {"key": key, **cell._asdict(), "condition": condition, "seed": seed}
            row["set"] = {k: str(v) for k, v in sorted(settings.items())}
            rows.add(row | limits | run(config))
            path.with_suffix(".md").write_text(render(rows))
    print(render(rows))


def parse_condition(text: str) -> tuple[str, dict[str, Any]]:
    """Parse a condition, `NAME` or `NAME:KEY=VALUE,KEY=VALUE`, and return name and settings."""
    name, _, settings = text.partition(":")
    return name, dict(parse_assignment(part) for part in settings.split(",") if part)


def settings_of(given: argparse.Namespace, cell: Cell, settings: dict[str, Any]) -> RunConfig:
    """Return the settings of a run on a cell; `settings` override all others."""
    partition = "dirichlet" if cell.clients > 1 else "iid"
    division = {"data.partition": partition, "data.alpha": cell.alpha}
    return RunConfig.of(
        {
            "model.path": given.model,
            "data.clients": cell.clients,
            **(division if cell.alpha < np.inf else {}),
            "cohort.available": cell.clients,
            "personal.rounds": 0,
            "threads": 1,
            "memory-budget": CACHE_BYTES // TRUNK_CACHES,
            "trunk-cache-folder": str(given.out / "representations"),
            "out": str(given.out / "run"),
            **settings,
        },
        "cells",
    )


def measure_limits(config: RunConfig) -> Row:
    """Return the sizes of a cell's data, and the accuracy of the two probes on test examples."""
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

    alone = {"adapter.layers": "readout", "adapter.start": "", "adapter.basis": ""}
    runtime, source = load_run(RunConfig.of(config.flat() | alone, "limits"))
    features, labels = {}, {}
    for split in (Split.TRAIN, Split.TEST):
        parts = [
            source.share_of(client, config.data.clients).tokenized(split)
            for client in range(config.data.clients)
        ]
        for part in parts:
            runtime.prepare(part.prompts)
        features[split] = np.concatenate([runtime.features(p.prompts) for p in parts if p.prompts])
        labels[split] = np.concatenate([part.labels for part in parts])
    shutil.rmtree(config.out, ignore_errors=True)
    train, test = (
        (features[Split.TRAIN], labels[Split.TRAIN]),
        (features[Split.TEST], labels[Split.TEST]),
    )
    best = LogisticRegressionCV(Cs=STRENGTHS, cv=3, max_iter=1000)
    plain = LogisticRegression(max_iter=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rare labels and early stops cause warnings
        return {
            "examples": len(train[1]),
            "test_examples": len(test[1]),
            "labels": runtime.label_count,
            "features": int(train[0].shape[1]),
            "probe_cv": float(best.fit(*train).score(*test)),
            "probe": float(plain.fit(*train).score(*test)),
            "majority": float(np.mean(test[1] == np.bincount(train[1]).argmax())),
        }
