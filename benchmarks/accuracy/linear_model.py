"""Federations on a model that is linear around its base: what takes hours takes seconds so.

The gradients of all texts at the base are taken once; around it the difference of two labels'
scores is linear in the trained numbers, label bias and all. Projected gradients are then exact
derivatives along random directions, and rounding, clipping and weights of reports are left out.
For tasks of two labels.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.frozen_baseline import Frozen
from benchmarks.accuracy.words_baseline import divided
from samara.client.estimators.prge import LossRequest, run_estimator
from samara.client.personal.methods import choose_kept_share, composition, pull_shrinks
from samara.client.training.local_step_plan import LocalStepPlan
from samara.server.rounds.clustering import cluster_clients
from samara.shared.config import RunConfig
from samara.shared.directions import DIRECTION_BITS, directions
from samara.shared.frames.instructions import TrainInstruction
from samara.shared.label_scores import Confusion
from samara.shared.layout import Layout

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts with one client's labels.

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
        return Confusion.from_predictions(self.labels, answers.astype(np.int64), 2)

    def slope(self, numbers: Floats) -> Floats:
        """Gradient of the mean loss, float64 [d]."""
        chance = 1 / (1 + np.exp(-self.margins - self.gradients @ numbers))
        return (chance - self.labels) @ self.gradients / len(self.labels)

    def some(self, batch: NDArray[np.int64]) -> "Texts":
        """Those of a batch."""
        return Texts(self.gradients[batch], self.margins[batch], self.labels[batch])

    def scalars(self, asked: TrainInstruction, device: int) -> Floats:
        """Return projected gradients at the base, float64 [steps, q], to first order in ε."""
        base = np.zeros(self.gradients.shape[1])

        def losses_of(request: LossRequest) -> Floats:
            batch = self.some(request.batch)
            loss = batch.loss(base)
            if not len(request.seeds):
                return np.array([loss])
            z = directions(request.seeds, len(base), "gaussian") * 2.0**-DIRECTION_BITS
            along = z @ batch.slope(base)
            return np.concatenate([loss + sign * asked.epsilon * along for sign in request.signs])

        own = LocalStepPlan(asked, device, self.labels, label_count=2)
        for _ in range(asked.steps):
            own.finish_step(run_estimator(own.next_estimator(), losses_of))
        return own.report(bytes(8)).gradients.astype(np.float64)


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
    """A run of any method.

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
        self._parts = composition(config.terms, users.layout)
        self._rng = np.random.default_rng(draw)
        self._training = range(config.newcomers.start)

    def judged(self, split: str) -> tuple[float, float, float]:
        """Accuracy, macro-F1 and loss of the clients that train, with the models they get."""
        found = []
        for client, w in self._federated().items():
            own, texts = w + self._private(w, client), self._users.splits[split][client]
            confusion = texts.confusion(own)
            found.append((confusion.accuracy, confusion.macro_f1, texts.loss(own)))
        accuracy, macro_f1, loss = np.mean(found, axis=0)
        return float(accuracy), float(macro_f1), float(loss)

    def _federated(self) -> dict[int, Floats]:
        """Return the global state, or that of its cluster, for every client, float64 [d] each."""
        config, groups, found = self._config, self._groups(), dict[int, Floats]()
        rounds, rate = config.federated_rounds, config.learning_rate
        if config.method == "cluster":
            rounds -= config.cohort.clustering_rounds
        for group in set(groups.values()):
            members = [client for client in groups if groups[client] == group]
            w = np.zeros(self._users.layout.size)
            for _ in range(rounds):
                moves = [self._round(w, client, rate, self._parts.shared) for client in members]
                w += np.mean(moves, axis=0)
            found |= dict.fromkeys(members, w)
        return found

    def _groups(self) -> dict[int, int]:
        """The clients that train, each with its cluster; without clusters that is one."""
        if self._config.method != "cluster":
            return dict.fromkeys(self._training, 0)
        asked, texts = (
            self._config.terms.clustering_instruction(bytes(8), bytes(32), bytes(32)),
            self._users.splits,
        )
        scalars = {c: texts["train"][c].scalars(asked, c) for c in self._training}
        return cluster_clients(scalars, self._config.cohort.clusters)

    def _private(self, w: Floats, client: int) -> Floats:
        p, rate = np.zeros_like(w), self._config.personal.learning_rate
        for _ in range(self._config.private_rounds):
            p += self._round(w + p, client, rate, self._parts.private)
            for shrink in pull_shrinks(self._config.terms):
                p -= p / 2**shrink.bits
        if self._config.method == "mixture":
            p *= choose_kept_share(
                lambda kept: self._users.splits["validation"][client].loss(w + kept * p)
            )
        return p

    def _round(
        self, start: Floats, client: int, rate: float | str, may_move: NDArray[np.bool_] | None
    ) -> Floats:
        """Return the update of a round, float64 [d]."""
        texts, moved = self._users.splits["train"][client], np.zeros_like(start)
        mask = np.ones_like(start) if may_move is None else may_move.astype(float)
        for _ in range(self._config.steps):
            batch = self._rng.permutation(len(texts.labels))[: self._config.batch]
            slope = mask * texts.some(batch).slope(start + moved)
            if not self._exact:
                z = mask * self._rng.standard_normal((self._config.queries, len(start)))
                slope = (z @ slope) @ z / self._config.queries
            moved -= float(rate) * slope
        return moved
