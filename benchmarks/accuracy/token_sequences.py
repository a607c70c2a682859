"""Texts as a causal model reads them: sequences of equal length, in batches."""

import gzip
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sequences:
    """Sequences of tokens, int64 [n, context]; no text is in more than one of the three."""

    train: Tensor
    validation: Tensor
    test: Tensor


def read_texts(files: Sequence[Path], field: str) -> list[str]:
    """Return the different texts of files of JSON lines, in an order by hash.

    Args:
        files: files, `.gz` if compressed.
        field: field of a line that has the text.
    """
    texts: set[str] = set()
    for file in files:
        with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as lines:
            texts.update(json.loads(line)[field] for line in lines)
    return sorted(texts, key=lambda text: hashlib.sha256(text.encode()).digest())


def token_ids(texts: Iterable[str], tokenizer: Any) -> Iterator[list[int]]:
    """Return the tokens of each text, behind the one that begins a text."""
    for text in texts:
        yield [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False).input_ids]


def as_sequences(texts: Iterable[list[int]], context: int, tokens: float = math.inf) -> Tensor:
    """Return texts one after the other as int64 [n, context]; what is left of the last is dropped.

    Args:
        texts: tokens of each text; no more are taken than are needed.
        context: tokens of a sequence.
        tokens: number of tokens from which on no further text is taken.
    """
    ids: list[int] = []
    for text in texts:
        ids += text
        if len(ids) >= tokens:
            break
    whole = len(ids) // context * context
    return torch.tensor(ids[:whole], dtype=torch.int64).view(-1, context)


def split(texts: Sequence[str], tokenizer: Any, context: int, held_out: int) -> Sequences:
    """Return texts for training, validation and test.

    Args:
        texts: texts; the first ones are held out.
        tokenizer: tokenizer of the model.
        context: tokens of a sequence.
        held_out: sequences of validation, and as many of the test.

    Raises:
        ValueError: if no tokens are left to train on.
    """
    rest = token_ids(texts, tokenizer)
    validation, test = (as_sequences(rest, context, held_out * context) for _ in range(2))
    train = as_sequences(rest, context)
    if len(train) == 0:
        raise ValueError(
            f"{len(texts)} texts: none are left beside twice {held_out * context} tokens"
        )
    return Sequences(train, validation[:held_out], test[:held_out])


def batch_of(sequences: Tensor, step: int, size: int, seed: int) -> Tensor:
    """Return the sequences of a step, int64 [size, context], in an order that the seed decides."""
    order = torch.randperm(len(sequences), generator=torch.Generator().manual_seed(seed))
    start = step * size % max(1, len(sequences) - size)
    return sequences[order[start : start + size]]


def loss_of(network: Any, sequences: Tensor) -> Tensor:
    """Return the mean loss of a token, float32 []."""
    loss: Tensor = network(input_ids=sequences, labels=sequences).loss
    return loss
