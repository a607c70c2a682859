"""Files and folders of rows: their splits, and messages about unusable rows."""

from collections import Counter
from pathlib import Path

import pytest
from data_rows import TASK, messages, rows_of, sizes, write_csv, write_jsonl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from samara.shared.errors import DataError
from samara.shared.tasks.data import load_examples


def test_file_is_split_70_10_20(tmp_path: Path) -> None:
    examples = load_examples(write_jsonl(tmp_path / "all.jsonl", rows_of(100)), TASK, 0)
    assert sizes(examples) == {"train": 70, "validation": 10, "test": 20}
    assert sorted(example.text for example in examples) == sorted(f"row {i}" for i in range(100))
    assert all(example.label == int(example.text[-1]) % 2 for example in examples)
    assert {example.user for example in examples} == {""}


def test_every_split_keeps_the_order_of_the_file(tmp_path: Path) -> None:
    examples = load_examples(write_jsonl(tmp_path / "all.jsonl", rows_of(50)), TASK, 0)
    keys = [
        (["train", "validation", "test"].index(example.split), int(example.text.split()[1]))
        for example in examples
    ]
    assert keys == sorted(keys)


def test_split_depends_on_the_seed_and_not_on_order_format_or_wording(tmp_path: Path) -> None:
    rows = rows_of(60, user="ann")
    jsonl = write_jsonl(tmp_path / "a.jsonl", rows)
    first = load_examples(jsonl, TASK, 1)
    assert load_examples(jsonl, TASK, 1) == first
    assert set(load_examples(jsonl, TASK, 2)) != set(first)
    assert set(load_examples(write_jsonl(tmp_path / "b.jsonl", rows[::-1]), TASK, 1)) == set(first)
    assert load_examples(write_csv(tmp_path / "c.csv", rows), TASK, 1) == first
    worded = TASK.model_copy(update={"text": "Review: {text}"})
    assert [e.text.removeprefix("Review: ") for e in load_examples(jsonl, worded, 1)] == [
        e.text for e in first
    ]


def test_rows_that_differ_only_in_label_are_split_in_any_order_alike(tmp_path: Path) -> None:
    rows = [{"text": "same", "label": int(i < 5)} for i in range(10)]
    one = load_examples(write_jsonl(tmp_path / "a.jsonl", rows), TASK, 0)
    other = load_examples(write_jsonl(tmp_path / "b.jsonl", rows[::-1]), TASK, 0)
    assert Counter(one) == Counter(other)


def test_split_is_the_same_on_every_machine(tmp_path: Path) -> None:
    examples = load_examples(write_jsonl(tmp_path / "all.jsonl", rows_of(10)), TASK, 0)
    assert [e.text for e in examples if e.split == "validation"] == ["row 9"]
    assert [e.text for e in examples if e.split == "test"] == ["row 2", "row 4"]


