"""The examples of one client, tokenized, and the source that they come from.

A source either divides the examples of a task among simulated clients or gives all of them to the
one client of a device.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.errors import DataError
from shared.frames.instructions import Split
from shared.model.scorers import Prompt, Scorer
from shared.sections import EMBEDDED_DATA, DataSettings
from shared.tasks.data import load_examples
from shared.tasks.embedded import embedded_examples
from shared.tasks.kinds import Task
from shared.tasks.partition import partition
from shared.tasks.rows import Example, hash_examples

ExampleReader = Callable[[int], Sequence[Example]]
"""Gives the examples of a task on this machine, for a number of clients among whom they will be
divided; generated messages depend on that number."""


@dataclass(frozen=True, eq=False)
class LabelledPrompts:
    """One split of a client's data as the model reads it.

    Attributes:
        prompts: n tokenized examples.
        labels: int64 [n].
    """

    prompts: tuple[Prompt, ...]
    labels: NDArray[np.int64]


class ExampleTokenizer:
    """A scorer's tokenization, called by one thread at a time as fast tokenizers require.

    Attributes:
        lock: lock of the tokenizer.
    """

    def __init__(self, scorer: Scorer) -> None:
        self._scorer, self.lock = scorer, threading.Lock()

    def __call__(self, example: Example) -> Prompt:
        """Return an example as the model reads it."""
        with self.lock:
            return self._scorer.prompt(example.text, example.answers, example.cut)


class ClientData:
    """All examples of one client.

    Args:
        client: client index.
        examples: examples of all splits.
        tokenize: function that turns an example into a prompt.
        client_count: number of clients that a common data set is divided among; None if the
            examples are the client's own.

    Attributes:
        client: client index.
        examples: examples of all splits.
        client_count: number of clients that a common data set is divided among; None if the
            examples are the client's own.
        passes: number of rows that went through the model for the client's steps so far.
        has_passed: whether the first pass of a readout is among them.
    """

    def __init__(
        self,
        client: int,
        examples: Sequence[Example],
        tokenize: Callable[[Example], Prompt],
        client_count: int | None = None,
    ) -> None:
        self.client, self.examples, self.client_count = client, examples, client_count
        self.passes, self.has_passed = 0, False
        self._tokenize, self._lock = tokenize, threading.Lock()
        self._tokenized: dict[Split, LabelledPrompts] = {}
        self._hashes: dict[Split, str] = {}

    def take_passes(self) -> int:
        """Return the number of rows since the call before, and count from 0 again."""
        rows, self.passes = self.passes, 0
        return rows

    def in_split(self, split: Split) -> list[Example]:
        """Return the examples of a split, as text."""
        return [example for example in self.examples if example.split == split.name.lower()]

    def labels(self, split: Split) -> NDArray[np.int64]:
        """Return the labels of a split's examples, int64 [n]."""
        return np.array([example.label for example in self.in_split(split)], np.int64)

    def hash_of(self, split: Split) -> str:
        """Return a hash of a split's examples in hex, whatever their order; empty without any."""
        with self._lock:
            if split not in self._hashes:
                examples = self.in_split(split)
                self._hashes[split] = hash_examples(examples) if examples else ""
            return self._hashes[split]

    def tokenized(self, split: Split) -> LabelledPrompts:
        """Return the examples of a split, tokenized at the first call."""
        with self._lock:
            if split not in self._tokenized:
                self._tokenized[split] = LabelledPrompts(
                    tuple(self._tokenize(example) for example in self.in_split(split)),
                    self.labels(split),
                )
            return self._tokenized[split]


class ClientDataSource:
    """The examples of a task on this machine, as the data of clients; threads may share it.

    Args:
        examples: reader of the task's examples.
        settings: settings of their division among clients.
        tokenize: function that turns an example into a prompt.
    """

    def __init__(
        self,
        examples: ExampleReader,
        settings: DataSettings,
        tokenize: Callable[[Example], Prompt],
    ) -> None:
        self._examples, self._settings, self._tokenize = examples, settings, tokenize
        self._divided: dict[int, list[ClientData]] = {}
        self._lock = threading.Lock()

    def share_of(self, client: int, client_count: int) -> ClientData:
        """Return the data of one of several clients that the examples are divided among.

        Args:
            client: client index, below client_count.
            client_count: number of clients.

        Raises:
            DataError: if a client would have no training example, or the index is too large.
        """
        with self._lock:
            if client_count not in self._divided:
                self._divided[client_count] = self._divide(client_count)
            shares = self._divided[client_count]
        if client >= client_count:
            raise DataError(f"client {client} does not exist: there are {client_count}")
        return shares[client]

    def undivided(self, client: int) -> ClientData:
        """Return all examples as the data of one client.

        Args:
            client: client index; any 32 bits.
        """
        return ClientData(client, self._examples(1), self._tokenize)

    def _divide(self, client_count: int) -> list[ClientData]:
        settings, examples = self._settings, self._examples(max(1, client_count))
        shares = partition(
            examples, settings.partition, client_count, settings.alpha, settings.seed
        )
        return [
            ClientData(client, share, self._tokenize, client_count)
            for client, share in enumerate(shares)
        ]


def example_reader(task: Task, settings: DataSettings) -> ExampleReader:
    """Read a task's examples, and return the function that gives them.

    Args:
        task: task that the examples belong to.
        settings: settings that name the data; generated messages are written at each call, by as
            many writers as there are clients.

    Raises:
        DataError: if the data cannot be read.
    """
    if settings.path == EMBEDDED_DATA:
        return lambda client_count: embedded_examples(task, client_count, settings.seed)
    examples = load_examples(settings.path, task, settings.seed, settings.limit)
    return lambda client_count: examples
