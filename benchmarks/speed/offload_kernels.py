"""Kernels of offloaded training on a core: products with sparse projectors, and Adam on the host.

    python -m benchmarks.speed.offload_kernels

Products: the whole way of a gradient, PᵀGQ, and of an update, W + PΔQᵀ, by dense products, by
torch's sparse ones and by ours. Adam: torch's optimizers, and a loop of our own that reads and
writes every number once. Times are of the processor's own clock, the best of several.
"""

import math
from functools import partial

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn

from benchmarks.speed.products import seconds
from samara.client.offload.host_adam import BETAS, EPSILON, HostAdam
from samara.client.offload.kernels import add_decompressed, compress
from samara.client.offload.projectors import ProjectorPair

SHAPES = ((320, 864, 40), (1024, 1024, 128), (2048, 2048, 256), (4096, 4096, 512))
NONZEROS = (2, 4, 16)
NUMBERS = (2**16, 2**20, 2**23)
RATE = 1e-3


def products(rows: int, columns: int, size: int, nonzeros: int) -> str:
    """Measure both directions for one shape; a row of a Markdown table, in ms."""
    pair = ProjectorPair.random((rows, columns), size, nonzeros, (0,), torch.device("cpu"))
    assert pair.left is not None
    assert pair.right is not None
    gradient, change = torch.randn(rows, columns), torch.randn(size, size)
    weight = torch.randn(rows, columns)
    p, q = pair.left.dense(), pair.right.dense()
    left, right, left_t, right_t = (
        pair.left.csr,
        pair.right.csr,
        pair.left.transposed_csr,
        pair.right.transposed_csr,
    )

    def sparse_compress() -> Tensor:
        return (right_t @ (left_t @ gradient).T.contiguous()).T

    def sparse_decompress() -> Tensor:
        return weight.add_(left @ (right @ change.T.contiguous()).T.contiguous())

    times = [
        seconds(lambda: p.T @ gradient @ q),
        seconds(sparse_compress),
        seconds(partial(compress, pair, gradient)),
        seconds(lambda: weight.addmm_(p, change @ q.T)),
        seconds(sparse_decompress),
        seconds(partial(add_decompressed, pair, change, weight)),
    ]
    cells = " | ".join(f"{1e3 * each:.3g}" for each in times)
    return f"| {rows} × {columns} | {size} | {nonzeros} | {cells} |"


@njit(fastmath=False)
def _own_adam(weight, gradient, first, second, rate, correction, beta1, beta2, epsilon):  # type: ignore[no-untyped-def]
    for index in range(weight.size):
        g = gradient[index]
        first[index] = beta1 * first[index] + (1 - beta1) * g
        second[index] = beta2 * second[index] + (1 - beta2) * g * g
        weight[index] -= rate * first[index] / (np.sqrt(second[index]) * correction + epsilon)


def adam(count: int) -> str:
    """Measure an update of so many numbers; a row of a Markdown table, in ns for each number."""
    gradient = torch.randn(count)
    times = []
    for fused in (False, True):
        weight = nn.Parameter(torch.randn(count))
        weight.grad = gradient.clone()
        times.append(seconds(torch.optim.Adam([weight], RATE, fused=fused).step))
    host = HostAdam((count,))
    times.append(seconds(partial(host.update, gradient, RATE)))
    arrays = [np.zeros(count, np.float32) for _ in range(3)]
    numbers = (np.float32(number) for number in (RATE, 1 / math.sqrt(0.5), *BETAS, EPSILON))
    times.append(seconds(partial(_own_adam, arrays[0], gradient.numpy(), *arrays[1:], *numbers)))
    return f"| {count:,} | " + " | ".join(f"{1e9 * each / count:.2f}" for each in times) + " |"


@torch.no_grad()
def main() -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    print("| W | s | r | PᵀGQ: dense | torch, sparse | ours | W + PΔQᵀ: dense | torch | ours |")
    print("|---" * 9 + "|")
    for rows, columns, size in SHAPES:
        for nonzeros in NONZEROS:
            print(products(rows, columns, size, nonzeros), flush=True)
    print("\n| numbers | torch's Adam | fused | fused on zeros, as here | numba |")
    print("|---" * 5 + "|")
    for count in NUMBERS:
        print(adam(count), flush=True)


if __name__ == "__main__":
    main()
