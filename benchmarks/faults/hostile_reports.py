"""Accuracy under false reports, by aggregation rule, attack, share of hostile clients and η.

    python -m benchmarks.faults.hostile_reports --data shared/data/sst2_sentences --model MINILM \\
        --out FOLDER [--tasks messages sst2] [--clients 8 32] [--seeds 0 1] [--rules …] \\
        [--seed-policy shared]

A readout is trained. The model runtime computes the representations of all texts once, and they
are kept in FOLDER. Clients then take their local steps on them in numpy, with exact derivatives,
and the server's own parts do the rest: `RoundAggregator`, which leaves out reports that do not fit
the exact state, `StepSize`, `replay`, and the return to the validated round with the lowest loss.
Schedule and return are those that a run chooses by default. Runs that are in FOLDER/runs.csv are
not repeated, so each seed policy needs a folder of its own; `benchmarks.faults.hostile_tables`
makes tables of it.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from benchmarks.faults.attacked_cases import RULES, Case, Outcome, add_run, read_runs
from benchmarks.faults.false_reports import FORGERIES
from samara.server.rounds.aggregation import RoundAggregator, hostile_count
from samara.server.rounds.evaluation import TRIMMED_ACCURACY, find_lowest_loss
from samara.server.store import RunStore
from samara.shared.columns import GLOBAL
from samara.shared.config import RunConfig
from samara.shared.contrasts import contrasts
from samara.shared.directions import directions, round_root
from samara.shared.frames.instructions import SeedPolicy, Split, TrainInstruction, token_of
from samara.shared.frames.report import MAX_CURVATURE, MAX_GRADIENT, Report
from samara.shared.layout import READOUT_GROUP, Layout, Tensor
from samara.shared.replay import check_fits, replay, to_float32, zero_state
from samara.shared.round_delta import RoundDelta
from samara.shared.step_size import StepSize

Numbers = NDArray[np.float64]
Settings = dict[str, Any]

ROUNDS, STEPS, QUERIES, EPSILON = 30, 8, 16, 0.01
FIXED = {"messages": 8.0, "sst2": 8.0}
CAP = 10_000
TEXTS = 1600


@dataclass(frozen=True)
class Examples:
    """The examples of all clients, one after the other.

    Attributes:
        features: φ(h) times the difference that a weight makes to the margin, float64 [n, d].
        margins: score of the second label less that of the first, float64 [n].
        signs: 1 for the second label and −1 for the first, float64 [n].
        starts: first example of each client, int64 [clients].
    """

    features: Numbers
    margins: Numbers
    signs: Numbers
    starts: NDArray[np.int64]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of examples of each client, int64 [clients]."""
        return np.diff([*self.starts, len(self.signs)])

    def per_client(self, values: Numbers) -> Numbers:
        """Return means over each client's examples, [clients, ...], of values [n, ...]."""
        sums: Numbers = np.add.reduceat(values, self.starts, axis=0)
        return sums / self.counts.reshape(-1, *[1] * (values.ndim - 1))

    def losses(self, weights: Numbers) -> Numbers:
        """Return the mean loss of each client under weights, float64 [d]."""
        margins = self.signs * (self.margins + self.features @ weights)
        return self.per_client(np.logaddexp(0, -margins))

    def accuracies(self, weights: Numbers) -> Numbers:
        """Return the accuracy of each client under weights, float64 [d]."""
        margins = self.margins + self.features @ weights
        return self.per_client(((margins > 0) == (self.signs > 0)).astype(np.float64))


@dataclass(frozen=True)
class World:
    """A task on so many clients.

    Attributes:
        train, validation, test: examples of all clients.
        layout: layout of the readout.
    """

    train: Examples
    validation: Examples
    test: Examples
    layout: Layout


def read_world(settings: Settings, folder: Path, task: str, clients: int) -> World:
    """Return the representations of a task, which the model runtime computes once.

    Args:
        settings: settings of the run but for the number of clients.
        folder: folder that they are kept in.
        task: name of the files.
        clients: number of clients.
    """
    file = folder / f"{task}-{clients}.npz"
    if not file.exists():
        from samara.client.training.model_runtime import load_run

        run = load_run(RunConfig.of({**settings, "data.clients": clients}, "benchmark"))
        columns: dict[str, NDArray[Any]] = {}
        for split in (Split.TRAIN, Split.VALIDATION, Split.TEST):
            parts = [run.data.share_of(i, clients).tokenized(split) for i in range(clients)]
            for part in parts:
                run.runtime.prepare(part.prompts)
            name = split.name.lower()
            features = [run.runtime.features(part.prompts) for part in parts]
            scores = [run.runtime.base_scores(part.prompts) for part in parts]
            columns[f"{name}_features"] = np.concatenate(features)
            columns[f"{name}_scores"] = np.concatenate(scores)
            columns[f"{name}_labels"] = np.concatenate([part.labels for part in parts])
            columns[f"{name}_counts"] = np.array([len(part.labels) for part in parts])
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(file, **columns)  # type: ignore[arg-type]
    arrays = dict(np.load(file))
    train, validation, test = (_examples(arrays, n) for n in ("train", "validation", "test"))
    tensor = Tensor("readout", train.features.shape[1], 1, READOUT_GROUP)
    return World(train, validation, test, Layout((tensor,), 1, 1.0, 0, "gaussian"))


