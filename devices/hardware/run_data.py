"""The data of a run, counted for an estimate before the run: examples of a client, their tokens."""

from pathlib import Path
from typing import NamedTuple

from samara.client.training.client_data import example_reader
from samara.shared.config import RunConfig
from samara.shared.data_settings import EMBEDDED_DATA
from samara.shared.model.tokenizer import load_tokenizer
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.partition import partition
from samara.shared.tasks.rows import Example

_TYPICAL = 64
"""The number of training examples whose length is typical for all."""


class CountedRun(NamedTuple):
    """A run's settings, with what is known of its data.

    Attributes:
        config: settings of the run; its batch is no larger than a client has training examples.
        tokens: tokens of a training example in the mean; 0 if data or tokenizer are not here.
        is_counted: whether the data were read.
    """

    config: RunConfig
    tokens: int
    is_counted: bool


def count_data(config: RunConfig) -> CountedRun:
    """Read the data of a run, if its settings name them, and count what the largest client has.

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
    """Return the tokens of an example with all its answers; 0 without a folder of the model."""
    folder = Path(config.model.path)
    if not folder.is_dir() or not examples:
        return 0
    tokenizer = load_tokenizer(folder)
    texts = [example.text + answer for example in examples for answer in example.answers or ("",)]
    tokens = sum(map(len, tokenizer(texts)["input_ids"]))
    return min(config.model.max_length, max(1, round(tokens / len(examples))))
