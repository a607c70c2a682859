"""Accuracy under false reports, by aggregation rule, attack, share of hostile clients and η.

    python -m benchmarks.faults.hostile_reports --data shared/data/sst2_sentences --model MINILM \\
        --out FOLDER [--tasks messages sst2] [--clients 8 32] [--seeds 0 1] [--rules …]

A readout is trained. The model runtime computes the representations of all texts once, and they
are kept in FOLDER. Clients then take their local steps on them in numpy, all at once, with exact
derivatives, and the server's own functions do the rest: `aggregate`, `observe_round`, `StepSize`,
`replay`. Runs that are in FOLDER/runs.jsonl are not repeated; --table prints what is there.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from benchmarks.faults.false_reports import FORGERIES
from server.rounds.aggregation import Rule, aggregate, observe_round
from server.rounds.robust_rules import hostile_count
from shared.directions import directions, round_root
from shared.errors import ReplayError
from shared.frames.instructions import SeedPolicy, Split, TrainInstruction, token_of
from shared.frames.report import MAX_CURVATURE, MAX_GRADIENT, Report
from shared.layout import READOUT_GROUP, Layout, Tensor
from shared.model.readout import contrasts
from shared.replay import replay, to_float32, zero_state
from shared.step_size import StepSize

Numbers = NDArray[np.float64]
Settings = dict[str, Any]

RULES = ("mean", "median-norm", "multi-krum", "centered-clipping", "trimmed-mean", "median")
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

    def per_client(self, values: Numbers) -> Numbers:
        """Return means over each client's examples, [clients, ...], of values [n, ...]."""
        counts = np.diff([*self.starts, len(self.signs)])
        sums: Numbers = np.add.reduceat(values, self.starts, axis=0)
        return sums / counts.reshape(-1, *[1] * (values.ndim - 1))

    def accuracies(self, weights: Numbers) -> Numbers:
        """Return the accuracy of each client under weights, float64 [d]."""
        margins = self.margins + self.features @ weights
        return self.per_client(((margins > 0) == (self.signs > 0)).astype(np.float64))


@dataclass(frozen=True)
class World:
    """A task on so many clients.

    Attributes:
        train, test: examples of all clients.
        layout: layout of the readout.
    """

    train: Examples
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
        from client.training.model_runtime import load_run
        from shared.config import RunConfig

        run = load_run(RunConfig.of({**settings, "data.clients": clients}, "benchmark"))
        columns: dict[str, NDArray[Any]] = {}
        for split in (Split.TRAIN, Split.TEST):
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
    train, test = (_examples(arrays, name) for name in ("train", "test"))
    tensor = Tensor("readout", train.features.shape[1], 1, READOUT_GROUP)
    return World(train, test, Layout((tensor,), 1, 1.0, 0, "gaussian"))


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
    from shared.directions import query_seeds

    seeds = query_seeds(root, stream, STEPS, QUERIES).ravel()
    return (directions(seeds, size, "gaussian") / np.float32(2048)).astype(np.float32)


class Clients:
    """The clients of a world, who take their steps at the same time.

    The products of their examples with the directions of a round are kept: they are the same in
    every run.
    """

    def __init__(self, world: World) -> None:
        self._examples, self._size = world.train, world.layout.size
        counts = np.diff([*self._examples.starts, len(self._examples.signs)])
        self.counts = counts
        self._owner = np.repeat(np.arange(len(counts)), counts)
        self._products: dict[tuple[int, SeedPolicy], NDArray[np.float32]] = {}

    def products(self, instruction: TrainInstruction) -> NDArray[np.float32]:
        """Return z·φ of every example and direction of its client, [n, steps · queries]."""
        key = instruction.root, instruction.seed_policy
        if key not in self._products:
            rows = np.empty((len(self._owner), STEPS * QUERIES), np.float32)
            for client in range(len(self.counts)):
                own = self._owner == client
                z = _directions(instruction.root, instruction.seed_stream(client), self._size)
                rows[own] = self._examples.features[own].astype(np.float32) @ z.T
            self._products[key] = rows
            _directions.cache_clear()
        return self._products[key]

    def reports(self, instruction: TrainInstruction, weights: Numbers) -> list[Report]:
        """Return every client's true report on an instruction, by exact derivatives."""
        examples, products = self._examples, self.products(instruction)
        margins = (examples.signs * (examples.margins + examples.features @ weights))[:, None]
        signed = products * examples.signs[:, None].astype(np.float32)
        clients = len(self.counts)
        gradients = np.empty((clients, STEPS, QUERIES), np.float32)
        losses, curvatures = np.empty((clients, STEPS)), np.zeros((clients, STEPS))
        measured = [step for step in range(STEPS) if instruction.measures_curvature(step)]
        for step in range(STEPS):
            own = signed[:, step * QUERIES : (step + 1) * QUERIES]
            wrong = expit(-margins)
            gradients[:, step] = examples.per_client(-wrong * own)
            losses[:, step] = examples.per_client(np.logaddexp(0, -margins))[:, 0]
            if instruction.measures_curvature(step):
                squares = examples.per_client(wrong * (1 - wrong) * own * own)
                curvatures[:, step] = squares.mean(axis=1)
            moves = instruction.coefficients(instruction.clipped(gradients[:, step]))
            margins = margins + (own * moves[self._owner]).sum(axis=1, keepdims=True)
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


