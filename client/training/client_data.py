"""The tokenized examples of one client, and their source.

A source either divides the examples of a task among simulated clients, or gives all of them to the
only client of a device.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import ConfigError, DataError
from samara.shared.model.scorers import GenerationScorer, Prompt, Scorer
from samara.shared.model.windows import cut_into_windows
from samara.shared.protocol.frames.instructions import Split
from samara.shared.settings.data import DataSettings
from samara.shared.tasks.base_task import USER_FIELD
from samara.shared.tasks.data import load_examples
from samara.shared.tasks.embedded import check_data_is_given, embedded_examples
from samara.shared.tasks.kinds import Task
from samara.shared.tasks.messages import EMBEDDED_DATA
from samara.shared.tasks.partition import partition
from samara.shared.tasks.rows import Example, hash_examples
from samara.shared.tasks.sampling import limit_evaluation

ExampleReader = Callable[[int], Sequence[Example]]
"""A function that takes a number of clients, and returns the examples of a task on this machine.

The examples will be divided among these clients. The number of generated messages depends on the
number of clients.
"""


@dataclass(frozen=True, eq=False)
class LabelledPrompts:
    """The tokenized examples of one split of a client's data, with their labels.

    Attributes:
        prompts: n tokenized examples.
        labels: label of each example, int64 [n].
        parts: groups of the examples. A readout computes and caches the features of a group
            together. Each group has more examples than the next group.
    """

    prompts: tuple[Prompt, ...]
    labels: NDArray[np.int64]
    parts: tuple[tuple[Prompt, ...], ...]

    @property
    def token_counts(self) -> NDArray[np.int64]:
        """Number of tokens in the answer of each example of a generation task, int64 [n]."""
        return np.array([len(prompt.targets[0]) for prompt in self.prompts], np.int64)

    @property
    def byte_count(self) -> int:
        """Total length of all answers of a generation task, in bytes of UTF-8."""
        return sum(prompt.target_bytes for prompt in self.prompts)

    def first(self, count: int | None) -> "LabelledPrompts":
        """Return the first `count` examples; all examples if `count` is None."""
        return LabelledPrompts(self.prompts[:count], self.labels[:count], self.parts)


class ExampleTokenizer:
    """The tokenization of a scorer behind a lock, because fast tokenizers allow only one thread.

    Attributes:
        lock: lock of the tokenizer.
    """

    def __init__(self, scorer: Scorer) -> None:
        self._scorer, self.lock = scorer, threading.Lock()

    def __call__(self, example: Example) -> Prompt:
        """Return the prompt of an example."""
        with self.lock:
            return self._scorer.prompt(example.text, example.answers, example.cut)

    @property
    def stop(self) -> str:
        """Text that ends an answer of a generation task; empty for other tasks."""
        return self._scorer.stop if isinstance(self._scorer, GenerationScorer) else ""

    def fits(self, example: Example) -> bool:
        """Return whether all text before a generated answer fits into the model's context."""
        scorer = self._scorer
        assert isinstance(scorer, GenerationScorer)
        (stem,) = self(replace(example, answers=())).sequences
        return len(stem) < scorer.max_length - scorer.most_tokens - 1

    def windows(self, examples: Sequence[Example]) -> Sequence[Example]:
        """Return examples in which long plain texts are cut into windows."""
        if not isinstance(self._scorer, GenerationScorer) or not self._scorer.is_plain_text:
            return examples
        with self.lock:
            return cut_into_windows(examples, self._scorer)


