"""Settings of every method, found on a model that is linear around its base: a sweep in minutes.

    python -m benchmarks.accuracy.taste_methods SCENARIO --sweep SWEEP.toml --out FOLDER \\
        --set data.path=FILE --set model.path=MODEL

Every trial runs on the linear model (`linear_model`), twice, along other directions,
and is judged on validation texts as `samara simulate --sweep` judges it; FOLDER then holds the same
files, METHOD.toml and sweep.json. In the end it tells what the chosen settings give on test texts.
Tasks of two labels.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.accuracy.linear_model import LinearRun, LinearUsers
from samara.shared.config import RunConfig, load_scenario
from samara.simulations.sweep import Sweep, sweep

DRAWS = (0, 1)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", type=Path)
    parser.add_argument("--sweep", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    given = parser.parse_args(arguments)
    config = load_scenario(given.scenario, given.settings)
    given.out.mkdir(parents=True, exist_ok=True)
    users = LinearUsers.of(config, given.out / "gradients.npy")

    def judged(run: RunConfig, split: str) -> tuple[float, float, float]:
        found = [LinearRun(users, run, draw).judged(split) for draw in DRAWS]
        accuracy, macro_f1, loss = np.mean(found, axis=0)
        return float(accuracy), float(macro_f1), float(loss)

    def validated(run: RunConfig) -> tuple[float, float]:
        accuracy, _, loss = judged(run, "validation")
        return accuracy, loss

    plan, console = Sweep.read(given.sweep), Console(width=140, highlight=False)
    for trial in sweep(config, plan, validated, given.out):
        settings = ", ".join(f"{key} = {value}" for key, value in trial.choices.items())
        console.print(f"{trial.method}: {trial.accuracy:.2%}, loss {trial.loss:.4f} ({settings})")
    for method in plan.methods:
        accuracy, macro_f1, _ = judged(load_scenario(given.out / f"{method}.toml", []), "test")
        console.print(f"{method}, test: accuracy {accuracy:.1%}, macro-F1 {macro_f1:.1%}")


if __name__ == "__main__":
    main()
