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
from collections.abc import Callable, Collection
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.accuracy.data_sets import DATA_SETS
from benchmarks.accuracy.rows import Row, Rows
from benchmarks.arguments import listed as listed
from samara.client.training.model_runtime import load_run
from samara.shared.protocol.frames.instructions import Split
from samara.shared.settings.config import TRUNK_CACHES, RunConfig
from samara.shared.settings.setting import parse_assignment

STRENGTHS = np.logspace(-3, 4, 8)
"""Values of C for the limit, from strong to weak regularization."""
CACHE_BYTES = 2**32

Run = Callable[[RunConfig, dict[str, Any]], Row]
"""A function that runs settings, with variants that are not settings, and returns figures."""


class Cell(NamedTuple):
    """The data of a run and its division among clients."""

    data_set: str
    clients: int
    alpha: float


def cells_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options of `measure_cells`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--sets", type=listed, default=list(DATA_SETS))
    parser.add_argument("--clients", type=listed, default=["1", "8", "64"])
    parser.add_argument("--seeds", type=listed, default=["0", "1", "2"])
    parser.add_argument("--alpha", type=listed, default=["5"])
    parser.add_argument("--condition", action="append", dest="conditions")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    return parser


def measure_cells(
    arguments: argparse.Namespace,
    file: str,
    prepare: Callable[[RunConfig], Run],
    render: Callable[[Rows], str],
    variants: Collection[str] = (),
) -> None:
    """Run every condition on every cell, and write the rows and their table.

    Existing rows of the file are not measured again, so the same command continues.

    Args:
        arguments: options of `cells_parser`.
        file: name of the file of rows, JSON lines.
        prepare: function that returns the runner of conditions on a cell, given the cell's
            settings.
        render: function that returns the table of rows.
        variants: keys of conditions that are not settings of a run.
    """
    logging.getLogger("flwr").setLevel(logging.WARNING)
    path = arguments.out / file
    rows = Rows(path)
    common = dict(map(parse_assignment, arguments.settings))
    conditions = dict(map(parse_condition, arguments.conditions or ["default"]))
    for name, clients, alpha in product(arguments.sets, arguments.clients, arguments.alpha):
        where = DATA_SETS[name].prepare(arguments.data, arguments.out / "data")
        cell = Cell(name, int(clients), float(alpha))
        limits: Row = {}
        run: Run | None = None
        for (condition, own), seed in product(conditions.items(), map(int, arguments.seeds)):
            settings = common | own
            key = json.dumps([*cell, condition, settings, seed])
            if rows.find(key=key):
                continue
            of_run = {k: v for k, v in settings.items() if k not in variants}
            config = settings_of(
                arguments, cell, {"data.seed": 0} | where | of_run | {"seed": seed}
            )
            run = run or prepare(config)
            limits = limits or measure_limits(config)
            row = {"key": key, **cell._asdict(), "condition": condition, "seed": seed}
            row["set"] = {k: str(v) for k, v in sorted(settings.items())}
            rows.add(
                row | limits | run(config, {k: v for k, v in settings.items() if k in variants})
            )
            path.with_suffix(".md").write_text(render(rows))
    print(render(rows))


def parse_condition(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and settings of a condition: `NAME` or `NAME:KEY=VALUE,KEY=VALUE`."""
    name, _, settings = text.partition(":")
    return name, dict(parse_assignment(part) for part in settings.split(",") if part)


def settings_of(arguments: argparse.Namespace, cell: Cell, settings: dict[str, Any]) -> RunConfig:
    """Return the settings of a run on a cell; `settings` override all others."""
    partition = "dirichlet" if cell.clients > 1 else "iid"
    division = {"data.partition": partition, "data.alpha": cell.alpha}
    return RunConfig.of(
        {
            "model.path": arguments.model,
            "data.clients": cell.clients,
            **(division if cell.alpha < np.inf else {}),
            "cohort.available": cell.clients,
            "personal.rounds": 0,
            "threads": 1,
            "memory-budget": CACHE_BYTES // TRUNK_CACHES,
            "trunk-cache-folder": str(arguments.out / "representations"),
            "out": str(arguments.out / "run"),
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
        warnings.simplefilter("ignore")  # rare labels and solvers that stop early cause warnings
        return {
            "examples": len(train[1]),
            "test_examples": len(test[1]),
            "labels": runtime.label_count,
            "features": int(train[0].shape[1]),
            "probe_cv": float(best.fit(*train).score(*test)),
            "probe": float(plain.fit(*train).score(*test)),
            "majority": float(np.mean(test[1] == np.bincount(train[1]).argmax())),
        }
