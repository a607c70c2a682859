"""DP-FedAvg on adapters inside an encoder by true gradients, beside what is linear in them.

    python -m benchmarks.privacy.true_gradients --data DATA --model MODEL --out FOLDER \\
        [--clients 8] [--epsilons none,8] [--factors 3,1] [--seeds 0]

The set `sst2-inner` of `benchmarks.privacy.accuracy`, with its accountant, rounds, η and clip; but
every step is a forward and a backward pass through the encoder on some of a client's texts, at the
state that it has reached. FOLDER/true_gradients.jsonl has a line per run; the same command
continues, and prints the table.
"""

from collections.abc import Sequence
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.cells import listed
from benchmarks.accuracy.rows import Rows
from benchmarks.privacy.accuracy import (
    FED_AVG,
    INNER,
    LOCAL_STEPS,
    ROUNDS,
    inner_settings,
    judge_inner,
    make_parser,
    rate_and_clip,
    run_fed_avg,
    table,
    texts_of,
)
from benchmarks.privacy.federation import make_config
from benchmarks.privacy.inner_model import InnerModel
from benchmarks.privacy.linear_texts import Floats
from samara.shared.frames.instructions import Split

BATCH = 8
"""A client's texts in a step."""


def true_updates(
    model: InnerModel,
    parts: Sequence[NDArray[np.int64]],
    rng: np.random.Generator,
    numbers: Floats,
    rate: float,
) -> Floats:
    """Return what steps along true gradients inside the model subtract, float64 [clients, d].

    Args:
        model: encoder.
        parts: training texts of every client.
        rng: source of batches, `BATCH` texts of a client in a step.
        numbers: start, float64 [d].
        rate: η of the steps.
    """
    states = np.repeat(numbers[None], len(parts), axis=0)
    for _ in range(LOCAL_STEPS):
        batches = [rng.permutation(own)[:BATCH] for own in parts]
        owner = np.repeat(np.arange(len(parts)), [len(batch) for batch in batches])
        slopes = model.slopes(
            Split.TRAIN, np.concatenate(batches), states[owner].astype(np.float32)
        )
        for client in range(len(parts)):
            states[client] -= rate * slopes[owner == client].mean(axis=0)
    return numbers - states


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--clients", type=listed, default=["8"])
    parser.add_argument("--epsilons", type=listed, default=["none", "8"])
    parser.add_argument("--factors", type=listed, default=["3", "1"])
    parser.add_argument("--seeds", type=listed, default=["0"])
    given = parser.parse_args(arguments)
    rows, model = Rows(given.out / "true_gradients.jsonl"), InnerModel(inner_settings(given))
    zeros = np.zeros(model.size)
    cells = product(given.clients, given.seeds, given.epsilons, given.factors)
    for clients, seed, epsilon, factor in cells:
        value = None if epsilon == "none" else float(epsilon)
        key = {"set": INNER, "clients": int(clients), "epsilon": value, "seed": int(seed)}
        key |= {"method": FED_AVG, "factor": float(factor)}
        if rows.find(**key):
            continue
        texts = texts_of(INNER, int(clients), int(seed), given, model)
        rate, clip = rate_and_clip(texts)
        multiplier = 0.0
        if value:
            own = make_config({"privacy.mode": "central", "privacy.epsilon": value}).privacy
            multiplier = own.mechanism(ROUNDS, 1, 1).noise_multiplier
        rng = np.random.default_rng(int(seed))
        order = rng.permutation(sum(len(some.labels) for some in texts[Split.TRAIN]))
        parts = np.array_split(order, int(clients))
        updates_of = partial(true_updates, model, parts, rng, rate=rate)
        numbers = run_fed_avg(updates_of, model.size, float(factor), clip, multiplier)
        start = judge_inner(model, zeros)
        zero_shot = {"zero_shot": start["accuracy"], "zero_shot_loss": start["loss"]}
        rows.add(key | zero_shot | judge_inner(model, numbers))
    print(table(rows))


if __name__ == "__main__":
    main()
