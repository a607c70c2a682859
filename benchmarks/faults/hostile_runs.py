"""Whole runs in process with hostile clients: the model, the clients and the server as they are.

    python -m benchmarks.faults.hostile_runs --out FOLDER [--scenario sst2 --set data.path=…]

Without a scenario the demo's settings are run. For each rule and attack, with one hostile client,
it prints the accuracy on all test examples before and after, and how many rounds changed nothing or
reverted others. Runs that are in FOLDER are not repeated; --seconds ends it between two runs.
"""

import argparse
import logging
import time
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.faults.false_reports import FORGERIES, HostileApp
from server.app import serve
from shared.config import RunConfig, load_scenario
from shared.result import RESULT_FILE, read_result
from shared.settings import parse_assignment
from simulations.engine import InProcessGrid

SCENARIOS = Path(__file__).parents[2] / "simulations" / "scenarios"
DEMO = {"adapter.layers": "top:1", "learning-rate": 0.1}
WORST = ("none", "everything", "-100 g", "inside")


def run(settings: list[str], scenario: str, folder: Path, rule: str, attack: str) -> dict[str, Any]:
    """Return the result of a run in which client 1 is hostile, unless the attack is `none`."""
    own = [f"aggregation.rule={rule}", f"out={folder.resolve()}", "personal.rounds=0", "threads=1"]
    if scenario:
        config = load_scenario(SCENARIOS / f"{scenario}.toml", [*settings, *own])
    else:
        assigned = dict(parse_assignment(assignment) for assignment in [*settings, *own])
        config = RunConfig.of(DEMO | assigned, "benchmark")
    if not (folder / RESULT_FILE).exists():
        app = HostileApp({1} if attack != "none" else (), attack if attack != "none" else "-g")
        serve(config, InProcessGrid(app, config.data.clients, config.flat()))
    return read_result(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scenario", default="")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--rules", nargs="+", default=["median-norm", "mean"])
    parser.add_argument("--attack", action="append", dest="attacks", choices=["none", *FORGERIES])
    parser.add_argument("--seconds", type=float, default=float("inf"))
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    begun = time.monotonic()
    for attack, rule in product(arguments.attacks or WORST, arguments.rules):
        number = ["none", *FORGERIES].index(attack)
        folder = arguments.out / f"{arguments.scenario or 'demo'}-{rule}-{number}"
        result = run(arguments.settings, arguments.scenario, folder, rule, attack)
        tests = [e["columns"]["global"] for e in result["evaluations"] if e["split"] == "test"]
        unused = sum(bool(event["problem"]) for event in result["rounds"])
        print(
            f"{rule}, {attack}: {tests[0]['accuracy']:.1%} to {tests[-1]['accuracy']:.1%}, "
            f"{unused} of {len(result['rounds'])} rounds with a problem",
            flush=True,
        )
        if time.monotonic() - begun > arguments.seconds:
            raise SystemExit("the same command goes on")


if __name__ == "__main__":
    main()
