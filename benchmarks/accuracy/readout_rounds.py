"""The rounds of a readout as arithmetic on features: what takes minutes takes seconds so.

    python -m benchmarks.accuracy.readout_rounds --data SOURCES --model MODEL --out FOLDER \\
        [--sets trec6,noun12] [--clients 8] [--alpha 0.5] [--seeds 0,1,2] \\
        [--condition default --condition 'exact:exact=true' --condition 'drift:correction=true']

The data, their division, the features, the probes and the options are those of `cells`; FOLDER may
be that of `value_per_pass`. A step of q Gaussian directions z gives Σ (z·G)·z/q for a gradient G:
along G that is a χ² variable, across G it is Gaussian noise, and both are drawn as such, so a step
costs two matrix products whatever q is. The step size is `samara.shared.step_size` itself. Left out
are differences (the derivatives are exact), the noise of measured curvature, rounding, and clipping
of outliers.

A condition is a name and what is not the default: settings of a run that the model reads
(`rounds`, `steps`, `queries`, `learning-rate-schedule`, `differences` of `components`,
`aggregation.rule` of `mean` and `median-norm`), and variants that only the model has: the fields of
`Variant`, and `tempered`.

FOLDER/readout_rounds.jsonl has a line per run; the same command continues. Printed are means over
the seeds: test accuracy at the end, and at the round that a run with `evaluate.best = "loss"`
returns to, test loss at the end, and the sum of η over all steps.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import helmert
from scipy.special import log_softmax

from benchmarks.accuracy.cells import Run, cells_parser, measure_cells
from benchmarks.accuracy.rows import Row
from samara.client.personal.components import find_components
from samara.client.personal.softmax_fit import Examples as Scored
from samara.client.training.model_runtime import load_run
from samara.server.rounds.aggregation import norm_factors, trimmed_mean, usual_limit
from samara.server.rounds.evaluation import TRIMMED_ACCURACY, find_lowest_loss
from samara.shared.columns import GLOBAL
from samara.shared.config import RunConfig
from samara.shared.directions import (
    DIRECTION_BITS,
    consecutive_seeds,
    orthogonal,
    orthogonal_root,
)
from samara.shared.frames.instructions import GLOBAL_TRACK, Split
from samara.shared.layout import READOUT_GROUP, Layout, Tensor
from samara.shared.step_size import Observation, StepSize, component_rate

Floats = NDArray[np.float32]
SURE = 2.0
"""The standard errors by which a temperature must lower the training loss to be used."""


@dataclass(frozen=True)
class Variant:
    """A change to the rounds that is tried in the model alone.

    Attributes:
        exact: whether whole gradients take the place of their estimates, at the same η.
        factor: factor of η.
        penalty: λ·n of a penalty λ/2·|W|² on every client's loss, n the examples of all clients.
        correction: whether every client subtracts from its gradients what they differed by from
            the cohort's in the rounds before (control variates as in SCAFFOLD, Karimireddy et al.,
            2020, averaged with the weight 1/(1 + ω) of DIANA, Mishchenko et al., 2019, where
            ω = d/(K·q) is the variance of the directions).
        leak: share of that correction which is forgotten in a round.
        hostile: number of clients that report minus ten times their update.
    """

    exact: bool = False
    factor: float = 1.0
    penalty: float = 0.0
    correction: bool = False
    leak: float = 0.0
    hostile: int = 0


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples of one client, or of all.

    Attributes:
        features: φ(h), float32 [n, features].
        base: scores of the base model, float32 [n, labels].
        labels: int64 [n].
    """

    features: Floats
    base: Floats
    labels: NDArray[np.int64]

    def scores(self, weights: Floats) -> Floats:
        """Return the scores under a readout [labels − 1, features], float32 [n, labels]."""
        contrasts = helmert(self.base.shape[1]).astype(np.float32)
        scores: Floats = self.base + self.features @ weights.T @ contrasts
        return scores

    def loss_and_slope(self, weights: Floats) -> tuple[float, Floats, float]:
        """Return the mean loss, its gradient [labels − 1, features], and its tr(H)."""
        scores = self.scores(weights)
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        rows = np.arange(len(self.labels))
        loss = -float(np.mean(np.log(np.maximum(chances[rows, self.labels], 1e-30))))
        spread = np.square(self.features).sum(axis=1) * (1 - np.square(chances).sum(axis=1))
        chances[rows, self.labels] -= 1
        contrasts = helmert(self.base.shape[1]).astype(np.float32)
        slope: Floats = contrasts @ (chances.T @ self.features) / np.float32(len(rows))
        return loss, slope, float(spread.mean())

    def judge(self, weights: Floats) -> tuple[float, float]:
        """Return accuracy and mean loss; NaN without examples."""
        if not len(self.labels):
            return np.nan, np.nan
        right = self.scores(weights).argmax(axis=1) == self.labels
        return float(right.mean()), self.loss_and_slope(weights)[0]


