"""Counts of a run's data for an estimate before the run: examples per client, and their tokens."""

from pathlib import Path
from typing import NamedTuple

from samara.client.training.client_data import example_reader
from samara.shared.model.tokenizer import load_tokenizer
from samara.shared.settings.config import RunConfig
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.messages import EMBEDDED_DATA
from samara.shared.tasks.partition import partition
from samara.shared.tasks.rows import Example

_TYPICAL = 64
"""Number of training examples whose mean length stands in for the mean length of all examples."""


class CountedRun(NamedTuple):
    """A run's settings, with facts about its data.

    Attributes:
        config: settings of the run; the batch is at most a client's number of training examples.
        tokens: mean tokens of a training example; 0 if data or tokenizer are not available.
        is_counted: whether the data were read.
    """

    config: RunConfig
    tokens: int
    is_counted: bool


def count_data(config: RunConfig) -> CountedRun:
    """Read the data that a run's settings name, if any, and count the largest client's examples.

    Raises:
        SamaraError: if the data or the tokenizer cannot be read.
    """
    data = config.data
    if data.path == EMBEDDED_DATA:
        return CountedRun(config, 0, is_counted=False)
    examples = example_reader(load_task(config.task), data)(data.clients)
    shares = partition(examples, data.partition, data.clients, data.alpha, data.seed)
    largest = max(([e for e in share if e.split == "train"] for share in shares), key=len)
    batch = min(config.batch, len(largest))
    tokens = _mean_tokens(config, largest[:_TYPICAL])
    return CountedRun(config.model_copy(update={"batch": batch}), tokens, is_counted=True)


def _mean_tokens(config: RunConfig, examples: list[Example]) -> int:
    """Return the mean tokens of an example with all its answers; 0 without the model's folder."""
    folder = Path(config.model.path)
    if not folder.is_dir() or not examples:
        return 0
    tokenizer = load_tokenizer(folder)
    texts = [example.text + answer for example in examples for answer in example.answers or ("",)]
    tokens = sum(map(len, tokenizer(texts)["input_ids"]))
    return min(config.model.max_length, max(1, round(tokens / len(examples))))
