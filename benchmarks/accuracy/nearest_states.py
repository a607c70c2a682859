"""Own words beside kNN-LM: two ways to mix a person's texts into a language model's probabilities.

    python -m benchmarks.accuracy.nearest_states chats1.jsonl chats2.jsonl --model SMOLLM2

`people_texts` writes the files. kNN-LM (Khandelwal et al., 2020, equations 2 and 3) keeps the last
hidden state before each token of a person's training texts. The k stored states nearest to a new
state vote for their tokens, with weights exp(−distance / temperature). Of each person's texts, 70 %
are stored or counted. Another 10 % choose k, the temperature and the share of the votes, or the
weights of own words. The remaining 20 % are test texts. The program prints bits per byte of the
test texts, and paired differences over the people with 95 % intervals. A person in several files
counts once, with the mean.
"""

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from samara.client.personal.own_words import OwnText, choose_own_words
from samara.shared.model.loading import load_base_model
from samara.simulations.comparison.statistics import paired_difference

NEIGHBOURS = (8, 32, 128)
TEMPERATURES = (0.02, 0.05, 0.1, 0.3, 1.0)
"""Temperatures in units of the median squared distance."""
SHARES = (0.0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
METHODS = ("model", "kNN-LM", "own words", "both")
Floats = NDArray[np.float64]


class Read(NamedTuple):
    """A text as the model reads it.

    Attributes:
        own: the text with the token before it.
        chances: the model's probability of each token, float64 [n].
        states: last hidden state before each token, float64 [n, features].
        size: bytes of the text.
    """

    own: OwnText
    chances: Floats
    states: Floats
    size: int


def read(base: Any, text: str) -> Read:
    """Return a text as read by the model after its first token."""
    first = base.tokenizer.bos_token_id or base.tokenizer.eos_token_id or 0
    tokens = base.tokenizer(text, add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        given = torch.tensor([[first, *tokens]])
        out = base.network(given, output_hidden_states=True)
    chances = torch.softmax(out.logits[0, :-1].double(), dim=-1)[range(len(tokens)), tokens]
    states = out.hidden_states[-1][0, :-1].double()
    own = OwnText.behind([first], tokens)
    return Read(own, chances.numpy(), states.numpy(), len(text.encode()))


def votes(kept: Sequence[Read], text: Read, count: int, temperature: float) -> Floats:
    """Return the share of the votes that each token of a text has, float64 [n]."""
    states = np.concatenate([one.states for one in kept])
    tokens = np.array([token for one in kept for token in one.own.tokens])
    squares = np.square(states).sum(axis=1)
    distances = np.square(text.states).sum(axis=1)[:, None] + squares - 2 * text.states @ states.T
    count = min(count, len(tokens))
    nearest = np.argpartition(distances, count - 1, axis=1)[:, :count]
    near = np.take_along_axis(distances, nearest, axis=1)
    scale = temperature * np.median(distances)
    weights = np.exp((near.min(axis=1, keepdims=True) - near) / scale)
    agree = tokens[nearest] == np.array(text.own.tokens)[:, None]
    shares: Floats = (weights * agree).sum(axis=1) / weights.sum(axis=1)
    return shares


def bits_per_byte(texts: Sequence[Read]) -> Floats:
    """Return the bits per byte of one person's test texts by each of `METHODS`, float64 [4]."""
    first, second = round(0.7 * len(texts)), round(0.8 * len(texts))
    train, validation, test = texts[:first], texts[first:second], texts[second:]
    known = np.concatenate([text.chances for text in validation])
    best = (math.inf, NEIGHBOURS[0], TEMPERATURES[0], 0.0)
    for count, temperature in product(NEIGHBOURS, TEMPERATURES):
        voted = np.concatenate([votes(train, text, count, temperature) for text in validation])
        for share in SHARES:
            loss = -float(np.log((1 - share) * known + share * voted).sum())
            best = min(best, (loss, count, temperature, share))
    _, count, temperature, share = best
    words = choose_own_words(
        [text.own for text in train],
        [text.own for text in validation],
        lambda index: np.log(validation[index].chances),
    )
    sums = np.zeros(len(METHODS))
    for text in test:
        voted = votes(train, text, count, temperature)
        mixed = words.evidence(text.own).mixed(text.chances, words.share, words.trust)
        by_method = (
            text.chances,
            (1 - share) * text.chances + share * voted,
            mixed,
            (1 - share) * mixed + share * voted,
        )
        sums -= [np.log2(chances).sum() for chances in by_method]
    return sums / sum(text.size for text in test)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print means and paired differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--model", required=True)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    base = load_base_model(given.model)
    found: dict[str, list[Floats]] = defaultdict(list)
    for file in given.files:
        texts: dict[str, list[Read]] = defaultdict(list)
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            texts[row["user"]].append(read(base, row["text"]))
        for person, own in texts.items():
            found[person].append(bits_per_byte(own))
    means = np.array([np.mean(rows, axis=0) for rows in found.values()])
    print(f"{len(means)} people")
    for name, column in zip(METHODS, means.T, strict=True):
        saved = [paired_difference(means[:, i], column) for i in range(len(METHODS))]
        told = ", ".join(
            f"{one.mean:+.3f} ({one.low:.3f} … {one.high:.3f}) of {other}"
            for other, one in zip(METHODS, saved, strict=True)
            if other != name
        )
        print(f"{name}: {column.mean():.3f} bits per byte; saves {told}")


if __name__ == "__main__":
    main()
