"""Time and additional memory of the replay of a long ledger from disk.

    python -m benchmarks.speed.ledger_replay [--rounds 10000] [--clients 1] [--seeds 32]
        [--elements 811008] [--distribution gaussian] [--ledger FOLDER]

The ledger is written by the same replay without snapshots, so writing takes as long as reading.
With `--ledger`, the ledger is kept, and an existing ledger is not written again. A separate process
first opens a ledger of one round, so that everything is loaded and compiled. It then opens the long
ledger. CPU seconds and the kernel's peak memory refer to this second opening.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from samara.shared.protocol.directions import round_root
from samara.shared.protocol.layout import ADAPTER_GROUP, Layout, Tensor
from samara.shared.protocol.ledger.ledger import Ledger
from samara.shared.protocol.ledger.records import LedgerHeader
from samara.shared.protocol.replay import quantize
from samara.shared.protocol.round_delta import Contributor, DerivedSeeds, Group, RoundDelta

MIB = 2**20


def opened(folder: Path, layout: Layout) -> Ledger:
    return Ledger(folder, LedgerHeader(0, b"replays!", layout.hash), layout, 0)


def write(folder: Path, rounds: int, clients: int, seeds: int, layout: Layout) -> None:
    """Extend a ledger to a number of rounds, each with a number of seeds of every client."""
    ledger = opened(folder, layout)
    for number in range(ledger.position.round + 1, rounds + 1):
        coefficients = np.random.default_rng(number).normal(scale=1e-4, size=(clients, seeds))
        root = round_root(0, number, 0)
        groups = tuple(
            Group(number, DerivedSeeds(root, client + 1, 1, seeds), block)
            for client in range(clients)
            for block in quantize(coefficients[client])
        )
        contributors = tuple(Contributor(client, 1, 1) for client in range(clients))
        ledger.append(RoundDelta(number, 0, bytes(8), contributors, groups))
    ledger.close()


def peak_bytes() -> int:
    """Return the peak memory of the process since the last `forget_peak`, or since its start."""
    try:
        status = Path("/proc/self/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def forget_peak() -> None:
    """Reset the peak memory of the process, if the kernel supports it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        print("the kernel cannot reset the peak memory; the peak may come from the warm-up")


def measure(warm: Path, folder: Path, layout: Layout) -> dict[str, float]:
    """Open a short ledger, then measure the opening of the long ledger."""
    opened(warm, layout).close()
    forget_peak()
    before, begun = psutil.Process().memory_info().rss, time.perf_counter()
    cpu_begun = time.process_time()
    ledger = opened(folder, layout)
    seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu_begun
    return {
        "rounds": ledger.position.round,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "more_bytes": peak_bytes() - before,
        "ledger_bytes": sum(path.stat().st_size for path in folder.iterdir()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument("--elements", type=int, default=811_008)
    parser.add_argument("--distribution", default="gaussian", choices=["gaussian", "rademacher"])
    parser.add_argument("--ledger", type=Path)
    parser.add_argument("--measure", nargs=2, type=Path, help=argparse.SUPPRESS)
    a = parser.parse_args()
    layout = Layout((Tensor("b", a.elements, 1, ADAPTER_GROUP),), 1, 1.0, 0, a.distribution)
    if a.measure:
        warm, folder = a.measure
        print(json.dumps(measure(warm, folder, layout)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder, warm = a.ledger or Path(name) / "ledger", Path(name) / "warm"
        write(warm, 1, a.clients, a.seeds, layout)
        write(folder, a.rounds, a.clients, a.seeds, layout)
        command = [sys.executable, "-m", "benchmarks.speed.ledger_replay", *sys.argv[1:]]
        command += ["--measure", str(warm), str(folder)]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    *notes, figures = said.splitlines()
    result = json.loads(figures)
    print(*notes, sep="\n", end="\n" if notes else "")
    directions = result["rounds"] * a.clients * a.seeds
    print(
        f"{result['rounds']:,} rounds of {a.clients * a.seeds:,} seeds, {a.elements:,} elements, "
        f"{result['ledger_bytes'] / 1e6:.1f} MB of ledger\n"
        f"{result['seconds']:.1f} s, {result['cpu_seconds']:.1f} CPU s, "
        f"{directions * a.elements / result['seconds']:.3g} elements/s\n"
        f"peak {result['more_bytes'] / MIB:.1f} MiB over the warm process; "
        f"the state has {8 * a.elements / MIB:.1f} MiB"
    )


if __name__ == "__main__":
    main()
