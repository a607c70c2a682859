"""The number of losses after which zeroth-order steps beat a user's base rate.

    python -m benchmarks.accuracy.taste_budget SCENARIO --out FILE \\
        --set data.path=FILE --set model.path=MODEL

Runs of a scenario on a model that is linear around its base (`linear_model`), with
other budgets than its own, and with true gradients for as many rounds: test texts of the clients
that train, means of two draws. The gradients are kept in --out.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.linear_model import LinearRun, LinearUsers
from samara.shared.config import RunConfig, load_scenario

BUDGETS = ((30, 7, 4), (60, 7, 8), (120, 15, 8), (240, 15, 8), (400, 15, 16))
"""Rounds of one step, queries and batch."""
PRIVATE_SHARE = 0.4
DRAWS = (0, 1)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    given = parser.parse_args(arguments)
    config = load_scenario(given.scenario, given.settings)
    users = LinearUsers.of(config, given.out)
    table = Table(
        "rounds", "q", "batch", "losses", "accuracy", "macro-F1", "true: accuracy", "macro-F1"
    )
    for rounds, queries, batch in BUDGETS:
        private = round(PRIVATE_SHARE * rounds)
        budget = {"rounds": rounds - private, "personal.rounds": private, "steps": 1}
        budget |= {"queries": queries, "batch": batch}
        run = RunConfig.of(config.flat() | budget, "budget")
        figures = []
        for exact in (False, True):
            found = [LinearRun(users, run, draw, exact).judged("test") for draw in DRAWS]
            figures += [f"{figure:.1%}" for figure in np.mean(found, axis=0)[:2]]
        losses = f"{rounds * (queries + 1) * batch:,}"
        table.add_row(str(rounds), str(queries), str(batch), losses, *figures)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
