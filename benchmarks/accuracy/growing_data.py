"""The accuracy of an owner's model with and without examples that are added during a run.

    python -m benchmarks.accuracy.growing_data --data TREC6 --model MINILM --out FOLDER \\
        [--seeds 0,1,2] [--clients 4] [--examples 100] [--added 60] [--rounds 15]

Live clients on the real protocol, in one process, over their trainers' sockets. Each has questions
of all kinds but one, which nobody has. Every run is made twice: once as it is, and once with
questions of the missing kind that are appended to client 0's watched file after round 5. The
owner's test examples are the same in both: questions of the new kind, and as many of the others.
Printed is the accuracy on both, of the common model and of the owner's personal one after the last
round. FOLDER/runs.jsonl has a line per run; runs that are in it are not repeated.
"""

import argparse
import json
import logging
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from flwr.app import UserConfig

from benchmarks.accuracy.cells import listed
from benchmarks.accuracy.rows import Row, Rows
from samara.client.app import TRAINER
from samara.client.app import app as client_app
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.protocol.trainer_service import serve_trainer
from samara.devices.live.settings import resolve_device_settings
from samara.server.app import serve
from samara.shared.columns import GLOBAL, PERSONALIZED
from samara.shared.config import RunConfig
from samara.shared.result import RunResult
from samara.simulations.engine import InProcessGrid

APPENDED_AFTER = 5
NEW_KIND = 5
"""The label of the questions that ask for a number."""
OWNER = 0
FIGURES = tuple(f"{name} {kind}" for name in (GLOBAL, PERSONALIZED) for kind in ("new", "known"))
"""The names of accuracies in a row."""


class Run(NamedTuple):
    """A run: its seed, and how many questions of the new kind are appended."""

    seed: int
    added: int


def draw(data: Path, seed: int, clients: int, examples: int, added: int) -> dict[str, list[Row]]:
    """Return the questions of each client, those that are appended, and those of the test.

    Args:
        data: folder with train.jsonl and test.jsonl, each row a text and a label.
        seed: seed of the draw.
        clients: number of clients.
        examples: number of questions that each has.
        added: number of questions of the new kind.
    """
    rows = {name: _read(data / f"{name}.jsonl") for name in ("train", "test")}
    random = np.random.default_rng(seed)
    shuffled = [rows["train"][index] for index in random.permutation(len(rows["train"]))]
    known = [row for row in shuffled if row["label"] != NEW_KIND]
    new = [row for row in shuffled if row["label"] == NEW_KIND]
    tests = [row for row in rows["test"] if row["label"] == NEW_KIND]
    others = [row for row in rows["test"] if row["label"] != NEW_KIND]
    shares = {
        str(client): known[client * examples : (client + 1) * examples] for client in range(clients)
    }
    return shares | {"added": new[:added], "test": tests + others[: len(tests)]}


def make_run(arguments: argparse.Namespace, run: Run, folder: Path) -> dict[str, float]:
    """Return the owner's accuracies in percent at the end of a run: new and known kinds.

    Args:
        arguments: command line.
        run: the run.
        folder: folder of the run and its clients, without content.
    """
    rows = draw(arguments.data, run.seed, arguments.clients, arguments.examples, arguments.added)
    inbox = folder / f"data-{OWNER}" / "train.jsonl"

    def append(kind: str, partition: int) -> None:
        if kind == "train" and partition == OWNER:
            trained.append(partition)
            if len(trained) == APPENDED_AFTER:
                _append(inbox, rows["added"][: run.added])

    trained: list[int] = []
    settings = {
        "rounds": arguments.rounds + 5,  # of which 5 are private
        "evaluate.every": 0,
        "cohort.available": arguments.clients,
        "seed": run.seed,
        "threads": 1,
        "out": str(folder / "run"),
    }
    config = RunConfig.of(settings, "benchmark")
    with ExitStack() as stack:
        sockets = []
        for client in range(arguments.clients):
            data = folder / f"data-{client}"
            data.mkdir(parents=True)
            _append(data / "train.jsonl", rows[str(client)])
            _append(data / "test.jsonl", rows["test"])
            owned = resolve_device_settings(
                str(arguments.model),
                str(data),
                "trec6",
                "cpu",
                ["threads=1", "data.watch=true", f"data.seed={run.seed}"],
            )
            load = partial(
                ResidentTrainer.load,
                RunConfig.of(owned, "benchmark"),
                client,
                folder / f"client-{client}",
            )
            sockets.append(folder / f"{client}.sock")
            stack.enter_context(serve_trainer(load, sockets[-1]))
        nodes: list[UserConfig] = [{TRAINER: str(socket)} for socket in sockets]
        grid = InProcessGrid(client_app, len(sockets), config.flat(), append, nodes=nodes)
        result = RunResult.read(serve(config, grid))
    columns = result.evaluations[-1].columns
    return {
        f"{column} {kind}": 100 * accuracy
        for column in (GLOBAL, PERSONALIZED)
        for kind, accuracy in accuracies(columns[column].clients[OWNER].confusion).items()
    }


def measured(rows: Rows, arguments: argparse.Namespace, run: Run) -> Row:
    """Return the row of a run, which is made unless its row is there."""
    if (found := rows.find(**run._asdict())) is not None:
        return found
    with tempfile.TemporaryDirectory() as folder:
        return rows.add(run._asdict() | make_run(arguments, run, Path(folder)))


def accuracies(confusion: Sequence[Sequence[int]]) -> dict[str, float]:
    """Return the accuracies on examples of the new kind and of the others.

    Args:
        confusion: counts by true and predicted label.
    """
    counts = np.array(confusion)
    right = np.diag(counts)
    known = np.arange(len(counts)) != NEW_KIND
    return {
        "new": float(right[NEW_KIND] / counts[NEW_KIND].sum()),
        "known": float(right[known].sum() / counts[known].sum()),
    }


def _read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _append(path: Path, rows: Sequence[Row]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=listed, default=["0", "1", "2"])
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--added", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    rows = Rows(arguments.out / "runs.jsonl")
    gains: list[dict[str, float]] = []
    for seed in map(int, arguments.seeds):
        without, with_added = (
            measured(rows, arguments, Run(seed, added)) for added in (0, arguments.added)
        )
        gains.append({name: with_added[name] - without[name] for name in FIGURES})
    for name in FIGURES:
        own = [gain[name] for gain in gains]
        print(f"{name}: {np.mean(own):+.1f} ({', '.join(f'{gain:+.1f}' for gain in own)})")


if __name__ == "__main__":
    main()
