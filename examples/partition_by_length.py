"""A custom partition, in which some clients write short texts and others write long texts.

Real clients differ in more than their labels. Here the first client gets the shortest texts and the
last client gets the longest texts. Each split is divided separately, so that every client has
training and test examples.

    python examples/partition_by_length.py
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import samara


def by_length(
    examples: Sequence[samara.register.Example], clients: int, alpha: float, seed: int
) -> NDArray[np.int64]:
    """Return the client index of each example, int64 [examples].

    The texts of each split are sorted by length and divided into equal shares.
    """
    lengths = np.array([len(example.text) for example in examples])
    splits = np.array([example.split for example in examples])
    numbers = np.empty(len(examples), np.int64)
    for split in np.unique(splits):
        (rows,) = np.nonzero(splits == split)
        ranks = np.argsort(np.argsort(lengths[rows], kind="stable"), kind="stable")
        numbers[rows] = ranks * clients // len(rows)
    return numbers


def main(rounds: int = 10, clients: int = 8) -> samara.Comparison:
    """Run with this partition, print the results of every client, and return the comparison."""
    samara.register.partition("by-length", by_length)
    run = samara.simulate(
        {"rounds": rounds, "data.clients": clients, "personal.rounds": 0},
        data={"partition": "by-length"},
    )
    print(run)
    return run.compare()


if __name__ == "__main__":
    main()
