"""Plain texts as data: files of rows, folders per person, and their mistakes."""

from pathlib import Path

import pytest

from samara.shared.errors import DataError
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.data import load_examples
from samara.shared.tasks.growing import identity_of, read_growing
from samara.shared.tasks.rows import Example

TASK = load_task("texts")


def test_a_folder_of_texts_per_person_is_split_inside_each(tmp_path: Path) -> None:
    for person, count in (("ann", 10), ("bob", 3)):
        (tmp_path / person).mkdir()
        for number in range(count):
            suffix = "md" if number % 2 else "txt"
            (tmp_path / person / f"{number}.{suffix}").write_text(f"{person} writes {number}.\n")
        (tmp_path / person / ".draft.txt").write_text("not yet")
        (tmp_path / person / "photo.png").write_bytes(b"\0")
    examples = load_examples(str(tmp_path), TASK, 0)
    counts = {
        person: [
            sum(e.split == split and e.user == person for e in examples)
            for split in ("train", "validation", "test")
        ]
        for person in ("ann", "bob")
    }
    assert counts == {"ann": [7, 1, 2], "bob": [1, 1, 1]}
    assert {(e.text, e.label) for e in examples} == {("", 0)}
    assert sorted(e.answers[0] for e in examples if e.user == "bob") == [
        "bob writes 0.",
        "bob writes 1.",
        "bob writes 2.",
    ]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_rows_of_texts_keep_their_users(suffix: str, tmp_path: Path) -> None:
    rows = [("ann", "Dear all"), ("ann", "Yours"), ("bob", "Hi"), ("bob", "Bye")]
    lines = ["user,text", *(",".join(row) for row in rows)]
    if suffix == "jsonl":
        lines = [f'{{"user": "{user}", "text": "{text}"}}' for user, text in rows]
    file = tmp_path / f"texts.{suffix}"
    file.write_text("\n".join(lines) + "\n")
    examples = load_examples(str(file), TASK, 0)
    assert sorted((e.user, *e.answers) for e in examples) == sorted(rows)


def test_bad_texts_are_named_with_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text('{"text": "Dear all"}\n{"text": " "}\n{"text": null}\n{"words": "Hi"}\n')
    with pytest.raises(DataError) as caught:
        load_examples(str(file), TASK, 0)
    message = str(caught.value)
    assert f"{file}:2: 'text' holds an empty answer" in message
    assert f"{file}:3: 'text' is null" in message
    assert f"{file}:4: lacks 'text'" in message


def test_bad_files_of_a_person_are_named(tmp_path: Path) -> None:
    (tmp_path / "ann").mkdir()
    (tmp_path / "ann" / "1.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "ann" / "2.md").write_text(" \n")
    with pytest.raises(DataError) as caught:
        load_examples(str(tmp_path), TASK, 0)
    assert "1.txt: is not UTF-8" in str(caught.value)
    assert "2.md: 'text' holds an empty answer" in str(caught.value)


def test_answers_to_prompts_still_need_rows_with_both_fields(tmp_path: Path) -> None:
    (tmp_path / "ann").mkdir()
    (tmp_path / "ann" / "1.txt").write_text("Hi")
    with pytest.raises(DataError, match="reads prompt, response, which are more than a text"):
        load_examples(str(tmp_path), load_task("responses"), 0)


def test_texts_that_are_added_are_told_apart_by_what_they_say(tmp_path: Path) -> None:
    ann, other = (Example("", 0, "ann", "train", (text,)) for text in ("Dear all", "Yours"))
    assert identity_of(ann, TASK) != identity_of(other, TASK)
    (tmp_path / "ann").mkdir()
    for number in range(20):
        (tmp_path / "ann" / f"{number}.txt").write_text(f"text {number}")
    rows, problems = read_growing(str(tmp_path), TASK, 0)
    assert not problems
    assert len({identity_of(row.example, TASK) for row in rows}) == 20
    assert {row.example.split for row in rows} >= {"train", "test"}
