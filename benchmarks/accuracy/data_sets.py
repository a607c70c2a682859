"""Data sets for measurements of the defaults: public data sets, and deliberately difficult cases.

Each data set is written once, as a folder of JSON lines and a task, which any command of Samara can
read. The folder of sources has a subfolder for each data set: `sst2_sentences`, `trec6`, `mrpc`,
`rte`, `cb`, `wic`, `boolq`, `popquorn_offensiveness` and `imdb`, with their usual fields, and the
subfolders of `held_out`. `messages` are generated, with one writer per client.
"""

import gzip
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy import held_out
from samara.shared.tasks.messages import EMBEDDED_DATA

Record = dict[str, Any]
Read = Callable[[Path], dict[str, list[Record]]]
MOST_TRAINING, MOST_TEST = 3000, 1000
"""Maximum number of examples in each split. A hash of their content decides which are kept."""
# fmt: off
NOUNS = (
    "woman", "king", "war", "horror", "comedy", "school", "police", "money", "wife", "game", "army",
    "doctor", "island", "train", "murder", "dog", "music", "hospital", "car", "child", "ship",
    "book", "hotel", "soldier", "prison", "winter", "dance", "baby", "teacher", "church", "beach",
    "river", "airplane", "monster", "lawyer", "boxing", "football", "garden", "robot", "vampire",
    "cowboy", "desert", "forest", "bank", "kitchen", "wedding", "circus", "castle", "submarine",
    "elephant", "piano", "bridge", "nurse", "spider", "mountain", "judge", "snake", "tennis",
    "opera", "ghost", "detective", "pirate",
)
# fmt: on
"""Labels of `noun12` and `noun60`, whose examples are sentences in which a gap replaces the
label.
"""
GAP = "___"