class ClientData:
    """All examples of one client, which only `replace_examples` can change.

    Args:
        client: client index.
        examples: examples of all splits.
        tokenize: function that turns an example into a prompt.
        client_count: number of clients among which a common data set is divided; None if the data
            belong to this client alone.

    Attributes:
        client: client index.
        examples: examples of all splits.
        client_count: number of clients among which a common data set is divided; None if the data
            belong to this client alone.
        most_evaluated: maximum number of examples that an evaluation of the current run may use,
            by split, as declared in the client's hello. Other splits are not limited.
        passes: number of rows that went through the model for the client's steps so far.
        has_passed: whether `passes` includes the pass that computes a readout's features.
    """

    def __init__(
        self,
        client: int,
        examples: Sequence[Example],
        tokenize: Callable[[Example], Prompt],
        client_count: int | None = None,
    ) -> None:
        self.client, self.examples, self.client_count = client, examples, client_count
        self.most_evaluated: Mapping[Split, int] = {}
        self.passes, self.has_passed = 0, False
        self._tokenize, self._lock = tokenize, threading.Lock()
        self._tokenized: dict[Split, LabelledPrompts] = {}
        self._hashes: dict[Split, str] = {}

    def take_passes(self) -> int:
        """Return the number of rows run since the last call, and restart the count."""
        rows, self.passes = self.passes, 0
        return rows

    def in_split(self, split: Split) -> list[Example]:
        """Return the examples of a split, as text."""
        return [example for example in self.examples if example.split == split.name.lower()]

    def labels(self, split: Split) -> NDArray[np.int64]:
        """Return the labels of a split's examples, int64 [n]."""
        return np.array([example.label for example in self.in_split(split)], np.int64)

    def hash_of(self, split: Split) -> str:
        """Return an order-independent hash of a split's examples in hex; empty without examples."""
        with self._lock:
            if split not in self._hashes:
                examples = self.in_split(split)
                self._hashes[split] = hash_examples(examples) if examples else ""
            return self._hashes[split]

    def tokenized(self, split: Split) -> LabelledPrompts:
        """Return the tokenized examples of a split; the first call tokenizes them."""
        with self._lock:
            if split not in self._tokenized:
                prompts = tuple(self._tokenize(example) for example in self.in_split(split))
                self._tokenized[split] = LabelledPrompts(prompts, self.labels(split), (prompts,))
            return self._tokenized[split]

    def some_prompts(self, split: Split, most: int) -> list[Prompt]:
        """Return up to `most` prompts of a split, spread evenly over the split."""
        examples = self.in_split(split)
        step = max(1, math.ceil(len(examples) / most))
        if step == 1:
            return list(self.tokenized(split).prompts)
        return [self._tokenize(example) for example in examples[::step]]

    def evaluated(self, split: Split) -> LabelledPrompts:
        """Return the tokenized examples that an evaluation of a split uses (`most_evaluated`)."""
        return self.tokenized(split).first(self.most_evaluated.get(split))

    def evaluated_texts(self, split: Split) -> list[Example]:
        """Return the examples that an evaluation of a split uses, as text."""
        return self.in_split(split)[: self.most_evaluated.get(split)]

    def replace_examples(self, examples: Sequence[Example], afresh: bool = False) -> None:
        """Replace all examples.

        Args:
            examples: examples of all splits.
            afresh: whether to recompute all prompts and parts, as for a new client. Otherwise the
                remaining examples keep their prompts and parts.
        """
        with self._lock:
            if afresh:
                self._tokenized.clear()
            before = {
                split: dict(zip(self.in_split(split), tokenized.prompts, strict=True))
                for split, tokenized in self._tokenized.items()
            }
            self.examples = examples
            self._hashes.clear()
            for split, known in before.items():
                prompts = tuple(
                    known.get(example) or self._tokenize(example)
                    for example in self.in_split(split)
                )
                parts = grown_parts(self._tokenized[split].parts, prompts)
                self._tokenized[split] = LabelledPrompts(prompts, self.labels(split), parts)

    def parts(self) -> list[tuple[Prompt, ...]]:
        """Return the parts of all splits that have been tokenized; see `LabelledPrompts`."""
        with self._lock:
            return [part for split in self._tokenized.values() for part in split.parts]


