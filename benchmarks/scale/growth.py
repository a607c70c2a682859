"""Growth in a long run, of the memory and descriptors of its processes and the sizes of files.

A process that was restarted has several lives. What its longest one had early is compared with what
it had late: medians of the second and of the last tenth of that life's samples, since a process
still loads in the first; and a line is fitted to the later half. Pure but for the command:

    python -m benchmarks.scale.growth SAMPLES
"""

import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from samara.shared.events import read_events

COLUMNS = (
    *("process", "lives", "rounds", "MiB", "", "per 1,000 rounds", "most"),
    *("descriptors", "", "most"),
)
FEWEST = 20
"""Samples of a life below which it says nothing."""


@dataclass(frozen=True)
class Life:
    """The samples of one process.

    Attributes:
        rounds: round at each sample.
        bytes: unique set size at each.
        descriptors: open descriptors at each.
        threads: threads at each.
    """

    rounds: list[int]
    bytes: list[int]
    descriptors: list[int]
    threads: list[int]


def lives_of(samples: Iterable[Mapping[str, Any]]) -> dict[str, list[Life]]:
    """Return the lives of each process, by name, the earliest first."""
    found: dict[str, dict[int, Life]] = defaultdict(dict)
    for sample in samples:
        for one in sample["processes"]:
            life = found[one["name"]].setdefault(one["pid"], Life([], [], [], []))
            life.rounds.append(sample["round"])
            life.bytes.append(one["bytes"])
            life.descriptors.append(one["descriptors"])
            life.threads.append(one["threads"])
    return {name: list(lives.values()) for name, lives in found.items()}


def early_and_late(values: list[int]) -> tuple[float, float]:
    """Return the medians of the second tenth and of the last one."""
    tenth = max(1, len(values) // 10)
    return statistics.median(values[tenth : 2 * tenth]), statistics.median(values[-tenth:])


def slope(rounds: list[int], values: list[int]) -> float:
    """Return how much a value grows a round, by least squares over the later half."""
    kept = slice(len(rounds) // 2, None)
    if len(set(rounds[kept])) < 2:
        return 0.0
    return statistics.linear_regression(rounds[kept], values[kept]).slope


def processes_table(samples: Iterable[Mapping[str, Any]]) -> Table:
    """Return what each kind of process had early and late in its longest life."""
    table = Table(title="processes: early and late in the longest life")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "process" else "right")
    table.add_column("threads, most", justify="right")
    for name, lives in sorted(lives_of(samples).items()):
        longest = max(lives, key=lambda life: len(life.rounds))
        if len(longest.rounds) < FEWEST:
            continue
        size = [f"{n / 2**20:.1f}" for n in early_and_late(longest.bytes)]
        size.append(f"{slope(longest.rounds, longest.bytes) * 1000 / 2**20:.2f}")
        most = max(max(life.bytes) for life in lives) / 2**20
        held = [f"{n:g}" for n in early_and_late(longest.descriptors)]
        most_held = max(max(life.descriptors) for life in lives)
        threads = max(max(life.threads) for life in lives)
        rounds = str(longest.rounds[-1] - longest.rounds[0])
        table.add_row(
            name, str(len(lives)), rounds, *size, f"{most:.1f}", *held, str(most_held), str(threads)
        )
    return table


def files_table(samples: Iterable[Mapping[str, Any]]) -> Table:
    """Return the sizes of files that changed, early and late in the run, and the largest."""
    table = Table(title="files, kB: early and late in the run")
    for column in ("file", "early", "late", "most", "bytes a round"):
        table.add_column(column, justify="left" if column == "file" else "right")
    rows = list(samples)
    tenth = max(1, len(rows) // 10)
    rounds = max(1, rows[-1]["round"] - rows[tenth]["round"])
    for name in sorted({name for row in rows for name in row["bytes"]}):
        sizes = [row["bytes"].get(name, 0) for row in rows]
        early, late = early_and_late(sizes)
        if early == late == max(sizes):
            continue
        kilobytes = [f"{n / 1000:,.1f}" for n in (early, late, max(sizes))]
        table.add_row(name, *kilobytes, f"{(late - early) / rounds:,.1f}")
    return table


def main() -> None:
    (file,) = sys.argv[1:]
    samples = read_events(Path(file))
    for table in (processes_table(samples), files_table(samples)):
        Console(width=160).print(table)


if __name__ == "__main__":
    main()
