"""Federations on a model that is linear around its base: what takes hours takes seconds so.

The gradients of all texts at the base are taken once; around it the difference of two labels'
scores is linear in the trained numbers, label bias and all. Projected gradients are then exact
derivatives along random directions, and rounding, clipping and weights of reports are left out.
For tasks of two labels, and all methods but cluster.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.frozen_baseline import Frozen
from benchmarks.words_baseline import divided
from client.methods import composition, kept_share, pull
from shared.config import RunConfig
from shared.layout import Layout
from shared.tasks.metrics import Confusion

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Texts:
    """One client's texts of one split.

    Attributes:
        gradients: of the two labels' difference by the trained numbers, float64 [n, d].
        margins: that difference at the base, float64 [n].
        labels: 0 or 1, int64 [n].
    """

    gradients: Floats
    margins: Floats
    labels: NDArray[np.int64]

    def loss(self, numbers: Floats) -> float:
        """Mean cross-entropy at these numbers, float64 [d]; NaN without texts."""
        signs = 2 * self.labels - 1
        return float(np.mean(np.logaddexp(0, -signs * (self.margins + self.gradients @ numbers))))

    def confusion(self, numbers: Floats) -> Confusion:
        """Labels against what these numbers, float64 [d], answer."""
        answers = self.margins + self.gradients @ numbers > 0
        return Confusion.of(self.labels, answers.astype(np.int64), 2)

    def slope(self, numbers: Floats, batch: NDArray[np.int64]) -> Floats:
        """Gradient of the mean loss of a batch, float64 [d]."""
        gradients = self.gradients[batch]
        chance = 1 / (1 + np.exp(-self.margins[batch] - gradients @ numbers))
        return (chance - self.labels[batch]) @ gradients / len(batch)


@dataclass(frozen=True, eq=False)
class LinearUsers:
    """Clients whose model is linear.

    Attributes:
        layout: of the trained numbers.
        splits: texts by split and client.
    """

    layout: Layout
    splits: dict[str, list[Texts]]

    @classmethod
    def of(cls, config: RunConfig, file: Path) -> "LinearUsers":
        """The clients of a run.

        Args:
            config: gives task, data, model and adapters.
            file: where the gradients are kept, once taken; another model, adapter or task needs
                another file.
        """
        rows, _ = divided(config.task, config.data)
        frozen = Frozen(config.task, config.model, config.adapter)
        texts = sorted({example.text for some in rows.values() for _, example in some})
        if not file.exists():
            np.save(file, np.stack([frozen.gradient(text) for text in texts]))
        known = dict(zip(texts, np.load(file), strict=True))

        def held(split: str, client: int) -> Texts:
            own = [example for holder, example in rows[split] if holder == client]
            found = np.stack([known[example.text] for example in own])
            return Texts(found[:, :-1], found[:, -1], np.array([example.label for example in own]))

        clients = range(config.data.clients)
        return cls(frozen.layout, {s: [held(s, client) for client in clients] for s in rows})


class LinearRun:
    """A run of any method but cluster.

    Args:
        users: of the data.
        config: method, budget and rates, which are numbers.
        draw: of directions and batches.
        exact: whether steps follow true gradients in place of projected ones.
    """

    def __init__(
        self, users: LinearUsers, config: RunConfig, draw: int, exact: bool = False
    ) -> None:
        self._users, self._config, self._exact = users, config, exact
        self._parts = composition(config, users.layout)
        self._rng = np.random.default_rng(draw)
        self._training = range(config.newcomers.start)

    def judged(self, split: str) -> tuple[float, float, float]:
        """Accuracy, macro-F1 and loss of the clients that train, with the models they get."""
        w, found = self._federated(), []
        for client in self._training:
            own, texts = w + self._private(w, client), self._users.splits[split][client]
            confusion = texts.confusion(own)
            found.append((confusion.accuracy, confusion.macro_f1, texts.loss(own)))
        accuracy, macro_f1, loss = np.mean(found, axis=0)
        return float(accuracy), float(macro_f1), float(loss)

    def _federated(self) -> Floats:
        w, rate = np.zeros(self._users.layout.size), self._config.learning_rate
        for _ in range(self._config.federated_rounds):
            moves = [self._round(w, client, rate, self._parts.shared) for client in self._training]
            w += np.mean(moves, axis=0)
        return w

    def _private(self, w: Floats, client: int) -> Floats:
        p, rate = np.zeros_like(w), self._config.personal.learning_rate
        for _ in range(self._config.private_rounds):
            p += self._round(w + p, client, rate, self._parts.private)
            for shrink in pull(self._config):
                p -= p / 2**shrink.bits
        if self._config.method == "mixture":
            p *= kept_share(
                lambda kept: self._users.splits["validation"][client].loss(w + kept * p)
            )
        return p

    def _round(
        self, start: Floats, client: int, rate: float | str, may_move: NDArray[np.bool_] | None
    ) -> Floats:
        """What a round's steps add, float64 [d]."""
        texts, moved = self._users.splits["train"][client], np.zeros_like(start)
        mask = np.ones_like(start) if may_move is None else may_move.astype(float)
        for _ in range(self._config.steps):
            batch = self._rng.permutation(len(texts.labels))[: self._config.batch]
            slope = mask * texts.slope(start + moved, batch)
            if not self._exact:
                z = mask * self._rng.standard_normal((self._config.queries, len(start)))
                slope = (z @ slope) @ z / self._config.queries
            moved -= float(rate) * slope
        return moved
