from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shared.errors import TaskError
from shared.tasks.catalog import load_task
from shared.tasks.kinds import ClassificationTask

GOOD = """\
name = "pairs"
text = "{premise} and {hypothesis}"
question = " So {word}!"
words = ["no", "maybe", "yes"]
labels = [0, ["neutral", 1], true]
"""


def write(folder: Path, toml: str) -> str:
    path = folder / "task.toml"
    path.write_text(toml)
    return str(path)


def task_reading(text: str) -> ClassificationTask:
    return ClassificationTask(
        name="t", text=text, question="{word}", words=("a", "b"), labels=(("0",), ("1",))
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sst2", ("terrible", "great")),
        ("popquorn", ("fine", "offensive")),
        (
            "trec6",
            ("description", "entity", "abbreviation", "human", "location", "number"),
        ),
    ],
)
def test_shipped_tasks_load_by_name(name: str, words: tuple[str, ...]) -> None:
    task = load_task(name)
    assert (task.name, task.words, task.fields) == (name, words, ("text",))


def test_popquorn_joins_the_four_offensive_ratings() -> None:
    assert [load_task("popquorn").label_index(rating) for rating in range(1, 6)] == [0, 1, 1, 1, 1]


def test_own_file_is_read_in_full(tmp_path: Path) -> None:
    task = load_task(write(tmp_path, GOOD))
    assert task.fields == ("premise", "hypothesis")
    assert task.labels == (("0",), ("neutral", "1"), ("true",))
    assert (task.question_before_word, task.question_after_word) == (" So ", "!")
    assert task.prompts() == ["So no!", "So maybe!", "So yes!"]
    assert task.render({"premise": "P", "hypothesis": "H", "idx": "7"}) == "P and H"


def test_label_values_compare_as_text(tmp_path: Path) -> None:
    task = load_task(write(tmp_path, GOOD))
    assert [task.label_index(value) for value in (0, "0", 1, "neutral", True, "true")] == [
        *(0, 0, 1, 1, 2, 2)
    ]


@pytest.mark.parametrize("value", [2, "Neutral", None, [0], 0.0])
def test_unknown_label_names_the_known_ones(tmp_path: Path, value: object) -> None:
    with pytest.raises(TaskError, match=r"unknown; task 'pairs' knows 0, neutral, 1, true"):
        load_task(write(tmp_path, GOOD)).label_index(value)


@given(st.text(), st.text())
def test_row_text_is_never_a_template(first: str, second: str) -> None:
    task = task_reading("{{a}} {a}{b c}|{a}")
    assert task.render({"a": first, "b c": second}) == f"{{a}} {first}{second}|{first}"
    assert task.fields == ("a", "b c")


def test_render_names_what_a_row_lacks() -> None:
    with pytest.raises(TaskError, match="reads premise, which the row lacks; it has text"):
        task_reading("{premise}{text}").render({"text": ""})


@given(st.text(), st.text())
def test_question_falls_into_two_parts_around_the_word(before: str, after: str) -> None:
    def escape(text: str) -> str:
        return text.replace("{", "{{").replace("}", "}}")

    task = ClassificationTask.model_validate(
        load_task("sst2").model_dump() | {"question": escape(before) + "{word}" + escape(after)}
    )
    assert (task.question_before_word, task.question_after_word) == (before, after)
    assert task.prompts()[0] == f"{before}terrible{after}".strip()


def test_digest_is_of_the_content_not_of_the_file(tmp_path: Path) -> None:
    task = load_task(write(tmp_path, GOOD))
    reordered = "\n".join(["# the same", *reversed(GOOD.splitlines())]).replace("[0,", '["0",')
    assert load_task(write(tmp_path, reordered)).digest == task.digest
    assert len(task.digest) == 64
    changed = [GOOD.replace(old, new) for old, new in (("So", "so"), ("pairs", "p"), ("1", "2"))]
    assert task.digest not in [load_task(write(tmp_path, toml)).digest for toml in changed]


def test_all_mistakes_of_a_file_are_reported_at_once_with_their_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        'text = "{"\nquestion = " It was"\nwords = ["good", "good "]\n'
        "labels = [0, [1, 0]]\nwrods = []\n[extra]\n",
    )
    with pytest.raises(TaskError) as caught:
        load_task(path)
    lines = sorted(str(caught.value).splitlines())
    starts = [
        f"{path}: name: is missing",
        f"{path}:1: text: ",
        f"{path}:2: question: must hold {{word}} exactly once and no other field; it has no field",
        f"{path}:3: words: holds good more than once",
        f"{path}:4: labels: holds 0 more than once",
        f"{path}:5: wrods: unknown key; a task has name, text, question, words, labels",
        f"{path}:6: extra: unknown key",
    ]
    assert len(lines) == len(starts)
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(start)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"{premise} and {hypothesis}"', '"no field"', "names no field"),
        ("{premise}", "{}", "a field's name and nothing else"),
        ("{premise}", "{premise!r}", "a field's name and nothing else"),
        ("{premise}", "{premise:>9}", "a field's name and nothing else"),
        ("{premise}", "{pre{mise}}", "unexpected '{' in field name"),
        ("{premise}", "premise}", "Single '}'"),
        ("{word}", "{word} {word}", "exactly once.*it has {word}, {word}"),
        ("{word}", "{word} {text}", "exactly once.*it has {word}, {text}"),
        ('["no", "maybe", "yes"]', '["no"]', "at least two words"),
        ('"maybe"', '" "', "an empty word"),
        ('"maybe"', "5", r"words\.1: Input should be a valid string"),
        ('["no", "maybe", "yes"]', '"no"', r":4: words: Input should be a valid tuple"),
        ('"maybe", ', "", "has 3 entries for 2 words"),
        ('["neutral", 1]', "[]", "entry 1 is empty"),
        ('["neutral", 1]', "1.5", "holds 1.5; a value is a string, an integer or a boolean"),
        ('[0, ["neutral", 1], true]', "7", "must be a list"),
        ('"pairs"', '""', ":1: name: "),
        ('"pairs"', '"pairs', "not a TOML file in UTF-8: .*line 1"),
    ],
)
def test_each_mistake_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(TaskError, match=message) as caught:
        load_task(path)
    assert str(caught.value).startswith(path)


def test_missing_task_lists_the_shipped_ones(tmp_path: Path) -> None:
    for name in ("sst3", str(tmp_path), "nul\0", "x" * 5000):
        with pytest.raises(TaskError, match=r"popquorn, .*sst2, .*trec6|cannot be read"):
            load_task(name)


def test_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "task.toml"
    path.write_bytes(b'name = "\xff"')
    with pytest.raises(TaskError, match="UTF-8"):
        load_task(str(path))


def test_task_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load_task("sst2").name = "other"  # type: ignore[misc]
