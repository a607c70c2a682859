"""Forward passes per client until a federation has gained so many points, by number of clients.

    python benchmarks/clients_to_target.py --model MINILM --data SST2 --out FOLDER

The scenario sst2 in bfloat16 with no rate given, steps of 4 queries on 4 examples by forward
differences, and training sentences that are dealt to 1, 4, 16 or 64 clients at random: `samara
simulate`, ended when the global model decides so many points more of the validation sentences
rightly than before the first round. It is asked each time that all clients together have taken part
so many times. A forward pass is one example through the model once. What was measured is in
FOLDER/arrivals.jsonl, the runs beside it; the same command goes on.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from shared.events import append_event, read_events
from shared.step_size import CURVATURE_SHARE

STEPS, QUERIES, BATCH = 4, 4, 4
CLIENTS = (1, 4, 16, 64)
POLICIES = ("independent", "shared")
CLIENT_ROUNDS = 64
"""Between two evaluations, of all clients together."""


def passes_of_a_round() -> int:
    """Forward passes of a client: q + 1 losses a step, and q more where the curvature is taken."""
    curvatures = -(-STEPS // CURVATURE_SHARE)
    return BATCH * (STEPS * (QUERIES + 1) + curvatures * QUERIES)


def arrival(arguments: argparse.Namespace, clients: int, policy: str, seed: int) -> dict[str, Any]:
    """The first evaluation after which so many points were gained, within so many passes in all."""
    every = max(1, CLIENT_ROUNDS // clients)
    most = arguments.most // (passes_of_a_round() * clients)
    out = arguments.out / f"{policy}-{clients}-{seed}"
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
        "micro-batch": 0,
        "rounds": most,
        "evaluate.every": every,
        "seed-policy": policy,
        "seed": seed,
        "threads": 1,
    }
    command = [sys.executable, "-m", "samara", "simulate", "sst2", "--out", str(out)]
    command += [f"--set={key}={value}" for key, value in settings.items()]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        assert run.stdout is not None
        lines = []
        for line in run.stdout:
            lines.append(line)
            if "validation accuracy" not in line:
                continue
            found = curve(out)
            if found[-1][1] >= found[0][1] + arguments.points / 100:
                run.terminate()
                break
        else:
            if run.wait():
                sys.exit("".join(lines[-20:]))
    found = curve(out)
    last, before = found[-1], found[0][1]
    return {
        "clients": clients,
        "policy": policy,
        "seed": seed,
        "before": before,
        "best": max(accuracy for _, accuracy in found),
        "rounds": last[0],
        "passes": last[0] * passes_of_a_round(),
        "arrived": last[1] >= before + arguments.points / 100,
    }


def curve(out: Path) -> list[tuple[int, float]]:
    """Rounds and validation accuracies of a run."""
    return [
        (event["round"], event["columns"]["global"]["accuracy"])
        for event in read_events(out / "metrics.jsonl")
        if event["event"] == "evaluation" and event["split"] == "validation"
    ]


def table_of(rows: list[dict[str, Any]]) -> Table:
    """What every run took; a ≥ where it did not arrive."""
    table = Table(title="forward passes per client until the target", box=None)
    for column in ("clients", "seeds", "seed", "rounds", "passes per client", "in all", "gain"):
        table.add_column(column, justify="right")
    for row in sorted(rows, key=lambda row: (row["policy"], row["clients"], row["seed"])):
        late = "" if row["arrived"] else "≥ "
        table.add_row(
            str(row["clients"]),
            row["policy"],
            str(row["seed"]),
            f"{late}{row['rounds']:,}",
            f"{late}{row['passes']:,}",
            f"{late}{row['passes'] * row['clients']:,}",
            f"{100 * (row['best'] - row['before']):+.1f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("--model", "--data"):
        parser.add_argument(name, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--points", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--clients", type=int, nargs="*", default=CLIENTS)
    parser.add_argument("--most", type=int, default=600_000, help="passes of all clients")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "arrivals.jsonl"
    rows = read_events(file)
    done = {(row["clients"], row["policy"], row["seed"]) for row in rows}
    for seed in range(arguments.seeds):
        for clients in reversed(arguments.clients):
            for policy in POLICIES:
                if (clients, policy, seed) in done:
                    continue
                rows.append(arrival(arguments, clients, policy, seed))
                append_event(file, rows[-1])
                print(json.dumps(rows[-1]), flush=True)
    Console(width=100).print(table_of(rows))


if __name__ == "__main__":
    main()