Clients = dict[Split, list[Examples]]


@dataclass(frozen=True, eq=False)
class Rounds:
    """The rounds of a run.

    Attributes:
        weights: readout after every validated round, by its number.
        best: number of the round that the run returns to.
        sum_of_rates: sum of η over all steps.
    """

    weights: dict[int, Floats]
    best: int
    sum_of_rates: float

    @property
    def end(self) -> int:
        """Number of the last round."""
        return max(self.weights)


def read_clients(config: RunConfig) -> Clients:
    """Return the examples of every client of a run, by split."""
    runtime, source = load_run(config)
    clients: Clients = {}
    for split in Split:
        parts = [
            source.share_of(client, config.data.clients).tokenized(split)
            for client in range(config.data.clients)
        ]
        for part in parts:
            runtime.prepare(part.prompts)
        clients[split] = [
            Examples(
                runtime.features(part.prompts) if part.prompts else np.zeros((0, 0), np.float32),
                runtime.base_scores(part.prompts) if part.prompts else np.zeros((0, 0), np.float32),
                part.labels,
            )
            for part in parts
        ]
    return clients


def pooled(parts: Iterable[Examples]) -> Examples:
    """Return the examples of several clients as those of one."""
    some = [part for part in parts if len(part.labels)]
    return Examples(
        *(
            np.concatenate([getattr(part, field.name) for part in some])
            for field in fields(Examples)
        )
    )


def tempered(clients: Clients) -> Clients:
    """Return the clients with base scores of the temperature that suits their labels best.

    The scores are multiplied by the one of 1, 1/2 … 1/128 with the lowest loss on all training
    examples (Guo et al., 2017), if that is lower by more than `SURE` standard errors.
    """
    train = pooled(clients[Split.TRAIN])
    scales = [np.float32(2.0**-power) for power in range(8)]
    losses = [_base_losses(train, scale) for scale in scales]
    best = min(range(len(scales)), key=lambda power: losses[power].mean())
    gains = losses[0] - losses[best]
    if gains.mean() <= SURE * gains.std(ddof=1) / np.sqrt(len(gains)):
        return clients
    return {
        split: [replace(part, base=part.base * scales[best]) for part in parts]
        for split, parts in clients.items()
    }


def _base_losses(examples: Examples, scale: np.float32) -> NDArray[np.float64]:
    """Return the loss of each example by the base scores times a scale, float64 [n]."""
    chances = log_softmax((scale * examples.base).astype(np.float64), axis=1)
    losses: NDArray[np.float64] = -chances[np.arange(len(examples.labels)), examples.labels]
    return losses


def run(config: RunConfig, clients: Clients, variant: Variant) -> dict[str, Any]:
    """Run the rounds; return figures at the end, and at the best validated round.

    Args:
        config: settings of the run.
        clients: examples of every client.
        variant: what is tried.
    """
    rounds = train_rounds(config, clients, variant)
    test = pooled(clients[Split.TEST])

    def figures(number: int) -> dict[str, Any]:
        accuracy, loss = test.judge(rounds.weights[number])
        return {"round": number, "accuracy": accuracy, "loss": loss}

    best, end = figures(rounds.best), figures(rounds.end)
    return {"sum_of_rates": rounds.sum_of_rates, "end": end, "best": best}