def _examples(arrays: dict[str, NDArray[Any]], name: str) -> Examples:
    ((one, other),) = contrasts(2).astype(np.float64)
    scores, counts = arrays[f"{name}_scores"].astype(np.float64), arrays[f"{name}_counts"]
    return Examples(
        (other - one) * arrays[f"{name}_features"].astype(np.float64),
        scores[:, 1] - scores[:, 0],
        np.where(arrays[f"{name}_labels"] == 1, 1.0, -1.0),
        np.cumsum([0, *counts[:-1]]),
    )


@cache
def _directions(root: int, stream: int, size: int) -> NDArray[np.float32]:
    """Return the directions of a round of one client, or of all, float32 [steps · queries, d]."""
    from samara.shared.directions import query_seeds

    seeds = query_seeds(root, stream, STEPS, QUERIES).ravel()
    return (directions(seeds, size, "gaussian") / np.float32(2048)).astype(np.float32)


class Clients:
    """The clients of a world, who take their steps at the same time.

    The products of their examples with the directions of a round are kept: they are the same in
    every run.
    """

    def __init__(self, world: World) -> None:
        self._examples, self._size = world.train, world.layout.size
        ends = [*self._examples.starts[1:], len(self._examples.signs)]
        self._own = [slice(*ends) for ends in zip(self._examples.starts, ends, strict=True)]
        self.counts = self._examples.counts
        self._products: dict[tuple[int, SeedPolicy], Numbers] = {}

    def products(self, instruction: TrainInstruction) -> Numbers:
        """Return sign · z·φ of every example and direction of its client, [n, steps · queries]."""
        key = instruction.root, instruction.seed_policy
        if key not in self._products:
            rows = np.empty((len(self._examples.signs), STEPS * QUERIES))
            for client, own in enumerate(self._own):
                z = _directions(instruction.root, instruction.seed_stream(client), self._size)
                rows[own] = self._examples.features[own].astype(np.float32) @ z.T
            self._products[key] = rows * self._examples.signs[:, None]
            _directions.cache_clear()
        return self._products[key]

    def reports(self, instruction: TrainInstruction, weights: Numbers) -> list[Report]:
        """Return every client's true report on an instruction, by exact derivatives."""
        examples, signed = self._examples, self.products(instruction)
        margins = examples.signs * (examples.margins + examples.features @ weights)
        clients = len(self.counts)
        gradients = np.empty((clients, STEPS, QUERIES), np.float32)
        losses, curvatures = np.empty((clients, STEPS)), np.zeros((clients, STEPS))
        measured = [step for step in range(STEPS) if instruction.measures_curvature(step)]
        for step in range(STEPS):
            along = signed[:, step * QUERIES : (step + 1) * QUERIES]
            wrong = expit(-margins)
            losses[:, step] = examples.per_client(np.logaddexp(0, -margins))
            for client, own in enumerate(self._own):
                gradients[client, step] = -(wrong[own] @ along[own]) / self.counts[client]
            if step in measured:
                squares = examples.per_client((wrong * (1 - wrong))[:, None] * along * along)
                curvatures[:, step] = squares.mean(axis=1)
            moves = instruction.coefficients(instruction.clipped(gradients[:, step]))
            for own, move in zip(self._own, moves, strict=True):
                margins[own] += along[own] @ move
        token = token_of(instruction.encode())
        return [
            Report(
                token,
                client,
                int(self.counts[client]),
                float(losses[client].mean()),
                gradients[client],
                curvature=float(curvatures[client, measured].mean()) if measured else None,
            )
            for client in range(clients)
        ]


@dataclass
class MemoryStore:
    """The parts of a run's store that a `RoundAggregator` uses, in memory.

    Attributes:
        layout: layout of the run.
        state: state after the last round.
    """

    layout: Layout
    state: NDArray[np.int64]

    @property
    def ledger(self) -> "MemoryStore":
        """The ledger: this object, since nothing else of it is asked for than `check`."""
        return self

    def check(self, delta: RoundDelta) -> None:
        """Raise an error if a round does not fit the exact range of the state."""
        check_fits(self.state, delta.changes)


