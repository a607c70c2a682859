"""Processor seconds of runs, by part, beside the predictions of their plans.

    python -m benchmarks.speed.run_cost [--model MINILM --data SHARED] [--only NAME ...]

Every run is a new process. The constants of `samara.simulations.planning.run_cost` follow from the
runs in `FITTED`. The difference between one step and 16 steps a round gives `STEP`. The difference
between 16 and 64 directions gives `SCORE` and `PRODUCT`. Evaluations of cached rows give `MESSAGE`.
Forty and eight clients give `EXAMPLE` and `TOKEN`. The runs in `CHECKED` need a sentence encoder
and a folder of data sets; no constant is fitted to them.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from samara.shared.settings.config import RunConfig, load_scenario
from samara.shared.settings.scenarios import scenario_file

FITTED: dict[str, list[str]] = {
    "as it comes": [],
    "one step": ["steps=1"],
    "64 directions": ["queries=64", "evaluate.every=10"],
    "forty clients": ["data.clients=40", "rounds=10", "evaluate.every=10"],
    "last block": ["adapter.layers=top:1", "rounds=20"],
    "all blocks": ["adapter.layers=all", "adapter.rank=16", "batch=4", "queries=2"],
}
CHECKED: dict[str, tuple[str, list[str]]] = {
    "sentences": ("sst2", ["data.path=sst2_sentences"]),
    "DeComFL": ("decomfl", ["data.path=sst2_sentences"]),
    "DeComFL inside": ("decomfl", ["data.path=sst2_sentences", "adapter.layers=top:1"]),
    "raters": ("popquorn", ["data.path=popquorn_offensiveness/all.jsonl"]),
}
_PARTS = {
    "query": "loading",
    "evaluate": "evaluations",
    "train": "rounds",
    "evaluate.personal": "personal models",
}


def cpu_seconds() -> float:
    """Return the processor seconds of this process so far."""
    times = os.times()
    return times.user + times.system


def measure(config: RunConfig) -> dict[str, tuple[float, float]]:
    """Return the expected and the measured processor seconds of a run, by part and in total."""
    from samara.shared.results.result import RunResult
    from samara.simulations.planning.run_progress import PLAN
    from samara.simulations.report.client_curves import write_curves
    from samara.simulations.report.terminal import print_result
    from samara.simulations.simulate import simulate

    spent: defaultdict[str, float] = defaultdict(float)
    plans: list[Any] = []
    last = 0.0

    def note(part: str) -> None:
        nonlocal last
        now = cpu_seconds()
        spent[part] += now - last
        last = now

    class Plans(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            event = getattr(record, "event", {})
            if event.get("event") == PLAN:
                plans.append(event["progress"].cost)
                note("loading")

    logger = logging.getLogger("samara.simulation")
    logger.addHandler(Plans())
    logger.setLevel(logging.INFO)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    folder = simulate(config, lambda kind, _: note(_PARTS.get(kind, "rounds")))
    write_curves(folder)
    print_result(folder, RunResult.read(folder))
    note("report")
    cost = plans[0]
    expected = {
        "loading": cost.loading,
        "evaluations": cost.validation_pass
        + cost.test_pass
        + cost.first_evaluations
        + cost.evaluations,
        "rounds": cost.training_pass + cost.rounds,
        "personal models": cost.personal,
        "report": cost.report,
    }
    found = {part: (own, spent[part]) for part, own in expected.items()}
    return found | {"in all": (cost.total, cpu_seconds())}


def main() -> None:
    """Print a line at the end of each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="folder of a sentence encoder")
    parser.add_argument("--data", type=Path, help="folder of data sets")
    parser.add_argument("--only", nargs="*", help="names of runs")
    parser.add_argument("--child", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        scenario, *assignments = given.child
        config = load_scenario(scenario_file(Path(scenario)), assignments)
        print(json.dumps(measure(config)))
        return
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty.toml"
        empty.write_text("")
        runs = {name: (str(empty), own) for name, own in FITTED.items()}
        if given.model and given.data:
            for name, (scenario, own) in CHECKED.items():
                placed = [each.replace("data.path=", f"data.path={given.data}/") for each in own]
                runs[name] = scenario, [*placed, f"model.path={given.model}"]
        for name, (scenario, own) in runs.items():
            if given.only and name not in given.only:
                continue
            out = f"out={folder}/{name.replace(' ', '-')}"
            arguments = ["-m", __spec__.name, "--child", scenario, *own, out]
            done = subprocess.run([sys.executable, *arguments], stdout=subprocess.PIPE, check=True)
            figures = json.loads(done.stdout.splitlines()[-1])
            whole, real = figures["in all"]
            parts = ", ".join(f"{part} {a:.1f}/{b:.1f}" for part, (a, b) in figures.items())
            print(f"{name:15} {whole / real:5.2f}  expected/real s: {parts}", flush=True)


if __name__ == "__main__":
    main()