def train_rounds(config: RunConfig, clients: Clients, variant: Variant) -> Rounds:
    """Return the rounds of a run.

    Args:
        config: settings of the run.
        clients: examples of every client.
        variant: what is tried.
    """
    if config.differences == "components":
        return _train_components(config, clients, variant)
    rng = np.random.default_rng(config.seed)
    train, validation = clients[Split.TRAIN], clients[Split.VALIDATION]
    labels, features = pooled(train).base.shape[1], pooled(train).features.shape[1]
    weights = np.zeros((labels - 1, features), np.float32)
    examples = np.array([len(part.labels) for part in train], float)
    size = StepSize(
        config.rounds,
        epsilon=config.epsilon,
        decreasing=config.learning_rate_schedule == "linear",
    )
    robust = config.aggregation.rule != "mean"
    counted = np.minimum(examples, usual_limit(examples)) if robust else examples
    corrections = np.zeros((len(train), *weights.shape), np.float32)
    gain = 1 / (1 + weights.size / (config.steps * config.queries)) * variant.correction
    sum_of_rates, path = 0.0, {0: weights}
    events: list[dict[str, Any]] = []
    for number in range(1, config.rounds + 1):
        rate = size.learning_rate * variant.factor
        sums, seen = np.zeros_like(corrections), []
        for client, part in enumerate(train):
            pull = np.float32(variant.penalty / examples.sum())
            sums[client], observed = _take_steps(
                rng, config, part, weights, corrections[client], pull, rate, variant.exact
            )
            seen.append(observed)
        losses, squares, curvatures = np.array(seen).T
        sums[: variant.hostile] *= -10
        squares[: variant.hostile] *= 100
        shares, factors = counted / counted.sum(), np.ones(len(train))
        if robust:
            factors = norm_factors(np.sqrt(squares))
        folded = (shares * factors).astype(np.float32)
        mean = np.tensordot(folded, sums, 1)
        if rate:
            scaled = factors[:, None, None].astype(np.float32) * sums
            corrections *= np.float32(1 - variant.leak)
            corrections += np.float32(gain / config.steps) * (scaled - mean)
        weights = weights - np.float32(rate) * mean
        sum_of_rates += rate * config.steps
        loss = float(trimmed_mean(losses))
        events.append({"event": "round", "round": number, "loss": loss})
        size = size.after(
            Observation(
                loss=loss,
                mean_square=float(trimmed_mean(squares)) * config.queries / config.steps,
                squared_norm=float(np.square(folded) @ squares),
                local_squared_norm=float(trimmed_mean(squares)),
                learning_rate=rate,
                curvature=float(trimmed_mean(curvatures)),
                directions=config.queries * len(train),
            )
        )
        if number % config.evaluate.every == 0 or number == config.rounds:
            path[number] = weights
    return _finished(path, events, validation, robust, sum_of_rates)


def _train_components(config: RunConfig, clients: Clients, variant: Variant) -> Rounds:
    """Return the rounds of a run whose clients report components of their own updates.

    All is as in a run but the guard, and the rounding of coefficients.
    """
    train, validation = clients[Split.TRAIN], clients[Split.VALIDATION]
    labels, features = pooled(train).base.shape[1], pooled(train).features.shape[1]
    weights = np.zeros((labels - 1, features), np.float32)
    tensor = Tensor("readout", labels - 1, features, READOUT_GROUP)
    layout = Layout((tensor,), 1, 1.0, 0, "orthogonal")
    rate = variant.factor * component_rate(layout, config.rounds, config.queries)
    examples = np.array([len(part.labels) for part in train], float)
    robust = config.aggregation.rule != "mean"
    counted = np.minimum(examples, usual_limit(examples)) if robust else examples
    path, events = {0: weights}, list[dict[str, Any]]()
    for number in range(1, config.rounds + 1):
        root = orthogonal_root(config.seed, number, config.queries, GLOBAL_TRACK)
        z = orthogonal(consecutive_seeds(root, config.queries), layout.size)
        directions = np.ldexp(z.astype(np.float64), -DIRECTION_BITS)
        found, losses = zip(
            *(
                find_components(
                    Scored(
                        part.scores(weights).astype(np.float64),
                        part.labels,
                        part.features.astype(np.float64),
                    ),
                    directions,
                    layout,
                    rate,
                )
                for part in train
            ),
            strict=True,
        )
        components = np.array(found)
        components[: variant.hostile] *= -10
        factors = norm_factors(np.linalg.norm(components, axis=1)) if robust else 1.0
        update = (counted / counted.sum() * factors) @ components @ directions
        weights = weights + update.reshape(weights.shape).astype(np.float32)
        events.append({"event": "round", "round": number, "loss": float(np.mean(losses))})
        path[number] = weights
    return _finished(path, events, validation, robust, rate * config.rounds)


