"""The readers of data sets that no default was chosen on."""

import json
import tomllib
from pathlib import Path

import pytest

from benchmarks.accuracy.data_sets import DATA_SETS


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A folder of sources as the packages have them, some examples of each label."""
    folder = tmp_path / "sources"

    def write(name: str, content: object) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))

    write(
        "emoji/data-by-emoji.json",
        {str(n): {"name": f"flag {n}", "group": "Flags"} for n in range(100)},
    )
    write("afinn/words.json", [[f"word{n}", n - 50] for n in range(101)])
    for label in ("female", "male"):
        write(f"names/{label}.json", [f"{label}{n}" for n in range(50)])
    for number in range(100):
        text = f"From: a@b.c\nSubject: Number {number}\n\n<p>Buy\nthis</p> " + "x" * 600
        write(f"spam_assassin/spam-1/{number:03}.json", {"text": text})
        write(f"spam_assassin/hard-ham-1/{number:03}.json", {"text": text})
    for name in ("computers", "definitions", "love", "politics", "science"):
        write(f"fortunes/{name}", "".join(f"A saying,\n\t{n}.\n%\n" for n in range(20)))
    for name in ("work", "food", "people", "songs-poems", "literature"):
        write(f"fortunes/{name}", "Another.\n%\n")
    for subject in ("emotion", "sentiment", "irony", "stance/climate", "stance/atheism"):
        for split in ("train", "val", "test"):
            write(f"tweeteval/datasets/{subject}/{split}_text.txt", "A message\u2028 .\n" * 60)
            write(f"tweeteval/datasets/{subject}/{split}_labels.txt", "0\n1\n" * 30)
    for split in ("train", "test"):
        rows = "".join(f'"Is it,\n{n}?",card_linking\nNo,other\n' for n in range(60))
        write(f"banking_data/{split}.csv", "text,category\n" + rows)
    return folder


@pytest.mark.parametrize(
    "name",
    [
        *("emoji9", "words2", "names2", "mail3", "fortunes10"),
        *("emotion4", "sentiment3", "irony2", "stance3", "banking15"),
    ],
)
def test_a_held_out_data_set_becomes_a_task_and_three_splits(
    name: str, sources: Path, tmp_path: Path
) -> None:
    prepared = DATA_SETS[name].prepare(sources, tmp_path / "prepared")
    task = tomllib.loads(Path(str(prepared["task"])).read_text())
    splits = {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in Path(str(prepared["data.path"])).iterdir()
    }
    assert splits.keys() == {"train", "validation", "test"}
    rows = [row for split in splits.values() for row in split]
    assert len(rows) >= 100
    assert {row["label"] for row in rows} <= set(task["labels"])
    assert all(0 < len(row["text"]) <= 500 for row in rows)
    assert len(task["words"]) == len(set(task["words"])) == len(task["labels"])


def test_a_mail_is_its_subject_and_text(sources: Path) -> None:
    rows = DATA_SETS["mail3"].read(sources)["train"]  # type: ignore[misc]
    assert {row["label"] for row in rows} == {"spam", "hard-ham"}
    assert rows[0]["text"].startswith("Number 0. Buy this xxx")


def test_a_message_has_its_subject_and_a_question_is_one_line(sources: Path) -> None:
    stances = DATA_SETS["stance3"].read(sources)  # type: ignore[misc]
    assert [row["text"].split(":")[0] for row in stances["test"]] == ["atheism"] * 60 + [
        "climate"
    ] * 60
    assert DATA_SETS["banking15"].read(sources)["train"][1] == {  # type: ignore[misc]
        "text": "Is it, 1?",
        "label": "card_linking",
    }