@given(st.lists(st.sampled_from(["ann", "bob", "cy"]), min_size=1, max_size=60), st.integers())
@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30
)
def test_each_user_has_every_split_from_three_rows_on(
    tmp_path: Path, users: list[str], seed: int
) -> None:
    rows = [{"text": f"{i}", "label": 1, "user": user} for i, user in enumerate(users)]
    examples = load_examples(write_jsonl(tmp_path / "all.jsonl", rows), TASK, seed)
    assert sorted(int(example.text) for example in examples) == list(range(len(users)))
    for user, count in Counter(users).items():
        found = sizes([example for example in examples if example.user == user])
        wanted = {
            "test": max(1, (count * 20 + 50) // 100) if count > 1 else 0,
            "validation": max(1, (count * 10 + 50) // 100) if count > 2 else 0,
        }
        wanted["train"] = count - sum(wanted.values())
        assert found == {split: size for split, size in wanted.items() if size}
        assert wanted["train"] > 0


def test_folder_of_splits_is_used_as_it_is(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", rows_of(5, "a"))
    write_csv(tmp_path / "validation.csv", rows_of(3, "b"))
    write_jsonl(tmp_path / "test.jsonl", rows_of(2, "c"))
    (tmp_path / "README.md").write_text("not data")
    (tmp_path / ".hidden.csv").write_text("not data")
    write_jsonl(tmp_path / "unlabelled.jsonl", [{"text": "not read"}])
    examples = load_examples(str(tmp_path), TASK, 0)
    assert [(e.text[0], e.split) for e in examples] == [
        *[("a", "train")] * 5,
        *[("b", "validation")] * 3,
        *[("c", "test")] * 2,
    ]


def test_missing_splits_are_cut_from_training_rows(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", rows_of(100))
    whole = load_examples(str(tmp_path), TASK, 3)
    assert sizes(whole) == {"train": 70, "validation": 10, "test": 20}
    write_jsonl(tmp_path / "validation.jsonl", rows_of(4))
    assert sizes(load_examples(str(tmp_path), TASK, 3)) == {
        "train": 80,
        "validation": 4,
        "test": 20,
    }


def test_folder_with_a_file_per_user(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "ann.jsonl", rows_of(10, "a"))
    write_csv(tmp_path / "bob.csv", rows_of(20, "b"))
    examples = load_examples(str(tmp_path), TASK, 0)
    assert {(example.user, example.text[0]) for example in examples} == {("ann", "a"), ("bob", "b")}
    assert sizes([e for e in examples if e.user == "ann"]) == {
        "train": 7,
        "validation": 1,
        "test": 2,
    }
    assert sizes(examples) == {"train": 21, "validation": 3, "test": 6}


def test_file_of_a_user_with_other_users_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "all.jsonl", rows_of(3, user="ann"))
    assert messages(str(tmp_path))[0].startswith(
        f"{path}:1: belongs to user 'ann', but the file is named after 'all'"
    )


def test_limit_keeps_some_training_examples_chosen_by_seed(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "all.jsonl", rows_of(100))
    whole = load_examples(path, TASK, 0)
    few = load_examples(path, TASK, 0, limit=12)
    assert sizes(few) == {"train": 12, "validation": 10, "test": 20}
    train = [example for example in whole if example.split == "train"]
    assert [e for e in whole if e in few] == few
    assert few[:12] != train[:12]
    assert load_examples(path, TASK, 0, limit=70) == whole


def test_fields_may_be_numbers_and_users_absent(tmp_path: Path) -> None:
    task = TASK.model_copy(update={"text": "{a}-{b}"})
    rows = [{"a": 1, "b": 2.5, "label": "1", "user": 7}, {"a": "x", "b": "", "label": 0}]
    examples = load_examples(write_jsonl(tmp_path / "all.jsonl", rows), task, 0)
    assert {(e.text, e.label, e.user) for e in examples} == {("1-2.5", 1, "7"), ("x-", 0, "")}


def test_csv_cells_may_hold_commas_quotes_and_line_breaks(tmp_path: Path) -> None:
    text = 'He said: "one,\ntwo"\r\n{text}'
    path = write_csv(tmp_path / "all.csv", [{"text": text, "label": 0}])
    assert [example.text for example in load_examples(path, TASK, 0)] == [text]


def test_json_strings_may_hold_line_separators(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text('{"text": "one\u2028two", "label": 0}\r\n\r\n', encoding="utf-8", newline="")
    assert [e.text for e in load_examples(str(path), TASK, 0)] == ["one\u2028two"]


def test_all_kinds_of_bad_json_rows_are_reported_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    lines = [
        b'{"text": "good", "label": 1}',
        b'{"text": "a", "label": 2}',
        b"{text}",
        b"[1]",
        b'{"review": "a", "label": 0}',
        b'{"text": " ", "label": 0}',
    ]
    path.write_bytes(b"\n".join(lines))
    assert messages(str(path)) == [
        f"{path}:2: label 2 is unknown; task 'sst2' knows 0, 1",
        f"{path}:3: is not JSON, column 2: Expecting property name enclosed in double quotes",
        f'{path}:4: is not a JSON object such as {{"text": "…", "label": 0}}',
        f"{path}:5: lacks 'text' or 'sentence'; it has 'review', 'label'",
        f"{path}:6: the text is empty",
        "Task 'sst2' needs rows with text, label; correct the data or the task.",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "caf\xe9", "label": 0}', "is not UTF-8"),
        (b'{"text": "\\ud800", "label": 0}', "'text' contains half of a UTF-16 surrogate pair"),
        (
            b'{"text": "ab\\u0000", "label": 0}',
            "'text' contains a NUL, the character with code 0, at pos",
        ),
        (b'{"text": null, "label": 0}', "'text' is null, not text or a number"),
        (b'{"text": ["a"], "label": 0}', "'text' is a list, not text or a number"),
        (b'{"text": "a", "label": 0, "user": {}}', "'user' is an object, not text or a number"),
        (b'{"text": "a", "label": [0]}', "label [0] is unknown"),
        (
            b'{"text": "a", "label": 1.5}',
            "label 1.5 is unknown; task 'sst2' knows 0, 1",
        ),
        (
            b'{"text": "a", "label": true}',
            "label True is unknown; task 'sst2' knows 0, 1; name it in a task file",
        ),
        (b"[" * 100_000, "is not JSON that can be read"),
        (b'{"text": ' + b"1" * 5000 + b', "label": 0}', "is not JSON that can be read"),
        (b"", "the file contains no row"),
    ],
)
def test_bad_json_row(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "all.jsonl"
    path.write_bytes(line)
    first, *rest = messages(str(path))
    assert first.startswith(f"{path}:1: {message}")
    assert len(rest) == 1


def test_first_five_bad_rows_are_shown_and_the_rest_counted(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "ann.jsonl", [{"text": "a", "label": 9}] * 4)
    write_jsonl(tmp_path / "bob.jsonl", [{"text": "a", "label": 9}] * 4)
    lines = messages(str(tmp_path))
    assert [line.split(": ")[0] for line in lines[:5]] == [
        *[f"{tmp_path}/ann.jsonl:{i}" for i in range(1, 5)],
        f"{tmp_path}/bob.jsonl:1",
    ]
    assert lines[5] == "and 3 more"


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (b"text,label,text\na,0,b\n", 1, "the header names 'text' more than once"),
        (b"text,label,,\na,0,,\n", 1, "2 columns have no name in the header"),
        (b"text,lable\na,0\n", 1, "lacks 'label'; it has 'text', 'lable'"),
        (b"text;label\na;0;1\n", 2, "the row has 3 cells, but the header has 2 columns"),
        (b"text label\na 0\n", 1, "lacks 'text' or 'sentence', 'label'; it has 'text label'"),
        (b"text,label\n", 1, "the file contains no row"),
        (b"", 1, "lacks 'text' or 'sentence', 'label'; it has nothing"),
        (b'text,label\n"a\nb",0\n\nc\n', 5, "the row has 1 cells, but the header has 2 columns"),
        (b"text,label\na,0\nb,7\n", 3, "label '7' is unknown"),
        (
            b"text,label\na,0\nb\0,1\n",
            3,
            "'text' contains a NUL, the character with code 0, at position 2",
        ),
        (b"text,label\na,0\ncaf\xe9,0\n", 3, "is not UTF-8"),
        (
            b"text,label\na,0\ncaf\xe9,0\nb,0\n\xe9,0\n\xe8,1\n",
            3,
            "is not UTF-8; save the file in UTF-8 (other such lines: 2)",
        ),
        (
            b'text,label\n"a"b,0\n',
            2,
            "the row that begins here is not CSV (',' expected after '\"'); correct it, because no "
            "later row was read",
        ),
        (b'text,label\na,0\n"b,0\nc,1\n', 3, "the row that begins here is not CSV"),
        ("text,label\n".encode("utf-16"), 1, "is not UTF-8"),
    ],
)
def test_bad_csv(tmp_path: Path, content: bytes, line: int, message: str) -> None:
    path = tmp_path / "all.csv"
    path.write_bytes(content)
    lines = messages(str(path))
    assert lines[0].startswith(f"{path}:{line}: {message}")
    assert len(lines) == 2


@given(st.binary(max_size=60), st.sampled_from(["jsonl", "csv", "json", "tsv", "csv.gz"]))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_content_surfaces_as_another_error(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"all.{suffix}"
    path.write_bytes(b"text,label\n" * (suffix == "csv") + content)
    try:
        load_examples(str(path), TASK, 0)
    except DataError as error:
        message = str(error)
    else:
        return
    assert message.startswith(str(path))


@pytest.mark.parametrize("path", ["nowhere", "", "a/b.jsonl", "a/b/c", "/x/y", "nul\0", "a/b:c:d"])
def test_path_that_is_nothing(path: str) -> None:
    assert "no such file or folder" in messages(path)[0]


def test_sources_that_cannot_be_used(tmp_path: Path) -> None:
    assert (
        "the folder contains no file ending in .jsonl, .json, .csv, .tsv, or one of these and .gz"
        in messages(str(tmp_path))[0]
    )
    (tmp_path / "notes.txt").write_text("a")
    assert "the file's name must end in .jsonl, .json" in messages(str(tmp_path / "notes.txt"))[0]
    write_jsonl(tmp_path / "test.jsonl", rows_of(3))
    assert (
        "the folder has test.jsonl, but no training file; add train.jsonl"
        in (messages(str(tmp_path))[0])
    )
    (tmp_path / "train.csv").mkdir()
    assert "train.csv: cannot be read" in messages(str(tmp_path))[0]
    write_jsonl(tmp_path / "train.jsonl", rows_of(3))
    assert "keep only one of the two files" in messages(str(tmp_path))[0]


def test_a_folder_of_texts_by_label_is_split_like_other_rows(tmp_path: Path) -> None:
    for label, value in (("great", 1), ("0", 0)):
        (tmp_path / label).mkdir()
        for number in range(50):
            (tmp_path / label / f"{number}.txt").write_text(f"text {number} of {value}\n")
    examples = load_examples(str(tmp_path), TASK, 0)
    assert sizes(examples) == {"train": 70, "validation": 10, "test": 20}
    assert all(int(example.text[-1]) == example.label for example in examples)
    (tmp_path / "dull").mkdir()
    (tmp_path / "0" / "1.txt").write_bytes(b"\xff")
    problems = messages(str(tmp_path))
    assert "1.txt: is not UTF-8" in problems[0]
    assert "dull: label 'dull' is unknown" in problems[1]


def test_folders_of_texts_may_lie_in_folders_of_splits(tmp_path: Path) -> None:
    for split, count in (("train", 40), ("test", 5)):
        for label, value in (("great", 1), ("terrible", 0)):
            (tmp_path / split / label).mkdir(parents=True)
            for number in range(count):
                (tmp_path / split / label / f"{number}.txt").write_text(f"{number} of {value}")
    examples = load_examples(str(tmp_path), TASK, 0)
    assert sizes(examples) == {"train": 72, "validation": 8, "test": 10}
    assert all(int(example.text[-1]) == example.label for example in examples)
