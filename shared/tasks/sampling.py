"""Little data: so many examples of each split, drawn by a seed."""

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from shared.errors import DataError
from shared.tasks.data import SPLITS
from shared.tasks.rows import Example

LOW_DATA: Final[Mapping[str, int]] = MappingProxyType(
    {"train": 1_000, "validation": 500, "test": 1_000}
)
"""What MeZO (appendix E.1) and P-RGE (appendix A.3) train, validate and test on."""


def sample_splits(
    examples: Sequence[Example], counts: Mapping[str, int], seed: int
) -> list[Example]:
    """Draw so many examples of each split, every one as likely as any other.

    Neither labels nor users are balanced. The draw depends on the seed and on an example's place in
    its split alone: another wording of the task draws the same ones, and of two counts the smaller
    one's draw is part of the larger one's.

    Args:
        examples: of all splits.
        counts: most examples of each split that is wanted; a split with fewer gives all it has.
        seed: at least 0.

    Returns:
        The examples in the order in which they came.

    Raises:
        DataError: if a wanted split is empty, or a count or split makes no sense.
    """
    for split, count in counts.items():
        if split not in SPLITS or count < 1:
            raise DataError(
                f"cannot draw {count} examples of the split {split!r}; the splits are "
                f"{', '.join(SPLITS)}, and each count is at least 1"
            )
    kept: set[int] = set()
    for split, count in counts.items():
        places = [index for index, example in enumerate(examples) if example.split == split]
        if not places:
            raise DataError(
                f"the split {split!r} is empty; add rows to it, or leave its file out so that it "
                "is cut from the training rows"
            )
        drawn = sorted(range(len(places)), key=lambda rank: _draw(split, seed, rank))
        kept.update(places[rank] for rank in drawn[:count])
    return [example for index, example in enumerate(examples) if index in kept]


def _draw(split: str, seed: int, rank: int) -> bytes:
    return hashlib.sha256(f"{split} {seed} {rank}".encode()).digest()
