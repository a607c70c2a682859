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
from samara.shared.config import RunConfig, load_scenario
from samara.shared.label_scores import Confusion
from samara.shared.result import RESULT_FILE, RunResult
from samara.simulations.comparison.comparison import (
    Comparison,
    compare_runs,
    format_p,
)
from samara.simulations.comparison.measure import ACCURACY
from samara.simulations.comparison.statistics import correct_by_holm, paired_difference
from samara.simulations.comparison.tables import csv_of, render_comparison
from samara.simulations.simulate import simulate


def print_words(comparison: Comparison, words: dict[int, Confusion], console: Console) -> None:
    """Print every method's difference from base rate and bag of words."""
    runs = comparison.runs
    accuracy = np.array([words[client].accuracy for client in runs.clients])
    macro_f1 = np.array([words[client].macro_f1 for client in runs.clients])
    console.print(
        f"base rate + words: accuracy {ACCURACY.level(accuracy.mean())}, macro-F1 "
        f"{ACCURACY.level(macro_f1.mean())}"
    )
    conditions = [variant.conditions[variant.final_column] for variant in runs.variants]
    differences = [paired_difference(one.quality, accuracy) for one in conditions]
    table = Table("against base rate + words", "accuracy", "95 % interval", "p (Holm)")
    corrected = correct_by_holm([one.p for one in differences])
    for condition, one, p in zip(conditions, differences, corrected, strict=True):
        interval = f"{ACCURACY.gain(one.low)} … {ACCURACY.gain(one.high)}"
        table.add_row(comparison.name_of(condition), ACCURACY.gain(one.mean), interval, format_p(p))
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
    comparison = compare_runs(folders)
    for part in render_comparison(comparison):
        console.print(part, "")
    if arguments.words:
        print_words(comparison, baselines(config.task, config.data)["base rate + words"], console)
    (arguments.out / "clients.csv").write_text(csv_of(comparison))


if __name__ == "__main__":
    main()
