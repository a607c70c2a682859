"""The cost of a live run: round times, and the processes of the clients on this machine.

Usage: python -m benchmarks.speed.live RUN HOME…

RUN is the folder of a run that live clients take part in; HOME is the folder of a client
(``~/.samara/NAME``) whose processes are there. Of every client: how often the model was loaded, the
seconds that its trainer worked, and the memory of each process (unique set size, so that shared
libraries do not count).
"""

import argparse
import json
import statistics
from itertools import pairwise
from pathlib import Path

import psutil

from samara.client.protocol.remote_trainer import RemoteTrainer


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("homes", type=Path, nargs="*")
    arguments = parser.parse_args()
    figures = {
        "rounds": round_seconds(arguments.run),
        "clients": {str(home): client_figures(home) for home in arguments.homes},
    }
    print(json.dumps(figures, indent=2))


def round_seconds(run: Path) -> dict[str, float]:
    """Seconds from one round's end to the next one's, where no evaluation lies between."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").split("\n")
    events = [json.loads(line) for line in lines[:-1]]  # the last one may be being written
    between = [
        later["seconds"] - earlier["seconds"]
        for earlier, later in pairwise(events)
        if earlier["event"] == later["event"] == "round"
    ]
    if not between:
        return {"count": 0}
    return {
        "count": len(between),
        "median": statistics.median(between),
        "least": min(between),
        "most": max(between),
    }


def client_figures(home: Path) -> dict[str, object]:
    """Return the figures of a client with running processes."""
    with RemoteTrainer(str(home / "trainer.sock")) as trainer:
        status = trainer.status()
    return {
        "model_loads": status.model_loads,
        "calls_answered": status.answered,
        "busy_seconds": status.busy_seconds,
        "unique_mib": {
            role: process.memory_full_info().uss / 2**20 for role, process in roles(home).items()
        },
    }


def roles(home: Path) -> dict[str, psutil.Process]:
    """The processes of a client, by what they do."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        for role, module in (("trainer", "trainer_process"), ("supernode", "supernode")):
            if f"samara.devices.live.{module}" in command and str(home) in " ".join(command):
                found[role] = process
    if "trainer" in found and (parent := found["trainer"].parent()):
        found["client up"] = parent
    return found


if __name__ == "__main__":
    main()
