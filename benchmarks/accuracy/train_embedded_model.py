"""Train the embedded model on the public's generated messages, and show what it can do.

It learns from `messages.pretraining_text` only, so it has read no writer of any federation; how is
said in `benchmarks.accuracy.pretraining`. What is printed at the end also lies beside the
weights, in ``record.json``:

- how well it foresees what "i", who may be anybody, says in texts that were not trained on;
- zero-shot accuracy on the test messages of communities, beside the ceilings;
- what adapters can reach with first-order gradients: trained on all writers (global), continued
  on each writer's own messages (personalized), or trained on those from zero (local only).

Run it from the root of the repository:
``python -m benchmarks.accuracy.train_embedded_model --folder DIR``.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.accuracy.pretraining import VERDICT, Training, pretrain, tokenizer_of
from samara.client.forward.body import PerturbedBody
from samara.client.forward.peak_memory import keep_freed_memory
from samara.shared.model.loading import BaseModel, load_base_model
from samara.shared.model.lora_fa import Adapter, inject
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.scorers import Prompt, Scorer, scorer_for
from samara.shared.sections import AdapterSettings
from samara.shared.tasks import messages
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.embedded import MESSAGES_PER_WRITER, embedded_ceilings
from samara.shared.tasks.kinds import Task


@dataclass(frozen=True)
class Probe:
    """Settings of the first-order probe, per writer where nothing else is said."""

    writers: int = 8
    layers: str = "top:1"
    rank: int = 2
    alpha: float = 16.0
    batch: int = 16
    global_steps: int = 40
    private_steps: int = 40
    learning_rate: float = 0.01


@dataclass(frozen=True, eq=False)
class Rows:
    """Labelled messages as the model reads them."""

    prompts: tuple[Prompt, ...]
    labels: Tensor


def verdict_accuracy(base: BaseModel, task: Task, texts: Sequence[str]) -> dict[str, float]:
    """Return how often the base predicts what "i", who may be anybody, says of a message."""
    said = [
        (VERDICT.split(text, maxsplit=1)[0], word)
        for text in texts
        for who, word in VERDICT.findall(text)
        if who == "i"
    ]
    rows = rows_of(base, task, [message for message, _ in said], [0] * len(said))
    guessed = [messages.LABEL_WORDS[guess] for guess in predictions(base, task, rows)]
    hits = [guess == word for guess, (_, word) in zip(guessed, said, strict=True)]
    return {"i": round(float(np.mean(hits)), 4), "verdicts": len(hits)}


def rows_of(
    base: BaseModel, task: Task, texts: Sequence[str], labels: Sequence[int], room: int = 160
) -> Rows:
    """Tokenize messages as a client does."""
    scorer = scorer_for(base, task, room, PerturbedBody(base, 0))
    return Rows(tuple(scorer.prompt(text) for text in texts), torch.tensor(labels))


def writer_rows(
    base: BaseModel, task: Task, writer: messages.Writer, split: messages.SplitName, seed: int
) -> Rows:
    """Messages of one writer."""
    own = messages.messages(writer, MESSAGES_PER_WRITER[split], split, seed)
    texts, labels = [row["text"] for row in own], [row["label"] for row in own]
    return rows_of(base, task, texts, labels)


def scores_of(scorer: Scorer, body: PerturbedBody, prompts: Sequence[Prompt]) -> Tensor:
    """Scores under the adapter at its present point, with gradients: [n, labels]."""
    sequences = [sequence for prompt in prompts for sequence in prompt.sequences]
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return scorer.scores(body(sequences), lengths, prompts)[0]


@torch.inference_mode()
def predictions(base: BaseModel, task: Task, rows: Rows) -> list[int]:
    """The label that the base finds likelier, per row."""
    body = PerturbedBody(base, 0)
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
        self._body = PerturbedBody(base, 0)
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
            with self._adapter.using(Perturbations(self._adapter.layout, center)):
                scores = scores_of(self._scorer, self._body, prompts)
            optimizer.zero_grad()
            nn.functional.cross_entropy(scores, torch.cat(labels)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return center.detach()

    @torch.inference_mode()
    def accuracy(self, center: Tensor, rows: Rows) -> float:
        """Share of rows whose label is found."""
        with self._adapter.using(Perturbations(self._adapter.layout, center)):
            scores = scores_of(self._scorer, self._body, rows.prompts)
        return float((scores.argmax(1) == rows.labels).float().mean())


def probe(folder: Path, task: Task, settings: Probe, seed: int) -> dict[str, float]:
    """Return the accuracies that adapters reach for one community, as means over its writers."""
    base = load_base_model(str(folder))
    people = messages.writers(settings.writers, seed)
    train = [writer_rows(base, task, one, "train", seed) for one in people]
    test = [writer_rows(base, task, one, "test", seed) for one in people]
    adapter = inject(
        base, AdapterSettings(layers=settings.layers, rank=settings.rank, alpha=settings.alpha), 2
    )
    zero = torch.zeros(adapter.layout.size)
    trainer = FirstOrder(base, adapter, task, settings)
    shared = trainer.trained(zero, train, settings.global_steps, seed)

    def mean_accuracy(centers: Sequence[Tensor]) -> float:
        return round(float(np.mean([*map(trainer.accuracy, centers, test)])), 4)

    def private(start: Tensor) -> list[Tensor]:
        return [trainer.trained(start, [own], settings.private_steps, seed) for own in train]

    return {
        "zero-shot": mean_accuracy([zero] * len(people)),
        "global": mean_accuracy([shared] * len(people)),
        "personalized": mean_accuracy(private(shared)),
        "local only": mean_accuracy(private(zero)),
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
    keep_freed_memory()
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
