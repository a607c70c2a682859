"""Markdown tables of runs under false reports.

    python -m benchmarks.faults.hostile_tables FILE [FILE …] [--task TASK] [--clients N]

FILE is the CSV of `hostile_reports` or `hostile_runs`. Of every rule and η it prints the accuracy
without hostile clients, and what each attack costs: the mean over seeds of the difference from the
run of the same seed without, with the 95 % interval (t) from three seeds on. Then come the
largest costs, and how many runs fell below zero-shot, reverted rounds, or ended.
"""

import argparse
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks.faults.attacked_cases import Case, Outcome, read_runs

Runs = Mapping[Case, Outcome]
Column = tuple[str, str]
"""Rule and η."""


def differences(runs: Runs, column: Column, attack: str, hostile: int) -> list[float]:
    """Return accuracy less that of the run without hostile clients, in points, by seed."""
    found = []
    for case, outcome in sorted(runs.items()):
        if (case.rule, case.rate, case.attack, case.hostile) == (*column, attack, hostile):
            honest = runs.get(case._replace(attack="none", hostile=0))
            if honest is not None:
                found.append(outcome.after - honest.after)
    return found


def interval(values: Sequence[float]) -> str:
    """Return the mean of values, from three on with its 95 % interval; empty without any."""
    if not values:
        return ""
    mean = f"{np.mean(values):+.1f}".replace("-", "−")
    if len(values) < 3:
        return mean
    error = stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)
    return f"{mean} ± {error:.1f}"


def costs_table(runs: Runs) -> list[str]:
    """Return a table of a task with so many clients: attacks by rule and η."""
    columns = list(dict.fromkeys((case.rule, case.rate) for case in runs))
    header = [f"`{rule}`, {rate}" for rule, rate in columns]
    lines = [f"| | {' | '.join(header)} |", "|---" * (len(columns) + 1) + "|"]
    figures = []
    for column in columns:
        after = [o.after for c, o in runs.items() if (c.rule, c.rate, c.hostile) == (*column, 0)]
        figures.append(f"{np.mean(after):.1f}" if after else "")
    lines.append(f"| none: accuracy | {' | '.join(figures)} |")
    for attack, count in sorted(_attacks(runs), key=lambda pair: pair[1]):
        cells = [interval(differences(runs, column, attack, count)) for column in columns]
        lines.append(f"| {attack}, {count} | {' | '.join(cells)} |")
    return lines


def worst_table(runs: Runs) -> list[str]:
    """Return a table of the largest mean cost by rule, η and number of hostile clients."""
    lines = [
        "| rule, η | hostile | worst attack | cost | lowest less zero-shot |",
        "|---" * 5 + "|",
    ]
    for column in dict.fromkeys((case.rule, case.rate) for case in runs):
        for count in sorted({count for _, count in _attacks(runs)}):
            costs = {
                attack: np.mean(found)
                for attack, number in _attacks(runs)
                if number == count and (found := differences(runs, column, attack, count))
            }
            if not costs:
                continue
            worst = min(costs, key=lambda attack: costs[attack])
            cost = interval(differences(runs, column, worst, count))
            low = min(
                o.after - o.before
                for c, o in runs.items()
                if (c.rule, c.rate, c.hostile) == (*column, count)
            )
            least = f"{low:+.1f}".replace("-", "−")
            name = f"`{column[0]}`, {column[1]}"
            lines.append(f"| {name} | {count} | {worst} | {cost} | {least} |")
    return lines


def mishaps(runs: Runs) -> list[str]:
    """Return a line for each rule on what happened to its runs besides accuracy."""
    lines = []
    for rule in dict.fromkeys(case.rule for case in runs):
        some = [outcome for case, outcome in runs.items() if case.rule == rule]
        lines.append(
            f"`{rule}`: {len(some)} runs; {sum(o.after < o.before for o in some)} below zero-shot, "
            f"{sum(o.reverts > 0 for o in some)} with reverts (at most "
            f"{max(o.reverted for o in some)} rounds at once, "
            f"{max(o.reverts for o in some)} times), "
            f"{sum(o.unused > 0 for o in some)} with rounds without a usable report, "
            f"{sum(o.ended > 0 for o in some)} ended, "
            f"{sum(o.left_out > 0 for o in some)} with reports left out"
        )
    return lines


def _attacks(runs: Runs) -> Collection[tuple[str, int]]:
    """Return the attacks with their numbers of hostile clients, in the order of the runs."""
    return list(dict.fromkeys((case.attack, case.hostile) for case in runs if case.hostile))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--task")
    parser.add_argument("--clients", type=int)
    arguments = parser.parse_args()
    runs: dict[Case, Outcome] = {}
    for file in arguments.files:
        runs |= read_runs(file)
    for task, clients in dict.fromkeys((case.task, case.clients) for case in runs):
        if arguments.task not in (None, task) or arguments.clients not in (None, clients):
            continue
        some = {c: o for c, o in runs.items() if (c.task, c.clients) == (task, clients)}
        zero_shot = np.mean([outcome.before for outcome in some.values()])
        print(f"\n**{task}, {clients} clients**, zero-shot {zero_shot:.1f}\n")
        print("\n".join([*costs_table(some), "", *worst_table(some), "", *mishaps(some)]))


if __name__ == "__main__":
    main()
