"""Whole runs in process with hostile clients: the model, the clients and the server as they are.

    python -m benchmarks.faults.hostile_runs --out FOLDER [--scenario sst2 --set data.path=…] \\
        [--clients 8] [--seeds 0 1] [--hostile 1 2] [--rules …] [--attack …]

Without a scenario generated messages are run, with adapters inside the model. Hostile clients are
drawn by the seed, and know no report but their own. The model is loaded once, and what the runs
have in common is computed once. Runs that are in FOLDER/runs.csv are not repeated;
`benchmarks.faults.hostile_tables` makes tables of it.
"""

import argparse
import json
import logging
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.faults.attacked_cases import Case, Outcome, add_run, read_runs
from benchmarks.faults.false_reports import FORGERIES, HostileApp
from samara.server.app import serve
from samara.server.rounds.aggregation import TOO_LARGE
from samara.server.rounds.event_log import count_unused_rounds
from samara.server.store import METRICS_FILE
from samara.shared.config import RunConfig, load_scenario
from samara.shared.errors import TrainingError
from samara.shared.settings import parse_assignment
from samara.simulations.engine import InProcessGrid

SCENARIOS = Path(__file__).parents[2] / "simulations" / "scenarios"
DEMO = {"adapter.layers": "top:1", "learning-rate": 0.1}
WORST = ("everything", "-g, 10^6 examples", "inside")


def config_of(case: Case, folder: Path, assignments: list[str]) -> RunConfig:
    """Return the settings of a case's run.

    Args:
        case: case, whose task is a scenario, or `demo`.
        folder: folder of the run.
        assignments: settings beside the task's own.
    """
    own = [f"aggregation.rule={case.rule}", f"seed={case.seed}", f"out={folder.resolve()}"]
    own += [f"data.clients={case.clients}", "personal.rounds=0", "threads=1"]
    if case.task == "demo":
        own.append(f"data.seed={case.seed}")
        assigned = dict(parse_assignment(assignment) for assignment in [*assignments, *own])
        return RunConfig.of(DEMO | assigned, "benchmark")
    return load_scenario(SCENARIOS / f"{case.task}.toml", [*assignments, *own])


def run(case: Case, folder: Path, assignments: list[str]) -> Outcome:
    """Return what becomes of a run; a run that has begun in the folder goes on."""
    config = config_of(case, folder, assignments)
    attack = case.attack if case.hostile else next(iter(FORGERIES))
    app = HostileApp(case.attackers, attack)
    ended = False
    try:
        serve(config, InProcessGrid(app, config.data.clients, config.flat()))
    except TrainingError:
        ended = True
    events = map(json.loads, (folder / METRICS_FILE).read_text().splitlines())
    return outcome_of(list(events), config.federated_rounds, ended)


def outcome_of(events: Sequence[dict[str, Any]], last: int, ended: bool) -> Outcome:
    """Return what became of a run, as its events say.

    Args:
        events: rounds and evaluations of the run.
        last: last round by reports; by one after it the run returns to its best.
        ended: whether the server ended it before its last round; it then has no accuracy.
    """
    every = [event for event in events if event["event"] == "round"]
    rounds = [event for event in every if event["round"] <= last]
    best = next((event["back_to"] for event in every if event["round"] > last), last)
    tests = [e["columns"]["global"] for e in events if e.get("split") == "test"]
    before, after = (100 * tests[i]["accuracy"] for i in (0, -1))
    left_out = sum(list(event["refused"].values()).count(TOO_LARGE) for event in rounds)
    reverted = [e["round"] - 1 - e["back_to"] for e in rounds if e["back_to"] is not None]
    unused = sum(count_unused_rounds([event]) for event in rounds)
    most, end = max(reverted, default=0), rounds[-1]["round"] if ended else 0
    after = float("nan") if ended else after
    return Outcome(before, after, left_out, unused, len(reverted), most, end, best)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Yield the runs, those without a hostile client first."""
    task = arguments.scenario or "demo"
    attacks = [("none", 0), *product(arguments.attacks or WORST, arguments.hostile)]
    for (attack, count), seed, rule in product(attacks, arguments.seeds, arguments.rules):
        case = Case(task, arguments.clients, seed, rule, "", attack, count)
        rate = config_of(case, arguments.out, arguments.settings).learning_rate
        yield case._replace(rate="auto" if rate == "auto" else "fixed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scenario", default="")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--hostile", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rules", nargs="+", default=["median-norm", "mean"])
    parser.add_argument("--attack", action="append", dest="attacks", choices=FORGERIES)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    arguments.out.mkdir(parents=True, exist_ok=True)
    file, begun = arguments.out / "runs.csv", time.monotonic()
    done = read_runs(file)
    for case in cases(arguments):
        if case in done:
            continue
        number = ["none", *FORGERIES].index(case.attack)
        words = case.task, case.clients, case.rule, case.rate, case.seed, number, case.hostile
        name = "-".join(map(str, words))
        outcome = run(case, arguments.out / name, arguments.settings)
        add_run(file, case, outcome)
        print(*case, *outcome, flush=True)
        if time.monotonic() - begun > arguments.seconds:
            raise SystemExit("the same command goes on")


if __name__ == "__main__":
    main()
