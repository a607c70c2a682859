"""Accuracy of adapters inside the model when one of eight clients reports falsely.

    PYTHONPATH=tests python -m benchmarks.faults.hostile_inside --data SOURCES --model MODEL \\
        --out FOLDER [--sets messages,trec6] [--seeds 0,1,2]

Adapters on the top layer train with the plain loss and with the defaults, the profiled loss and a
round of shifts. The last client is hostile in every round, and with the attack *shift* in the round
of shifts alone: there its shift is −100 times its own, from 10⁶ examples. FOLDER/rows.jsonl has a
line for each run, and the same command continues with it.
"""

import logging
import shutil
from argparse import Namespace
from itertools import product
from pathlib import Path

from false_reports import HostileApp
from flwr.app import Context, Message

from benchmarks.accuracy.cells import Cell, settings_of
from benchmarks.accuracy.data_sets import DATA_SETS
from benchmarks.accuracy.rows import Rows
from benchmarks.arguments import arguments
from samara.client.app import app as client_app
from samara.server.app import serve
from samara.shared.results.result import RunResult
from samara.simulations.engines.in_process import InProcessGrid

CLIENTS = 8
LOSSES = {"plain": {"objective": "cross-entropy"}, "default": {}}
ATTACKS = {"none": "-g", "-g": "-g", "-100 g": "-100 g", "shift": "everything"}
"""The false report of each attack."""
INSIDE = {
    "adapter.layers": "top:1",
    "rounds": 12,
    "steps": 1,
    "queries": 8,
    "batch": 16,
    "evaluate.every": 0,
    "data.limit": 400,
    "data.seed": 0,
}


class HostileInRounds(HostileApp):
    """Clients of which the last reports falsely from one round on."""

    def __init__(self, attack: str, first: int) -> None:
        super().__init__([CLIENTS - 1], ATTACKS[attack])
        self._first = first

    def __call__(self, message: Message, context: Context) -> Message:
        """Return a client's reply."""
        number = message.metadata.group_id
        if number.isdigit() and int(number) >= self._first:
            return super().__call__(message, context)
        return client_app(message, context)


def main() -> None:
    given = arguments(__doc__, data=Path, model=str, out=Path, sets=["messages"], seeds=[0])
    logging.disable(logging.INFO)
    rows = Rows(given.out / "rows.jsonl")
    cells = product(given.seeds, given.sets, ATTACKS, LOSSES)
    for seed, name, attack, loss in cells:
        found = {"data": name, "attack": attack, "loss": loss, "seed": seed}
        if rows.find(**found) or (attack, loss) == ("shift", "plain"):
            continue
        where = DATA_SETS[name].prepare(given.data, given.out / "data")
        settings = where | INSIDE | LOSSES[loss] | {"seed": seed}
        paths = Namespace(model=given.model, out=given.out)
        config = settings_of(paths, Cell(name, CLIENTS, float("inf")), settings)
        shutil.rmtree(config.out, ignore_errors=True)
        last = config.terms.intercept_round
        first = {"none": config.rounds + 2, "shift": last}.get(attack, 0)
        app = HostileInRounds(attack, first)
        result = RunResult.read(serve(config, InProcessGrid(app, CLIENTS, config.flat())))
        tests = [event.columns["global"] for event in result.evaluations if event.split == "test"]
        rows.add(found | {"before": tests[0].accuracy, "after": tests[-1].accuracy})


if __name__ == "__main__":
    main()
