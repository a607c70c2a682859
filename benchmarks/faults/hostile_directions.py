"""One hostile client of eight, with shared and with independent directions inside the model.

    PYTHONPATH=.:tests python -m benchmarks.faults.hostile_directions --data SOURCES \\
        --model MINILM --out FOLDER [--level 1e5] [--seeds 0] [--attacks "none;inside"]

The settings are those of `benchmarks.accuracy.bytes_to_accuracy`. The hostile client is drawn by
the seed. It knows the reports of all others when it forges its own.
"""

import argparse
import logging
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from false_reports import FORGERIES

from benchmarks.accuracy.bytes_to_accuracy import ALPHA, CLIENTS, EXAMPLES, LEVELS, SHARED, Bench
from benchmarks.accuracy.cells import listed
from benchmarks.accuracy.data_sets import DATA_SETS
from benchmarks.accuracy.rows import Rows
from samara.server.rounds.aggregation import RoundAggregator
from samara.shared.protocol.frames.report import Report

NONE = "none"
HONEST = RoundAggregator.aggregate


def attacked(attack: str, hostile: int) -> Any:
    """Return an aggregation in which a client's report is replaced by a forged one."""

    def aggregate(
        self: RoundAggregator, instruction: Any, reports: Mapping[int, Report], *others: Any
    ) -> Any:
        forged = dict(reports)
        honest = [report for client, report in reports.items() if client != hostile]
        if hostile in reports:
            forged[hostile] = FORGERIES[attack](reports[hostile], honest, instruction.round)
        return HONEST(self, instruction, forged, *others)

    return aggregate


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--level", default="1e5", choices=LEVELS)
    parser.add_argument("--seeds", type=listed, default=["0"])
    parser.add_argument("--attacks", default="none;inside")
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    rows, level = Rows(given.out / "cells.jsonl"), LEVELS[given.level]
    data = DATA_SETS[level.data_set].prepare(given.data, given.out / "data")
    for seed, attack in product(map(int, given.seeds), given.attacks.split(";")):
        common = data | {
            "model.path": given.model,
            "seed": seed,
            "data.seed": 0,
            "data.clients": CLIENTS,
            "data.partition": "dirichlet",
            "data.alpha": ALPHA,
            "data.limit": EXAMPLES,
            "evaluate.every": 0,
            "evaluate.test": False,
            "personal.rounds": 0,
            "threads": 1,
            "trunk-cache-folder": str(given.out / "representations"),
            "out": str(given.out / "run"),
        }
        bench: Bench | None = None
        hostile = int(np.random.default_rng(seed).integers(CLIENTS))
        for policy in ("Samara", SHARED):
            if rows.find(level=given.level, seed=seed, attack=attack, policy=policy):
                continue
            changed: Any = HONEST if attack == NONE else attacked(attack, hostile)
            RoundAggregator.aggregate = changed  # type: ignore[method-assign]
            bench = bench or Bench(level, common)
            row = {"level": given.level, "seed": seed, "attack": attack, "policy": policy}
            rows.add(row | bench.measure(policy))


if __name__ == "__main__":
    main()
