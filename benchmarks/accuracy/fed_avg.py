"""Federations beside FedAvg on LoRA and LoRA-FA: accuracy, bytes and passes, means of seeds.

    python -m benchmarks.accuracy.fed_avg SCENARIO --data DATA --model MODEL --out FOLDER \\
        [--rounds 40] [--seeds 0,1,2] [--learning-rate 0.01] [--set KEY=VALUE]

SCENARIO is a shipped one or a file, with adapters inside the model. A number is 4 bytes in each
direction. Passes are examples times perturbations, where a backward pass counts as two.
"""

import argparse
from pathlib import Path

import numpy as np
from rich.console import Console

from shared.config import load_scenario
from shared.scenarios import scenario_file
from simulations.fed_avg import Figures, check_fed_avg, fed_avg_beside, figures_table
from simulations.simulate import simulate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("scenario", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=[0])
    parser.add_argument("--learning-rate", type=float, default=0.01, help="of FedAvg's steps")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    rows: dict[str, list[Figures]] = {}
    for seed in given.seeds:
        own = {"seed": seed, "rounds": given.rounds, "data.path": given.data, "threads": 1}
        own |= {"model.path": given.model, "out": given.out / f"seed-{seed}"}
        settings = [*given.set, *(f"{key}={value}" for key, value in own.items())]
        config = load_scenario(scenario_file(given.scenario), settings)
        if seed == given.seeds[0]:
            check_fed_avg(config)
        folder = simulate(config)
        found = fed_avg_beside(folder, given.learning_rate, lambda *_: None)
        for name, figures in found.items():
            rows.setdefault(name, []).append(figures)
    means = {
        name: Figures(*np.mean([[*vars(one).values()] for one in own], axis=0))
        for name, own in rows.items()
    }
    title = f"{given.rounds} rounds, means of {len(given.seeds)} seeds"
    Console().print(figures_table(means, title))


if __name__ == "__main__":
    main()
