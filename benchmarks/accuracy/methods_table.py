"""Every method with the settings that a sweep chose for it, several seeds each, as one comparison.

    samara simulate benchmarks/accuracy/methods/messages.toml \\
        --sweep benchmarks/accuracy/methods/messages-sweep.toml --set data.clients=100 \\
        --set data.seed=8 --set cohort.newcomers=0 --out FOLDER/sweep
    python -m benchmarks.accuracy.methods_table --sweep FOLDER/sweep --out FOLDER/table \\
        --seeds 0 1 2 --set data.clients=104 --set data.seed=7 --set cohort.newcomers=4

What has ended is in FOLDER/table/METHOD-SEED, and the same command goes on from there; --seconds
ends it between two runs. --words adds base rates with words (`words_baseline`).
"""

import argparse
import logging
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.words_baseline import baselines
from shared.config import RunConfig, load_scenario
from shared.result import RESULT_FILE, RunResult
from shared.tasks.metrics import Confusion
from simulations.comparison.comparison import Comparison, comparison_of, p_text, percent, points
from simulations.comparison.statistics import compared, holm
from simulations.comparison.tables import csv_of, printed
from simulations.simulate import simulate


def print_words(comparison: Comparison, words: dict[int, Confusion], console: Console) -> None:
    """The methods held against base rate and bag of words."""
    field = comparison.field
    accuracy = np.array([words[client].accuracy for client in field.clients])
    macro_f1 = np.array([words[client].macro_f1 for client in field.clients])
    console.print(
        f"base rate + words: accuracy {percent(accuracy.mean())}, macro-F1 "
        f"{percent(macro_f1.mean())}"
    )
    served = [variant.arms[variant.served] for variant in field.variants]
    found = [compared(arm.accuracy, accuracy) for arm in served]
    table = Table("against base rate + words", "accuracy", "95 % interval", "p (Holm)")
    for arm, own, p in zip(served, found, holm([one.p for one in found]), strict=True):
        interval = f"{points(own.low)} … {points(own.high)}"
        table.add_row(comparison.named(arm), points(own.mean), interval, p_text(p))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", type=Path, required=True, help="folder with METHOD.toml files")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="*", default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--words", action="store_true")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    methods = arguments.methods or sorted(file.stem for file in arguments.sweep.glob("*.toml"))
    console, begun, folders, config = Console(width=100), time.monotonic(), [], RunConfig()
    for seed in arguments.seeds:
        for method in methods:
            folders.append(folder := arguments.out / f"{method}-{seed}")
            own = [*arguments.settings, f"seed={seed}", f"out={folder.resolve()}"]
            config = load_scenario(arguments.sweep / f"{method}.toml", own)
            if (folder / RESULT_FILE).exists():
                continue
            if time.monotonic() - begun > arguments.seconds:
                raise SystemExit(f"{folder} is next; the same command goes on")
            simulate(config)
            console.print(f"{folder}: {RunResult.read(folder).wall_seconds:.0f} s")
    comparison = comparison_of(folders)
    for part in printed(comparison):
        console.print(part, "")
    if arguments.words:
        print_words(comparison, baselines(config.task, config.data)["base rate + words"], console)
    (arguments.out / "clients.csv").write_text(csv_of(comparison))


if __name__ == "__main__":
    main()
