"""Texts of people from two public sets, as rows with a user."""

import json
from pathlib import Path
from typing import Any

from benchmarks.accuracy.people_texts import main


def rows_of(kind: str, checkout: Path, out: Path, *more: str) -> list[dict[str, Any]]:
    main([kind, str(checkout), "--out", str(out), "--words", "5", *more])
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_lines_of_a_chat_are_consecutive_and_of_people(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "train"
    folder.mkdir(parents=True)
    lines = [f"[10:{minute:02}] <ann> a line of number {minute} here" for minute in range(9)]
    lines += [
        "[11:00] <ubottu> a bot says the same always",
        "=== bob has joined",
        "[11:01] <ann> ok",
    ]
    (folder / "2005-02-06.train-c.raw.txt").write_text("\n".join(lines))
    other = tmp_path / "data" / "channel-two"
    other.mkdir()
    (other / "channel-two.dev.raw.txt").write_text("[10:00] <eve> a line of no day\n" * 9)
    rows = rows_of("chats", tmp_path, tmp_path / "out.jsonl", "--texts", "4")
    assert [row["user"] for row in rows] == ["ann"] * 4
    numbers = [int(row["text"].split()[-1]) for row in rows]
    assert numbers == list(range(numbers[0], numbers[0] + 4))
    assert [row["time"] for row in rows] == [f"2005-02-06T10:0{number}:00" for number in numbers]


def test_an_article_gives_one_paragraph(tmp_path: Path) -> None:
    for author, articles in (("ann", 6), ("bob", 2)):
        folder = tmp_path / "data" / "ReutersC50" / "C50train" / author
        folder.mkdir(parents=True)
        for number in range(articles):
            text = f"The news of day {number} are these.\nA second paragraph."
            (folder / f"{number}.txt").write_text(text)
    rows = rows_of("news", tmp_path, tmp_path / "out.jsonl", "--texts", "4")
    assert [row["user"] for row in rows] == ["ann"] * 4
    assert len({row["text"] for row in rows}) == 4
    assert all(len(row["text"].split()) == 5 for row in rows)
