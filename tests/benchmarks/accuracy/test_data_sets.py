"""The readers of data sets on which no default was chosen."""

import json
import tomllib
from pathlib import Path

import pytest

from benchmarks.accuracy.data_sets import DATA_SETS


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A folder of sources in the packages' layout, with some examples of each label."""
    folder = tmp_path / "sources"

    def write(name: str, content: str) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    for subject in ("emotion", "sentiment", "irony", "stance/climate", "stance/atheism"):
        for split in ("train", "val", "test"):
            write(f"tweeteval/datasets/{subject}/{split}_text.txt", "A message\u2028 .\n" * 60)
            write(f"tweeteval/datasets/{subject}/{split}_labels.txt", "0\n1\n" * 30)
    for split in ("train", "test"):
        rows = "".join(f'"Is it,\n{n}?",card_linking\nNo,other\n' for n in range(60))
        write(f"banking_data/{split}.csv", "text,category\n" + rows)
    return folder


@pytest.mark.parametrize("name", ["emotion4", "sentiment3", "irony2", "stance3", "banking15"])
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


def test_a_message_has_its_subject_and_a_question_is_one_line(sources: Path) -> None:
    stances = DATA_SETS["stance3"].read(sources)  # type: ignore[misc]
    assert [row["text"].split(":")[0] for row in stances["test"]] == ["atheism"] * 60 + [
        "climate"
    ] * 60
    assert DATA_SETS["banking15"].read(sources)["train"][1] == {  # type: ignore[misc]
        "text": "Is it, 1?",
        "label": "card_linking",
    }
