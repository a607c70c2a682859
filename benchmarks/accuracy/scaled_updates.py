"""Prototype: components whose updates are scaled by losses, on few examples.

    python -m benchmarks.accuracy.scaled_updates --data SOURCES --model MODEL --out FOLDER \\
        [--sets trec6,rating8,sst2] [--limit 400] [--seeds 0,1,2]

Eight clients (Dirichlet, α = 5) train a readout for 40 rounds of components with the default η. The
server adds the mean of the clients' updates, weighted by examples. After a round the mean loss is
measured at 0, ½, 1, 2 and 4 times the last update. The parabola through the best of these points
and its two neighbours gives the preferred multiple m.

- `default`: η does not change.
- `twice`: η is doubled.
- `η by training losses`, `η by validation losses`: the next η is multiplied by m, between ½ and 2.
  It stays between a quarter of the default and four times the default.
- `update by validation losses`: the last update is multiplied by m, between 0 and 2.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.data_sets import DATA_SETS
from benchmarks.arguments import arguments
from samara.client.personal.components import find_components
from samara.client.personal.softmax_fit import Examples, log_sum_exp
from samara.client.training.model_runtime import load_run
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.layout import Layout
from samara.shared.settings.config import RunConfig
from samara.shared.tasks.contrasts import contrasts

CLIENTS, ROUNDS = 8, 40
MULTIPLES = np.array([0.0, 0.5, 1.0, 2.0, 4.0])
RULES = (
    "default",
    "twice",
    "η by training losses",
    "η by validation losses",
    "update by validation losses",
)
Floats = NDArray[np.float64]


class Federation:
    """The examples of all clients, with their scores under the base model."""

    def __init__(self, config: RunConfig) -> None:
        run = load_run(config)
        self.layout: Layout = run.runtime.layout
        start = np.zeros(self.layout.size, np.int64)
        self.splits: dict[Split, list[Examples]] = {}
        for split in (Split.TRAIN, Split.VALIDATION, Split.TEST):
            self.splits[split] = []
            for client in range(CLIENTS):
                data = run.data.share_of(client, CLIENTS)
                own = data.tokenized(split) if split == Split.TRAIN else data.evaluated(split)
                for part in own.parts:
                    run.runtime.prepare(part)
                scores = run.runtime.scores(start, own.prompts).astype(np.float64)
                features = run.runtime.features(own.prompts).astype(np.float64)
                self.splits[split].append(Examples(scores, own.labels, features))
        self.labels = self.splits[Split.TRAIN][0].offsets.shape[1]
        self._contrasts = contrasts(self.labels).astype(np.float64)

    def moved(self, examples: Examples, theta: Floats) -> Examples:
        """Return examples with their scores under θ."""
        weights = theta.reshape(self.labels - 1, -1)
        added = examples.features @ weights.T @ self._contrasts
        return examples._replace(offsets=examples.offsets + added)

    def figures(self, split: Split, theta: Floats) -> tuple[float, float]:
        """Return accuracy and mean loss on the examples of all clients."""
        moved = [self.moved(own, theta) for own in self.splits[split]]
        scores = np.concatenate([own.offsets for own in moved])
        labels = np.concatenate([own.labels for own in moved])
        losses = log_sum_exp(scores)[:, 0] - scores[np.arange(len(labels)), labels]
        return float((scores.argmax(axis=1) == labels).mean()), float(losses.mean())


def directions(size: int, queries: int, seed: int) -> Iterator[Floats]:
    """Yield q orthonormal directions for each round; d/q rounds cover the space once."""
    random = np.random.default_rng(1000 + seed)
    while True:
        basis = np.linalg.qr(random.standard_normal((size, size)).astype(np.float32))[0].T
        for first in range(0, size - queries + 1, queries):
            yield basis[first : first + queries].astype(np.float64)


def preferred(losses: Sequence[float]) -> float:
    """Return the multiple at the lowest point of the parabola through the best three."""
    middle = min(max(int(np.argmin(losses)), 1), len(losses) - 2)
    some = slice(middle - 1, middle + 2)
    square, linear, _ = np.polyfit(MULTIPLES[some], losses[some], 2)
    return float(-linear / (2 * square)) if square > 0 else float(MULTIPLES[np.argmin(losses)])


def train(federation: Federation, rule: str, seed: int) -> tuple[float, float]:
    """Return accuracy and loss on the test examples after the last round."""
    clients = federation.splits[Split.TRAIN]
    shares = np.array([len(own.labels) for own in clients], np.float64)
    shares /= shares.sum()
    size, labels = federation.layout.size, federation.labels
    queries = min(128, 32 * (labels - 1))
    usual = 2.5 * labels * size / (ROUNDS * queries) * (2 if rule == "twice" else 1)
    rate, theta, update = usual, np.zeros(size), np.zeros(size)
    rounds = directions(size, queries, seed)
    for number in range(ROUNDS):
        if number and "losses" in rule:
            split = Split.TRAIN if "training" in rule else Split.VALIDATION
            before = theta - update
            points = [before + multiple * update for multiple in MULTIPLES]
            multiple = preferred([federation.figures(split, point)[1] for point in points])
            if rule.startswith("η"):
                rate = float(np.clip(rate * np.clip(multiple, 0.5, 2), usual / 4, 4 * usual))
            else:
                theta = before + float(np.clip(multiple, 0, 2)) * update
        z, update = next(rounds), np.zeros(size)
        for share, own in zip(shares, clients, strict=True):
            found, _ = find_components(federation.moved(own, theta), z, federation.layout, rate)
            update += share * (found @ z)
        theta = theta + update
    return federation.figures(Split.TEST, theta)


def main() -> None:
    given = arguments(
        __doc__,
        data=Path,
        model=str,
        out=Path,
        sets=["trec6", "rating8", "sst2"],
        limit=400,
        seeds=[0, 1, 2],
    )
    for name in given.sets:
        settings = DATA_SETS[name].prepare(given.data, given.out / "data") | {
            "model.path": given.model,
            "data.clients": CLIENTS,
            "data.partition": "dirichlet",
            "data.alpha": 5.0,
            "data.limit": given.limit,
            "data.seed": 0,
            "threads": 1,
            "trunk-cache-folder": str(given.out / "representations"),
        }
        federation = Federation(RunConfig.of(settings, "prototype"))
        found = defaultdict[str, list[tuple[float, float]]](list)
        for rule in RULES:
            for seed in given.seeds:
                found[rule].append(train(federation, rule, seed))
            accuracy, loss = np.mean(found[rule], axis=0)
            print(f"{name}, {given.limit}: {rule}: {accuracy:.1%}, {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
