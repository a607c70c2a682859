"""A TinyLlama-1.1B shape under an Orin Nano 4GB's memory: NF4 takes its steps, fp32 is killed.

    python -m benchmarks.devices.enforced_memory_limit [--device orin-nano-4gb] \\
        [--shape tinyllama-1.1b]

A random checkpoint is written (2.2 GB, in a temporary folder). Then a client in a process of its
own, inside the memory that the profile leaves it, loads it and takes P-RGE steps in NF4 and fp32.
"""

import argparse
import subprocess
import sys
import tempfile

from benchmarks.speed.shapes import SHAPES
from samara.devices.hardware.memory_limit import LimitedRunResult, run_with_memory_limit
from samara.devices.hardware.profile import load_device

CLIENT = ["-m", "benchmarks.devices.quantized_memory"]


def client(shape: str, quantization: str, folder: str, limit_bytes: int) -> LimitedRunResult:
    """Run a client under a limit."""
    command = [sys.executable, *CLIENT, "--shape", shape, "--quantization", quantization]
    return run_with_memory_limit([*command, "--load", folder], limit_bytes)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="orin-nano-4gb")
    parser.add_argument("--shape", default="tinyllama-1.1b", choices=SHAPES)
    arguments = parser.parse_args()
    limit = load_device(arguments.device).usable_bytes
    with tempfile.TemporaryDirectory() as folder:
        write = [sys.executable, *CLIENT, "--shape", arguments.shape, "--write", folder]
        subprocess.run(write, check=True)
        endings = {kind: client(arguments.shape, kind, folder, limit) for kind in ("nf4", "none")}
    for kind, ending in endings.items():
        print(f"{'fp32' if kind == 'none' else kind}: {ending}")
    sys.exit(endings["nf4"].killed or not endings["none"].killed)


if __name__ == "__main__":
    main()
