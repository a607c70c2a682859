"""Points that a readout's default misses beside a probe, where they are lost, standard errors.

    python -m benchmarks.accuracy.readout_shortfall --data SOURCES --model MODEL --out FOLDER \\
        [--sets boolq,wic] [--clients 8] [--alpha inf] [--seeds 0,1,2] [--divisions 6]

On the features of `cells`, by the rounds of `readout_rounds`, the same test examples are answered
by the default, with and without the return to the lowest loss on validation, by the default without
the model's own scores, and by logistic regressions with C by cross-validation and C = 1.

One set of test examples is easier for one way to train than for another by chance, and so is one
set of training examples. So all examples of a data set are divided anew as often as `--divisions`
says, into splits and clients of the same sizes. Each way is compared with the first logistic
regression: differences are means over the divisions with their standard errors.
FOLDER/readout_shortfall.jsonl has a line per cell; the same command continues.
"""

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.cells import STRENGTHS, Cell, cells_parser, settings_of
from benchmarks.accuracy.data_sets import DATA_SETS
from benchmarks.accuracy.readout_rounds import (
    Clients,
    Examples,
    Floats,
    Rounds,
    Variant,
    pooled,
    read_clients,
    train_rounds,
)
from benchmarks.accuracy.rows import Row, Rows
from samara.shared.config import RunConfig
from samara.shared.frames.instructions import Split

Right = NDArray[np.float64]
"""The share of right answers to every test example [n], over seeds."""
Choice = Callable[[Rounds], Floats]
"""A choice of one of the readouts that a run has had."""


def answers_of_rounds(config: RunConfig, clients: Clients, seeds: list[int]) -> dict[str, Right]:
    """Return the right answers of each way that has rounds, by its name."""
    found = mean_over_seeds(config, clients, {"default": returned, "no return": last}, seeds)
    return found | mean_over_seeds(config, without_scores(clients), {"no scores": returned}, seeds)


def returned(rounds: Rounds) -> Floats:
    """Return the readout of the round that a run returns to."""
    return rounds.weights[rounds.best]


def last(rounds: Rounds) -> Floats:
    """Return the readout of the last round."""
    return rounds.weights[rounds.end]


def without_scores(clients: Clients) -> Clients:
    """Return clients whose base model gives every label the same score."""
    return {
        split: [replace(part, base=np.zeros_like(part.base)) for part in parts]
        for split, parts in clients.items()
    }


def redivided(clients: Clients, seed: int) -> Clients:
    """Return clients and splits of the same sizes, among whom all examples are divided anew."""
    whole = pooled(part for split in Split for part in clients[split])
    order = np.random.default_rng(seed).permutation(len(whole.labels))
    sizes = [len(part.labels) for split in Split for part in clients[split]]
    shares = np.split(order, np.cumsum(sizes)[:-1])
    drawn = (
        Examples(whole.features[rows], whole.base[rows], whole.labels[rows]) for rows in shares
    )
    return {split: list(islice(drawn, len(clients[split]))) for split in Split}


def mean_over_seeds(
    config: RunConfig,
    clients: Clients,
    choices: dict[str, Choice],
    seeds: list[int],
) -> dict[str, Right]:
    """Return the share of runs that are right, per test example, by the name of each choice."""
    test, shares = pooled(clients[Split.TEST]), []
    for seed in seeds:
        rounds = train_rounds(RunConfig.of(config.flat() | {"seed": seed}, ""), clients, Variant())
        shares.append([right_answers(test, choose(rounds)) for choose in choices.values()])
    return dict(zip(choices, np.mean(shares, axis=0), strict=True))


def right_answers(examples: Examples, weights: Floats) -> Right:
    """Return 1 for every example that a readout answers rightly, otherwise 0."""
    right: Right = (examples.scores(weights).argmax(axis=1) == examples.labels).astype(float)
    return right


def fit_probes(train: Examples, test: Examples) -> dict[str, Right]:
    """Return the right answers of probes; the first one is the limit of `cells`."""
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rare labels, and solvers that stop before they converge
        probes = {
            "probe CV": LogisticRegressionCV(Cs=STRENGTHS, cv=3, max_iter=1000),
            "probe C = 1": LogisticRegression(C=1.0, max_iter=1000),
        }
        return {
            name: right_answers_of(probe.fit(train.features, train.labels), test)
            for name, probe in probes.items()
        }


def right_answers_of(probe: Any, examples: Examples) -> Right:
    """Return 1 for every example that a fitted probe answers rightly, otherwise 0."""
    right: Right = (probe.predict(examples.features) == examples.labels).astype(float)
    return right


def render_table(rows: Rows) -> str:
    """Return accuracies, and differences to the first with their standard errors, in percent."""
    lines: list[str] = []
    for row in rows:
        if not lines:
            names = [name for name in row["accuracy"] if name not in row["difference"]]
            lines = [
                "| data, test examples | " + " | ".join([*names, *row["difference"]]) + " |",
                "|---" * (1 + len(row["accuracy"])) + "|",
            ]
        cell = f"{row['data_set']}, {row['clients']} clients, α {row['alpha']}"
        cells = [f"{cell}, {row['tests']}"]
        cells.append(f"{100 * row['accuracy']['probe CV']:.1f}")
        for name, (mean, error) in row["difference"].items():
            accuracy = 100 * row["accuracy"][name]
            cells.append(f"{accuracy:.1f} ({100 * mean:+.1f} ± {100 * error:.1f})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def compare_divisions(found: Sequence[dict[str, Right]]) -> dict[str, Any]:
    """Return mean accuracies, and their differences to the first, each with its standard error."""
    shares = {name: np.array([one[name].mean() for one in found]) for name in found[0]}
    reference, *others = shares
    return {
        "tests": len(found[0][reference]),
        "accuracy": {name: float(share.mean()) for name, share in shares.items()},
        "difference": {name: mean_and_error(shares[name] - shares[reference]) for name in others},
    }


def mean_and_error(values: Right) -> tuple[float, float]:
    """Return the mean of values [n], and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


def measure(
    config: RunConfig, clients: Clients, seeds: list[int], divisions: int
) -> dict[str, Any]:
    """Return the comparison of a cell over divisions at random."""
    found = []
    for division in range(divisions):
        anew = redivided(clients, division)
        probe, *others = fit_probes(
            *(pooled(anew[split]) for split in (Split.TRAIN, Split.TEST))
        ).items()
        found.append(dict([probe]) | answers_of_rounds(config, anew, seeds) | dict(others))
    return compare_divisions(found)


def main() -> None:
    parser = cells_parser(__doc__)
    parser.add_argument("--divisions", type=int, default=6)
    parser.set_defaults(clients=["8"], alpha=["inf"])
    arguments = parser.parse_args()
    rows = Rows(arguments.out / "readout_shortfall.jsonl")
    seeds = list(map(int, arguments.seeds))
    for name, clients, alpha in product(arguments.sets, arguments.clients, arguments.alpha):
        key: Row = {"data_set": name, "clients": int(clients), "alpha": float(alpha)}
        key["seeds"] = json.dumps(seeds)
        key["divisions"] = arguments.divisions
        if not rows.find(**key):
            where = DATA_SETS[name].prepare(arguments.data, arguments.out / "data")
            config = settings_of(arguments, Cell(name, int(clients), float(alpha)), where)
            found = measure(config, read_clients(config), seeds, arguments.divisions)
            rows.add(key | found)
            (arguments.out / "readout_shortfall.md").write_text(render_table(rows))
    print(render_table(rows))


if __name__ == "__main__":
    main()
