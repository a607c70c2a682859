"""Accuracy against ε: zeroth-order rounds, and DP-FedAvg with the same accountant.

    python -m benchmarks.privacy.accuracy --out FOLDER [--data DATA --model MODEL] \\
        [--sets sst2,messages,sst2-inner] [--clients 8,64,1000] [--epsilons none,8,2,0.5] \\
        [--methods zeroth-order,chosen,fed-avg] [--seeds 0,1,2]

DATA is a folder of SST-2 and MODEL a sentence encoder. The clients of `sst2` get its training
texts at random and in equal parts; those of `messages` are the writers of generated messages, of
whom many together have at most 64,000. What is trained is a readout, whose features do not change,
so that its losses are exact arithmetic; what surrounds them is the code of a run
(`benchmarks.privacy.federation`). In `sst2-inner` it is LoRA-FA inside the encoder, rank 2 on the
top layer's q and v: steps follow what is linear in it around the base, and accuracies and losses,
also those by which a factor is chosen, are by passes through the encoder with what was trained.

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
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from benchmarks.accuracy.cells import listed
from benchmarks.accuracy.data_sets import DATA_SETS
from benchmarks.accuracy.rows import Row, Rows
from benchmarks.privacy.federation import (
    Federation,
    make_config,
    noised_sum,
    public_norms,
)
from benchmarks.privacy.inner_model import InnerModel
from benchmarks.privacy.linear_texts import Floats, Texts
from benchmarks.privacy.texts import SplitTexts, groups_of, joined, read_texts
from samara.shared.frames.instructions import Split
from samara.shared.privacy.vector import encode_vector

ROUNDS, SCALARS = 40, 256
LOCAL_STEPS = 4
FACTORS = (1.0, 0.3, 0.1, 0.03)
ZEROTH_ORDER, CHOSEN, FED_AVG = "zeroth order", "zeroth order, η chosen", "DP-FedAvg"
INNER = "sst2-inner"
METHODS = {"zeroth-order": ZEROTH_ORDER, "chosen": CHOSEN, "fed-avg": FED_AVG}
MOST_MESSAGES = 64_000
Judge = Callable[[Floats], Row]
"""A function from trained numbers, float64 [d], to their figures."""


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
    chosen = {
        **{"clip": clip, "spent": federation.epsilon, "reverts": federation.reverts},
        "rates": federation.rates,
    }
    return federation.numbers, chosen


def local_updates(clients: Sequence[Texts], numbers: Floats, rate: float) -> Floats:
    """Return what clients' gradient steps on all their texts subtract, float64 [clients, d].

    Args:
        clients: texts of every client.
        numbers: start, float64 [d].
        rate: η of the steps.
    """
    updates = np.zeros((len(clients), len(numbers)))
    for client, own in enumerate(clients):
        margins = own.margins + own.gradients @ numbers
        for _ in range(LOCAL_STEPS):
            slope = (expit(margins) - own.labels) @ own.gradients / len(own.labels)
            updates[client] += rate * slope
            margins -= rate * (own.gradients @ slope)
    return updates


def run_fed_avg(
    updates_of: Callable[[Floats], Floats],
    elements: int,
    factor: float,
    clip: float,
    noise_multiplier: float,
) -> Floats:
    """Return the numbers after the rounds of DP-FedAvg, float64 [d].

    Args:
        updates_of: what clients' local steps from a state subtract, float64 [clients, d].
        elements: number of trained numbers, d.
        factor: factor of the mean update.
        clip: largest norm of an update.
        noise_multiplier: of every release; 0 for none, and updates are not clipped then.
    """
    numbers = np.zeros(elements)
    for _ in range(ROUNDS):
        updates = updates_of(numbers)
        if not noise_multiplier:
            numbers = numbers - factor * updates.mean(axis=0)
            continue
        vectors = [encode_vector(u[None].astype(np.float32), 0.0, None, clip) for u in updates]
        total = noised_sum(vectors, noise_multiplier, clip, rounded_noise)
        numbers = numbers - factor * total.gradients / len(updates)
    return numbers


def rounded_noise(count: int, sigma: int) -> NDArray[np.object_]:
    """Return rounded Gaussian noise; at this σ no accuracy tells it from the discrete Gaussian."""
    noise: NDArray[np.object_] = np.rint(np.random.default_rng().normal(0, sigma, count)).astype(
        object
    )
    return noise


def local_rate(public: Texts) -> float:
    """Return 1/L of the mean loss on public texts, the η of gradient steps that cannot diverge."""
    products = public.gradients.T @ public.gradients / len(public.labels)
    return 4 / float(np.linalg.eigvalsh(products)[-1])


def rate_and_clip(texts: SplitTexts) -> tuple[float, float]:
    """Return η of local steps, and the median norm of clients' updates, by validation texts."""
    public = joined(texts[Split.VALIDATION])
    rate = local_rate(public)
    groups = groups_of(public, examples_of(texts))
    updates = local_updates(groups, np.zeros(public.gradients.shape[1]), rate)
    return rate, float(np.median(np.linalg.norm(updates, axis=1)))


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


