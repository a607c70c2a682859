"""Samara beside other federations on the same clients: means over seeds of accuracy, bytes, passes.

    python -m benchmarks.accuracy.peers --data DATA --model MODEL --out FOLDER \\
        [--rounds 10] [--seeds 0,1,2] [--learning-rates 0.01,0.1,1] [--set KEY=VALUE]

DATA is a data source of the task sst2. DeComFL and FedKSeed follow the shipped scenarios. They
train a readout, the default, or an adapter in the top block. FedAvg trains this adapter by SGD on
true gradients, once with every learning rate. All rows have the same number of rounds, and eight
clients of one Dirichlet division, α = 1, in place of the scenarios' clients. FedAvg's bytes are 4
per number in each direction. Passes are examples times perturbations, and a backward pass counts as
two. Finished runs are not repeated.
"""

import argparse
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.arguments import arguments
from samara.shared.results.result import RunResult
from samara.shared.settings.config import load_scenario
from samara.shared.settings.scenarios import scenario_file
from samara.simulations.comparison.fed_avg import (
    Figures,
    fed_avg_beside,
    figures_table,
    zeroth_order,
)
from samara.simulations.simulate import simulate

ROWS = {
    "Samara": ("sst2", "auto"),
    "DeComFL": ("decomfl", "auto"),
    "FedKSeed": ("fedkseed", "auto"),
    "DeComFL, top block": ("decomfl", "top:1"),
    "Samara, top block": ("sst2", "top:1"),
}
"""Scenario and trained layers of each federation of scalars. FedAvg trains the layers of the last
federation.
"""
SAME = {"data.clients": 8, "data.partition": "dirichlet", "data.alpha": 1.0, "threads": 1}


def simulated(scenario: str, layers: str, seed: int, given: argparse.Namespace) -> Path:
    """Run a federation unless its run has already ended, and return the run's folder."""
    name = f"{scenario}-{layers.replace(':', '-')}"
    own = SAME | {"seed": seed, "rounds": given.rounds, "evaluate.every": given.rounds}
    own |= {"data.path": given.data, "model.path": given.model, "adapter.layers": layers}
    own |= {"out": given.out / name / f"seed-{seed}"}
    if scenario == "sst2":
        own["differences"] = "central"
    settings = [*(f"{key}={value}" for key, value in own.items()), *given.set]
    return simulate(load_scenario(scenario_file(Path(scenario)), settings))


def _say(name: str, done: int, rounds: int) -> None:
    print(f"  {name}: round {done} of {rounds}", flush=True)


def main() -> None:
    given = arguments(
        __doc__,
        data=str,
        model=str,
        out=Path,
        rounds=10,
        seeds=[0],
        learning_rates=[0.01, 0.1, 1.0],
        set=[],
    )
    rows: dict[str, list[Figures]] = {}
    for seed in given.seeds:
        for name, (scenario, layers) in ROWS.items():
            folder = simulated(scenario, layers, seed, given)
            figures = {name: zeroth_order(RunResult.read(folder))}
            if name == list(ROWS)[-1]:
                (_, *others) = fed_avg_beside(folder, given.learning_rates, _say).items()
                figures |= dict(others)
            for row, own in figures.items():
                print(f"seed {seed}: {row}: {own}", flush=True)
                rows.setdefault(row, []).append(own)
    means = {
        name: Figures(*np.mean([[*vars(one).values()] for one in own], axis=0))
        for name, own in rows.items()
    }
    title = f"{given.rounds} rounds, means of {len(given.seeds)} seeds"
    Console().print(figures_table(means, title))


if __name__ == "__main__":
    main()