def _finished(
    path: dict[int, Floats],
    events: list[dict[str, Any]],
    validation: list[Examples],
    robust: bool,
    sum_of_rates: float,
) -> Rounds:
    """Return the rounds with the number of the one that a run returns to."""
    events += [_validation(number, state, validation, robust) for number, state in path.items()]
    best = find_lowest_loss(events, [])
    return Rounds(path, max(path) if best is None else best, sum_of_rates)


def _take_steps(
    rng: np.random.Generator,
    config: RunConfig,
    part: Examples,
    start: Floats,
    correction: Floats,
    pull: np.float32,
    rate: float,
    exact: bool,
) -> tuple[Floats, tuple[float, float, float]]:
    """Return the sum of a client's estimates, with its loss, Σ (g/q)² and curvature."""
    weights, total, square = start, np.zeros_like(start), 0.0
    loss, _, curvature = part.loss_and_slope(start)
    for _ in range(config.steps):
        slope = part.loss_and_slope(weights)[1] + pull * weights - correction
        along = float(rng.chisquare(config.queries))
        norm = float(np.linalg.norm(slope)) or 1e-30
        square += along * norm**2 / config.queries**2
        if not exact:
            unit = slope / np.float32(norm)
            noise = rng.standard_normal(slope.shape, dtype=np.float32)
            noise -= (noise * unit).sum() * unit
            slope = np.float32(along / config.queries) * slope
            slope += np.float32(norm * np.sqrt(along) / config.queries) * noise
        weights = weights - np.float32(rate) * slope
        total += slope
    return total, (loss, square, curvature)


def _validation(
    number: int, weights: Floats, validation: list[Examples], robust: bool
) -> dict[str, Any]:
    """Return the event of a validation."""
    losses = [part.judge(weights)[1] for part in validation]
    known = {
        str(client): {"loss": loss, "examples": len(part.labels)}
        for client, (loss, part) in enumerate(zip(losses, validation, strict=True))
        if loss == loss
    }
    column: dict[str, Any] = {"clients": known}
    if robust:
        column[TRIMMED_ACCURACY] = None
    return {
        "event": "evaluation",
        "split": "validation",
        "round": number,
        "columns": {GLOBAL: column},
    }


def main() -> None:
    parser = cells_parser(__doc__)
    parser.set_defaults(clients=["8"], alpha=["0.5"])
    measure_cells(parser.parse_args(), "readout_rounds.jsonl", _prepare, render_table, _VARIANTS)


def _prepare(config: RunConfig) -> Run:
    clients = read_clients(config)

    def run_variant(config: RunConfig, variant: dict[str, Any]) -> Row:
        own = {name: value for name, value in variant.items() if name != _TEMPERED}
        start = tempered(clients) if variant.get(_TEMPERED) else clients
        return run(config, start, Variant(**own))

    return run_variant


_TEMPERED = "tempered"
_VARIANTS = {_TEMPERED, *(field.name for field in fields(Variant))}


def render_table(rows: Iterable[Row]) -> str:
    """Return a Markdown table with a line per cell and condition, means over seeds."""
    groups: defaultdict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["data_set"], row["clients"], row["alpha"], row["condition"]].append(row)
    lines = [
        "| data | clients | α | condition | seeds | probe CV | probe | end | loss | "
        "returned to | its round | Σ η |",
        "|---" * 12 + "|",
    ]
    for key, group in groups.items():
        end, best = ([row[name] for row in group] for name in ("end", "best"))
        lines.append(
            "| " + " | ".join(map(str, key)) + f" | {len(group)} | {group[0]['probe_cv']:.1%} | "
            f"{group[0]['probe']:.1%} | {_mean(end, 'accuracy'):.1%} | {_mean(end, 'loss'):.3f} | "
            f"{_mean(best, 'accuracy'):.1%} | {_mean(best, 'round'):.0f} | "
            f"{_mean(group, 'sum_of_rates'):.0f} |"
        )
    return "\n".join(lines) + "\n"


def _mean(rows: Iterable[Row], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


if __name__ == "__main__":
    main()
