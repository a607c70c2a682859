"""Points that a readout's default misses beside a probe, where they are lost, standard errors.

    python -m benchmarks.accuracy.readout_shortfall --data SOURCES --model MODEL --out FOLDER \\
        [--sets boolq,wic] [--clients 8] [--alpha inf] [--seeds 0,1,2] [--divisions 6] [--train 32]

On the features and divisions of `cells`, by the rounds of `readout_rounds`, the same test examples
are answered by

- the default, with and without the return to the lowest loss on validation;
- the same rounds with whole gradients, which have no noise of directions;
- the default whose model's own scores are a quarter of what they are, have another temperature if
  it is sure to lower the training loss (`readout_rounds.tempered`), or are left out;
- these with a return to the lowest *calibrated* loss: that of the temperature which suits a round's
  scores best, so that rounds are not compared by how sure they are. One temperature is for all
  clients, and their losses are averaged by it; *trimmed*, by the server's trimmed mean, which a
  hostile client cannot set; or every client has a temperature of its own (*by client*), so that it
  tells one loss;
- gradient descent on all clients' examples together, in the same features and with the model's
  scores, stopped where validation has the lowest loss, and the same without these scores;
- logistic regressions: C by cross-validation, C = 1, and C by the loss on validation.

Each is compared with the first logistic regression example by example: printed is the difference
in points with its standard error over the test examples, the mean over the seeds where there are
any. FOLDER/readout_shortfall.jsonl has a line per cell; the same command continues.

One set of test examples is easier for one way to train than for another by chance, and so is one
set of training examples. With `--divisions` all examples of a data set are divided anew as often
as that, into splits and clients of the same sizes. Then differences are means over the divisions
with their standard errors, and gradient descent and the other regressions are left out. With
`--train` so many of them are for training, a quarter as many, at least 20, for validation, and the
others for test; clients have equally many.
"""

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

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
    tempered,
    train_rounds,
)
from benchmarks.accuracy.rows import Row, Rows
from samara.server.rounds.aggregation import trimmed_mean
from samara.shared.config import RunConfig
from samara.shared.frames.instructions import Split

Right = NDArray[np.float64]
"""The share of right answers to every test example [n], over seeds."""
Choice = Callable[[Rounds, Clients], Floats]
"""A choice of one of the readouts that a run has had."""
QUARTER = 0.25
LEAST_VALIDATION = 20
"""The fewest validation examples of a division with few for training."""
TEMPERATURES = 2.0 ** np.arange(-5, 1.5, 0.5)
"""Factors of scores, of which the one with the lowest loss calibrates them."""
LAST_STEP = 3000
STOPS = set(np.unique(np.logspace(0, np.log10(LAST_STEP), 60).astype(int)))
"""The steps after which gradient descent is validated."""


def answers(config: RunConfig, clients: Clients, seeds: list[int]) -> dict[str, Right]:
    """Return the right answers of each way to train, by its name."""
    train, validation, test = (pooled(clients[split]) for split in Split)
    probe, *others = fit_probes(train, validation, test).items()
    found = dict([probe]) | answers_of_rounds(config, clients, seeds)
    for name, scale in (("descent", 1), ("descent without scores", 0)):
        parts = [with_scores(part, scale) for part in (train, validation)]
        found[name] = right_answers(with_scores(test, scale), descend(*parts))
    return found | dict(others)


def answers_of_rounds(config: RunConfig, clients: Clients, seeds: list[int]) -> dict[str, Right]:
    """Return the right answers of each way that has rounds, by its name."""
    plain, exact = Variant(), Variant(exact=True)
    ways: tuple[tuple[Clients, Variant, dict[str, Choice]], ...] = (
        (clients, plain, {"default": returned, "no return": last, **_calibrations("")}),
        (clients, exact, {"whole gradients": returned}),
        (scaled(clients, QUARTER), plain, {"quarter": returned, **_calibrations("quarter, ")}),
        (tempered(clients), plain, {"tempered": returned, "tempered, calibrated": calibrated}),
        (scaled(clients, 0), plain, {"no scores": returned, "no scores, calibrated": calibrated}),
    )
    found: dict[str, Right] = {}
    for start, variant, choices in ways:
        found |= mean_over_seeds(config, start, variant, choices, seeds)
    return found


def returned(rounds: Rounds, _: Clients) -> Floats:
    """Return the readout of the round that a run returns to."""
    return rounds.weights[rounds.best]


def last(rounds: Rounds, _: Clients) -> Floats:
    """Return the readout of the last round."""
    return rounds.weights[rounds.end]


