"""Readers of public texts that were not used to choose a default.

`data_sets` lists them with the other data sets. The folder of sources has files of these packages:

- `tweeteval/datasets/emotion` and so on (github.com/cardiffnlp/tweeteval): short messages;
- `banking_data/train.csv`, `test.csv` (github.com/PolyAI-LDN/task-specific-datasets): questions to
  a bank, by intent.
"""

import csv
from pathlib import Path
from typing import Any

Splits = dict[str, list[dict[str, Any]]]
EMOTIONS = {"0": "anger", "1": "joy", "2": "optimism", "3": "sadness"}
SENTIMENTS = {"0": "negative", "1": "neutral", "2": "positive"}
STANCES = {"0": "neutral", "1": "against", "2": "for"}
IRONY = {"0": "serious", "1": "ironic"}
INTENTS = {
    name: name.replace("_", " ")
    for name in (
        *("activate_my_card", "age_limit", "apple_pay_or_google_pay", "atm_support"),
        *("automatic_top_up", "balance_not_updated_after_bank_transfer"),
        *("balance_not_updated_after_cheque_or_cash_deposit", "beneficiary_not_allowed"),
        *("cancel_transfer", "card_about_to_expire", "card_acceptance", "card_arrival"),
        *("card_delivery_estimate", "card_linking", "card_not_working"),
    )
}
"""Label words of the first 15 of the 77 intents in alphabetical order."""


def emotion(sources: Path) -> Splits:
    """Read messages and the emotion in each."""
    return _tweets(sources / "tweeteval" / "datasets" / "emotion")


def sentiment(sources: Path) -> Splits:
    """Read messages and their sentiment; the source's validation split is used for training."""
    folder = sources / "tweeteval" / "datasets" / "sentiment"
    return {"train": _messages(folder, "val"), "test": _messages(folder, "test")}


def irony(sources: Path) -> Splits:
    """Read messages with labels: ironic or not."""
    return _tweets(sources / "tweeteval" / "datasets" / "irony")


def stance(sources: Path) -> Splits:
    """Read messages with their subjects, and the stance of each."""
    splits: Splits = {"train": [], "validation": [], "test": []}
    for folder in sorted((sources / "tweeteval" / "datasets" / "stance").glob("*/")):
        for split, rows in _tweets(folder).items():
            splits[split] += [row | {"text": f"{folder.name}: {row['text']}"} for row in rows]
    return splits


def _tweets(folder: Path) -> Splits:
    files = {"train": "train", "validation": "val", "test": "test"}
    return {split: _messages(folder, file) for split, file in files.items()}


def _messages(folder: Path, name: str) -> list[dict[str, Any]]:
    texts = (folder / f"{name}_text.txt").read_text(encoding="utf-8").strip("\n").split("\n")
    labels = (folder / f"{name}_labels.txt").read_text().split()
    return [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]


def intents(sources: Path) -> Splits:
    """Read questions to a bank, and the intent of each."""
    splits = {}
    for split in ("train", "test"):
        with (sources / "banking_data" / f"{split}.csv").open(newline="", encoding="utf-8") as rows:
            splits[split] = [
                {"text": " ".join(row["text"].split()), "label": row["category"]}
                for row in csv.DictReader(rows)
                if row["category"] in INTENTS
            ]
    return splits
