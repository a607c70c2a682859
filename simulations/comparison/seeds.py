"""The seeds of compared runs, as far as they draw the splits of the data."""

from collections.abc import Mapping, Sequence
from typing import Any

DATA_SEED = "data.seed"


def seeds_draw_splits(configs: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the split of every run is that of its seed, and not the same for all."""
    follows = all(config.get(DATA_SEED) == config.get("seed") for config in configs)
    return follows and len({config.get(DATA_SEED) for config in configs}) > 1


def describe_seeds(configs: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence about what draws the splits of runs that differ in their seeds.

    Args:
        configs: settings of the runs by dotted key, at least one.
    """
    drawn = {config.get("data.seed", 0) for config in configs}
    if len(drawn) == 1:
        return f"one split of the data, that of data.seed {drawn.pop()}, for all seeds"
    if all(config.get("data.seed") == config.get("seed") for config in configs):
        return "every seed draws its own split of the data: data.seed follows seed"
    return f"splits of the data of data.seed {', '.join(sorted(map(str, drawn)))}"
