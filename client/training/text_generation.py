"""Generation of text by a causal model, one token at a time."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samara.client.training.model_runtime import ModelRuntime
from samara.shared.errors import QuestionError
from samara.shared.model.perturbations import Perturbations

Mix = Callable[[NDArray[np.float32], Sequence[int]], NDArray[np.float32]]
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""The character that a decoder writes in place of a character with missing bytes."""
_TOKENS_BEFORE = 8
"""Tokens of the prompt that are decoded with an answer, to get the space between them right."""


@dataclass(frozen=True)
class Sampling:
    """The rules by which tokens are chosen and a text ends.

    Attributes:
        max_tokens: maximum number of tokens to generate.
        temperature: divisor of the logits; 0 takes the likeliest token.
        top_p: total probability of the likeliest tokens, from which a token is drawn.
        seed: seed of the draws; None draws differently each time.
        stop: texts that end the answer and are not part of it.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ending:
    """The end of a generated text.

    Attributes:
        reason: "stop" at the end of the text or at a stop text; "length" at the limit of tokens.
        tokens: number of generated tokens.
    """

    reason: str
    tokens: int


def choose_token(
    logits: NDArray[np.float32], sampling: Sampling, draws: np.random.Generator
) -> int:
    """Return the next token: the likeliest, or one drawn from the likeliest tokens.

    Drawing is nucleus sampling (Holtzman et al., 2020).

    Args:
        logits: float32 [vocabulary].
        sampling: temperature and total probability of the likeliest tokens.
        draws: source of random numbers; one number is used unless the temperature is 0.

    Raises:
        QuestionError: if a logit is not a number.
    """
    if np.isnan(logits).any() or np.isposinf(logits).any():
        raise QuestionError("the model's output is not finite; ask another model (base or global)")
    if not sampling.temperature:
        return int(logits.argmax())
    scaled = logits.astype(np.float64) / sampling.temperature
    probabilities = np.exp(scaled - scaled.max())
    order = np.argsort(-probabilities, kind="stable")
    sums = np.cumsum(probabilities[order])
    count = int(np.searchsorted(sums, sampling.top_p * sums[-1])) + 1
    count = min(count, len(sums))
    drawn = np.searchsorted(sums[:count], draws.random() * sums[count - 1], side="right")
    return int(order[min(int(drawn), count - 1)])


class TextPieces:
    """A decoder of a growing list of tokens; it returns text that no later token can change.

    Args:
        decode: function that turns tokens into text.
        before: tokens of the prompt; only text after the prompt is returned.
        stop: texts that end the answer.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], before: Sequence[int], stop: Sequence[str]
    ) -> None:
        self._decode, self._stop = decode, tuple(stop)
        self._before = list(before[-_TOKENS_BEFORE:])
        self._prefix = decode(self._before) if self._before else ""
        self._tokens: list[int] = []
        self._given = 0

    def add(self, token: int) -> tuple[str, bool]:
        """Add a token; return the new text that is final, and whether a stop text ends the answer.

        Text is final when no later token can change it or complete a stop text.
        """
        self._tokens.append(token)
        text = self._text()
        found = [index for stop in self._stop if (index := text.find(stop)) >= 0]
        if found:
            return self._give(text, min(found)), True
        certain = len(text.rstrip(_UNFINISHED))
        held = max((_overlap(text[:certain], stop) for stop in self._stop), default=0)
        return self._give(text, certain - held), False

    def rest(self) -> str:
        """Return the remaining text, which might have continued as a stop text or a character."""
        text = self._text()
        return self._give(text, len(text))

    def _text(self) -> str:
        whole = self._decode(self._before + self._tokens)
        if whole.startswith(self._prefix):
            return whole[len(self._prefix) :]
        return self._decode(self._tokens)

    def _give(self, text: str, end: int) -> str:
        piece = text[self._given : end]
        self._given = max(self._given, end)
        return piece


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of a text that is a prefix of a stop text."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


def generate(
    runtime: ModelRuntime,
    adapter: Perturbations,
    prompt: Sequence[int],
    sampling: Sampling,
    mix: Mix | None = None,
) -> Generator[str, None, Ending]:
    """Generate text after a prompt; every step is one forward pass of one more token.

    Args:
        runtime: model runtime of a causal model.
        adapter: adapter that the model runs with.
        prompt: tokens of the prompt, at least one.
        sampling: rules for choosing tokens and ending the text.
        mix: function that changes the logits of the next token, given the tokens so far.

    Yields: The text that became final with each token, often empty.

    Returns: The reason for the end of the text, and its number of tokens.

    Raises:
        QuestionError: if the model's output is not finite, or the model is cut below its head.
    """
    if runtime.base.depth:
        raise QuestionError(
            f"adapter.layers = {runtime.config.adapter.layers}: the blocks that write text are not "
            "loaded; ask for one of the labels, or train with adapter.layers = readout"
        )
    ends = end_tokens(runtime)
    draws = np.random.default_rng(sampling.seed)

    def decode(tokens: list[int]) -> str:
        with runtime.tokenize.lock:
            text: str = runtime.base.tokenizer.decode(tokens, skip_special_tokens=True)
        return text

    pieces = TextPieces(decode, prompt, sampling.stop)
    cache: Any = None
    written: list[int] = []
    while len(written) < sampling.max_tokens:
        new = [*prompt, *written] if cache is None else written[-1:]
        logits, cache = runtime.forward.next_logits(adapter, new, cache)
        if mix is not None:
            logits = mix(logits, [*prompt, *written])
        token = choose_token(logits, sampling, draws)
        written.append(token)
        if token in ends:
            yield pieces.rest()
            return Ending("stop", len(written))
        piece, ended = pieces.add(token)
        yield piece
        if ended:
            return Ending("stop", len(written))
    yield pieces.rest()
    return Ending("length", len(written))


def end_tokens(runtime: ModelRuntime) -> set[int]:
    """Return the tokens that end a text: the tokenizer's and those of the generation settings."""
    settings = getattr(runtime.base.network, "generation_config", None)
    listed = getattr(settings, "eos_token_id", None)
    ends = {runtime.base.tokenizer.eos_token_id}
    ends.update(listed if isinstance(listed, list) else [listed])
    return {token for token in ends if token is not None}
