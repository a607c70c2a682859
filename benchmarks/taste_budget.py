"""How many losses until zeroth-order steps tell a user's taste from a base rate? To first order.

    python -m benchmarks.taste_budget --task popquorn --data FILE --model MODEL --out FILE

The gradients of all texts at the base are taken once (kept in FILE); around it the scores are
linear in the adapter's numbers, and a federation on them costs next to nothing. Every client takes
a step a round along directions of its own, as P-RGE does, or with true gradients; the server
averages. Then each user gets the label bias that fits its training texts. Means of two seeds.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.frozen_baseline import Frozen
from benchmarks.words_baseline import Rows, by_client, divided, labels_of
from client.personalize import fitted_bias
from shared.config import AdapterSettings, DataSettings, ModelSettings

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Budget:
    """Of a federation.

    Attributes:
        rounds: of one step each.
        queries: q; 0 is the true gradient.
        batch: texts of a step.
        rate: η.
    """

    rounds: int
    queries: int
    batch: int
    rate: float

    @property
    def losses(self) -> int:
        """Of one client, with forward differences."""
        return self.rounds * (self.queries + 1) * self.batch if self.queries else 0


BUDGETS = (
    Budget(30, 7, 4, 0.3),
    Budget(60, 7, 4, 1.0),
    Budget(100, 7, 4, 1.0),
    Budget(200, 7, 8, 0.5),
    Budget(400, 15, 8, 0.25),
    Budget(100, 0, 64, 1.0),
    Budget(250, 0, 64, 1.0),
)


@dataclass(frozen=True, eq=False)
class Linear:
    """The users' texts in a model that is linear around its base.

    Attributes:
        rows: by split.
        clients: how many users.
        known: by text, float64 [d + 1], gradient and value of the two labels' difference.
    """

    rows: dict[str, Rows]
    clients: int
    known: dict[str, Floats]

    def of(self, split: str) -> tuple[Floats, Floats, NDArray[np.int64], NDArray[np.int64]]:
        """Gradients [n, d], differences [n], labels [n] and clients [n] of a split."""
        found = np.stack([self.known[example.text] for _, example in self.rows[split]])
        clients = np.array([client for client, _ in self.rows[split]])
        return found[:, :-1], found[:, -1], labels_of(self.rows[split]), clients

    def trained(self, budget: Budget, seed: int) -> Floats:
        """The adapter's numbers, float64 [d]."""
        rng, (gradients, margins, labels, clients) = np.random.default_rng(seed), self.of("train")
        own = [np.flatnonzero(clients == client) for client in range(self.clients)]
        numbers = np.zeros(gradients.shape[1])
        for _ in range(budget.rounds):
            moved = np.zeros_like(numbers)
            for texts in own:
                batch = rng.choice(texts, min(budget.batch, len(texts)), replace=False)
                chance = 1 / (1 + np.exp(-margins[batch] - gradients[batch] @ numbers))
                slope = (chance - labels[batch]) @ gradients[batch] / len(batch)
                if budget.queries:
                    z = rng.standard_normal((budget.queries, len(numbers)))
                    slope = (z @ slope) @ z / budget.queries
                moved -= budget.rate * slope
            numbers += moved / self.clients
        return numbers

    def served(self, numbers: Floats) -> tuple[float, float, float]:
        """On test texts: accuracy without and with each user's label bias, macro-F1 with it."""
        learned, judged = self.of("train"), self.of("test")
        scores = [_scores(gradients @ numbers + m) for gradients, m, _, _ in (learned, judged)]
        biases = np.stack(
            [
                fitted_bias(scores[0][learned[3] == client], learned[2][learned[3] == client])
                for client in range(self.clients)
            ]
        )
        plain, biased = (
            by_client(self.rows["test"], told.argmax(axis=1), 2)
            for told in (scores[1], scores[1] + biases[judged[3]])
        )
        return (
            float(np.mean([own.accuracy for own in plain.values()])),
            float(np.mean([own.accuracy for own in biased.values()])),
            float(np.mean([own.macro_f1 for own in biased.values()])),
        )


def _scores(margins: Floats) -> NDArray[np.float32]:
    return np.stack([np.zeros_like(margins), margins], axis=1).astype(np.float32)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=120)
    given = parser.parse_args(arguments)
    rows, _ = divided(given.task, DataSettings(path=given.data, clients=given.clients))
    texts = sorted({example.text for some in rows.values() for _, example in some})
    if not given.out.exists():
        model = ModelSettings.model_validate({"path": given.model, "max-length": 128})
        frozen = Frozen(given.task, model, AdapterSettings(rank=2, alpha=4.0))
        np.save(given.out, np.stack([frozen.gradient(text) for text in texts]))
    users = Linear(rows, given.clients, dict(zip(texts, np.load(given.out), strict=True)))
    table = Table("rounds", "q", "batch", "rate", "losses", "global", "with label bias", "macro-F1")
    for budget in (Budget(0, 0, 0, 0.0), *BUDGETS):
        seeds = (0, 1) if budget.queries else (0,)
        found = np.mean([users.served(users.trained(budget, seed)) for seed in seeds], axis=0)
        settings = budget.rounds, budget.queries or "true", budget.batch, budget.rate
        table.add_row(*map(str, settings), f"{budget.losses:,}", *(f"{own:.1%}" for own in found))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