def train(
    world: World, clients: Clients, case: Case, policy: SeedPolicy = SeedPolicy.INDEPENDENT
) -> Outcome:
    """Train one readout, and return what became of it.

    Rules that need shared seeds have them, whatever the policy.
    """
    if case.rule in ("median", "trimmed-mean"):
        policy = SeedPolicy.SHARED
    hostile, layout = case.attackers, world.layout
    store = MemoryStore(world.layout, zero_state(world.layout.size))
    given = None if case.rate == "auto" else FIXED[case.task]
    settings: Settings = {"aggregation.rule": case.rule, "seed-policy": policy.name.lower()}
    settings |= {"learning-rate": given or "auto", "cohort.weight-cap": CAP}
    settings |= {"evaluate.every": 10}
    config = RunConfig.of(settings, "benchmark")
    aggregator = RoundAggregator(config, cast(RunStore, store))
    size = StepSize(ROUNDS, given, EPSILON, config.learning_rate_schedule == "linear")
    states, left_out, unused, reverts, in_a_row, ended = [store.state], 0, 0, [0], 0, 0
    for number in range(1, ROUNDS + 1):
        instruction = TrainInstruction(
            bytes(8), number, 0, STEPS, QUERIES, CAP, policy,
            round_root(case.seed, number, 0), EPSILON, size.learning_rate, size.clip, 0.0,
            layout.hash, bytes(32), curvature_every=size.curvature_every(QUERIES),
        )  # fmt: skip
        reports = clients.reports(instruction, to_float32(store.state).astype(np.float64))
        honest = [report for report in reports if report.client not in hostile]
        sent = [
            FORGERIES[case.attack](report, honest, number) if report.client in hostile else report
            for report in reports
        ]
        received = [Report.decode(report.encode()) for report in sent if _is_sound(report)]
        answers = {report.client: report for report in received}
        aggregated = aggregator.aggregate(instruction, answers, {}, config.cohort.minimum)
        for client in aggregated.too_large:
            del answers[client]
        left_out += len(aggregated.too_large)
        size = size.after(aggregator.observe(instruction, answers, bool(aggregated.problem)))
        in_a_row = in_a_row + 1 if aggregated.problem and size.back_to is None else 0
        if size.back_to is not None:
            reverts.append(number - 1 - size.back_to)
            store.state = states[size.back_to]
        elif aggregated.problem:
            unused += 1
        else:
            groups = aggregated.delta.scalar_groups()
            store.state = replay(store.state, groups, layout.distribution)
        states.append(store.state)
        if in_a_row == config.cohort.empty_rounds:
            ended = number
            break
    weights = [to_float32(state).astype(np.float64) for state in states]
    best = _best_round(world.validation, weights, config)
    before, after = (
        float(np.average(world.test.accuracies(w), weights=world.test.counts)) * 100
        for w in (weights[0], weights[best])
    )
    return Outcome(before, after, left_out, unused, len(reverts) - 1, max(reverts), ended, best)


def _best_round(validation: Examples, weights: list[Numbers], config: RunConfig) -> int:
    """Return the round that a run returns to after its last one, by what its clients validate.

    Args:
        validation: the clients' examples.
        weights: weights before the first round and after each.
        config: settings of the run.
    """
    last = len(weights) - 1
    events = []
    for number in [*range(0, last, config.evaluate.every), last]:
        losses = enumerate(validation.losses(weights[number]).tolist())
        column: Settings = {"clients": {str(client): {"loss": loss} for client, loss in losses}}
        if config.aggregation.rule != "mean":
            column[TRIMMED_ACCURACY] = 0.0
        event = {"event": "evaluation", "split": "validation", "round": number}
        events.append(event | {"columns": {GLOBAL: column}})
    best = find_lowest_loss(events, ())
    return last if best is None else best


def _is_sound(report: Report) -> bool:
    """Return whether a report can be sent: a client whose own model diverged has none."""
    sound = np.all(np.abs(report.gradients) <= MAX_GRADIENT) and abs(report.mean_loss) <= 1e6
    return bool(sound) and (report.curvature is None or abs(report.curvature) <= MAX_CURVATURE)


def cases(arguments: argparse.Namespace, task: str, clients: int, seed: int) -> Iterator[Case]:
    """Yield the runs of a task with so many clients and a seed."""
    for rule, rate in product(arguments.rules, arguments.rates):
        yield Case(task, clients, seed, rule, rate, "none", 0)
        for attack in arguments.attacks or FORGERIES:
            for count in (1, hostile_count(clients)):
                yield Case(task, clients, seed, rule, rate, attack, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", default="")
    parser.add_argument("--model", default="")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=["messages", "sst2"])
    parser.add_argument("--clients", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--rules", nargs="+", default=RULES)
    parser.add_argument("--rates", nargs="+", default=["auto", "fixed"])
    parser.add_argument("--seed-policy", choices=["independent", "shared"], default="independent")
    parser.add_argument("--attack", action="append", dest="attacks", choices=FORGERIES)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    file, begun = arguments.out / "runs.csv", time.monotonic()
    done = read_runs(file)
    policy = SeedPolicy[arguments.seed_policy.upper()]
    settings = {"adapter.layers": "readout", "threads": 1, "data.limit": TEXTS}
    sst2 = {"task": "sst2", "data.path": arguments.data, "model.path": arguments.model}
    sst2 |= {"data.partition": "dirichlet", "data.alpha": 5.0}
    for task, number in product(arguments.tasks, arguments.clients):
        more = sst2 if task == "sst2" else {"data.limit": 0}
        world = read_world(settings | more, arguments.out, task, number)
        for seed in arguments.seeds:
            clients = Clients(world)
            for case in cases(arguments, task, number, seed):
                if case not in done:
                    add_run(file, case, train(world, clients, case, policy))
                if time.monotonic() - begun > arguments.seconds:
                    raise SystemExit("the same command goes on")


if __name__ == "__main__":
    main()
