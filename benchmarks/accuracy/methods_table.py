"""A comparison of all methods, each with its best settings from a sweep and several seeds.

    samara simulate benchmarks/accuracy/methods/messages.toml \\
        --sweep benchmarks/accuracy/methods/messages-sweep.toml --set data.clients=100 \\
        --set data.seed=8 --set cohort.newcomers=0 --out FOLDER/sweep
    python -m benchmarks.accuracy.methods_table --sweep FOLDER/sweep --out FOLDER/table \\
        --seeds 0 1 2 --set data.clients=104 --set data.seed=7 --set cohort.newcomers=4

Finished runs are in FOLDER/table/METHOD-SEED, and the same command continues after them. --seconds
ends the command between two runs.
"""

import argparse
import logging
import time
from pathlib import Path

from rich.console import Console

from samara.shared.results.result import RESULT_FILE, RunResult
from samara.shared.settings.config import load_scenario
from samara.simulations.comparison.comparison import compare_runs
from samara.simulations.comparison.tables import csv_of, render_comparison
from samara.simulations.simulate import simulate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", type=Path, required=True, help="folder with METHOD.toml files")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="*", default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    methods = arguments.methods or sorted(file.stem for file in arguments.sweep.glob("*.toml"))
    console, begun, folders = Console(width=100), time.monotonic(), []
    for seed in arguments.seeds:
        for method in methods:
            folders.append(folder := arguments.out / f"{method}-{seed}")
            own = [*arguments.settings, f"seed={seed}", f"out={folder.resolve()}"]
            config = load_scenario(arguments.sweep / f"{method}.toml", own)
            if (folder / RESULT_FILE).exists():
                continue
            if time.monotonic() - begun > arguments.seconds:
                raise SystemExit(f"{folder} is next; run the same command again to continue")
            simulate(config)
            console.print(f"{folder}: {RunResult.read(folder).wall_seconds:.0f} s")
    comparison = compare_runs(folders)
    for part in render_comparison(comparison):
        console.print(part, "")
    (arguments.out / "clients.csv").write_text(csv_of(comparison))


if __name__ == "__main__":
    main()