@dataclass(frozen=True)
class DataSet:
    """A data set as it is prepared for a run.

    Attributes:
        name: name of the data set.
        task: name of a shipped task, or the content of a task file.
        read: function that reads splits, `train` and perhaps others, from the folder of sources;
            None for generated messages, which are not written.
        limit: maximum number of training examples; `data.limit` of a run.
    """

    name: str
    task: str
    read: Read | None
    limit: int = 0

    def prepare(self, sources: Path, folder: Path) -> dict[str, object]:
        """Write the data set unless it is already written, and return the settings that name it."""
        if self.read is None:
            return {"task": self.task, "data.path": EMBEDDED_DATA}
        own = folder / self.name
        if not own.exists():
            splits = complete_splits(self.read(sources))
            partial = own.with_suffix(".partial")
            partial.mkdir(parents=True, exist_ok=True)
            for split, records in splits.items():
                lines = [json.dumps(record) + "\n" for record in records]
                (partial / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
            partial.rename(own)
        task = self.task
        if "\n" in task:
            task = str(folder / f"{self.name}.toml")
            Path(task).write_text(self.task, encoding="utf-8")
        return {"task": task, "data.path": str(own), "data.limit": self.limit}


def complete_splits(splits: dict[str, list[Record]]) -> dict[str, list[Record]]:
    """Return training, validation and test examples within the limits.

    A missing split is taken from the training examples by a hash.
    """
    train = sorted(splits["train"], key=_hash)
    test, validation = splits.get("test"), splits.get("validation")
    if test is None:
        cut = min(MOST_TEST, len(train) // 4)
        test, train = train[:cut], train[cut:]
    train = train[: MOST_TRAINING + (0 if validation else 300)]
    if validation is None:
        cut = max(20, min(300, len(train) // 10))
        validation, train = train[:cut], train[cut:]
    limits = {"train": MOST_TRAINING, "validation": 300, "test": MOST_TEST}
    parts = {"train": train, "validation": validation, "test": test}
    return {name: sorted(part, key=_hash)[: limits[name]] for name, part in parts.items()}


def _hash(record: Record) -> bytes:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).digest()


def _folder(name: str, **files: str) -> Callable[[Path], dict[str, list[Record]]]:
    """Return a reader of a folder of JSON lines.

    `files` has the names of the files by split.
    """
    names = files or {"train": "train", "validation": "validation", "test": "test"}

    def read(sources: Path) -> dict[str, list[Record]]:
        paths = {split: sources / name / f"{file}.jsonl" for split, file in names.items()}
        return {split: list(_json_lines(path)) for split, path in paths.items() if path.exists()}

    return read


def _json_lines(path: Path) -> Iterator[Record]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        yield from map(json.loads, lines)


def _ratings(sources: Path) -> dict[str, list[Record]]:
    """Read film reviews, cut to their beginnings, with their ratings."""
    rows = _json_lines(sources / "imdb" / "train.jsonl.gz")
    whole = sorted(
        ({"text": row["text"][-400:], "label": row["rating"]} for row in rows), key=_hash
    )
    return {"train": whole[: MOST_TRAINING + MOST_TEST + 300]}


def _nouns(count: int, most: int) -> Callable[[Path], dict[str, list[Record]]]:
    """Return a reader of review sentences with a gap in place of one of `count` nouns."""
    nouns = set(NOUNS[:count])

    def read(sources: Path) -> dict[str, list[Record]]:
        records: list[Record] = []
        counts: Counter[str] = Counter()
        for row in _json_lines(sources / "imdb" / "unsup.jsonl.gz"):
            for sentence in re.split(r"(?<=[.!?])\s+", row["text"]):
                words = re.findall(r"[a-z]+", sentence.lower())
                present = [word for word in words if word in nouns]
                if len(present) != 1 or not 8 <= len(words) <= 30 or counts[present[0]] >= most:
                    continue
                counts[present[0]] += 1
                text = re.sub(rf"(?i)\b{present[0]}\b", GAP, sentence)
                records.append({"text": text, "label": present[0]})
            if sum(counts.values()) >= MOST_TRAINING + MOST_TEST + 300:
                break
        return {"train": records}

    return read


def _rare(sources: Path) -> dict[str, list[Record]]:
    """Read film sentences, of which only one in ten is positive."""
    splits = _folder("sst2_sentences")(sources)
    kept = {}
    for name, records in splits.items():
        ordered = sorted(records, key=_hash)
        negative = [record for record in ordered if str(record["label"]) == "0"]
        positive = [record for record in ordered if str(record["label"]) == "1"]
        kept[name] = negative + positive[: len(negative) // 9]
    return kept


def _task(name: str, text: str, question: str, words: Sequence[str], labels: object) -> str:
    lines = {"name": name, "text": text, "question": question, "words": list(words)}
    fields = [f"{key} = {json.dumps(value)}" for key, value in lines.items()]
    return "\n".join([*fields, f"labels = {json.dumps(labels)}", 'metric = "accuracy"', ""])


RATINGS = ("dreadful", "bad", "poor", "weak", "decent", "good", "great", "perfect")
OFFENSIVENESS = ("harmless", "all right", "somewhat offensive", "offensive", "very offensive")
_comments = _folder("popquorn_offensiveness", train="all")
_sentences = _folder("sst2_sentences")


def _nouns_task(count: int) -> str:
    labels = NOUNS[:count]
    return _task(f"noun{count}", "{text}", f" {GAP} is {{word}}.", labels, labels)


def _described(name: str, sentence: str, words: dict[str, str], read: Read) -> DataSet:
    """Return a data set whose labels are words of a sentence after the text."""
    task = _task(name, "{text}", f" {sentence}", list(words.values()), list(words))
    return DataSet(name, task, read)


DATA_SETS = {
    data_set.name: data_set
    for data_set in (
        DataSet("messages", EMBEDDED_DATA, None),
        DataSet("sst2", "sst2", _sentences),
        DataSet("trec6", "trec6", _folder("trec6")),
        DataSet("mrpc", "mrpc", _folder("mrpc")),
        DataSet("rte", "rte", _folder("rte")),
        DataSet("cb", "cb", _folder("cb")),
        DataSet("wic", "wic", _folder("wic")),
        DataSet("boolq", "boolq", _folder("boolq", train="train_1000", test="validation")),
        DataSet("popquorn2", "popquorn", _comments),
        DataSet(
            "popquorn5",
            _task("popquorn5", "{text}", " It was {word}.", OFFENSIVENESS, [1, 2, 3, 4, 5]),
            _comments,
        ),
        DataSet(
            "rating8",
            _task("rating8", "{text}", " It was {word}.", RATINGS, [1, 2, 3, 4, 7, 8, 9, 10]),
            _ratings,
        ),
        DataSet("noun12", _nouns_task(12), _nouns(12, 500)),
        DataSet("noun60", _nouns_task(60), _nouns(60, 90)),
        DataSet("sst2rare", "sst2", _rare),
        DataSet("sst2few", "sst2", _sentences, limit=128),
        DataSet("trec6few", "trec6", _folder("trec6"), limit=128),
        _described("emotion4", "This is {word}.", held_out.EMOTIONS, held_out.emotion),
        _described("sentiment3", "This is {word}.", held_out.SENTIMENTS, held_out.sentiment),
        _described("stance3", "This is {word}.", held_out.STANCES, held_out.stance),
        _described("irony2", "This is {word}.", held_out.IRONY, held_out.irony),
        _described("banking15", "This is about {word}.", held_out.INTENTS, held_out.intents),
        DataSet("noun60few", _nouns_task(60), _nouns(60, 90), limit=600),
    )
}
