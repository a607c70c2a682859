import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from samara.shared.errors import TaskError
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.kinds import ChoiceTask, ClassificationTask, GenerationTask

GOOD = """\
name = "pairs"
text = "{premise} and {hypothesis}"
question = " So {word}!"
words = ["no", "maybe", "yes"]
labels = [0, ["neutral", 1], true]
"""


CHOICE = """\
kind = "choice"
name = "gaps"
text = "{story} So {candidate}."
candidates = ["{first}", "{second}"]
labels = ["a", ["b", 2]]
cut = "story"
[replace.story]
short = "It rained."
"""
GENERATION = """\
kind = "generation"
name = "answers"
text = "Q: {question|ask}\\nA: {answer}\\n"
label = "answers.text|reply"
tokens = 8
metric = "exact-match"
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
    zeros = [task.label_index(value) for value in (0, "0", 0.0, "0.0", " 0 ")]
    ones = [task.label_index(value) for value in (1, "neutral", "1.0", "neutral ")]
    truths = [task.label_index(value) for value in (True, "true", "True", " TRUE")]
    assert (zeros, ones, truths) == ([0] * 5, [1] * 4, [2] * 4)


@pytest.mark.parametrize("value", [2, "Neutral", None, [0], 0.5, "00"])
def test_unknown_label_names_the_known_ones(tmp_path: Path, value: object) -> None:
    with pytest.raises(TaskError, match=r"unknown; task 'pairs' knows 0, neutral, 1, true"):
        load_task(write(tmp_path, GOOD)).label_index(value)


@given(st.text(), st.text())
def test_row_text_is_never_a_template(first: str, second: str) -> None:
    task = task_reading("{{a}} {a}{b c}|{a}")
    assert task.render({"a": first, "b c": second}) == f"{{a}} {first}{second}|{first}"
    assert task.fields == ("a", "b c")


def test_render_names_what_a_row_lacks() -> None:
    with pytest.raises(TaskError, match="reads premise, but the row has only text"):
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


def inside(text: str, **more: str) -> ClassificationTask:
    return ClassificationTask.model_validate(
        {"name": "t", "text": text, "words": ["a", "b"], "labels": [0, 1]} | more
    )


@given(st.text(), st.text())
def test_a_word_may_stand_inside_the_text(first: str, second: str) -> None:
    task = inside("{a}? {word}, {b|c}", cut="a")
    fields = {"a": first, "b": second}
    assert task.fields == ("a", "b")
    assert (task.render(fields), task.render_rest(fields)) == (f"{first}? ", (f", {second}",))
    assert task.cut_span(fields) == (0, len(first))
    assert task_reading("{word}").render_rest({"word": first}) == ()
    assert task_reading("{word}").render({"word": first}) == first


@pytest.mark.parametrize(
    ("text", "cut", "message"),
    [
        ("{a}", "", "is missing; write a question with {word} once, or, only for masked LMs"),
        (
            "{word} {a} {word}",
            "",
            "is missing; write a question with {word} once, or, only for masked LMs",
        ),
        ("so {word}", "", "the text reads no field of a row except {word}"),
        ("{word}: {a}", "a", "cut must name a field before {word} in the text, but a is not"),
        ("{word}: {a}", "word", "cut must name a field before {word} in the text, but word is not"),
    ],
)
def test_what_a_text_without_a_question_must_hold(text: str, cut: str, message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        inside(text, cut=cut)


def test_digest_is_of_the_content_not_of_the_file(tmp_path: Path) -> None:
    task = load_task(write(tmp_path, GOOD))
    reordered = "\n".join(["# the same", *reversed(GOOD.splitlines())]).replace("[0,", '["0",')
    assert load_task(write(tmp_path, reordered)).digest == task.digest
    assert len(task.digest) == 64
    changed = [GOOD.replace(old, new) for old, new in (("So", "so"), ("pairs", "p"), ("1", "2"))]
    changed.append(f'user = "author"\n{GOOD}')
    assert task.digest not in [load_task(write(tmp_path, toml)).digest for toml in changed]


def test_digests_of_shipped_tasks_stay_what_finished_runs_hold() -> None:
    digest = "08ff282a9055567758da457e84d8c0d623722ec9c71885ba3370cdfa4ff4f05e"
    assert load_task("sst2").digest == digest


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
        f"{path}:2: question: must contain {{word}} exactly once and no other field, but it "
        "contains no field",
        f"{path}:3: words: contains good more than once",
        f"{path}:4: labels: contains 0 more than once",
        f"{path}:5: wrods: is unknown (did you mean words?); a task needs name, text, words",
        f"{path}:6: extra: is unknown",
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
        ("{word}", "{word} {word}", "exactly once.*it contains {word}, {word}"),
        ("{word}", "{word} {text}", "exactly once.*it contains {word}, {text}"),
        ('["no", "maybe", "yes"]', '["no"]', "at least two words"),
        ('"maybe"', '" "', "an empty word"),
        ('"maybe"', "5", r"words\.1: Input should be a valid string"),
        ('["no", "maybe", "yes"]', '"no"', r":4: words: Input should be a valid tuple"),
        ('"maybe", ', "", "has 3 entries for 2 words"),
        ('["neutral", 1]', "[]", "entry 1 is empty"),
        (
            '["neutral", 1]',
            "1.5",
            "contains 1.5, but a value must be a string, an integer or a boolean",
        ),
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


def test_names_of_a_field_are_tried_in_order(tmp_path: Path) -> None:
    task = load_task(write(tmp_path, GENERATION))
    assert task.source_fields == {"question": ("question", "ask")}
    assert task.fields == ("question",)
    assert task.label_names == ("answers.text", "reply")


def test_a_choice_is_read_in_full(tmp_path: Path) -> None:
    task = load_task(write(tmp_path, CHOICE))
    assert isinstance(task, ChoiceTask)
    assert task.fields == ("story", "first", "second")
    assert task.labels == (("a",), ("b", "2"))
    assert [task.label_index(value) for value in ("a", 2)] == [0, 1]
    fields = {"story": "{S}", "first": "F", "second": "T"}
    assert task.candidate_texts(fields) == ["F", "T"]
    assert task.split_at_candidate(fields) == ("{S} So ", ".")
    assert task.cut_span(fields) == (0, 3)


def test_candidates_are_numbered_where_nothing_else_is_said(tmp_path: Path) -> None:
    toml = CHOICE.replace('labels = ["a", ["b", 2]]', "")
    task = load_task(write(tmp_path, toml))
    assert isinstance(task, ChoiceTask)
    assert task.labels == (("0",), ("1",))
    said = load_task(write(tmp_path, CHOICE.replace('["a", ["b", 2]]', "[0, 1]")))
    assert said.digest == task.digest


def test_a_gap_is_where_a_rows_own_text_has_it(tmp_path: Path) -> None:
    toml = 'kind = "choice"\nname = "g"\ntext = "{s}!"\ngap = "_"\ncandidates = "{names}"\n'
    task = load_task(write(tmp_path, toml))
    assert isinstance(task, ChoiceTask)
    assert (task.list_names, task.labels, task.fields) == (("names",), (), ("s",))
    assert task.split_at_candidate({"s": "It was _ who"}) == ("It was ", " who!")
    for text, times in (("none", 0), ("_ and _", 2)):
        with pytest.raises(TaskError, match=f"contains the gap '_' {times} times"):
            task.split_at_candidate({"s": text})


def test_a_generation_is_read_in_full(tmp_path: Path) -> None:
    task = load_task(write(tmp_path, GENERATION))
    assert isinstance(task, GenerationTask)
    assert (task.stop, task.tokens, task.metric) == ("\n", 8, "exact-match")
    assert task.render({"question": "why?"}) == "Q: why?\nA: "
    assert task.cut_span({"question": "why?"}) is None


def test_f1_is_of_the_label_that_is_called_positive(tmp_path: Path) -> None:
    toml = GOOD + 'metric = "f1"\npositive = 1\n'
    task = load_task(write(tmp_path, toml))
    assert isinstance(task, ClassificationTask)
    assert task.label_index(task.positive) == 1


def test_all_mistakes_of_every_kind_are_reported_at_once(tmp_path: Path) -> None:
    choice = (
        'kind = "choice"\ntext = "{story}"\ncandidates = ["{first}", "always"]\n'
        'labels = [0]\ncut = "end"\nmetric = "f1"\nlabel = "a||b"\n[replace.story]\nx = 1\n'
    )
    generation = (
        'kind = "generation"\nname = ""\ntext = "{answer} {question}"\ntokens = 0\n'
        'metric = "accuracy"\nstop = "."\neach = 3\n'
    )
    wanted = {
        choice: [
            "name: is missing",
            "3: candidates: contains 'always', which reads no field",
            "gap: is missing, and the text contains {candidate} 0 times",
            "5: cut: names end, but the text reads only story",
            "6: metric: Input should be 'accuracy'",
            "7: label: contains the field 'a||b'",
            "8: replace.story.x: Input should be a valid string",
        ],
        generation: [
            "2: name: ",
            "3: text: must contain {answer} once, after all fields",
            "4: tokens: ",
            "5: metric: Input should be 'token-f1' or 'exact-match'",
            "6: stop: is unknown; a task needs name, text, kind, and can also have label, replace,",
            "7: each: Input should be a valid string",
        ],
    }
    for toml, mistakes in wanted.items():
        path = write(tmp_path, toml)
        with pytest.raises(TaskError) as caught:
            load_task(path)
        lines = str(caught.value).splitlines()
        assert len(lines) == len(mistakes)
        for mistake in mistakes:
            place = f"{path}:" if mistake[0].isdigit() else f"{path}: "
            assert any(line.startswith(place + mistake) for line in lines), (mistake, lines)


@pytest.mark.parametrize(
    ("toml", "old", "new", "message"),
    [
        (
            GOOD,
            "labels",
            'kind = "quiz"\nlabels',
            ":5: kind: must be one of classification, choice",
        ),
        (GOOD, "labels", 'metric = "f1"\nlabels', "positive: is missing; name the label value"),
        (GOOD, "labels", "positive = 1\nlabels", ':5: positive: is only for the metric "f1"'),
        (
            GOOD,
            "labels",
            'metric = "f1"\npositive = 7\nlabels',
            "is '7', but must be one of labels: 0",
        ),
        (
            GOOD,
            "labels",
            'cut = "word"\nlabels',
            "names word, but the text reads only premise, hypo",
        ),
        (GOOD, "{premise}", "{premise|}", "contains the field 'premise|'"),
        (GOOD, "labels", 'label = ""\nlabels', ":5: label: contains the field ''"),
        (CHOICE, "{candidate}", "{candidate}{candidate}", "contains {candidate} 2 times"),
        (
            CHOICE,
            "{story} So {candidate}",
            "{candidate} of {story}",
            "before {candidate} in the text, but story is not",
        ),
        (CHOICE, "labels", 'gap = "_"\nlabels', "gap: cannot be used, .* already marks"),
        (CHOICE, '"{second}"', '"{second}", "{third}"', "has 2 entries for 3 candidates"),
        (CHOICE, ', "{second}"', "", "needs at least two candidates"),
        (
            CHOICE,
            '["{first}", "{second}"]',
            '"{names}"',
            "label in a row is the text of the right candidate",
        ),
        (CHOICE, '["{first}", "{second}"]', '"names"', "must be a list, or the field"),
        (CHOICE, "replace.story", "replace.first", "names first, but the text reads only story"),
        (GENERATION, "{answer}", "{answer}{answer}", "must contain {answer} once"),
        (GENERATION, "{question|ask}", "", "names no field of a row"),
    ],
)
def test_each_mistake_of_a_kind_is_named(
    tmp_path: Path, toml: str, old: str, new: str, message: str
) -> None:
    assert old in toml
    path = write(tmp_path, toml.replace(old, new, 1))
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
