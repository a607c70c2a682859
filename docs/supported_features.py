"""The supported combinations of features, for documentation and tests."""

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from samara.shared.settings.features import DIMENSIONS, EXCLUSIONS, FURTHER_EXCLUSIONS, Combination


@cache
def supported_combinations() -> tuple[Combination, ...]:
    """Return all supported combinations, each with a value in every dimension."""
    return tuple(map(combination_of, supported_indices()))


def find_supported(values: Combination) -> Combination | None:
    """Return the first supported combination with these values, or None."""
    table = supported_indices()
    one_each = {name: (value,) for name, value in values.items()}
    found = np.flatnonzero(_have(table, list(DIMENSIONS), one_each))
    return combination_of(table[found[0]]) if len(found) else None


@cache
def supported_indices() -> NDArray[np.int8]:
    """Return all supported combinations as indices of values, int8 [combinations, dimensions]."""
    known: list[str] = []
    table = np.zeros((1, 0), np.int8)
    for name, values in DIMENSIONS.items():
        known.append(name)
        added = np.tile(np.arange(len(values), dtype=np.int8), len(table))
        table = np.column_stack([np.repeat(table, len(values), axis=0), added])
        for exclusion in (*EXCLUSIONS, *FURTHER_EXCLUSIONS):
            if name in exclusion.values and exclusion.values.keys() <= set(known):
                table = table[~_have(table, known, exclusion.values)]
    return table


def combination_of(indices: NDArray[np.int8]) -> Combination:
    """Return a combination, given the index of its value in each dimension, int8 [dimensions]."""
    named = zip(DIMENSIONS.items(), indices.tolist(), strict=True)
    return {name: values[index] for (name, values), index in named}


def _have(
    table: NDArray[np.int8], known: Sequence[str], values: Mapping[str, tuple[str, ...]]
) -> NDArray[np.bool_]:
    """Return a mask of the rows whose value in each given dimension is one of some values.

    Args:
        table: indices of values, int8 [rows, dimensions].
        known: names of the dimensions, in the order of the columns.
        values: accepted values by dimension.
    """
    columns = [
        np.isin(table[:, known.index(name)], [DIMENSIONS[name].index(value) for value in some])
        for name, some in values.items()
    ]
    found: NDArray[np.bool_] = np.logical_and.reduce(columns)
    return found
