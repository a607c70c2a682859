"""Runs under false reports, their outcomes, and the CSV that holds both."""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

RULES = ("mean", "median-norm", "multi-krum", "centered-clipping", "trimmed-mean", "median")


class Case(NamedTuple):
    """The settings that distinguish a run from the others.

    Attributes:
        task: name of the task.
        clients: number of clients.
        seed: seed of directions, and of who is hostile.
        rule: `aggregation.rule`.
        rate: `auto`, or `fixed` for an η set by hand.
        attack: name of the false reports; `none` without any.
        hostile: number of hostile clients.
    """

    task: str
    clients: int
    seed: int
    rule: str
    rate: str
    attack: str
    hostile: int

    @property
    def attackers(self) -> list[int]:
        """The clients that are hostile, drawn by the seed."""
        order = np.random.default_rng(self.seed).permutation(self.clients)
        return [int(client) for client in order[: self.hostile]]


class Outcome(NamedTuple):
    """The outcome of a run.

    Attributes:
        before, after: accuracy on all test examples before and after it, in percent.
        left_out: reports that were left out since they do not fit the exact state.
        unused: rounds without a usable report.
        reverts: rounds that reverted earlier ones.
        reverted: the largest number of earlier rounds that were reverted at once.
        ended: round after which a server ends the run, without a usable report in
            `cohort.empty_rounds` rounds in a row; 0 if it does not.
        best: round whose model it has at the end; the last one, if that was best on validation.
    """

    before: float
    after: float
    left_out: int
    unused: int
    reverts: int
    reverted: int
    ended: int
    best: int


def read_runs(file: Path) -> dict[Case, Outcome]:
    """Return the runs in a CSV file; none if there is no file."""
    if not file.exists():
        return {}
    with file.open(newline="") as stream:
        rows = list(csv.reader(stream))[1:]
    split, runs = len(Case._fields), {}
    for row in rows:
        task, clients, seed, *names, hostile = row[:split]
        before, after, *counts = row[split:]
        case = Case(task, int(clients), int(seed), *names, int(hostile))  # type: ignore[call-arg, arg-type]
        runs[case] = Outcome(float(before), float(after), *map(int, counts))
    return runs


def add_run(file: Path, case: Case, outcome: Outcome) -> None:
    """Add a run to a CSV file, which is begun if there is none."""
    with file.open("a", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        if not stream.tell():
            writer.writerow([*Case._fields, *Outcome._fields])
        rounded = [f"{value:.2f}" for value in outcome[:2]]
        writer.writerow([*case, *rounded, *outcome[2:]])
