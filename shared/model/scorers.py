"""One scorer per family of models: text in, token sequences out, and scores read off their ends.

A causal LM gives the log-likelihood of the label words after the question, a masked LM that of the
label words at the mask, a sentence encoder the cosine to the label prompts over a temperature.
A scorer runs no blocks: a forward engine hands it what the body made of the sequences.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shared.errors import ModelError, TaskError
from shared.model.loading import BaseModel
from shared.tasks.catalog import Task

COSINE_TEMPERATURE = 0.05
VOCABULARY_TILE_BYTES = 32 * 2**20
"""Logits that are held at a time."""

Body = Callable[[Sequence[tuple[int, ...]]], Tensor]
"""Runs the unadapted base over sequences: hidden states [m, S, hidden]."""


@dataclass(frozen=True)
class Prompt:
    """One example as the model reads it.

    Attributes:
        sequences: token ids; one sequence, or one per label where words have several tokens.
        supervised: per sequence, the positions whose output is read.
    """

    sequences: tuple[tuple[int, ...], ...]
    supervised: tuple[tuple[int, ...], ...]


class Scorer(ABC):
    """Turns texts into prompts and outputs into scores.

    Attributes:
        labels: how many there are.
    """

    def __init__(self, base: BaseModel, task: Task, max_length: int) -> None:
        self.base, self.task = base, task
        self.max_length = min(max_length, base.context)
        self.labels = len(task.words)

    @abstractmethod
    def prompt(self, text: str) -> Prompt:
        """Tokenize an example; a text that is too long is cut, never the question."""

    @abstractmethod
    def scores(self, hidden: Tensor, lengths: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """Read the scores of P points off the body's output.

        Args:
            hidden: [P·m, S, hidden], m sequences of the prompts per point, points outermost.
            lengths: int64 [m], tokens of each sequence.
            prompts: n of them.

        Returns:
            float32 [P, n, labels].
        """

    def _ids(self, text: str, special: bool) -> tuple[int, ...]:
        return tuple(self.base.tokenizer(text, add_special_tokens=special)["input_ids"])

    def _fit(self, text: str, room: int) -> str:
        """The beginning of a text that has at most `room` tokens."""
        offsets = self.base.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)[
            "offset_mapping"
        ]
        return text if len(offsets) <= room else text[: offsets[room - 1][1]]

    def _room(self, taken: int) -> int:
        if self.max_length <= taken:
            raise TaskError(
                f"task {self.task.name}: the question alone takes {taken} tokens and "
                f"max-length is {self.max_length}; raise model.max-length"
            )
        return self.max_length - taken

    def _word_tokens(self) -> list[tuple[int, ...]]:
        """Tokens that each label word adds to the question.

        Raises:
            TaskError: if two label words become the same tokens.
        """
        before = self.task.question_before_word
        stem = self._ids(before.rstrip(), special=False)
        words = []
        for word in self.task.words:
            whole = self._ids(before + word, special=False)
            joined = whole[: len(stem)] == stem
            words.append(whole[len(stem) :] if joined else self._ids(word, special=False))
        if len(set(words)) < len(words) or not all(words):
            raise TaskError(
                f"task {self.task.name}: label words {', '.join(self.task.words)} are not "
                "different after tokenization; choose other words"
            )
        return words


class CausalScorer(Scorer):
    """Average log-likelihood per token of each label word as the continuation of the question."""

    def __init__(self, base: BaseModel, task: Task, max_length: int) -> None:
        super().__init__(base, task, max_length)
        self._words = self._word_tokens()
        self._stem = self.task.question_before_word.rstrip()
        bos = base.tokenizer.bos_token_id
        self._start: tuple[int, ...] = () if bos is None else (bos,)
        self._one_token = all(len(word) == 1 for word in self._words)

    def prompt(self, text: str) -> Prompt:
        """One sequence if every label word is one token, otherwise one per label."""
        longest = max(len(word) for word in self._words)
        taken = len(self._start) + len(self._ids(self._stem, special=False)) + longest
        stem = self._start + self._ids(self._fit(text, self._room(taken)) + self._stem, False)
        if self._one_token:
            return Prompt((stem,), ((len(stem) - 1,),))
        return Prompt(
            tuple(stem + word[:-1] for word in self._words),
            tuple(tuple(range(len(stem) - 1, len(stem) - 1 + len(w))) for w in self._words),
        )

    def scores(self, hidden: Tensor, lengths: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """Log-softmax over the vocabulary, only at supervised positions."""
        words = [list(word) for word in self._words]
        if self._one_token:
            words = [[token for word in words for token in word]] * len(prompts)
            return _log_likelihoods(self.base, hidden, lengths, prompts, words)
        targets = [[token] for _ in prompts for word in words for token in word]
        picked = _log_likelihoods(self.base, hidden, lengths, prompts, targets)[..., 0]
        sizes = [len(word) for word in self._words] * len(prompts)
        means = torch.stack([part.mean(-1) for part in torch.split(picked, sizes, dim=-1)], dim=-1)
        return means.view(-1, len(prompts), self.labels)


class MaskedScorer(Scorer):
    """Log-likelihood of each label word at the mask."""

    def __init__(self, base: BaseModel, task: Task, max_length: int) -> None:
        super().__init__(base, task, max_length)
        self._words = self._word_tokens()
        if long := [w for w, t in zip(task.words, self._words, strict=True) if len(t) > 1]:
            raise TaskError(
                f"task {task.name}: a masked LM needs label words of one token and "
                f"{', '.join(long)} has more; choose other words"
            )
        mask = base.tokenizer.mask_token
        if mask is None:
            raise ModelError(f"{base.folder}: its tokenizer has no mask token; set model.family")
        self._question = task.question_before_word + mask + task.question_after_word

    def prompt(self, text: str) -> Prompt:
        """Text and question with the mask in the word's place."""
        room = self._room(len(self._ids(self._question, special=True)))
        ids = self._ids(self._fit(text, room) + self._question, special=True)
        last = len(ids) - 1 - ids[::-1].index(self.base.tokenizer.mask_token_id)
        return Prompt((ids,), ((last,),))

    def scores(self, hidden: Tensor, lengths: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """Log-softmax over the vocabulary at the mask."""
        words = [[word[0] for word in self._words]] * len(prompts)
        return _log_likelihoods(self.base, hidden, lengths, prompts, words)


class EncoderScorer(Scorer):
    """Cosine between the text and each label prompt, over a temperature of 0.05.

    The label prompts' embeddings are computed once from the unadapted base and belong to the task.
    """

    def __init__(self, base: BaseModel, task: Task, max_length: int, body: Body) -> None:
        super().__init__(base, task, max_length)
        prompts = [self.prompt(text) for text in task.prompts()]
        sequences = [prompt.sequences[0] for prompt in prompts]
        lengths = torch.tensor([len(ids) for ids in sequences])
        self._label_embeddings = self._pooled(body(sequences), lengths)

    def prompt(self, text: str) -> Prompt:
        """The text alone, with the tokenizer's special tokens."""
        room = self._room(len(self._ids("", special=True)))
        return Prompt((self._ids(self._fit(text, room), special=True),), ((),))

    def scores(self, hidden: Tensor, lengths: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """Pool, normalise, compare."""
        points = len(hidden) // len(lengths)
        pooled = self._pooled(hidden, lengths.repeat(points))
        cosines = nn.functional.linear(pooled, self._label_embeddings)
        return cosines.view(points, len(prompts), self.labels) / COSINE_TEMPERATURE

    def _pooled(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        hidden = hidden.float()
        if self.base.pooling == "cls":
            pooled = hidden[:, 0]
        else:
            places = torch.arange(hidden.shape[1], device=hidden.device)
            weights = (places < lengths.to(hidden.device)[:, None]).to(hidden.dtype)
            weights = weights / weights.sum(1, keepdim=True)
            pooled = torch.bmm(weights[:, None], hidden)[:, 0]
        return nn.functional.normalize(pooled, dim=-1)


def scorer_for(base: BaseModel, task: Task, max_length: int, body: Body) -> Scorer:
    """The scorer of a model's family.

    Raises:
        TaskError: if the task's label words do not suit the tokenizer.
        ModelError: if the tokenizer lacks what the family needs.
    """
    if base.family == "encoder":
        return EncoderScorer(base, task, max_length, body)
    return (CausalScorer if base.family == "causal" else MaskedScorer)(base, task, max_length)


def _log_likelihoods(
    base: BaseModel,
    hidden: Tensor,
    lengths: Tensor,
    prompts: Sequence[Prompt],
    tokens: list[list[int]],
) -> Tensor:
    """Of w wanted tokens at every supervised position: float32 [P, positions, w].

    The vocabulary is long, so the logits of a few positions exist at a time (P-RGE, appendix A.8).
    """
    by_point = hidden.view(-1, len(lengths), *hidden.shape[1:])
    sequences, positions = _supervised(prompts)
    read = by_point[:, sequences, positions]
    wanted = torch.tensor(tokens, device=hidden.device).expand(len(read), -1, -1).flatten(0, 1)
    rows = read.flatten(0, 1)
    tile = max(1, VOCABULARY_TILE_BYTES // (4 * base.network.config.vocab_size))
    found = []
    for some, of_some in zip(torch.split(rows, tile), torch.split(wanted, tile), strict=True):
        logits = _head(base, some)
        found.append(logits.gather(1, of_some) - logits.logsumexp(1, keepdim=True))
    return torch.cat(found).view(*read.shape[:2], -1)


def _supervised(prompts: Sequence[Prompt]) -> tuple[list[int], list[int]]:
    """Sequence index and position of everything that is read, in order."""
    sequences: list[int] = []
    positions: list[int] = []
    index = 0
    for prompt in prompts:
        for places in prompt.supervised:
            sequences += [index] * len(places)
            positions += places
            index += 1
    return sequences, positions


def _head(base: BaseModel, hidden: Tensor) -> Tensor:
    """The network's own head applied to hidden states [n, hidden]: float32 [n, vocabulary].

    The network runs with its body replaced by these states, so that whatever a family does
    between body and vocabulary happens here too.
    """
    flat = hidden[:, None]
    ids = torch.zeros(flat.shape[:2], dtype=torch.long, device=flat.device)
    with _body_returns(base.body, flat) as calls:
        logits: Tensor = base.network(input_ids=ids).logits
    if not calls:
        raise ModelError(f"{base.folder}: its head does not call the body that was found")
    return logits[:, 0].float()


@contextmanager
def _body_returns(body: nn.Module, hidden: Tensor) -> Iterator[list[None]]:
    """The body returns this; yields a list with an entry per time that it was asked."""
    from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

    calls: list[None] = []

    def answer(*_: Any, **__: Any) -> Any:
        calls.append(None)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden)

    body.forward = answer
    try:
        yield calls
    finally:
        del body.forward
