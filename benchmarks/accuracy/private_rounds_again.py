"""Private rounds taken again while the federation goes on: kept, continued, or trained anew.

    python -m benchmarks.accuracy.private_rounds_again --data SOURCES --model MODEL --out FOLDER \\
        [--sets sst2,trec6,mrpc] [--seeds 0,1,2] [--clients 8] [--alpha 0.5] [--every 10] \\
        [--set rounds=40]

The private state p of a client was trained on an earlier w. Three things can be done when w has
moved: use p as it is, take more private rounds from w + p, or erase p and take as many from w
alone (`personal.retrain`). The first is what `before` of each personalization says, the others
`after`, all on the clients' validation examples. A run of `personal.when = "end"` is beside them.
SOURCES is the folder of source data that `data_sets` describes; runs are of `samara simulate` in
process with defaults but for data, model, clients, their Dirichlet partition and seed. The set
`messages`, with MODEL `embedded`, is generated messages, a writer for each client.

The rule by which the default was chosen, written before the first run: p goes on unless training it
anew is better, in the mean over data sets, seeds and personalizations of accuracy after it, by more
than the standard error of the differences between runs of the same data and seed.

FOLDER/rows.jsonl has one line per run; the same command continues, and prints the table.
"""

import argparse
import math
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.accuracy.cells import Cell, listed, settings_of
from benchmarks.accuracy.data_sets import DATA_SETS
from benchmarks.accuracy.rows import Row, Rows
from samara.client.personal.personalizations import Personalization, Score, read_personalizations
from samara.shared.columns import GLOBAL, PERSONALIZED
from samara.shared.config import RunConfig
from samara.shared.data_settings import EMBEDDED_DATA
from samara.shared.result import RunResult
from samara.shared.settings import parse_assignment
from samara.simulations.simulate import simulate

END, CONTINUED, ANEW = "end", "continued", "anew"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path())
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", type=listed, default=["sst2", "trec6", "mrpc"])
    parser.add_argument("--seeds", type=listed, default=["0", "1", "2"])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--alpha", type=float, default=0.5)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    arguments = parser.parse_args()
    rows = Rows(arguments.out / "rows.jsonl")
    for seed in map(int, arguments.seeds):
        for name in arguments.sets:
            for kind in (END, CONTINUED, ANEW):
                key = {"data_set": name, "seed": seed, "kind": kind}
                if not rows.find(**key):
                    rows.add(key | _run(_settings(arguments, name, seed, kind)))
    print(table(rows))


def _settings(arguments: argparse.Namespace, name: str, seed: int, kind: str) -> RunConfig:
    own: Row = {}
    alpha = math.inf if name == EMBEDDED_DATA else arguments.alpha
    if name != EMBEDDED_DATA:
        own |= DATA_SETS[name].prepare(arguments.data, arguments.out / "data")
    own |= {"personal.rounds": 5, "evaluate.every": 0, "seed": seed}
    if kind != END:
        own |= {"personal.when": f"every {arguments.every} rounds"}
        own |= {"personal.retrain": kind == ANEW}
    own |= dict(map(parse_assignment, arguments.settings))
    return settings_of(arguments, Cell(name, arguments.clients, alpha), own)


def _run(config: RunConfig) -> Row:
    """Return the accuracies of a run: at its end on test examples, and of its personalizations."""
    shutil.rmtree(config.out, ignore_errors=True)
    folder = simulate(config)
    columns = RunResult.read(folder).evaluations[-1].columns
    row: Row = {
        "test_global": columns[GLOBAL].mean_client_accuracy,
        "test_personal": columns[PERSONALIZED].mean_client_accuracy,
        "rounds": [],
        "before": [],
        "after": [],
    }
    clients = range(config.data.clients)
    every = [read_personalizations(folder / "clients" / str(client)) for client in clients]
    for together in zip(*every, strict=True):
        row["rounds"].append(together[0].global_round)
        row["before"].append(_mean(together, lambda one: one.before))
        row["after"].append(_mean(together, lambda one: one.after))
    return row


def _mean(
    together: Sequence[Personalization], score: Callable[[Personalization], Score | None]
) -> float:
    """Return the mean accuracy over the clients that have validation examples."""
    return fmean(found.accuracy for one in together if (found := score(one)))


def table(rows: Iterable[Row]) -> str:
    """Return the accuracies in percent, per data set and of all, as Markdown, and the rule's pick.

    Validation is the mean over the personalizations but the first, before which there is no p.
    """
    cells: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        cells.setdefault((row["data_set"], row["seed"]), {})[row["kind"]] = row
    whole = {cell: kinds for cell, kinds in cells.items() if len(kinds) == 3}
    lines = [
        "| data | validation: p kept | continued | anew | test at the end: global | p only then "
        "| continued | anew |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in [*dict.fromkeys(data_set for data_set, _ in whole), "all"]:
        chosen = [kinds for (own, _), kinds in whole.items() if name in (own, "all")]
        figures = [
            fmean(fmean(kinds[CONTINUED]["before"][1:]) for kinds in chosen),
            fmean(fmean(kinds[CONTINUED]["after"][1:]) for kinds in chosen),
            fmean(fmean(kinds[ANEW]["after"][1:]) for kinds in chosen),
            fmean(kinds[END]["test_global"] for kinds in chosen),
            *(
                fmean(kinds[kind]["test_personal"] for kinds in chosen)
                for kind in (END, CONTINUED, ANEW)
            ),
        ]
        lines.append(f"| {name} | " + " | ".join(f"{100 * one:.1f}" for one in figures) + " |")
    differences = [
        fmean(kinds[ANEW]["after"][1:]) - fmean(kinds[CONTINUED]["after"][1:])
        for kinds in whole.values()
    ]
    error = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else math.inf
    better = fmean(differences)
    lines.append(
        f"\nAnew is better by {100 * better:+.2f} ± {100 * error:.2f} points of validation: p "
        f"{'is trained anew' if better > error else 'goes on'}."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
