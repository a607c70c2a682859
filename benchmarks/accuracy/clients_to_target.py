"""Forward passes per client until a federation has gained so many points, by number of clients.

    python -m benchmarks.accuracy.clients_to_target --model MINILM --data SST2 --out FOLDER

The scenario sst2 in bfloat16 with no rate given, steps of 4 queries on 4 examples by forward
differences, and training sentences that are dealt to 1, 4, 16 or 64 clients at random: `samara
simulate`, ended when the global model decides so many points more of the validation sentences
rightly than before the first round, or a number of passes is spent. It is asked each time that all
clients together have taken part so many times. A forward pass is one example through the model
once. The runs are in FOLDER; the same command goes on with them.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from samara.shared.step_size import CURVATURE_SHARE

STEPS, QUERIES, BATCH = 4, 4, 4
CLIENT_ROUNDS = 64
"""The number of forward passes between two evaluations, of all clients together."""


def passes_of_a_round() -> int:
    """Forward passes of a client: q + 1 losses a step, and q more where the curvature is taken."""
    curvatures = -(-STEPS // CURVATURE_SHARE)
    return BATCH * (STEPS * (QUERIES + 1) + curvatures * QUERIES)


def carry_out(arguments: argparse.Namespace, clients: int, policy: str, seed: int) -> None:
    """A run, until it has arrived or has spent its passes."""
    out = folder_of(arguments, clients, policy, seed)
    most = arguments.most // (passes_of_a_round() * clients)
    settings = {
        "model.path": arguments.model,
        "model.dtype": "bfloat16",
        "data.path": arguments.data,
        "data.partition": "iid",
        "data.clients": clients,
        "cohort.available": clients,
        "learning-rate": "auto",
        "differences": "forward",
        "steps": STEPS,
        "queries": QUERIES,
        "batch": BATCH,
        "rounds": most,
        "evaluate.every": max(1, CLIENT_ROUNDS // clients),
        "seed-policy": policy,
        "seed": seed,
        "data.seed": 0,
        "threads": 1,
    }
    command = [sys.executable, "-m", "samara", "simulate", "sst2", "--out", str(out)]
    command += [f"--set={key}={value}" for key, value in settings.items()]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True) as run:
        assert run.stdout is not None
        lines = []
        try:
            for line in run.stdout:
                lines.append(line)
                if "validation accuracy" in line and arrival(out, max(arguments.points)):
                    run.terminate()
                    return
        except KeyboardInterrupt:
            run.terminate()
            raise
        if run.wait():
            sys.exit("".join(lines[-20:]))


def folder_of(arguments: argparse.Namespace, clients: int, policy: str, seed: int) -> Path:
    """Return the folder of a run."""
    folder: Path = arguments.out / f"{policy}-{clients}-{seed}"
    return folder


def curve(out: Path) -> list[tuple[int, float]]:
    """Rounds and validation accuracies of a run that may be going on, in order."""
    file = out / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []
    return [
        (event["round"], event["columns"]["global"]["accuracy"])
        for event in map(json.loads, lines)
        if event["event"] == "evaluation" and event["split"] == "validation"
    ]


def arrival(out: Path, points: float) -> int | None:
    """The first evaluated round at which a run had gained so many points."""
    found = curve(out)
    wanted = found[0][1] + points / 100 if found else 0.0
    return next((number for number, accuracy in found if accuracy >= wanted), None)


def told(out: Path, clients: int, points: float) -> str:
    """Passes per client, and in all, until so many points; a > where they were not reached."""
    number, sign = arrival(out, points), ""
    if number is None:
        number, sign = curve(out)[-1][0], "> "
    passes = number * passes_of_a_round()
    return f"{sign}{passes:,} ({passes * clients / 1000:,.0f} k)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("--model", "--data"):
        parser.add_argument(name, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--points", type=float, nargs="*", default=[2.0, 3.0, 4.0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--clients", type=int, nargs="*", default=[64, 16, 4, 1])
    parser.add_argument("--policies", nargs="*", default=["independent", "shared"])
    parser.add_argument("--most", type=int, default=600_000, help="passes of all clients")
    arguments = parser.parse_args()
    table = Table(title="passes per client (and in all) until so many points", box=None)
    for column in ("clients", "seeds", "seed", *(f"+{p:g}" for p in arguments.points)):
        table.add_column(column, justify="right")
    for seed in range(arguments.seeds):
        for policy in arguments.policies:
            for clients in arguments.clients:
                out = folder_of(arguments, clients, policy, seed)
                if not arrival(out, max(arguments.points)):
                    carry_out(arguments, clients, policy, seed)
                cells = [told(out, clients, points) for points in arguments.points]
                table.add_row(str(clients), policy, str(seed), *cells)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