def grown_parts(
    parts: Sequence[tuple[Prompt, ...]], prompts: Sequence[Prompt]
) -> tuple[tuple[Prompt, ...], ...]:
    """Return the parts of some examples, given the parts of the previous examples.

    New examples form a new part. A part that is not longer than the next part is then merged with
    it. This keeps the number of parts small. An example is computed again only when the number of
    examples has about doubled.

    Args:
        parts: parts of the previous examples. A part stays the same as long as one of its examples
            remains.
        prompts: the present examples.
    """
    present, known = set(map(id, prompts)), {id(one) for part in parts for one in part}
    kept = [part for part in parts if any(id(one) in present for one in part)]
    if new := tuple(one for one in prompts if id(one) not in known):
        kept.append(new)
    while len(kept) > 1 and len(kept[-2]) <= len(kept[-1]):
        last = kept.pop()
        kept[-1] = tuple(one for one in (*kept[-1], *last) if id(one) in present)
    return tuple(kept)


class ClientDataSource:
    """The source of all clients' data on this machine; threads may share it.

    Args:
        examples: function that returns the task's examples for a number of clients.
        settings: settings of the examples' division among clients.
        tokenize: function that turns an example into a prompt.
        evaluated: maximum number of examples in the validation split of a client, and in its test
            split; 0 for all.
    """

    def __init__(
        self,
        examples: ExampleReader,
        settings: DataSettings,
        tokenize: Callable[[Example], Prompt],
        evaluated: int = 0,
    ) -> None:
        self._evaluated = evaluated
        self._examples, self._settings, self._tokenize = examples, settings, tokenize
        self._divided: dict[int, list[ClientData]] = {}
        self._lock = threading.Lock()

    def share_of(self, client: int, client_count: int) -> ClientData:
        """Return the data of one of the clients among which the examples are divided.

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
            raise DataError(
                f"client {client} does not exist: there are {client_count} clients; use an index "
                f"below {client_count}"
            )
        return shares[client]

    def examples_for(self, client_count: int) -> Sequence[Example]:
        """Return all examples, before their division among `client_count` clients."""
        return self._examples(max(1, client_count))

    def undivided(self, client: int) -> ClientData:
        """Return all examples as the data of one client.

        Args:
            client: client index; any 32 bits.
        """
        return ClientData(client, self._examples(1), self._tokenize)

    def _divide(self, client_count: int) -> list[ClientData]:
        settings, examples = self._settings, self.examples_for(client_count)
        shares = partition(
            examples, settings.partition, client_count, settings.alpha, settings.seed
        )
        return [
            ClientData(client, self._limited(share), self._tokenize, client_count)
            for client, share in enumerate(shares)
        ]

    def _limited(self, examples: Sequence[Example]) -> list[Example]:
        return limit_evaluation(examples, self._evaluated, self._settings.seed)


def example_reader(task: Task, settings: DataSettings) -> ExampleReader:
    """Read a task's examples, and return a function that provides them.

    Args:
        task: task of the examples.
        settings: settings that name the data. Generated messages are created at the first call of
            the returned function, by one writer per client.

    Raises:
        DataError: if the data are missing or cannot be read, or lack the user field that the task
            names.
        ConfigError: if the data may grow, which is not supported here.
    """
    check_data_is_given(task, settings.path)
    if settings.path == EMBEDDED_DATA:
        return cache(lambda client_count: embedded_examples(task, client_count, settings.seed))
    if settings.watch:
        raise ConfigError(
            "data.watch: only the data of a live client may grow. A simulation reads its data "
            "once; leave data.watch out"
        )
    examples = load_examples(settings.path, task, settings.seed, settings.limit, settings.split)
    if task.user != USER_FIELD and not any(example.user for example in examples):
        raise DataError(
            f"{settings.path}: no row has {' or '.join(map(repr, task.user_names))}, which task "
            f"{task.name!r} names as user; correct user in the task, or leave user out"
        )
    return lambda client_count: examples
