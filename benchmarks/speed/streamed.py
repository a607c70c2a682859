"""A model three times its memory takes LoRA-FA steps from disk: how much longer than it must?

    python -m benchmarks.speed.streamed [--shape tinyllama-1.1b] [--limit 1500000000] [--json FILE]

A random float32 checkpoint is written into a temporary folder (4.4 GB). Then a process of its own,
which the kernel ends at the limit, loads it streamed and takes P-RGE steps, in turn with the same
step without reading and with reading without a step: so all three see the same machine. Once every
cold measurement begins with none of the file's pages in memory, once all of them are there. Beside
the seconds on the clock stand those that all threads of the process spent on processors: where
other work leaves too few, reading and computing cannot go on at once. At the end the first step is
taken without a limit by a resident model, whose projected gradients must be the same.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.speed.shapes import SHAPES, TASK, write_checkpoint
from samara.client.forward.grouping import Schedule
from samara.client.forward.streamed import make_forward_engine
from samara.client.streaming import loading
from samara.devices.hardware.memory_limit import run_with_memory_limit
from samara.shared.directions import directions
from samara.shared.label_scores import cross_entropy
from samara.shared.machine import peak_memory_bytes
from samara.shared.model.lora_fa import inject
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.scorers import CausalScorer, Prompt
from samara.shared.sections import AdapterSettings, ModelSettings

LIMIT_BYTES = 1_500_000_000
SHARD_BYTES = 400 * 2**20
EPSILON = 0.01


def measure(folder: Path, kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Take steps in this process; seconds of each kind of measurement."""
    stream_from = "off" if kind == "resident" else "disk"
    settings = {
        "path": str(folder),
        "stream": stream_from,
        "quantization": arguments.quantization,
    }
    loading.HELD_SHARE = 0.0 if arguments.direct else math.inf
    loaded = loading.load_model(
        ModelSettings.model_validate(settings, by_alias=False, by_name=True)
    )
    base, store, stream = loaded.base, loaded.store, loaded.make_stream(loaded.base)
    scorer = CausalScorer(base, TASK, arguments.tokens)
    adapter = inject(base, AdapterSettings(layers="all", rank=4), 2)
    forward = make_forward_engine(base, adapter, scorer, stream is not None)
    ids = np.random.default_rng(0).integers(12, 500, (arguments.batch, arguments.tokens))
    prompts = [Prompt((tuple(row),), ((len(row) - 1,),)) for row in ids.tolist()]
    center = np.zeros(adapter.layout.size, np.float32)
    gradients: list[float] = []

    def step() -> None:
        first = len(gradients)
        seeds = np.arange(first, first + arguments.queries, dtype=np.uint64)
        z = directions(seeds, adapter.layout.size, "gaussian")
        perturbations = Perturbations.from_arrays(adapter.layout, center, z, EPSILON)
        scores = forward.scores(perturbations, prompts, Schedule("both"))
        plus, minus = np.split(cross_entropy(scores, np.ones(len(prompts), np.int64)), 2)
        gradients.extend(((plus - minus) / (2 * EPSILON)).tolist())

    step()
    first_gradients = list(gradients)
    if stream is None or store is None:
        return {"projected_gradients": first_gradients}

    def read() -> None:
        for block in range(stream.block_count):
            stream.load_block(block)

    def compute() -> None:
        fetch = store.fetch
        store.fetch = lambda block, host_buffer: None  # type: ignore[method-assign]
        step()
        store.fetch = fetch  # type: ignore[method-assign]

    seconds: dict[str, list[float]] = {"compute": [], "read": [], "step": []}
    processor: dict[str, list[float]] = {name: [] for name in seconds}
    work: dict[str, Callable[[], None]] = {"compute": compute, "read": read, "step": step}
    for turn in range(arguments.turns):
        for name, run in work.items():
            stream.finish_writes()
            if kind == "cold":
                drop_pages(folder)
            begun, used = time.perf_counter(), time.process_time()
            run()
            seconds[name].append(time.perf_counter() - begun)
            processor[name].append(time.process_time() - used)
            print(
                json.dumps({"step": turn, "what": name, "seconds": seconds[name][-1]}), flush=True
            )
    return {
        "block_bytes": store.bytes,
        "seconds": seconds,
        "processor_seconds": processor,
        "peak_resident_bytes": peak_memory_bytes(),
        "projected_gradients": first_gradients,
    }


def drop_pages(folder: Path) -> None:
    """Have the kernel forget a folder's files; they must have reached the disk."""
    for file in folder.rglob("*.safetensors"):
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def fill_pages(folder: Path) -> None:
    """Have the kernel know a folder's files; their pages are not counted to the capped process."""
    for file in folder.rglob("*.safetensors"):
        with file.open("rb") as stream:
            while stream.read(2**24):
                pass


def summary(figures: dict[str, Any]) -> dict[str, float]:
    """Medians, and the step against whichever takes longer, computing or reading."""
    medians = {name: statistics.median(times) for name, times in figures["seconds"].items()}
    turns = zip(*(figures["seconds"][name] for name in ("compute", "read", "step")), strict=True)
    ratio = statistics.median(step / max(compute, read) for compute, read, step in turns)
    rate = figures["block_bytes"] / medians["read"]
    processor = {
        f"{name}, processor": statistics.median(times)
        for name, times in figures["processor_seconds"].items()
    }
    return medians | processor | {"step / max(compute, read)": ratio, "MB/s": rate / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="tinyllama-1.1b", choices=SHAPES)
    parser.add_argument("--quantization", default="none", choices=["none", "nf4", "int8"])
    parser.add_argument("--limit", type=int, default=LIMIT_BYTES)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--queries", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--direct", action="store_true", help="past the page cache")
    parser.add_argument("--folder", type=Path, help="for the checkpoint; kept and used again")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", choices=["cold", "warm", "resident"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        print(json.dumps(measure(arguments.folder, arguments.measure, arguments)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "config.json").exists():
            write_checkpoint(arguments.shape, folder, SHARD_BYTES, torch.float32)
        subprocess.run(["sync"], check=True)
        results: dict[str, Any] = {"limit_bytes": arguments.limit}
        given = [sys.executable, "-m", "benchmarks.speed.streamed", "--folder", str(folder)]
        for name in ("quantization", "tokens", "queries", "batch", "turns"):
            given += [f"--{name}", str(getattr(arguments, name))]
        given += ["--direct"] if arguments.direct else []
        for kind in ("cold", "warm"):
            fill_pages(folder) if kind == "warm" else drop_pages(folder)
            lines: list[str] = []
            ending = run_with_memory_limit(
                [*given, "--measure", kind], arguments.limit, lines.append
            )
            print(f"{kind}: {ending}")
            if ending.status:
                sys.exit(f"{kind}: ended with status {ending.status}")
            figures = json.loads(lines[-1])
            results[kind] = figures | {"summary": summary(figures), "ending": str(ending)}
            for name, value in results[kind]["summary"].items():
                print(f"  {name}: {value:.3f}")
        resident = subprocess.run(
            [*given, "--measure", "resident"], check=True, stdout=subprocess.PIPE, text=True
        )
    wanted = json.loads(resident.stdout.splitlines()[-1])["projected_gradients"]
    same = all(results[kind]["projected_gradients"] == wanted for kind in ("cold", "warm"))
    print(f"projected gradients of the resident model: {'the same' if same else 'OTHERS'}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    sys.exit(not same)


if __name__ == "__main__":
    main()
