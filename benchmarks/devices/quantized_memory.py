"""P-RGE steps on a TinyLlama-1.1B shape in NF4: does the process stay small?

    python -m benchmarks.devices.quantized_memory [--shape tinyllama-1.1b] [--quantization nf4]

One process writes a random bfloat16 checkpoint, shard by shard, into a temporary folder (2.2 GB);
another loads it straight into quantized form, takes steps, and reports its peak resident memory,
the interpreter and all libraries included.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.speed.shapes import SHAPES, TASK, timed, write_checkpoint
from samara.client.forward.body import PerturbedBody
from samara.client.forward.grouping import Schedule
from samara.client.forward.resident import ResidentForward
from samara.shared.directions import directions
from samara.shared.label_scores import cross_entropy
from samara.shared.model.loading import load_base_model
from samara.shared.model.lora_fa import inject
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.scorers import CausalScorer, Prompt
from samara.shared.sections import AdapterSettings

LIMIT_BYTES = 2_500_000_000
SHARD_BYTES = 200 * 2**20
TOKENS, QUERIES, STEPS, EPSILON = 32, 2, 2, 0.01


def take_steps(folder: Path, quantization: str) -> dict[str, object]:
    """Load and step in this process; figures of it."""
    base = load_base_model(str(folder), "causal", "cpu", quantization)  # type: ignore[arg-type]
    after_loading = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    scorer = CausalScorer(base, TASK, TOKENS)
    adapter = inject(base, AdapterSettings(layers="top:1", rank=4), 2)
    forward = ResidentForward(adapter, scorer, PerturbedBody(base, 0))
    ids = np.random.default_rng(0).integers(12, 500, TOKENS)
    prompts = [Prompt((tuple(ids.tolist()),), ((TOKENS - 1,),))]
    center = np.zeros(adapter.layout.size, np.float32)
    gradients: list[NDArray[np.float32]] = []
    seconds: list[float] = []

    def step() -> None:
        seeds = np.arange(len(gradients), len(gradients) + QUERIES, dtype=np.uint64)
        z = directions(seeds, adapter.layout.size, "gaussian")
        perturbations = Perturbations.from_arrays(adapter.layout, center, z, EPSILON)
        losses = cross_entropy(
            forward.scores(perturbations, prompts, Schedule("both")), np.array([1])
        )
        plus, minus = np.split(losses, 2)
        gradients.extend(((plus - minus) / (2 * EPSILON)).tolist())

    for number in range(STEPS):
        seconds.append(timed(step, torch.device("cpu")))
        print(json.dumps({"step": number}), flush=True)
    return {
        "peak_bytes_after_loading": after_loading,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "seconds_per_step": seconds,
        "projected_gradients": gradients,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="tinyllama-1.1b", choices=SHAPES)
    parser.add_argument("--quantization", default="nf4", choices=["nf4", "int8", "none"])
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        write_checkpoint(arguments.shape, arguments.write, SHARD_BYTES, torch.bfloat16)
    elif arguments.load:
        print(json.dumps(take_steps(arguments.load, arguments.quantization)))
    else:
        with tempfile.TemporaryDirectory() as folder:
            begin = [
                sys.executable,
                "-m",
                "benchmarks.devices.quantized_memory",
                "--shape",
                arguments.shape,
            ]
            begin += ["--quantization", arguments.quantization]
            subprocess.run([*begin, "--write", folder], check=True)
            done = subprocess.run(
                [*begin, "--load", folder], check=True, capture_output=True, text=True
            )
        figures = json.loads(done.stdout.splitlines()[-1])
        print(json.dumps(figures, indent=2))
        inside = figures["peak_bytes"] < LIMIT_BYTES
        print(f"peak {figures['peak_bytes'] / 1e9:.2f} GB, {'inside' if inside else 'OVER'} 2.5 GB")
        sys.exit(not inside)


if __name__ == "__main__":
    main()
