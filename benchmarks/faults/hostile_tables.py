"""Markdown tables of runs under false reports.

    python -m benchmarks.faults.hostile_tables FILE [FILE …] [--task TASK] [--clients N]

FILE is the CSV of `hostile_reports` or `hostile_runs`. Of every rule and η it prints the accuracy
without hostile clients, and what each attack costs: the mean over seeds of the difference from the
run of the same seed without, with the 95 % interval (t) from three seeds on; how many runs fell
below zero-shot, reverted rounds, or ended; and a table of the largest costs.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks.faults.attacked_cases import RULES, Case, Outcome, read_runs
from benchmarks.faults.false_reports import FORGERIES

TITLES = {
    "-g": "−g",
    "-100 g": "−100·g",
    "random": "random",
    "g = 10^6": "g = 10⁶",
    "10^-6 g": "10⁻⁶·g",
    "loss 10^6": "loss 10⁶",
    "curvature 10^12": "curvature 10¹²",
    "curvature -10^12": "curvature −10¹²",
    "-g, 10^6 examples": "−g and 10⁶ examples",
    "everything": "all together",
    "inside": "inside",
}
"""Names of attacks in tables."""

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
    mean = "0.0" if mean[1:] == "0.0" else mean
    if len(values) < 3:
        return mean
    error = stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)
    return f"{mean} ± {error:.1f}"


def costs_table(runs: Runs) -> list[str]:
    """Return a table of a task with so many clients: attacks by rule and η."""
    columns = sorted({(case.rule, case.rate) for case in runs}, key=_order)
    header = [f"`{rule}`, {rate}" for rule, rate in columns]
    lines = [f"| | {' | '.join(header)} |", "|---" * (len(columns) + 1) + "|"]
    figures = []
    for column in columns:
        after = [o.after for c, o in runs.items() if (c.rule, c.rate, c.hostile) == (*column, 0)]
        figures.append(f"{np.mean(after):.1f}" if after else "")
    lines.append(f"| none: accuracy | {' | '.join(figures)} |")
    for attack, count in _attacks(runs):
        cells = [interval(differences(runs, column, attack, count)) for column in columns]
        lines.append(f"| {TITLES[attack]}, {count} | {' | '.join(cells)} |")
    return lines


def worst_table(runs: Runs) -> list[str]:
    """Return a table of a task: the largest mean cost by rule, η, clients and hostile clients.

    A figure with † has a run behind it, of any attack, that ended below zero-shot.
    """
    sizes = sorted({(case.clients, case.hostile) for case in runs})
    names = [f"{count} of {clients}" if count else f"{clients}, none" for clients, count in sizes]
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(sizes) + 1) + "|"]
    for column in sorted({(case.rule, case.rate) for case in runs}, key=_order):
        cells = []
        for size in sizes:
            some = {
                case: outcome
                for case, outcome in runs.items()
                if (case.rule, case.rate, case.clients) == (*column, size[0])
            }
            cells.append(_worst(some, column, size[1]))
        lines.append(f"| `{column[0]}`, {column[1]} | {' | '.join(cells)} |")
    return lines


def _worst(runs: Runs, column: Column, count: int) -> str:
    """Return the accuracy without hostile clients, or the largest mean cost and its attack."""
    chosen = [outcome for case, outcome in runs.items() if case.hostile == count]
    if not chosen:
        return ""
    if not count:
        return f"{np.mean([outcome.after for outcome in chosen]):.1f}"
    attacks = [attack for attack, number in _attacks(runs) if number == count]
    costs = {a: np.mean(differences(runs, column, a, count)) for a in attacks}
    worst = min(costs, key=lambda attack: costs[attack])
    mark = "†" if any(outcome.after < outcome.before for outcome in chosen) else ""
    return f"{interval(differences(runs, column, worst, count))}{mark} ({TITLES[worst]})"


def mishaps(runs: Runs) -> list[str]:
    """Return a line for each rule on what happened to its runs."""
    lines = []
    for rule in sorted({case.rule for case in runs}, key=_order):
        some = [outcome for case, outcome in runs.items() if case.rule == rule]
        lines.append(
            f"`{rule}`: {len(some)} runs; {sum(o.after < o.before for o in some)} below zero-shot "
            f"(the lowest by {min(o.after - o.before for o in some):+.1f}), "
            f"{sum(o.reverts > 0 for o in some)} with reverts (at most "
            f"{max(o.reverted for o in some)} rounds at once, "
            f"{max(o.reverts for o in some)} times), "
            f"{sum(o.unused > 0 for o in some)} with rounds without a usable report, "
            f"{sum(o.ended > 0 for o in some)} ended, "
            f"{sum(o.left_out > 0 for o in some)} with reports left out"
        )
    return lines


def _order(name: str | Column) -> tuple[int, str]:
    """Return what rules, or rules and η, are sorted by."""
    rule, rate = (name, "") if isinstance(name, str) else name
    return RULES.index(rule), rate


def _attacks(runs: Runs) -> list[tuple[str, int]]:
    """Return the attacks with their numbers of hostile clients, in the order of tables."""
    names = list(FORGERIES)
    found = {(case.attack, case.hostile) for case in runs if case.hostile}
    return sorted(found, key=lambda pair: (pair[1], names.index(pair[0])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--task")
    parser.add_argument("--clients", type=int)
    arguments = parser.parse_args()
    runs: dict[Case, Outcome] = {}
    for file in arguments.files:
        runs |= read_runs(file)
    runs = {
        case: outcome
        for case, outcome in runs.items()
        if arguments.task in (None, case.task) and arguments.clients in (None, case.clients)
    }
    for task in sorted({case.task for case in runs}):
        of_task = {case: outcome for case, outcome in runs.items() if case.task == task}
        for clients in sorted({case.clients for case in of_task}):
            some = {case: o for case, o in of_task.items() if case.clients == clients}
            zero_shot = np.mean([outcome.before for outcome in some.values()])
            print(f"\n**{task}, {clients} clients**, zero-shot {zero_shot:.1f}\n")
            print("\n".join([*costs_table(some), "", *mishaps(some)]))
        print(f"\n**{task}**\n")
        print("\n".join(worst_table(of_task)))


if __name__ == "__main__":
    main()
