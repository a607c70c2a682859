"""Client-steps per second: cohort batching against one client per Ray actor; and a large fleet.

    python -m benchmarks.scale.fleet [--clients 64] [--steps 1 20]    # both engines
    python -m benchmarks.scale.fleet --thousand        # 1,000 clients x 20 rounds

Both engines train the same federation: the embedded model, q = 4, B = 4, sequences of 32 tokens,
every client in every round. They run by turns; seconds are of a round, without the first, which
loads models, and without evaluations, which have one example a client. A ratio is of medians.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from importlib import resources
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from samara.shared.machine import cores
from samara.shared.tasks.messages import messages, writers

TASK = """name = "two-messages"
text = "{text} {text}"
question = " i {word} it."
words = ["hated", "loved"]
labels = [0, 1]
"""
SETTINGS: dict[str, Any] = {
    "queries": 4,
    "batch": 4,
    "learning-rate": 0.01,
    "threads": 1,
    "model.max-length": 32,
    "evaluate.every": 0,
    "personal.rounds": 0,
}
FLEET = {"fleet.devices": json.dumps([{"device": "laptop", "share": 1}])}


def write_data(folder: Path, clients: int) -> Path:
    """Messages of so many writers: 64 to train on, one to validate, one to test."""
    data = folder / "data"
    data.mkdir()
    for split, name, count in (
        ("train", "train", 64),
        ("validation", "validation", 1),
        ("test", "test", 1),
    ):
        rows = [
            row
            for writer in writers(clients, 0)
            for row in messages(writer, count, split, 0)  # type: ignore[arg-type]
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (data / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return data


def run(folder: Path, name: str, engine: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The result of a run in a process of its own."""
    scenario, out = folder / f"{name}.toml", folder / name
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    scenario.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "samara", "simulate", str(scenario), "--out", str(out)]
    done = subprocess.run(
        [*command, "--engine", engine], check=False, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{engine}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads((out / "result.json").read_text(encoding="utf-8"))
    return result


def round_seconds(result: dict[str, Any]) -> list[float]:
    """Seconds of every round but the first."""
    ends = [told["seconds"] for told in result["rounds"]]
    return [end - begin for begin, end in pairwise(ends)]


def compare(folder: Path, clients: int, turns: int, messages_of: list[int]) -> None:
    """Both engines by turns, with so many local steps a message."""
    (folder / "task.toml").write_text(TASK, encoding="utf-8")
    settings = SETTINGS | {
        "model.path": str(resources.files("samara.shared") / "model" / "embedded"),
        "task": str(folder / "task.toml"),
        "data.path": str(write_data(folder, clients)),
        "data.clients": clients,
        "cohort.available": clients,
    }
    print(f"{clients} clients, {cores()} cores")
    for steps in messages_of:
        own = settings | {"steps": steps, "rounds": 8 if steps == 1 else 3}
        seconds: dict[str, list[float]] = {"flower": [], "fleet": []}
        for turn in range(turns):
            name = f"{steps}-{turn}"
            flower = run(folder, f"flower-{name}", "flower", own)
            fleet = run(folder, f"fleet-{name}", "in-process", own | FLEET)
            seconds["flower"] += round_seconds(flower)
            seconds["fleet"] += round_seconds(fleet)
        rates = {name: clients * steps / median(times) for name, times in seconds.items()}
        print(
            f"{steps} local steps a message: {rates['flower']:.1f} client-steps/s with one client "
            f"per Ray actor, {rates['fleet']:.1f} with cohort batching, "
            f"{rates['fleet'] / rates['flower']:.1f} times as many"
        )
        for name, times in seconds.items():
            told = ", ".join(f"{t:.2f}" for t in sorted(times))
            print(f"  {name}: seconds of a round {told}", flush=True)


def thousand(folder: Path) -> None:
    """1,000 clients, all of them in each of 20 rounds of one step."""
    (folder / "task.toml").write_text(TASK.replace("{text} {text}", "{text}"), encoding="utf-8")
    own = (
        SETTINGS
        | FLEET
        | {
            "model.path": str(resources.files("samara.shared") / "model" / "embedded"),
            "task": str(folder / "task.toml"),
            "data.path": str(write_data(folder, 1000)),
            "data.clients": 1000,
            "rounds": 20,
            "steps": 1,
            "learning-rate": 0.1,
        }
    )
    begun = time.monotonic()
    result = run(folder, "thousand", "in-process", own)
    seconds, times = time.monotonic() - begun, round_seconds(result)
    losses = [told["loss"] for told in result["rounds"]]
    print(
        f"1,000 clients x 20 rounds: {seconds:.0f} s from command to result, a round "
        f"{median(times):.2f} s, {1000 / median(times):.0f} client-steps/s, peak memory "
        f"{result['peak_memory_bytes'] / 2**20:,.0f} MiB, loss {losses[0]:.4f} -> {losses[-1]:.4f}",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 20], help="in a message")
    parser.add_argument("--thousand", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.thousand:
            thousand(Path(temporary))
        else:
            compare(Path(temporary), arguments.clients, arguments.turns, arguments.steps)
