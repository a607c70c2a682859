"""Generation of text by a causal model, one token at a time."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samara.client.forward.setup import EVALUATION_MICRO_BATCH
from samara.client.training.model_runtime import ModelRuntime
from samara.shared.errors import QuestionError
from samara.shared.model.perturbations import Perturbations

Mix = Callable[[NDArray[np.float32], Sequence[int]], NDArray[np.float32]]
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""Character that a tokenizer's decoder writes in place of a character with missing bytes."""
_TOKENS_BEFORE = 8
"""Number of prompt tokens that are decoded together with an answer. They decide whether a space
comes before the answer."""


@dataclass(frozen=True)
class Sampling:
    """Rules for choosing tokens and for ending a text.

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
    """Return the next token: the likeliest token, or a token drawn from the likeliest tokens.

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
    """A decoder of a growing list of tokens, which returns text that no later token can change.

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
        """Add a token, and return newly final text and whether a stop text has ended the answer.

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
        """Return the text that was held back, because it could begin a stop text or a character."""
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


class _GrowingText:
    """A prompt with the text that a model writes after it.

    Attributes:
        ending: end of the text; None while it grows.
    """

    def __init__(
        self, runtime: ModelRuntime, prompt: Sequence[int], sampling: Sampling, mix: Mix | None
    ) -> None:
        def decode(tokens: list[int]) -> str:
            with runtime.tokenize.lock:
                text: str = runtime.base.tokenizer.decode(tokens, skip_special_tokens=True)
            return text

        self._prompt, self._sampling, self._mix = prompt, sampling, mix
        self._ends = end_tokens(runtime)
        self._draws = np.random.default_rng(sampling.seed)
        self._pieces = TextPieces(decode, prompt, sampling.stop)
        self._written: list[int] = []
        self.ending = None if sampling.max_tokens else Ending("length", 0)

    def unread(self, is_cached: bool) -> tuple[int, ...]:
        """Return the tokens for the next pass: all, or only the last if a cache has the others."""
        return tuple(self._written[-1:] if is_cached else [*self._prompt, *self._written])

    def add(self, logits: NDArray[np.float32]) -> str:
        """Append the next token, and return the text that became final with it.

        A text still gets tokens after its end, so that all texts in the same passes have equally
        many. These tokens add no text.

        Args:
            logits: float32 [vocabulary], logits of the next token.

        Raises:
            QuestionError: if a logit is not a number.
        """
        if self.ending:
            self._written.append(self._prompt[-1])
            return ""
        if self._mix is not None:
            logits = self._mix(logits, [*self._prompt, *self._written])
        token = choose_token(logits, self._sampling, self._draws)
        self._written.append(token)
        count = len(self._written)
        if token in self._ends:
            self.ending = Ending("stop", count)
            return self._pieces.rest()
        piece, is_stopped = self._pieces.add(token)
        if is_stopped:
            self.ending = Ending("stop", count)
        elif count == self._sampling.max_tokens:
            self.ending = Ending("length", count)
            piece += self._pieces.rest()
        return piece


def generate(
    runtime: ModelRuntime,
    adapter: Perturbations,
    prompt: Sequence[int],
    sampling: Sampling,
    mix: Mix | None = None,
) -> Generator[str, None, Ending]:
    """Generate text after a prompt, with one forward pass per token.

    Args:
        runtime: model runtime of a causal model.
        adapter: adapter that the model runs with.
        prompt: tokens of the prompt, at least one.
        sampling: rules for choosing tokens and ending the text.
        mix: function that changes the logits of the next token, given the tokens so far.

    Yields:
        The text that became final with each token, often empty.

    Returns:
        The reason for the end of the text, and its number of tokens.

    Raises:
        QuestionError: if the model's output is not finite, or the model is cut below its head.
    """
    _check_head(runtime)
    text = _GrowingText(runtime, prompt, sampling, mix)
    cache: Any = None
    while text.ending is None:
        new = [text.unread(cache is not None)]
        logits, cache = runtime.forward.next_logits(adapter, new, cache)
        yield text.add(logits[0])
    return text.ending


def generate_together(
    runtime: ModelRuntime,
    adapter: Perturbations,
    prompts: Sequence[tuple[Sequence[int], Sampling]],
    mix: Mix | None = None,
) -> list[str]:
    """Generate a text after each prompt; prompts of equal length share forward passes.

    Args:
        runtime: model runtime of a causal model.
        adapter: adapter that the model runs with.
        prompts: tokens of each prompt, at least one, and the rules for its text.
        mix: see `generate`.

    Raises:
        QuestionError: if the model's output is not finite, or the model is cut below its head.
    """
    _check_head(runtime)
    texts = [_GrowingText(runtime, tokens, sampling, mix) for tokens, sampling in prompts]
    found = [""] * len(prompts)
    by_length = dict[int, list[int]]()
    for index, (tokens, _) in enumerate(prompts):
        by_length.setdefault(len(tokens), []).append(index)
    for alike in by_length.values():
        for start in range(0, len(alike), EVALUATION_MICRO_BATCH):
            group, cache = alike[start : start + EVALUATION_MICRO_BATCH], None
            while any(texts[index].ending is None for index in group):
                new = [texts[index].unread(cache is not None) for index in group]
                logits, cache = runtime.forward.next_logits(adapter, new, cache)
                for index, own in zip(group, logits, strict=True):
                    found[index] += texts[index].add(own)
    return found


def _check_head(runtime: ModelRuntime) -> None:
    if runtime.base.depth:
        raise QuestionError(
            f"adapter.layers = {runtime.config.adapter.layers}: the blocks that write text are not "
            "loaded; ask for one of the labels, or train with adapter.layers = readout"
        )


def end_tokens(runtime: ModelRuntime) -> set[int]:
    """Return the tokens that end a text, according to the tokenizer and the generation settings."""
    settings = getattr(runtime.base.network, "generation_config", None)
    listed = getattr(settings, "eos_token_id", None)
    ends = {runtime.base.tokenizer.eos_token_id}
    ends.update(listed if isinstance(listed, list) else [listed])
    return {token for token in ends if token is not None}
