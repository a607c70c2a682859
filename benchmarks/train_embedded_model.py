"""Train a small causal LM on the public's generated messages, and show what it can do.

The model is a small Llama with one token per word. It learns from `messages.pretraining_text` only,
so it has read no writer of any federation. All readers speak as "i" there, and each verdict sees
the message alone. Who speaks is a vector, learned with the network and not kept with it: it is
added to the stream before the last block. So the blocks below learn to read a message, the last
one to judge what was read, and a taste is a place in a space that an adapter of the last block can
reach.

What is printed at the end also lies beside the weights, in ``record.json``:

- how well it foresees verdicts in texts that were not trained on: those of named readers, and
  those of "i" (there also the agreement with the public's common rule);
- zero-shot accuracy on the test messages of communities, beside the ceilings;
- what adapters can reach with first-order gradients: trained on all writers (global), continued
  on each writer's own messages (personalized), or trained on those from zero (local only).

Run it from the root of the repository: ``python benchmarks/train_embedded_model.py --folder DIR``.
"""

import argparse
import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from client.forward.body import Body
from shared.config import AdapterSettings
from shared.model.loading import BaseModel, load_base_model
from shared.model.lora_fa import Adapter, Points, inject
from shared.model.scorers import Prompt, Scorer, scorer_for
from shared.tasks import messages
from shared.tasks.catalog import Task, load_task
from shared.tasks.embedded import MESSAGES_PER_WRITER, embedded_ceilings

BEGIN, END, PADDING, UNKNOWN = "<s>", "</s>", "<pad>", "<unk>"
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
    batch: int = 64
    learning_rate: float = 3e-3
    warm_up: float = 0.03
    weight_decay: float = 0.05
    text_weight: float = 0.2
    """Of the mean loss of all other tokens, against 1 for that of the verdicts."""


@dataclass(frozen=True)
class Probe:
    """Settings of the first-order probe, per writer where nothing else is said."""

    writers: int = 8
    layers: str = "0,1"
    rank: int = 4
    batch: int = 16
    global_steps: int = 60
    private_steps: int = 60
    learning_rate: float = 0.02


@dataclass(frozen=True, eq=False)
class Rows:
    """Labelled messages as the model reads them."""

    prompts: tuple[Prompt, ...]
    labels: Tensor


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


def pretrain(settings: Training, tokenizer: Any, texts: Sequence[str]) -> Any:
    """Train a network to predict the next token, where verdicts count more than other tokens."""
    torch.manual_seed(settings.seed)
    network = network_of(settings, tokenizer)
    encoded = tokenizer([text + END for text in texts], padding=True, return_tensors="pt").input_ids
    love, hate, anybody = tokenizer.convert_tokens_to_ids([*messages.LABEL_WORDS, "i"])
    optimizer = torch.optim.AdamW(
        network.parameters(), betas=(0.9, 0.98), weight_decay=settings.weight_decay
    )
    named: list[float] = []
    unnamed: list[float] = []
    for step in range(settings.steps):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * pace(step / settings.steps, settings.warm_up)
        ids = encoded[torch.randint(len(encoded), (settings.batch,))]
        ids = ids[:, : int((ids != tokenizer.pad_token_id).sum(1).max())]
        read, targets = ids[:, :-1], ids[:, 1:]
        logits = network(input_ids=read, use_cache=False).logits
        losses = nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        verdict = (targets == love) | (targets == hate)
        other = (targets != tokenizer.pad_token_id) & ~verdict
        loss = losses[verdict].mean() + settings.text_weight * losses[other].mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        named += losses.detach()[verdict & (read != anybody)].tolist()
        unnamed += losses.detach()[verdict & (read == anybody)].tolist()
        if (step + 1) % 100 == 0:
            print(
                f"step {step + 1} of {settings.steps}: loss of the verdicts of named readers "
                f"{np.mean(named):.4f}, of i {np.mean(unnamed):.4f}",
                flush=True,
            )
            named, unnamed = [], []
    return network.eval()


def pace(progress: float, warm_up: float) -> float:
    """Share of the highest learning rate: a linear rise, then half a cosine down to zero."""
    if progress < warm_up:
        return progress / warm_up
    return 0.5 * (1 + math.cos(math.pi * (progress - warm_up) / (1 - warm_up)))


def verdict_accuracy(base: BaseModel, task: Task, texts: Sequence[str]) -> dict[str, float]:
    """How often the first verdict on a message of the public is foreseen."""
    loves, hates, loves_if = messages.TOPICS[:3]
    public = messages.Writer(
        "public",
        messages.PUBLIC_PREFERENCES,
        loves,
        hates,
        loves_if,
        setting="company",
        strength=messages.MILD,
    )
    found = [(text, match) for text in texts if (match := VERDICT.search(text))]
    asked = [
        task.model_copy(update={"question": messages.VERDICT.replace("{who}", match[1])})
        for _, match in found
    ]
    named, unnamed, as_the_public = [], [], []
    for (text, match), question in zip(found, asked, strict=True):
        message = text[: match.start()]
        guess = predictions(base, question, rows_of(base, question, [message], [0]))[0]
        hit = messages.LABEL_WORDS[guess] == match[2]
        if match[1] != "i":
            named.append(hit)
        else:
            unnamed.append(hit)
            as_the_public.append((public.valence(message) > 0) == bool(guess))
    return {
        "named readers": float(np.mean(named)),
        "i": float(np.mean(unnamed)),
        "i as the public's common rule": float(np.mean(as_the_public)),
    }