def judge_inner(model: InnerModel, numbers: Floats) -> Row:
    """Return the figures of `judge` by passes through a model."""
    splits = (Split.TEST, Split.VALIDATION)
    texts: SplitTexts = {split: [model.texts_at(split, numbers)] for split in splits}
    return judge(texts, np.zeros_like(numbers))


def measure_cell(
    rows: Rows, cell: Row, texts: SplitTexts, figures: Judge, methods: Sequence[str]
) -> None:
    """Measure methods on a cell, but for rows that are there.

    Args:
        rows: file of rows.
        cell: data set, clients, ε (None for none) and seed.
        texts: texts of the clients.
        figures: figures of trained numbers.
        methods: methods, of `METHODS`.
    """
    privacy: dict[str, Any] = {}
    if cell["epsilon"] is not None:
        privacy = {"privacy.mode": "central", "privacy.epsilon": cell["epsilon"]}
    elements = texts[Split.TRAIN][0].gradients.shape[1]
    start = figures(np.zeros(elements))
    zero_shot = {"zero_shot": start["accuracy"], "zero_shot_loss": start["loss"]}
    key = cell | {"method": ZEROTH_ORDER, "factor": None}
    if ZEROTH_ORDER in methods and not rows.find(**key):
        numbers, chosen = run_zeroth_order(texts, privacy, cell["seed"])
        rows.add(key | zero_shot | chosen | figures(numbers))
    rate, clip = rate_and_clip(texts)
    multiplier = 0.0
    if privacy:
        multiplier = make_config(privacy).privacy.mechanism(ROUNDS, 1, 1).noise_multiplier
    for factor in FACTORS if privacy else FACTORS[:1]:
        key = cell | {"method": CHOSEN, "factor": factor}
        if CHOSEN in methods and privacy and not rows.find(**key):
            eta = factor * LOCAL_STEPS * rate
            numbers, chosen = run_zeroth_order(texts, privacy, cell["seed"], eta)
            rows.add(key | zero_shot | chosen | {"rate": eta} | figures(numbers))
        key = cell | {"method": FED_AVG, "factor": factor}
        if FED_AVG in methods and not rows.find(**key):
            updates_of = partial(local_updates, texts[Split.TRAIN], rate=rate)
            numbers = run_fed_avg(updates_of, elements, factor, clip, multiplier)
            rows.add(key | zero_shot | {"clip": clip, "rate": rate} | figures(numbers))


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
    parser.add_argument("--methods", type=listed, default=list(METHODS))
    parser.add_argument("--seeds", type=listed, default=["0", "1", "2"])
    given = parser.parse_args(arguments)
    methods = [METHODS[name] for name in given.methods]
    rows = Rows(given.out / "accuracy.jsonl")
    inner = InnerModel(inner_settings(given)) if INNER in given.sets else None
    for name, clients, seed in product(given.sets, given.clients, given.seeds):
        texts = texts_of(name, int(clients), int(seed), given, inner)
        figures = partial(judge, texts)
        if name == INNER and inner:
            figures = partial(judge_inner, inner)
        for epsilon in given.epsilons:
            value = None if epsilon == "none" else float(epsilon)
            cell = {"set": name, "clients": int(clients), "epsilon": value, "seed": int(seed)}
            measure_cell(rows, cell, texts, figures, methods)
    print(table(rows))


def inner_settings(given: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of SST-2 with adapters inside the encoder."""
    settings = DATA_SETS["sst2"].prepare(given.data, given.out / "data")
    adapter = {"adapter.layers": "top:1", "adapter.rank": 2, "adapter.alpha": 4.0}
    return {**settings, **adapter, "model.path": given.model}


def texts_of(
    name: str, clients: int, seed: int, given: argparse.Namespace, inner: InnerModel | None = None
) -> SplitTexts:
    """Return the texts of the clients of a cell; only those of SST-2 are divided by the seed."""
    if name == "messages":
        texts = read_texts({}, clients, given.out / f"messages-{clients}.npz")
        own = np.arange(min(len(texts[Split.TRAIN][0].labels), MOST_MESSAGES // clients))
        return {**texts, Split.TRAIN: [some.some(own) for some in texts[Split.TRAIN]]}
    if name == INNER and inner:
        file = f"{INNER}-{{}}.npz"
        texts = {s: [inner.linear_texts(s, given.out / file.format(s.name.lower()))] for s in Split}
    else:
        settings = DATA_SETS[name].prepare(given.data, given.out / "data")
        texts = read_texts({**settings, "model.path": given.model}, 1, given.out / f"{name}.npz")
    (train,) = texts[Split.TRAIN]
    order = np.random.default_rng(seed).permutation(len(train.labels))
    parts = np.array_split(order, clients)
    return {**texts, Split.TRAIN: [train.some(part) for part in parts]}


if __name__ == "__main__":
    main()