def train(
    world: World,
    clients: Clients,
    rule: str,
    rate: str,
    attack: str,
    hostile: Sequence[int],
    seed: int,
    policy: SeedPolicy,
    fixed: float,
) -> dict[str, Any]:
    """Train one readout, and return what became of it.

    Returns:
        Accuracy before and after, in percent; rounds that changed nothing, and the largest number
        of rounds that were reverted at once.
    """
    layout = world.layout
    state = zero_state(layout.size)
    size = StepSize(ROUNDS, None if rate == "auto" else fixed, EPSILON)
    states, unused, reverted = [state], 0, 0
    for number in range(1, ROUNDS + 1):
        instruction = TrainInstruction(
            bytes(8), number, 0, STEPS, QUERIES, CAP, policy, round_root(seed, number, 0), EPSILON,
            size.learning_rate, size.clip, 0.0, layout.hash, bytes(32),
            curvature_every=size.curvature_every(QUERIES),
        )  # fmt: skip
        weights = to_float32(state).astype(np.float64)
        reports = clients.reports(instruction, weights)
        honest = [report for report in reports if report.client not in hostile]
        if attack != "none":
            reports = [
                FORGERIES[attack](report, honest, number) if report.client in hostile else report
                for report in reports
            ]
        reports = [Report.decode(report.encode()) for report in reports if _is_sound(report)]
        chosen = Rule(rule, layout)  # type: ignore[arg-type]
        observation = observe_round(instruction, reports, CAP, chosen)
        size = size.after(observation)
        if size.back_to is not None:
            reverted = max(reverted, number - 1 - size.back_to)
            state = states[size.back_to]
        else:
            try:
                delta = aggregate(instruction, reports, CAP, rule=chosen)
                state = replay(state, delta.scalar_groups(), layout.distribution)
            except ReplayError:
                unused += 1
        states.append(state)
    counts = np.diff([*world.test.starts, len(world.test.signs)])
    before, after = (
        float(np.average(world.test.accuracies(w), weights=counts)) * 100
        for w in (np.zeros(layout.size), to_float32(state).astype(np.float64))
    )
    return {"before": before, "after": after, "unused": unused, "reverted": reverted}


def _is_sound(report: Report) -> bool:
    """Return whether a report can be sent: a client whose own model diverged has none."""
    sound = np.all(np.abs(report.gradients) <= MAX_GRADIENT) and abs(report.mean_loss) <= 1e6
    return bool(sound) and (report.curvature is None or abs(report.curvature) <= MAX_CURVATURE)


def cells(arguments: argparse.Namespace, clients: int) -> Iterator[tuple[str, str, str, int]]:
    """Yield rule, η, attack and number of hostile clients of each run of a task."""
    for rule, rate in product(arguments.rules, arguments.rates):
        yield rule, rate, "none", 0
        for attack in arguments.attacks or FORGERIES:
            for count in (1, hostile_count(clients)):
                yield rule, rate, attack, count


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
    parser.add_argument("--attack", action="append", dest="attacks", choices=FORGERIES)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    file, begun = arguments.out / "runs.jsonl", time.monotonic()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {_key(row) for row in rows}
    if arguments.table:
        print("\n".join(tables(rows)))
        return
    settings = {"adapter.layers": "readout", "threads": 1, "data.limit": TEXTS}
    sst2 = {"task": "sst2", "data.path": arguments.data, "model.path": arguments.model}
    sst2 |= {"data.partition": "dirichlet", "data.alpha": 5.0}
    for task, clients in product(arguments.tasks, arguments.clients):
        more = sst2 if task == "sst2" else {"data.limit": 0}
        world = read_world(settings | more, arguments.out, task, clients)
        for seed in arguments.seeds:
            everybody = Clients(world)
            for rule, rate, attack, count in cells(arguments, clients):
                row = {"task": task, "clients": clients, "seed": seed, "rule": rule, "rate": rate}
                row |= {"attack": attack, "hostile": count}
                if _key(row) in done:
                    continue
                hostile = np.random.default_rng(seed).permutation(clients)[:count].tolist()
                needs_shared = rule in ("median", "trimmed-mean")
                policy = SeedPolicy.SHARED if needs_shared else SeedPolicy.INDEPENDENT
                row |= train(
                    world, everybody, rule, rate, attack, hostile, seed, policy, FIXED[task]
                )
                with file.open("a") as stream:
                    stream.write(json.dumps(row) + "\n")
                if time.monotonic() - begun > arguments.seconds:
                    raise SystemExit("the same command goes on")


def _key(row: Settings) -> tuple[Any, ...]:
    names = ("task", "clients", "seed", "rule", "rate", "attack", "hostile")
    return tuple(row[name] for name in names)


def tables(rows: Sequence[Settings]) -> list[str]:
    """Return Markdown tables: accuracy by attack and share, and by rule and η."""
    lines: list[str] = []
    for task, clients in sorted({(row["task"], row["clients"]) for row in rows}):
        some = [row for row in rows if (row["task"], row["clients"]) == (task, clients)]
        columns = list(dict.fromkeys((row["rule"], row["rate"]) for row in some))
        before = np.mean([row["before"] for row in some])
        lines += ["", f"{task}, {clients} clients, zero-shot {before:.1f}", ""]
        lines.append(f"| attack | {' | '.join(f'{rule}, {rate}' for rule, rate in columns)} |")
        lines.append("|---" * (len(columns) + 1) + "|")
        for attack, count in dict.fromkeys((row["attack"], row["hostile"]) for row in some):
            figures = []
            for rule, rate in columns:
                wanted = (rule, rate, attack, count)
                after = [
                    row["after"]
                    for row in some
                    if (row["rule"], row["rate"], row["attack"], row["hostile"]) == wanted
                ]
                figures.append(f"{np.mean(after):.1f}" if after else "")
            name = "none" if attack == "none" else f"{attack}, {count} of {clients}"
            lines.append(f"| {name} | {' | '.join(figures)} |")
    return lines


if __name__ == "__main__":
    main()
