"""Shared against independent seeds at equal forward passes, over several run seeds.

    python -m benchmarks.accuracy.seed_policies --data DATA --model MODEL --out FOLDER

Runs SST-2 with adapters on two layers, shortened, twice per seed, and prints loss and accuracy on
validation and test. Runs that are already in the folder are not repeated.
"""

import argparse
import logging
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from samara.shared.config import load_scenario
from samara.shared.result import read_result
from samara.simulations.simulate import simulate

SCENARIO = Path(__file__).parent / "methods" / "sst2-adapters.toml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    table = Table(title=f"{arguments.rounds} rounds of SST-2 with adapters on two layers")
    for column in ("seeds", "split", "zero-shot", "accuracy", "gain", "loss", "bytes down"):
        table.add_column(column, justify="right")
    for policy in ("shared", "independent"):
        results = []
        for seed in range(arguments.seeds):
            settings = {
                "seed": seed,
                "data.seed": 0,
                "seed-policy": policy,
                "rounds": arguments.rounds,
                "threads": 1,
                "data.path": arguments.data,
                "model.path": arguments.model,
                "out": arguments.out / f"{policy}-{seed}",
            }
            config = load_scenario(SCENARIO, [f"{key}={value}" for key, value in settings.items()])
            results.append(read_result(simulate(config)))
        for split in ("validation", "test"):
            figures = [
                [e["columns"]["global"] for e in result["evaluations"] if e["split"] == split]
                for result in results
            ]
            before = np.array([of[0]["accuracy"] for of in figures])
            after = np.array([of[-1]["accuracy"] for of in figures])
            loss = np.array([of[-1]["loss"] for of in figures])
            table.add_row(
                policy,
                split,
                f"{before.mean():.2%}",
                f"{after.mean():.2%} ± {after.std(ddof=1):.2%}",
                f"{(after - before).mean():+.2%}",
                f"{loss.mean():.4f} ± {loss.std(ddof=1):.4f}",
                f"{np.mean([result['bytes_down'] for result in results]):,.0f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
