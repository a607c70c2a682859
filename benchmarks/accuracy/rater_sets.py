"""Public sets of texts with labels of several people, in one format.

    python -m benchmarks.accuracy.rater_sets --sources SOURCES --out FOLDER [--sets multipico]

A set is a folder with `rows.jsonl`, one line per example with its user, text and label, and a task,
`task.toml`. All commands of Samara read these files, and `people` measures on them. SOURCES
contains

- `popquorn_offensiveness/all.jsonl`: user, text, label of 1 to 5 (github.com/Jiaxin-Pei/
  Potato-Prolific-Dataset);
- `MD-Agreement_{train,dev,test}.json` and `MP_{dev,test}.json`: the folders of the same names in
  github.com/Le-Wi-Di/le-wi-di.github.io, LeWiDi_2-2023 and LeWiDi_3-2025.

A set keeps at most `MOST_TEXTS` texts, chosen by a hash. It keeps the `MOST_PEOPLE` people with the
most rows among the people with at least `LEAST_ROWS` rows.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.arguments import arguments

MOST_TEXTS = 1500
MOST_PEOPLE = 120
LEAST_ROWS = 30
DOMAIN = "Elections2020"
"""Domain of the tweets that are read from MD-Agreement."""
LANGUAGE = "en"


class Row(NamedTuple):
    """The label that one person gave a text."""

    user: str
    text: str
    label: int


class RaterSet(NamedTuple):
    """A set of texts with the labels of several people.

    Attributes:
        question: sentence after a text in a prompt; it contains `{word}`.
        words: label words, beginning with label 0.
        read: function from the folder of sources to rows.
    """

    question: str
    words: Sequence[str]
    read: Callable[[Path], Iterator[Row]]

    def write(self, sources: Path, folder: Path) -> None:
        """Write the folder of the set."""
        folder.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(row._asdict()) + "\n" for row in kept(list(self.read(sources)))]
        (folder / "rows.jsonl").write_text("".join(lines), encoding="utf-8")
        fields = {
            "name": folder.name,
            "text": "{text}",
            "question": self.question,
            "words": list(self.words),
            "labels": list(range(len(self.words))),
            "metric": "accuracy",
        }
        task = "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())
        (folder / "task.toml").write_text(task, encoding="utf-8")


def kept(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the kept texts and people, in their original order."""
    texts = sorted({row.text for row in rows}, key=_hash)[:MOST_TEXTS]
    chosen = set(texts)
    some = [row for row in rows if row.text in chosen]
    counts = Counter(row.user for row in some)
    users = sorted(counts, key=lambda user: (-counts[user], user))[:MOST_PEOPLE]
    people = {user for user in users if counts[user] >= LEAST_ROWS}
    return [row for row in some if row.user in people]


def popquorn(sources: Path) -> Iterator[Row]:
    """Read comments with a reader's judgement: offensive to any degree, or not."""
    with (sources / "popquorn_offensiveness" / "all.jsonl").open(encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            yield Row(record["user"], record["text"], int(record["label"] >= 2))


def md_agreement(sources: Path) -> Iterator[Row]:
    """Read tweets of one domain with a rater's judgement: offensive or not."""
    for record in _records(sources, "MD-Agreement", ("train", "dev", "test")):
        if record["other_info"]["domain"] == DOMAIN:
            answers = zip(
                record["annotators"].split(","), record["annotations"].split(","), strict=True
            )
            for user, label in answers:
                yield Row(user, record["text"], int(label))


def multipico(sources: Path) -> Iterator[Row]:
    """Read English posts and replies with a rater's judgement of the reply: ironic or not."""
    for record in _records(sources, "MP", ("dev", "test")):
        if record["lang"] == LANGUAGE:
            text = f"{record['text']['post']}\nReply: {record['text']['reply']}"
            for user, label in record["annotations"].items():
                yield Row(user, text, int(label))


def _records(sources: Path, name: str, splits: Sequence[str]) -> Iterator[dict[str, Any]]:
    for split in splits:
        content = (sources / f"{name}_{split}.json").read_text(encoding="utf-8")
        yield from json.loads(content).values()


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


RATER_SETS = {
    "popquorn": RaterSet(" It was {word}.", ("fine", "offensive"), popquorn),
    "md-agreement": RaterSet(" It was {word}.", ("fine", "offensive"), md_agreement),
    "multipico": RaterSet(" It was {word}.", ("serious", "ironic"), multipico),
}


def main(words: Sequence[str] | None = None) -> None:
    given = arguments(__doc__, words, sources=Path, out=Path, sets=list(RATER_SETS))
    for name in given.sets:
        RATER_SETS[name].write(given.sources, given.out / name)


if __name__ == "__main__":
    main()
