"""A small Llama that has read one half of the film reviews, and the other half to go on with.

    OMP_NUM_THREADS=1 python -m benchmarks.accuracy.review_halves --reviews FILE --out FOLDER

FILE is `imdb/train.jsonl.gz`. FOLDER gets `model`, which `offload_perplexity` reads, and
`texts.jsonl`. Its tokenizer has read the first half only, as has the model.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.accuracy.pretraining import Training, network_of, pace
from benchmarks.accuracy.token_sequences import (
    as_sequences,
    batch_of,
    loss_of,
    read_texts,
    token_ids,
)

END, VOCABULARY = "</s>", 2048
SETTINGS = Training(
    texts=2500,
    steps=1000,
    seed=0,
    hidden=128,
    feed_forward=352,
    context=128,
    initial_spread=0.02,
    batch=8,
    learning_rate=3e-3,
    warm_up=0.05,
)
"""`texts` are the most reviews of each half, more than the steps read."""


def tokenizer_of(texts: Sequence[str]) -> Any:
    """Return a byte-level tokenizer that has learned from texts."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, VOCABULARY, special_tokens=[END], show_progress=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer, bos_token=END, eos_token=END
    )


def pretrain(texts: Sequence[str], tokenizer: Any, settings: Training) -> Any:
    """Return a network that has learned to predict the next token of texts."""
    torch.manual_seed(settings.seed)
    network = network_of(settings, tokenizer)
    sequences = as_sequences(token_ids(texts, tokenizer), settings.context)
    optimizer = torch.optim.AdamW(
        network.parameters(), betas=(0.9, 0.98), weight_decay=settings.weight_decay
    )
    for step in range(settings.steps):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * pace(step / settings.steps, settings.warm_up)
        loss = loss_of(network, batch_of(sequences, step, settings.batch, settings.seed))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} of {settings.steps}: loss {loss.item():.3f}", flush=True)
    return network


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--reviews", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    texts = read_texts([arguments.reviews], "text")
    middle = len(texts) // 2
    first, second = (half[: SETTINGS.texts] for half in (texts[:middle], texts[middle:]))
    lines = "".join(json.dumps({"text": text}) + "\n" for text in second)
    (arguments.out / "texts.jsonl").write_text(lines)
    tokenizer = tokenizer_of(first)
    network = pretrain(first, tokenizer, SETTINGS)
    network.save_pretrained(arguments.out / "model")
    tokenizer.save_pretrained(arguments.out / "model")


if __name__ == "__main__":
    main()