def calibrated(rounds: Rounds, clients: Clients) -> Floats:
    """Return the readout with the lowest calibrated loss on validation, the first of equals."""
    return _lowest(rounds, clients, lambda losses: losses.mean(axis=0).min())


def calibrated_trimmed(rounds: Rounds, clients: Clients) -> Floats:
    """Return the readout with the lowest calibrated loss by trimmed means over clients."""
    return _lowest(rounds, clients, lambda losses: trimmed_mean(losses).min())


def calibrated_by_client(rounds: Rounds, clients: Clients) -> Floats:
    """Return the readout with the lowest mean of the losses that each client calibrates itself."""
    return _lowest(rounds, clients, lambda losses: losses.min(axis=1).mean())


def _calibrations(name: str) -> dict[str, Choice]:
    """Return the choices by calibrated losses, by a name in front."""
    return {
        f"{name}calibrated": calibrated,
        f"{name}calibrated, trimmed": calibrated_trimmed,
        f"{name}calibrated by client": calibrated_by_client,
    }


def _lowest(
    rounds: Rounds, clients: Clients, reduce: Callable[[NDArray[np.float64]], float]
) -> Floats:
    """Return the readout with the least of what losses [clients, temperatures] are reduced to."""
    parts = [part for part in clients[Split.VALIDATION] if len(part.labels)]

    def loss(weights: Floats) -> float:
        return reduce(np.array([_tempered_losses(part, weights) for part in parts]))

    return min(rounds.weights.values(), key=loss)


def _tempered_losses(examples: Examples, weights: Floats) -> NDArray[np.float64]:
    """Return the mean loss under a readout by temperature, float64 [temperatures]."""
    scores = examples.scores(weights).astype(np.float64)
    chances = log_softmax(TEMPERATURES[:, None, None] * scores, axis=2)
    losses: NDArray[np.float64] = -chances[:, np.arange(len(scores)), examples.labels].mean(axis=1)
    return losses


def scaled(clients: Clients, scale: float) -> Clients:
    """Return clients whose scores of the base model are multiplied by a scale."""
    return {split: [with_scores(part, scale) for part in parts] for split, parts in clients.items()}


def with_scores(examples: Examples, scale: float) -> Examples:
    """Return examples whose scores of the base model are multiplied by a scale."""
    return replace(examples, base=examples.base * np.float32(scale))


