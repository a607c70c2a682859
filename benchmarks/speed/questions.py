"""Latency of questions to a device's models, idle and while it trains, and the memory of `serve`.

Usage: python -m benchmarks.speed.questions --model MODEL --data DATA --task TASK [--set KEY=VALUE]

A trainer process and `samara client serve` run on this machine; the server of the run is in this
process. The same texts are asked one after the other: of an idle trainer, and while rounds go on.
`trainer` asks the trainer's socket, `http` asks `POST /classify`. Seconds are those of a machine
that trains at the same time: they hold for it alone. Memory is that of the processes, resident and
proportional (shared pages divided by those who share them).
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.serving import serving, write_client
from samara.client.app import TRAINER
from samara.client.app import app as client_app
from samara.client.protocol.remote_model import RemoteModel
from samara.client.protocol.remote_trainer import RemoteTrainer
from samara.devices.live.client_folder import UP_LOCK
from samara.devices.live.processes import child_environment, exclusive_lock, module_command
from samara.devices.live.settings import ClientSettings, resolve_device_settings
from samara.server.app import serve
from samara.shared.config import RunConfig
from samara.shared.frames.instructions import Split
from samara.shared.settings import parse_assignment
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.data import load_examples
from samara.simulations.engine import InProcessGrid

_TEXTS = 64
_START_SECONDS = 300.0
_WARM_UP = 10


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--task", required=True)
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--set", action="append", default=[], help="setting of the run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="q") as place:
        print(json.dumps(measure(arguments, Path(place)), indent=1))


def measure(arguments: argparse.Namespace, place: Path) -> dict[str, Any]:
    """Return latencies by way of asking and load, and the memory of the processes."""
    own = resolve_device_settings(
        arguments.model, arguments.data, arguments.task, "cpu", ["data.limit=600"]
    )
    settings = write_client(place / "a", own)
    task = load_task(arguments.task)
    examples = load_examples(arguments.data, task, 0, 0)
    texts = [e.text for e in examples if e.split == Split.VALIDATION.name.lower()][:_TEXTS]
    asked = dict(map(parse_assignment, arguments.set))
    command = module_command("trainer_process", settings.folder, os.getpid())
    with (
        exclusive_lock(settings.folder / UP_LOCK, "the benchmark runs"),  # as `client up` does
        running(command) as trainer,
    ):
        with RemoteTrainer(str(settings.socket), _START_SECONDS):
            pass
        run(settings, asked | {"rounds": 1}, place / "first")
        memory = {"trainer": memory_of(trainer.pid)}
        with serving(settings.folder, "--port", "0") as (server, address):
            figures = {"idle": latencies(settings, address, texts, arguments.questions)}
            rounds = threading.Thread(
                target=run,
                args=(settings, asked | {"rounds": 100_000}, place / "second"),
                daemon=True,
            )
            rounds.start()
            await_training(settings)
            figures["training"] = latencies(settings, address, texts, arguments.questions)
            assert rounds.is_alive()
            memory |= {"trainer after": memory_of(trainer.pid), "serve": memory_of(server.pid)}
    share = {kind: memory["serve"][kind] / memory["trainer"][kind] for kind in memory["serve"]}
    load = os.getloadavg()[0]
    return {"seconds": figures, "MiB": memory, "serve / trainer": share, "load": load}


def run(settings: ClientSettings, asked: dict[str, Any], out: Path) -> None:
    """Run a federation of this one client."""
    flat = {
        "cohort.available": 1,
        "evaluate.every": 0,
        "method": "global",
    } | asked
    config = RunConfig.of(flat | {"out": str(out), "seed": asked["rounds"]}, "benchmark")
    serve(
        config,
        InProcessGrid(client_app, 1, config.flat(), nodes=[{TRAINER: str(settings.socket)}]),
    )


def await_training(settings: ClientSettings) -> None:
    """Return when a message is being worked on."""
    with RemoteTrainer(str(settings.socket)) as trainer:
        before = trainer.status().answered
        while trainer.status().answered < before + 3:
            time.sleep(0.1)


def latencies(
    settings: ClientSettings, address: str, texts: list[str], count: int
) -> dict[str, dict[str, float]]:
    """Return percentiles of the seconds that a question takes, by way of asking."""
    return {
        "trainer": asyncio.run(ask_trainer(settings, texts, count)),
        "http": ask_http(address, texts, count),
    }


async def ask_trainer(settings: ClientSettings, texts: list[str], count: int) -> dict[str, float]:
    """Ask the trainer's socket."""
    seconds = []
    async with RemoteModel(settings.socket) as model:
        for text in islice(cycle(texts), _WARM_UP + count):
            start = time.perf_counter()
            await model.classify([text], ["personal"])
            seconds.append(time.perf_counter() - start)
    return percentiles(seconds[_WARM_UP:])


def ask_http(address: str, texts: list[str], count: int) -> dict[str, float]:
    """Ask `POST /classify`."""
    seconds = []
    with httpx.Client(base_url=address, timeout=60) as client:
        for text in islice(cycle(texts), _WARM_UP + count):
            start = time.perf_counter()
            client.post("/classify", json={"text": text}).raise_for_status()
            seconds.append(time.perf_counter() - start)
    return percentiles(seconds[_WARM_UP:])


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Return median, 95th percentile and maximum."""
    at = statistics.quantiles(seconds, n=100)
    return {"p50": at[49], "p95": at[94], "max": max(seconds), "questions": len(seconds)}


@contextmanager
def running(command: list[str]) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a process for the duration of a block."""
    process = subprocess.Popen(command, env=child_environment())
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def memory_of(pid: int) -> dict[str, float]:
    """Return the memory of a process in MiB."""
    full = psutil.Process(pid).memory_full_info()
    return {"resident": full.rss / 2**20, "proportional": full.pss / 2**20}


if __name__ == "__main__":
    main()
