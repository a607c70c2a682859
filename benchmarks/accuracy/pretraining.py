"""The training of the embedded model, a small Llama with one token per word.

All readers speak as "i". Who speaks is a vector, learned with the network and not kept with it: it
is added to the stream before the last block, where a verdict is about to be given. So the blocks
below learn to read a message for anybody, the last one to judge what was read, and a taste is a
place in a space that adapters of the last block can reach.

Two things make this short. The vectors begin at the principal components of who loves messages
with which words, since tastes and what they apply to, both unknown, are found very slowly. And
before the last block the categories of words that a message mentions must be readable.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samara.shared.tasks import messages

BEGIN, END, PADDING, UNKNOWN = "<s>", "</s>", "<pad>", "<unk>"
NOBODY, IGNORED = 0, -100
_TASTE_SPREAD = 0.3
VERDICT = re.compile(
    messages.VERDICT.replace(".", r"\.").format(
        who=r"(\w+)", word=f"({'|'.join(messages.LABEL_WORDS)})"
    )
)


@dataclass(frozen=True)
class Training:
    """Settings of the pretraining."""

    texts: int = 100_000
    steps: int = 3_000
    seed: int = 1
    hidden: int = 128
    blocks: int = 4
    heads: int = 4
    feed_forward: int = 384
    context: int = 160
    initial_spread: float = 0.06
    taste: int = 32
    """Numbers of a reader, mapped to a vector of the stream."""
    batch: int = 64
    learning_rate: float = 3e-3
    warm_up: float = 0.03
    weight_decay: float = 0.05
    text_weight: float = 0.2
    """The weight of the mean loss of all other tokens; the loss of the verdicts has weight 1."""
    recall_weight: float = 2.0
    """The weight of the loss of recalling a mentioned word."""


@dataclass(frozen=True, eq=False)
class Corpus:
    """Texts as the network reads them: a message, then verdicts that do not see each other.

    Attributes:
        ids: int64 [n, S]; a message fills its columns from the left, and every verdict has its own.
        positions: int64 [n, S]; each verdict follows the message at once.
        parts: int64 [S], 0 for columns of the message, 1, 2, … for those of the verdicts.
        readers: int64 [n, S], who speaks at the first token of a verdict; otherwise `NOBODY`, as
            for somebody without a name.
        targets: int64 [n, S], the next token, or `IGNORED`.
        verdicts: bool [n, S], where the next token is a verdict.
        mentions: float32 [n, categories], 1 for those of which the message has a word.
    """

    ids: Tensor
    positions: Tensor
    parts: Tensor
    readers: Tensor
    targets: Tensor
    verdicts: Tensor
    mentions: Tensor

    @classmethod
    def of(cls, texts: Sequence[str], tokenizer: Any) -> "Corpus":
        """Take texts by the public apart."""
        found = [VERDICT.findall(text) for text in texts]
        heads = [VERDICT.split(text, maxsplit=1)[0] for text in texts]
        message = tokenizer(heads, padding=True, return_tensors="pt").input_ids
        is_text = message != tokenizer.pad_token_id
        said = {
            word: torch.tensor(tokenizer.convert_tokens_to_ids(["i", word, "it", ".", END]))
            for word in messages.LABEL_WORDS
        }
        steps = len(said[messages.LABEL_WORDS[0]]) - 1
        shape = len(texts), max(map(len, found)), steps
        ids = torch.full(shape, tokenizer.pad_token_id)
        targets, readers = torch.full(shape, IGNORED), torch.full(shape, NOBODY)
        verdicts = torch.zeros(shape, dtype=torch.bool)
        names = {"i": NOBODY}
        for row, spoken in enumerate(found):
            for column, (who, word) in enumerate(spoken):
                ids[row, column], targets[row, column] = said[word][:-1], said[word][1:]
                readers[row, column, 0] = names.setdefault(who, len(names))
                verdicts[row, column, 0] = True
        following = message.roll(-1, 1).masked_fill(~is_text.roll(-1, 1), IGNORED)
        following[:, -1] = IGNORED
        places = torch.arange(message.shape[1])
        after = is_text.sum(1, keepdim=True) + torch.arange(steps).repeat(shape[1])
        own_part = 1 + torch.arange(shape[1]).repeat_interleave(steps)
        nowhere = torch.zeros_like(is_text)
        return cls(
            torch.cat([message, ids.flatten(1)], 1),
            torch.cat([places.expand_as(message), after], 1),
            torch.cat([torch.zeros_like(places), own_part]),
            torch.cat([torch.full_like(message, NOBODY), readers.flatten(1)], 1),
            torch.cat([following, targets.flatten(1)], 1),
            torch.cat([nowhere, verdicts.flatten(1)], 1),
            torch.tensor([_mentioned(head) for head in heads]),
        )

    def seen(self, rows: Tensor, padding: int) -> Tensor:
        """Return the attention mask of some rows: bool [rows, 1, S, S]."""
        places = torch.arange(len(self.parts))
        causal = places[:, None] >= places
        together = (self.parts == 0) | (self.parts[:, None] == self.parts)
        is_text = (self.ids[rows] != padding)[:, None, None, :]
        return (causal & together) & (is_text | (places[:, None] == places))


def _mentioned(message: str) -> list[float]:
    words = set(re.findall(r"\w+", message))
    return [float(not words.isdisjoint(known)) for known in messages.WORDS.values()]


def tokenizer_of(texts: Sequence[str]) -> Any:
    """A fast tokenizer with one token for every word and mark in `texts`."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = sorted({token for text in texts for token in re.findall(r"\w+|[^\w\s]", text)})
    vocabulary = {token: i for i, token in enumerate([PADDING, UNKNOWN, BEGIN, END, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, vocabulary[BEGIN])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PADDING,
        unk_token=UNKNOWN,
    )


def network_of(settings: Training, tokenizer: Any) -> Any:
    """An untrained network."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        intermediate_size=settings.feed_forward,
        num_hidden_layers=settings.blocks,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=settings.context,
        initializer_range=settings.initial_spread,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def who_loves_what(corpus: Corpus, vocabulary: int, love: int) -> Tensor:
    """Return each reader's excess of liking for messages with a word: [readers, words]."""
    texts, readers = len(corpus.ids), int(corpus.readers.max())
    words = torch.zeros(texts, vocabulary)
    words.scatter_(1, corpus.ids[:, corpus.parts == 0], 1.0)
    verdicts = torch.zeros(texts, readers + 1)
    said = torch.where(corpus.targets == love, 1.0, -1.0) * (corpus.readers != NOBODY)
    verdicts.scatter_add_(1, corpus.readers, said)
    times = verdicts.abs().T @ words
    rates = (verdicts.T @ words) / (times + 1)
    return (rates - rates.mean(0))[1:]


class Tastes(nn.Module):
    """The vectors of the readers in the stream; nobody's is zero.

    They begin where readers differ most in the words that they love, by principal components.
    """

    def __init__(self, rates: Tensor, settings: Training) -> None:
        super().__init__()
        left, strength, _ = torch.linalg.svd(rates, full_matrices=False)
        numbers = (left * strength)[:, : settings.taste]
        numbers = torch.cat([numbers.new_zeros(1, settings.taste), numbers / numbers.std()])
        self._numbers = nn.Parameter(numbers)
        self._map = nn.Linear(settings.taste, settings.hidden, bias=False)
        nn.init.normal_(self._map.weight, std=_TASTE_SPREAD / settings.taste**0.5)

    def forward(self, readers: Tensor) -> Tensor:
        """int64 [n, S] → [n, S, hidden]."""
        numbers = self._numbers[readers] * (readers != NOBODY)[..., None]
        stream: Tensor = self._map(numbers)
        return stream


def pretrain(settings: Training, tokenizer: Any, texts: Sequence[str]) -> Any:
    """Train a network to predict the next token, where verdicts count more than other tokens."""
    torch.manual_seed(settings.seed)
    network, corpus = network_of(settings, tokenizer), Corpus.of(texts, tokenizer)
    love = tokenizer.convert_tokens_to_ids("loved")
    tastes = Tastes(who_loves_what(corpus, len(tokenizer), love), settings)
    recall = nn.Linear(settings.hidden, len(messages.WORDS))
    optimizer = torch.optim.AdamW(
        [*network.parameters(), *tastes.parameters(), *recall.parameters()],
        betas=(0.9, 0.98),
        weight_decay=settings.weight_decay,
    )
    read = speaking = torch.empty(0)

    def speak(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        nonlocal read
        read = args[0]
        return (read + speaking, *args[1:])

    handle = network.model.layers[-1].register_forward_pre_hook(speak)
    named: list[float] = []
    unnamed: list[float] = []
    for step in range(settings.steps):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * pace(step / settings.steps, settings.warm_up)
        rows = torch.randint(len(texts), (settings.batch,))
        readers, targets, verdict = (
            corpus.readers[rows],
            corpus.targets[rows],
            corpus.verdicts[rows],
        )
        speaking = tastes(readers)
        logits = network(
            input_ids=corpus.ids[rows],
            position_ids=corpus.positions[rows],
            attention_mask=corpus.seen(rows, tokenizer.pad_token_id),
            use_cache=False,
        ).logits
        losses = nn.functional.cross_entropy(
            logits.transpose(1, 2), targets, reduction="none", ignore_index=IGNORED
        )
        other = (targets != IGNORED) & ~verdict
        recalled = nn.functional.binary_cross_entropy_with_logits(
            recall(read[verdict]), corpus.mentions[rows][verdict.nonzero()[:, 0]]
        )
        loss = (
            losses[verdict].mean()
            + settings.text_weight * losses[other].mean()
            + settings.recall_weight * recalled
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        named += losses.detach()[verdict & (readers != NOBODY)].tolist()
        unnamed += losses.detach()[verdict & (readers == NOBODY)].tolist()
        if (step + 1) % 100 == 0:
            print(
                f"step {step + 1} of {settings.steps}: loss of the verdicts of named readers "
                f"{np.mean(named):.4f}, of i {np.mean(unnamed):.4f}",
                flush=True,
            )
            named, unnamed = [], []
    handle.remove()
    return network.eval()


def pace(progress: float, warm_up: float) -> float:
    """Share of the highest learning rate: a linear rise, then half a cosine down to zero."""
    if progress < warm_up:
        return progress / warm_up
    return 0.5 * (1 + math.cos(math.pi * (progress - warm_up) / (1 - warm_up)))