def redivided(clients: Clients, seed: int, train: int = 0) -> Clients:
    """Return clients and splits of the same sizes, among whom all examples are divided anew.

    Args:
        clients: examples of every client.
        seed: seed of the division.
        train: number of training examples, a quarter of which, at least `LEAST_VALIDATION`, are
            for validation besides, and the others for test; 0 leaves sizes as they are.
    """
    whole = pooled(part for split in Split for part in clients[split])
    order = np.random.default_rng(seed).permutation(len(whole.labels))
    if train:
        ends = np.cumsum([train, max(LEAST_VALIDATION, train // 4)])
        count = len(clients[Split.TRAIN])
        shares = [rows for part in np.split(order, ends) for rows in np.array_split(part, count)]
    else:
        sizes = [len(part.labels) for split in Split for part in clients[split]]
        shares = np.split(order, np.cumsum(sizes)[:-1])
    drawn = (
        Examples(whole.features[rows], whole.base[rows], whole.labels[rows]) for rows in shares
    )
    return {split: list(islice(drawn, len(clients[split]))) for split in Split}


def mean_over_seeds(
    config: RunConfig,
    clients: Clients,
    variant: Variant,
    choices: dict[str, Choice],
    seeds: list[int],
) -> dict[str, Right]:
    """Return the share of runs that are right, per test example, by the name of each choice."""
    test, shares = pooled(clients[Split.TEST]), []
    for seed in seeds:
        rounds = train_rounds(RunConfig.of(config.flat() | {"seed": seed}, ""), clients, variant)
        shares.append([right_answers(test, choose(rounds, clients)) for choose in choices.values()])
    return dict(zip(choices, np.mean(shares, axis=0), strict=True))


def right_answers(examples: Examples, weights: Floats) -> Right:
    """Return 1 for every example that a readout answers rightly, otherwise 0."""
    right: Right = (examples.scores(weights).argmax(axis=1) == examples.labels).astype(float)
    return right


def descend(train: Examples, validation: Examples) -> Floats:
    """Return the readout of lowest loss on validation along gradient descent."""
    square = train.features.T @ train.features / len(train.labels)
    rate = np.float32(2 / np.linalg.eigvalsh(square.astype(float))[-1])
    weights = np.zeros((train.base.shape[1] - 1, train.features.shape[1]), np.float32)
    best, least = weights, validation.judge(weights)[1]
    for step in range(1, LAST_STEP + 1):
        weights = weights - rate * train.loss_and_slope(weights)[1]
        if step in STOPS and (loss := validation.judge(weights)[1]) < least:
            best, least = weights, loss
    return best


def fit_probes(train: Examples, validation: Examples, test: Examples) -> dict[str, Right]:
    """Return the right answers of probes; the first one is the limit of `cells`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rare labels, and solvers that stop before they converge
        return _fit_probes(train, validation, test)


def _fit_probes(train: Examples, validation: Examples, test: Examples) -> dict[str, Right]:
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
    from sklearn.metrics import log_loss

    examples = train.features, train.labels
    probes = {
        strength: LogisticRegression(C=strength, max_iter=1000).fit(*examples)
        for strength in STRENGTHS
    }

    def loss(strength: float) -> float:
        probe = probes[strength]
        known = np.isin(validation.labels, probe.classes_)
        chances = probe.predict_proba(validation.features[known])
        return float(log_loss(validation.labels[known], chances, labels=probe.classes_))

    chosen = {
        "probe CV": LogisticRegressionCV(Cs=STRENGTHS, cv=3, max_iter=1000).fit(*examples),
        "probe C = 1": probes[1.0],
        "probe, C by validation": probes[min(STRENGTHS, key=loss)],
    }
    return {
        name: (probe.predict(test.features) == test.labels).astype(float)
        for name, probe in chosen.items()
    }


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
        few = f", {row['train']} for training" if "train" in row else ""
        cell = f"{row['data_set']}{few}, {row['clients']} clients, α {row['alpha']}"
        cells = [f"{cell}, {row['tests']}"]
        cells.append(f"{100 * row['accuracy']['probe CV']:.1f}")
        for name, (mean, error) in row["difference"].items():
            accuracy = 100 * row["accuracy"][name]
            cells.append(f"{accuracy:.1f} ({100 * mean:+.1f} ± {100 * error:.1f})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def compare(found: dict[str, Right]) -> dict[str, Any]:
    """Return accuracies, and their differences to the first, each with its standard error."""
    (_, reference), *others = found.items()
    differences = {name: right - reference for name, right in others}
    return {
        "tests": len(reference),
        "accuracy": {name: float(right.mean()) for name, right in found.items()},
        "difference": {name: mean_and_error(own) for name, own in differences.items()},
    }


def compare_divisions(found: Sequence[dict[str, Right]]) -> dict[str, Any]:
    """Return means over divisions of what `compare` does, and their standard errors."""
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
    config: RunConfig, clients: Clients, seeds: list[int], divisions: int, train: int = 0
) -> dict[str, Any]:
    """Return the comparison of a cell: as it is divided, or over divisions at random."""
    if not divisions:
        return compare(answers(config, clients, seeds))
    found = []
    for division in range(divisions):
        anew = redivided(clients, division, train)
        probe, *_ = fit_probes(*(pooled(anew[split]) for split in Split)).items()
        found.append(dict([probe]) | answers_of_rounds(config, anew, seeds))
    return compare_divisions(found)


def main() -> None:
    parser = cells_parser(__doc__)
    parser.add_argument("--divisions", type=int, default=0)
    parser.add_argument("--train", type=int, default=0)
    parser.set_defaults(clients=["8"], alpha=["inf"])
    arguments = parser.parse_args()
    if arguments.train and not arguments.divisions:
        parser.error("--train: it needs --divisions")
    rows = Rows(arguments.out / "readout_shortfall.jsonl")
    seeds = list(map(int, arguments.seeds))
    for name, clients, alpha in product(arguments.sets, arguments.clients, arguments.alpha):
        key: Row = {"data_set": name, "clients": int(clients), "alpha": float(alpha)}
        key["seeds"] = json.dumps(seeds)
        key |= {"divisions": arguments.divisions} if arguments.divisions else {}
        key |= {"train": arguments.train} if arguments.train else {}
        if not rows.find(**key):
            where = DATA_SETS[name].prepare(arguments.data, arguments.out / "data")
            config = settings_of(arguments, Cell(name, int(clients), float(alpha)), where)
            rest = seeds, arguments.divisions, arguments.train
            rows.add(key | measure(config, read_clients(config), *rest))
            (arguments.out / "readout_shortfall.md").write_text(render_table(rows))
    print(render_table(rows))


if __name__ == "__main__":
    main()