def rows_of(
    base: BaseModel, task: Task, texts: Sequence[str], labels: Sequence[int], room: int = 160
) -> Rows:
    """Tokenize messages as a client does."""
    scorer = scorer_for(base, task, room, Body(base, 0))
    return Rows(tuple(scorer.prompt(text) for text in texts), torch.tensor(labels))


def writer_rows(
    base: BaseModel, task: Task, writer: messages.Writer, split: messages.Split, seed: int
) -> Rows:
    """Messages of one writer."""
    own = messages.messages(writer, MESSAGES_PER_WRITER[split], split, seed)
    texts, labels = [row["text"] for row in own], [row["label"] for row in own]
    return rows_of(base, task, texts, labels)


def scores_of(scorer: Scorer, body: Body, prompts: Sequence[Prompt]) -> Tensor:
    """Scores under the adapter at its present point, with gradients: [n, labels]."""
    sequences = [sequence for prompt in prompts for sequence in prompt.sequences]
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return scorer.scores(body(sequences), lengths, prompts)[0]


@torch.inference_mode()
def predictions(base: BaseModel, task: Task, rows: Rows) -> list[int]:
    """The label that the base finds likelier, per row."""
    body = Body(base, 0)
    scorer = scorer_for(base, task, 160, body)
    found: list[int] = []
    for start in range(0, len(rows.prompts), 64):
        scores = scores_of(scorer, body, rows.prompts[start : start + 64])
        found += scores.argmax(1).tolist()
    return found


class FirstOrder:
    """Trains B of an adapter by Adam on true gradients."""

    def __init__(self, base: BaseModel, adapter: Adapter, task: Task, settings: Probe) -> None:
        self._adapter, self._settings = adapter, settings
        self._body = Body(base, 0)
        self._scorer = scorer_for(base, task, 160, self._body)

    def trained(self, start: Tensor, people: Sequence[Rows], steps: int, seed: int) -> Tensor:
        """`start` after some steps; a step takes a batch of every one of `people`."""
        center = start.clone().requires_grad_()
        optimizer = torch.optim.Adam([center], self._settings.learning_rate)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            prompts: list[Prompt] = []
            labels: list[Tensor] = []
            for rows in people:
                order = torch.randperm(len(rows.labels), generator=generator)
                chosen = order[: self._settings.batch]
                prompts += [rows.prompts[index] for index in chosen]
                labels.append(rows.labels[chosen])
            with self._adapter.at(Points(self._adapter.layout, center)):
                scores = scores_of(self._scorer, self._body, prompts)
            optimizer.zero_grad()
            nn.functional.cross_entropy(scores, torch.cat(labels)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return center.detach()

    @torch.inference_mode()
    def accuracy(self, center: Tensor, rows: Rows) -> float:
        """Share of rows whose label is found."""
        with self._adapter.at(Points(self._adapter.layout, center)):
            scores = scores_of(self._scorer, self._body, rows.prompts)
        return float((scores.argmax(1) == rows.labels).float().mean())


def probe(folder: Path, task: Task, settings: Probe, seed: int) -> dict[str, float]:
    """What adapters reach for one community, as means over its writers."""
    base = load_base_model(str(folder))
    people = messages.writers(settings.writers, seed)
    train = [writer_rows(base, task, one, "train", seed) for one in people]
    test = [writer_rows(base, task, one, "test", seed) for one in people]
    adapter = inject(base, AdapterSettings(layers=settings.layers, rank=settings.rank), 2)
    zero = torch.zeros(adapter.layout.size)
    trainer = FirstOrder(base, adapter, task, settings)
    shared = trainer.trained(zero, train, settings.global_steps, seed)

    def private(start: Tensor) -> float:
        centers = [trainer.trained(start, [own], settings.private_steps, seed) for own in train]
        return float(np.mean([*map(trainer.accuracy, centers, test)]))

    return {
        "zero-shot": float(np.mean([trainer.accuracy(zero, own) for own in test])),
        "global": float(np.mean([trainer.accuracy(shared, own) for own in test])),
        "personalized": private(shared),
        "local only": private(zero),
    }


def measured(folder: Path, training: Training, settings: Probe, seeds: int) -> dict[str, Any]:
    """All figures of the record."""
    task = load_task("messages")
    base = load_base_model(str(folder))
    texts = messages.pretraining_text(training.texts + 2000, training.seed)
    fresh = list(islice(texts, training.texts, None))
    figures: dict[str, Any] = {"verdicts": verdict_accuracy(base, task, fresh)}
    for seed in range(seeds):
        ceilings = embedded_ceilings(settings.writers, seed)
        figures[f"community {seed}"] = {"ceilings": ceilings._asdict()} | probe(
            folder, task, settings, seed
        )
        print(json.dumps(figures[f"community {seed}"]), flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="where the model goes")
    folder = parser.parse_args().folder
    training, settings = Training(), Probe()
    torch.set_num_threads(2)
    texts = list(messages.pretraining_text(training.texts, training.seed))
    tokenizer = tokenizer_of(texts)
    start = time.process_time()
    network = pretrain(training, tokenizer, texts)
    minutes = (time.process_time() - start) / 60
    network.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    record = {
        "training": asdict(training),
        "training minutes": round(minutes, 1),
        "probe": asdict(settings),
        "accuracy": measured(folder, training, settings, seeds=3),
    }
    (folder / "record.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
