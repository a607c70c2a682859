"""A store of the representations of a readout's examples, by split, under a byte budget."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from samara.client.forward.trunk_cache import DiskCache
from samara.shared.model.cache_key import cache_key, model_inputs, scorer_inputs
from samara.shared.model.loading import BaseModel
from samara.shared.model.scorers import Prompt, Scorer

_KIND = "representations 2"


Division = tuple[int, int]
"""Number of examples in a forward pass, and number of torch threads."""


@dataclass(eq=False)
class SplitRows:
    """The examples of a split, which share forward passes, and the numbers computed from them.

    Attributes:
        prompts: the examples. They stay referenced here, because they are found by Python id.
        first: index of the first example among the examples of all splits.
        numbers: base model's scores and features, float32 [n, labels + features]; None if not in
            memory.
        division: micro-batch and number of threads that computed the numbers; the last bits depend
            on them.
        computing: lock held while the numbers are computed.
    """

    prompts: tuple[Prompt, ...]
    first: int
    numbers: Tensor | None = None
    division: Division | None = None
    computing: threading.Lock = field(default_factory=threading.Lock)


class RepresentationStore:
    """A thread-safe store of splits with representations in memory, under a byte budget.

    The least recently used split is evicted first, and computed again when needed.

    Args:
        limit: maximum size in memory, in bytes; the latest split always stays.
        disk: cache on disk of scores and undamped representations; None without a cache.
    """

    def __init__(self, limit: int, disk: DiskCache | None = None) -> None:
        self.disk, self._limit, self._lock = disk, limit, threading.Lock()
        self._splits: dict[tuple[int, ...], SplitRows] = {}
        self._by_sequence: dict[int, SplitRows] = {}
        self._index_of: dict[int, int] = {}
        self._next_index = 0
        self._kept: OrderedDict[int, SplitRows] = OrderedDict()

    def split(self, prompts: Sequence[Prompt], lasting: bool = True) -> SplitRows:
        """Return the split that consists of exactly these examples, after adding it if it is new.

        Args:
            prompts: the examples.
            lasting: whether `locate` uses this split, rather than an earlier one, for examples
                that are in both.
        """
        ids = tuple(map(id, prompts))
        with self._lock:
            if ids not in self._splits:
                self._splits[ids] = SplitRows(tuple(prompts), self._next_index)
                self._next_index += len(ids)
            split = self._splits[ids]
            self._by_sequence[id(split.prompts)] = split
            indices = zip(ids, range(split.first, split.first + len(ids)), strict=True)
            if lasting:
                self._index_of.update(indices)
            else:
                for identity, index in indices:
                    self._index_of.setdefault(identity, index)
            return split

    def whole(self, prompts: Sequence[Prompt]) -> SplitRows | None:
        """Return the split whose attribute `prompts` is the given object, or None."""
        with self._lock:
            split = self._by_sequence.get(id(prompts))
        return split if split is not None and split.prompts is prompts else None

    def locate(self, prompts: Sequence[Prompt]) -> tuple[list[SplitRows], NDArray[np.int64]] | None:
        """Return the splits that contain the given examples; None if an example has no split.

        Returns:
            The splits, each once, and each example's row in their concatenated numbers, int64 [n].
        """
        with self._lock:
            indices = list(map(self._index_of.get, map(id, prompts)))
            splits = list(self._splits.values())
        if None in indices:
            return None
        rows = np.array(indices, np.int64)
        firsts = np.array([split.first for split in splits])
        which = np.searchsorted(firsts, rows, side="right") - 1
        is_used = np.bincount(which, minlength=len(splits)) > 0
        used = [split for split, one_is_used in zip(splits, is_used, strict=True) if one_is_used]
        starts = np.zeros_like(firsts)
        starts[is_used] = np.cumsum([0, *(len(split.prompts) for split in used[:-1])])
        return used, rows + (starts - firsts)[which]

    def keep_only(self, splits: Sequence[Sequence[Prompt]]) -> None:
        """Discard all splits that do not consist of exactly one of the given groups of examples."""
        with self._lock:
            kept = {tuple(map(id, prompts)) for prompts in splits}
            for ids in self._splits.keys() - kept:
                dropped = self._splits.pop(ids)
                del self._by_sequence[id(dropped.prompts)]
                self._kept.pop(id(dropped), None)
                for index, identity in enumerate(ids, dropped.first):
                    if self._index_of.get(identity) == index:
                        del self._index_of[identity]

    def numbers(
        self,
        split: SplitRows,
        division: Division,
        compute: Callable[[Sequence[Prompt]], Tensor],
    ) -> Tensor:
        """Return a split's base model scores and features, computing them if necessary.

        Numbers in memory are used if they were computed with the same division into passes.

        Args:
            split: the split.
            division: number of examples in a forward pass, and number of torch threads.
            compute: function that computes the numbers of n examples, float32 [n, labels +
                features].
        """
        with split.computing:
            numbers = split.numbers
            if numbers is None or split.division != division:
                numbers = compute(split.prompts)
                self._keep(split, numbers, division)
        with self._lock:
            if id(split) in self._kept:
                self._kept.move_to_end(id(split))
        return numbers

    def _keep(self, split: SplitRows, numbers: Tensor, division: Division) -> None:
        with self._lock:
            split.numbers, split.division = numbers, division
            self._kept[id(split)] = split
            self._kept.move_to_end(id(split))
            total = sum(map(_bytes, self._kept.values()))
            while total > self._limit and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                total -= _bytes(dropped)
                dropped.numbers = None


def _bytes(split: SplitRows) -> int:
    return 0 if split.numbers is None else split.numbers.nbytes


def make_representation_store(
    base: BaseModel, scorer: Scorer, limit: int, folder: Path | None = None
) -> RepresentationStore:
    """Make a store of representations.

    Args:
        base: the model.
        scorer: scorer of the task.
        limit: maximum size in bytes in memory, and the same on disk.
        folder: folder for a cache on disk, if any.

    Raises:
        ConfigError: if the folder cannot be used.
    """
    if folder is None or not limit:
        return RepresentationStore(limit)
    key = cache_key(_KIND, model=model_inputs(base), scorer=scorer_inputs(scorer))
    width = scorer.labels + base.features
    return RepresentationStore(limit, DiskCache(folder, limit, key, width, exact=True))
