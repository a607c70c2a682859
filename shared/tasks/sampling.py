"""Random samples of a few examples from each split."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from samara.shared.errors import DataError
from samara.shared.tasks.rows import Example
from samara.shared.tasks.sources import SPLITS

LOW_DATA: Final[Mapping[str, int]] = MappingProxyType(
    {"train": 1_000, "validation": 500, "test": 1_000}
)
"""Number of sampled examples of each split in MeZO (appendix E.1) and P-RGE (appendix A.3)."""


def sample_splits(
    examples: Sequence[Example], counts: Mapping[str, int], seed: int
) -> list[Example]:
    """Draw a number of examples from each split, all with equal probability.

    Neither labels nor users are balanced. The draw uses only the seed and the examples' indices in
    their split. So it does not change with the task's wording, and a smaller sample is part of a
    larger sample.

    Args:
        examples: examples of all splits.
        counts: number of examples for each split; a split with fewer examples is kept whole.
        seed: seed of the sample, at least 0.

    Returns:
        The examples in their original order.

    Raises:
        DataError: if a split is empty or unknown, or a count is less than 1.
    """
    for split, count in counts.items():
        if split not in SPLITS or count < 1:
            raise DataError(
                f"cannot draw {count} examples of the split {split!r}; the splits are "
                f"{', '.join(SPLITS)}, and each count must be at least 1"
            )
    kept: set[int] = set()
    for split, count in counts.items():
        drawn = _draw(examples, split, count, seed)
        _check_not_empty(len(drawn), split)
        kept.update(drawn)
    return [example for index, example in enumerate(examples) if index in kept]


def sample_each_label(
    examples: Sequence[Example], per_label: int, test: int, seed: int
) -> list[Example]:
    """Draw k training and k validation examples of every label, and some test examples.

    These are the few-shot and many-shot settings of MeZO (appendix E.1: k = 16 and 512). As in
    `sample_splits`, the draw uses only the seed and the examples' indices.

    Args:
        examples: examples of all splits.
        per_label: k, at least 1; all examples of a label are used if there are fewer.
        test: number of test examples; all if there are fewer.
        seed: seed of the sample, at least 0.

    Returns:
        The examples in their original order.

    Raises:
        DataError: if a split is empty.
    """
    kept: set[int] = set()
    for split in ("train", "validation"):
        taken: Counter[int] = Counter()
        for index in _drawn_order(examples, split, seed):
            label = examples[index].label
            if taken[label] < per_label:
                taken[label] += 1
                kept.add(index)
        _check_not_empty(taken.total(), split)
    drawn = _draw(examples, "test", test, seed)
    _check_not_empty(len(drawn), "test")
    kept.update(drawn)
    return [example for index, example in enumerate(examples) if index in kept]


def limit_evaluation(examples: Sequence[Example], limit: int, seed: int) -> list[Example]:
    """Limit the number of a client's validation and test examples.

    Args:
        examples: examples of all splits.
        limit: largest number of examples of each of the two splits; 0 for no limit.
        seed: seed of the choice, at least 0.

    Returns:
        The examples in their original order.
    """
    if not limit:
        return list(examples)
    kept = {index for index, example in enumerate(examples) if example.split == "train"}
    for split in ("validation", "test"):
        kept.update(_draw(examples, split, limit, seed))
    return [example for index, example in enumerate(examples) if index in kept]


def _draw(examples: Sequence[Example], split: str, count: int, seed: int) -> list[int]:
    """Return the indices of `count` examples of a split, or of all if there are fewer."""
    return _drawn_order(examples, split, seed)[:count]


def _drawn_order(examples: Sequence[Example], split: str, seed: int) -> list[int]:
    """Return the indices of all examples of a split, in the random order of drawing."""
    indices = [index for index, example in enumerate(examples) if example.split == split]
    order = sorted(range(len(indices)), key=lambda rank: _sort_key(split, seed, rank))
    return [indices[rank] for rank in order]


def _check_not_empty(count: int, split: str) -> None:
    if not count:
        raise DataError(
            f"the split {split!r} is empty; add rows to its file, or delete the file, so that the "
            "split is cut from the training rows"
        )


def _sort_key(split: str, seed: int, rank: int) -> bytes:
    return hashlib.sha256(f"{split} {seed} {rank}".encode()).digest()
