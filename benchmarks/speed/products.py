"""Float32 products on a core: torch's choice (MKL on x86) against `samara.shared.model.products`.

    python -m benchmarks.speed.products

Times are of the processor's own clock, the best of many.
"""

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from samara.shared.model.products import linear

ROWS = (1, 16, 64, 256, 2048)
FEATURES = ((128, 384), (384, 384), (384, 1536), (2048, 2048))
LOOKS, LEAST_SECONDS = 15, 2e-3


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds of one call, the best of several measurements."""
    work()
    begun = time.process_time()
    work()
    calls = max(1, round(LEAST_SECONDS / max(time.process_time() - begun, 1e-6)))
    best = float("inf")
    for _ in range(LOOKS):
        begun = time.process_time()
        for _ in range(calls):
            work()
        best = min(best, (time.process_time() - begun) / calls)
    return best


@torch.inference_mode()
def main() -> None:
    """Print a table of Gop/s."""
    torch.set_num_threads(1)
    print(f"{torch.backends.cpu.get_cpu_capability()}; Gop/s, torch's choice and ours")
    for inputs, outputs in FEATURES:
        weight, cells = torch.randn(outputs, inputs), []
        for rows in ROWS:
            x = torch.randn(rows, inputs)
            operations = 2e-9 * rows * inputs * outputs
            theirs = operations / seconds(partial(nn.functional.linear, x, weight))
            ours = operations / seconds(partial(linear, x, weight))
            cells.append(f"{rows} rows {theirs:.0f} {ours:.0f}")
        print(f"{inputs} to {outputs}: " + ", ".join(cells))


if __name__ == "__main__":
    main()
