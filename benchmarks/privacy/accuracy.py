"""Accuracy against ε: zeroth-order rounds of a readout, and DP-FedAvg with the same accountant.

    python -m benchmarks.privacy.accuracy --out FOLDER [--data DATA --model MODEL] \\
        [--sets sst2,messages] [--clients 8,64,1000] [--epsilons none,8,2,0.5] [--seeds 0,1,2]

DATA is a folder of SST-2 and MODEL a sentence encoder. The clients of `sst2` get its training
texts at random and in equal parts; those of `messages` are the writers of generated messages. What
is trained is a readout, whose features do not change, so that its losses are exact arithmetic; what
surrounds them is the code of a run (`benchmarks.privacy.federation`).

*Zeroth order* has ROUNDS rounds of one step with as many scalars as a round has by default, and the
step size of a run by default. *DP-FedAvg* (McMahan et al., 2018) trains the same numbers: a client
takes gradient steps on all of its texts, clips the difference to the start, and sends it as the
vector of a report; the sum gets the same noise, since rounds and ε are the same. Its local η is 1/L
of the loss on validation texts. Its server's factor is the one of FACTORS with the lowest mean loss
on validation texts over the seeds, which its ε does not pay for. Both clip at the median norm of
what clients with validation texts would send. Nobody trains on validation texts.

FOLDER/accuracy.jsonl has a line per run; the same command continues, and prints the table.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy.special import expit

from benchmarks.accuracy.cells import listed
from benchmarks.accuracy.data_sets import DATA_SETS
from benchmarks.accuracy.linear_model import Floats, Texts
from benchmarks.accuracy.rows import Row, Rows
from benchmarks.privacy.federation import (
    Federation,
    StackedTexts,
    make_config,
    noised_sum,
    public_norms,
)
from benchmarks.privacy.texts import SplitTexts, groups_of, joined, read_texts
from shared.frames.instructions import Split
from shared.privacy.vector import encode_vector

ROUNDS, SCALARS = 40, 256
LOCAL_STEPS = 4
FACTORS = (1.0, 0.3, 0.1, 0.03)
ZEROTH_ORDER, CHOSEN, FED_AVG = "zeroth order", "zeroth order, η chosen", "DP-FedAvg"


def run_zeroth_order(
    texts: SplitTexts, privacy: dict[str, Any], seed: int, rate: float | None = None
) -> tuple[Floats, dict[str, Any]]:
    """Return the trained numbers of a run, float64 [d], and what it chose.

    Args:
        texts: texts of the clients.
        privacy: settings of `privacy` without a clip; empty for none.
        seed: seed of the run.
        rate: η; None for the one of a run by default, which is estimated.
    """
    own: dict[str, Any] = {"rounds": ROUNDS, "steps": 1, "queries": SCALARS, "seed": seed}
    norms = public_norms(joined(texts[Split.VALIDATION]), examples_of(texts), make_config(own))
    clip = float(np.median(norms))
    if privacy:
        own |= privacy | {"privacy.clip": clip}
    if rate is not None:
        own["learning-rate"] = rate
    with TemporaryDirectory() as folder:
        federation = Federation(make_config(own), texts[Split.TRAIN], Path(folder))
        federation.run()
    chosen = {"clip": clip, "spent": federation.epsilon, "reverts": federation.reverts}
    return federation.numbers, chosen


def local_updates(clients: Sequence[Texts], numbers: Floats, rate: float) -> Floats:
    """Return what clients' gradient steps on all their texts subtract, float64 [clients, d].

    Args:
        clients: texts of every client.
        numbers: start, float64 [d].
        rate: η of the steps.
    """
    stacked = StackedTexts(clients)
    gradients, labels = stacked.texts.gradients, stacked.texts.labels
    margins, updates = stacked.margins_at(numbers), np.zeros((len(clients), len(numbers)))
    for _ in range(LOCAL_STEPS):
        errors = expit(margins) - labels
        sums = np.add.reduceat(errors[:, None] * gradients, stacked.starts, axis=0)
        slopes = sums / stacked.counts[:, None]
        updates += rate * slopes
        margins = margins - rate * np.einsum("nd,nd->n", gradients, slopes[stacked.owner])
    return updates


def run_fed_avg(
    clients: Sequence[Texts],
    rate: float,
    factor: float,
    clip: float,
    noise_multiplier: float,
) -> Floats:
    """Return the numbers after the rounds of DP-FedAvg, float64 [d].

    Args:
        clients: texts of every client.
        rate: η of local steps.
        factor: factor of the mean update.
        clip: largest norm of an update.
        noise_multiplier: of every release; 0 for none, and updates are not clipped then.
    """
    numbers = np.zeros(clients[0].gradients.shape[1])
    for _ in range(ROUNDS):
        updates = local_updates(clients, numbers, rate)
        if not noise_multiplier:
            numbers = numbers - factor * updates.mean(axis=0)
            continue
        vectors = [encode_vector(u[None].astype(np.float32), 0.0, None, clip) for u in updates]
        total = noised_sum(vectors, noise_multiplier, clip)
        numbers = numbers - factor * total.gradients / len(clients)
    return numbers


def local_rate(public: Texts) -> float:
    """Return 1/L of the mean loss on public texts, the η of gradient steps that cannot diverge."""
    products = public.gradients.T @ public.gradients / len(public.labels)
    return 4 / float(np.linalg.eigvalsh(products)[-1])


def examples_of(texts: SplitTexts) -> int:
    """Return the median number of training texts of a client."""
    return int(np.median([len(own.labels) for own in texts[Split.TRAIN]]))


def judge(texts: SplitTexts, numbers: Floats) -> Row:
    """Return accuracy and loss on test texts, and the loss on validation texts."""
    test, public = joined(texts[Split.TEST]), joined(texts[Split.VALIDATION])
    return {
        "accuracy": test.confusion(numbers).accuracy,
        "loss": test.loss(numbers),
        "validation_loss": public.loss(numbers),
    }


def measure_cell(rows: Rows, cell: Row, texts: SplitTexts) -> None:
    """Measure all methods on a cell, but for rows that are there.

    Args:
        rows: file of rows.
        cell: data set, clients, ε (None for none) and seed.
        texts: texts of the clients.
    """
    privacy: dict[str, Any] = {}
    if cell["epsilon"] is not None:
        privacy = {"privacy.mode": "central", "privacy.epsilon": cell["epsilon"]}
    start = judge(texts, np.zeros(texts[Split.TRAIN][0].gradients.shape[1]))
    zero_shot = {"zero_shot": start["accuracy"], "zero_shot_loss": start["loss"]}
    key = cell | {"method": ZEROTH_ORDER, "factor": None}
    if not rows.find(**key):
        numbers, chosen = run_zeroth_order(texts, privacy, cell["seed"])
        rows.add(key | zero_shot | chosen | judge(texts, numbers))
    public = joined(texts[Split.VALIDATION])
    rate = local_rate(public)
    groups = groups_of(public, examples_of(texts))
    updates = local_updates(groups, np.zeros(public.gradients.shape[1]), rate)
    clip = float(np.median(np.linalg.norm(updates, axis=1)))
    multiplier = 0.0
    if privacy:
        multiplier = make_config(privacy).privacy.mechanism(ROUNDS, 1, 1).noise_multiplier
    for factor in FACTORS if privacy else FACTORS[:1]:
        key = cell | {"method": CHOSEN, "factor": factor}
        if privacy and not rows.find(**key):
            eta = factor * LOCAL_STEPS * rate
            numbers, chosen = run_zeroth_order(texts, privacy, cell["seed"], eta)
            rows.add(key | zero_shot | chosen | {"rate": eta} | judge(texts, numbers))
        key = cell | {"method": FED_AVG, "factor": factor}
        if not rows.find(**key):
            numbers = run_fed_avg(texts[Split.TRAIN], rate, factor, clip, multiplier)
            rows.add(key | zero_shot | {"clip": clip, "rate": rate} | judge(texts, numbers))


def chosen_factor(group: Sequence[Row]) -> float | None:
    """Return the factor with the lowest mean validation loss; None where there is none.

    Factors that lack a seed that another has are left out.
    """
    losses: defaultdict[float | None, list[float]] = defaultdict(list)
    for row in group:
        losses[row["factor"]].append(row["validation_loss"])
    most = max(map(len, losses.values()))
    whole = [factor for factor, found in losses.items() if len(found) == most]
    return min(whole, key=lambda factor: float(np.mean(losses[factor])))


def table(rows: Iterable[Row]) -> str:
    """Return accuracy and loss on test texts per cell, mean and spread over seeds, as Markdown."""
    groups: defaultdict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["set"], row["clients"], row["method"], row["epsilon"]].append(row)
    lines = [
        "| data | clients | method | ε | seeds | zero-shot | accuracy | loss, of | factor |",
        "|---" * 9 + "|",
    ]
    for (name, clients, method, epsilon), group in groups.items():
        factor = chosen_factor(group)
        own = [row for row in group if row["factor"] == factor]
        figures = {key: [row[key] for row in own] for key in ("accuracy", "loss")}
        lines.append(
            f"| {name} | {clients:,} | {method} | {'none' if epsilon is None else epsilon} | "
            f"{len(own)} | {np.mean([row['zero_shot'] for row in own]):.1%} | "
            f"{mean_and_spread(figures['accuracy'])} | "
            f"{np.mean(figures['loss']):.3f}, {own[0]['zero_shot_loss']:.3f} | {factor or ''} |"
        )
    return "\n".join(lines) + "\n"


def mean_and_spread(shares: Sequence[float]) -> str:
    """Return the mean of some shares, and their standard deviation if there are several, in %."""
    spread = float(np.std(shares, ddof=1)) if len(shares) > 1 else np.nan
    return f"{np.mean(shares):.1%} ± {100 * spread:.1f}"


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options for data, model and the folder of what was measured."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="folder of the source data, for sst2")
    parser.add_argument("--model", help="sentence encoder, for sst2")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--sets", type=listed, default=["sst2", "messages"])
    parser.add_argument("--clients", type=listed, default=["8", "64", "1000"])
    parser.add_argument("--epsilons", type=listed, default=["none", "8", "2", "0.5"])
    parser.add_argument("--seeds", type=listed, default=["0", "1", "2"])
    given = parser.parse_args(arguments)
    rows = Rows(given.out / "accuracy.jsonl")
    for name, clients, seed in product(given.sets, given.clients, given.seeds):
        texts = texts_of(name, int(clients), int(seed), given)
        for epsilon in given.epsilons:
            value = None if epsilon == "none" else float(epsilon)
            cell = {"set": name, "clients": int(clients), "epsilon": value, "seed": int(seed)}
            measure_cell(rows, cell, texts)
    print(table(rows))


def texts_of(name: str, clients: int, seed: int, given: argparse.Namespace) -> SplitTexts:
    """Return the texts of the clients of a cell; only `sst2` is divided by the seed."""
    if name == "messages":
        return read_texts({}, clients, given.out / f"messages-{clients}.npz")
    settings = DATA_SETS[name].prepare(given.data, given.out / "data")
    texts = read_texts({**settings, "model.path": given.model}, 1, given.out / f"{name}.npz")
    (train,) = texts[Split.TRAIN]
    order = np.random.default_rng(seed).permutation(len(train.labels))
    parts = np.array_split(order, clients)
    return {**texts, Split.TRAIN: [train.some(part) for part in parts]}


if __name__ == "__main__":
    main()
