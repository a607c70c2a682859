"""The frozen matrices A of LoRA-FA, which are generated from the layout's seed."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from samara.shared.protocol.directions import DIRECTION_BITS, Domain, normals, query_seeds
from samara.shared.protocol.layout import Layout


def frozen_matrices(layout: Layout, in_features: Sequence[int]) -> list[NDArray[np.float32]]:
    """Return the frozen A of every adapted layer, float32 [rank, in], in the layout's order."""
    seeds = query_seeds(layout.a_seed, 0, 1, len(in_features))[0]
    return [
        frozen_a(int(seed), layout.rank, size)
        for seed, size in zip(seeds, in_features, strict=True)
    ]


def frozen_a(seed: int, rank: int, features: int) -> NDArray[np.float32]:
    """Return the frozen matrix A of a layer, float32 [rank, in], with entries from N(0, 1/in)."""
    numbers = normals(np.array([seed], np.uint64), rank * features, Domain.LORA_A)
    scale = np.float32(2.0**-DIRECTION_BITS / math.sqrt(features))
    return (numbers.astype(np.float32) * scale).reshape(rank, features)
