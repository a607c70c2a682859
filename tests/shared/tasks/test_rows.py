"""Rows of choice and generation tasks, and rows that become several examples."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from samara.shared.errors import DataError
from samara.shared.tasks.data import load_examples
from samara.shared.tasks.kinds import ChoiceTask, ClassificationTask, GenerationTask
from samara.shared.tasks.rows import Row, is_unlabelled, read_rows

QA = GenerationTask(kind="generation", name="qa", text="{q.text|q} {answer}.", label="a.text|a")
LISTED = ChoiceTask(
    kind="choice", name="listed", text="{s}", gap="_", candidates="{names}", label="right"
)
FIXED = ChoiceTask(
    kind="choice", name="fixed", text="{s} {candidate} end", candidates=("{a}!", "{b}!")
)
SEVERAL = ClassificationTask(
    name="several",
    text="{p}: {item}",
    question=" {word}",
    words=("no", "yes"),
    labels=(("0",), ("1",)),
    each="items",
)


def mistakes(row: dict[str, Any], task: Any) -> str:
    with pytest.raises(DataError) as caught:
        read_rows(row, task)
    return str(caught.value)


def only(rows: list[Row]) -> tuple[str, int, tuple[str, ...]]:
    ((example, *_),) = rows
    return example.text, example.label, example.answers


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        ({"q": "Why?", "a": "so"}, ("so",)),
        ({"q": "Why?", "a": ["so", 7, "so"]}, ("so", "7")),
        ({"q": {"text": "Why?"}, "a": {"text": ["so", "thus"], "start": [1, 2]}}, ("so", "thus")),
        ({"q.text": "Why?", "a": [{"text": "so"}, {"text": "thus"}]}, ("so", "thus")),
    ],
)
def test_an_answer_is_a_text_or_several_wherever_they_lie(
    row: dict[str, Any], answers: tuple[str, ...]
) -> None:
    assert only(read_rows(row, QA)) == ("Why? ", 0, answers)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"q": "Why?"}, "lacks 'a.text' or 'a'; it has 'q'"),
        ({"q": "Why?", "a": []}, "'a.text' is empty"),
        ({"q": "Why?", "a": None}, "'a.text' is null, not text or a number"),
        ({"q": "Why?", "a": {"texts": "so"}}, "'a.text' is an object, not text or a number"),
        ({"q": {"s": 1}, "a": ["so", {}]}, "'q.text' is an object.*; 'a.text' is an object"),
        ({"q": "Why?", "a": ["so", " "]}, "'a.text' holds an empty answer"),
        ({"q": " ", "a": "so"}, "the text is empty"),
    ],
)
def test_a_row_without_question_or_answer(row: dict[str, Any], message: str) -> None:
    assert re.search(message, mistakes(row, QA))


def test_candidates_come_with_the_text_behind_them() -> None:
    row = {"s": "I saw", "a": "Ann", "b": "Bo", "label": 1}
    assert only(read_rows(row, FIXED)) == ("I saw ", 1, ("Ann! end", "Bo! end"))


def test_of_several_right_candidates_the_first_is_kept() -> None:
    row = {"s": "I saw _ today", "names": ["Bo", "Ann", "Cy", "Ann", "Di"], "right": ["Di", "Ann"]}
    answers = ("Bo today", "Ann today", "Cy today")
    assert only(read_rows(row, LISTED)) == ("I saw ", 1, answers)


@pytest.mark.parametrize(
    ("row", "task", "message"),
    [
        ({"s": "x", "a": "A", "b": "B"}, FIXED, "lacks 'label'; it has 's', 'a', 'b'"),
        ({"s": "x", "a": " ", "b": None, "label": 5}, FIXED, "'b' is null"),
        ({"s": "x", "a": " ", "b": None, "label": 5}, FIXED, "label 5 is unknown"),
        ({"s": "_", "names": ["A", "B"], "right": "C"}, LISTED, "'C' is not one of the candidates"),
        ({"s": "_", "names": ["A"], "right": "A"}, LISTED, "empty candidate, or fewer than two"),
        ({"s": "_", "names": ["A", ""], "right": "A"}, LISTED, "empty candidate, or fewer than"),
        ({"s": "_", "names": [], "right": "A"}, LISTED, "'names' is empty"),
        (
            {"s": "no gap", "names": ["A", "B"], "right": "A"},
            LISTED,
            "contains the gap '_' 0 times",
        ),
        ({"s": "_ _", "names": ["A", "B"], "right": "A"}, LISTED, "contains the gap '_' 2 times"),
    ],
)
def test_a_row_whose_choice_makes_no_sense(row: dict[str, Any], task: Any, message: str) -> None:
    assert message in mistakes(row, task)


def test_a_part_that_may_be_cut_ends_where_the_candidate_begins() -> None:
    task = LISTED.model_copy(update={"cut": "s"})
    ((example, *_),) = read_rows({"s": "I saw _ today", "names": ["A", "B"], "right": "A"}, task)
    assert example.cut == (0, len("I saw "))


def test_every_mistake_of_every_part_of_a_row_is_told() -> None:
    items = [{"item": "a", "label": 2}, {"item": "b", "label": 1}, {"label": 1}]
    assert mistakes({"p": "x", "items": items}, SEVERAL) == (
        "items 0: label 2 is unknown; task 'several' knows 0, 1; items 2: 'item' is missing"
    )
    for wrong in ([], "a", [1], {"item": "a"}):
        assert "'items' is not a list of objects" in mistakes({"p": "x", "items": wrong}, SEVERAL)


def test_examples_of_a_row_stay_in_one_split_and_a_flat_row_is_one_example(tmp_path: Path) -> None:
    items = [{"item": letter, "label": 0} for letter in "abcdefgh"]
    rows = [{"p": f"row {i}", "items": items} for i in range(10)]
    file = tmp_path / "all.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    examples = load_examples(str(file), SEVERAL, 0)
    assert len(examples) == 80
    split_of: dict[str, set[str]] = {}
    for example in examples:
        split_of.setdefault(example.text.split(":")[0], set()).add(example.split)
    divided = [row for row, splits in split_of.items() if len(splits) > 1]
    assert len(divided) <= 2
    assert only(read_rows({"p": "x", "item": "y", "label": 1}, SEVERAL)) == ("x: y", 1, ())


@pytest.mark.parametrize(
    ("row", "task", "unlabelled"),
    [
        ({"label": -1}, FIXED, True),
        ({"label": ""}, FIXED, True),
        ({"label": None}, FIXED, True),
        ({"label": 0}, FIXED, False),
        ({"label": False}, FIXED, False),
        ({"label": -1}, FIXED.model_copy(update={"labels": (("-1",), ("1",))}), False),
        ({"right": []}, LISTED, True),
        ({"right": ["A"]}, LISTED, False),
        ({"a": {"text": []}}, QA, True),
        ({"a": 0}, QA, False),
        ({"items": []}, SEVERAL, False),
    ],
)
def test_rows_of_a_test_set_without_answers(
    row: dict[str, Any], task: Any, unlabelled: bool
) -> None:
    assert is_unlabelled(row, task) is unlabelled
