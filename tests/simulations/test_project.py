"""The columns that `samara new` recognizes in records, and the files that it drafts."""

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samara.shared.errors import ConfigError, DataError
from samara.shared.settings.config import load_scenario
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.kinds import ChoiceTask, ClassificationTask, GenerationTask
from samara.simulations.project.baselines import _wilson
from samara.simulations.project.columns import Roles, describe_columns, guess_roles
from samara.simulations.project.drafts import (
    DataSize,
    ProjectChoices,
    draft_scenario,
    draft_task,
    quoted,
)
from samara.simulations.project.languages import language_of
from samara.simulations.project.project import check_folder, write_project
from samara.simulations.project.records import RawData, read_raw
from samara.simulations.project.summary import describe_data


def rows(count: int, **columns: Any) -> list[dict[str, Any]]:
    """Return records; a column is a constant or a function of the record's number."""
    return [
        {name: value(i) if callable(value) else value for name, value in columns.items()}
        for i in range(count)
    ]


def sentence(i: int) -> str:
    return f"the number {i} was one of the better ones"


@pytest.mark.parametrize(
    ("records", "roles"),
    [
        (
            rows(20, text=sentence, label=lambda i: i % 2, user=lambda i: f"u{i % 4}"),
            Roles("classification", ("text",), "label", user="user"),
        ),
        (
            rows(20, id=lambda i: i, premise=sentence, hypothesis=sentence, label=lambda i: i % 3),
            Roles("classification", ("premise", "hypothesis"), "label"),
        ),
        (
            rows(20, review=sentence, stars=lambda i: i % 5 + 1, verified=True),
            Roles("classification", ("review",), "stars"),
        ),
        (
            rows(20, review=sentence, verdict=lambda i: ["fair", "dull"][i % 2]),
            Roles("classification", ("review",), "verdict"),
        ),
        (
            rows(9, premise=sentence, choice1=sentence, choice2=sentence, label=lambda i: i % 2),
            Roles("choice", ("premise",), "label", ("choice1", "choice2")),
        ),
        (
            rows(9, question=sentence, options=lambda i: ["a", "b"], answer="a"),
            Roles("choice", ("question",), "answer", ("options",)),
        ),
        (
            rows(9, question=sentence, answer=lambda i: f"it is {i}"),
            Roles("generation", ("question",), "answer"),
        ),
        (rows(9, a=1, b=2), Roles("classification", (), "")),
    ],
)
def test_columns_are_guessed(records: list[dict[str, Any]], roles: Roles) -> None:
    assert guess_roles(describe_columns(records)) == roles


def test_a_column_of_users_by_another_name_is_noticed() -> None:
    records = rows(20, text=sentence, author_id=lambda i: i % 4, label=lambda i: i % 2)
    assert guess_roles(describe_columns(records)).user == "author_id"
    told = "\n".join(told_of(records))
    assert "users (author_id): 4, with 5 to 5 rows, median 5; each user is a client" in told
    # Of two such columns none is more likely than the other.
    two = [record | {"speaker": i % 4} for i, record in enumerate(records)]
    assert guess_roles(describe_columns(two)).user == ""
    note = "note: if author_id or speaker names the user of a row, give the column as --user"
    assert any(line.startswith(note) for line in told_of(two))
    named = [record | {"user": i % 2} for i, record in enumerate(records)]
    assert guess_roles(describe_columns(named)).user == "user"


def told_of(train: list[dict[str, Any]], **splits: list[dict[str, Any]]) -> list[str]:
    data = RawData("data", "one file", {"train": train, **splits})
    columns = describe_columns(data.all)
    return list(describe_data(data, columns, guess_roles(columns)))


def test_faults_of_the_data_are_told() -> None:
    train = rows(10, text=sentence, label=lambda i: i % 2, user=lambda i: f"u{i % 2}")
    train += [train[0] | {"label": 1}, train[1] | {"text": " "}, train[2] | {"label": None}]
    test = [train[3], {"text": "the last one", "label": 7, "user": "u9"}]
    told = "\n".join(told_of(train, test=test))
    assert "note: 1 rows have no text" in told
    assert "note: 1 rows have no label" in told
    assert "note: test rows have 7, but no training row has" in told
    assert "note: 1 test rows are also training rows" in told
    assert "and 2 texts have different labels" in told
    assert "users (user): 3, with 1 to 7 rows, median 7; each user is a client" in told
    assert "note: 1 users have fewer than 3 rows" in told
    assert "validation rows will be taken from the training rows" in told
    assert "the same label" in "\n".join(told_of(rows(4, text=sentence, label=1)))


def test_labels_are_told_in_the_order_of_their_words() -> None:
    names = ["bad", "good", "good", "10", "9"]
    told = told_of(rows(50, text=sentence, label=lambda i: names[i % 5]))
    assert "labels (label): 9 10, 10 10, bad 10, good 20" in told


def test_labels_that_look_alike_decimals_and_objects_are_told() -> None:
    alike = ["no", " No", "yes"]
    told = told_of(rows(9, text=sentence, label=lambda i: alike[i % 3]))
    assert "note: the labels 'No', 'no' differ only in case; use one spelling" in told
    told = told_of(rows(60, text=sentence, label=lambda i: i / 7 + 0.5))
    assert any(line.startswith("note: label contains decimal numbers") for line in told)
    told = told_of(rows(9, text=sentence, label=lambda i: i % 2, body=lambda i: {"a": i}))
    assert any(line.endswith("label (2 values), body (objects)") for line in told)


def test_languages_of_texts_and_labels() -> None:
    assert language_of(["Das war nicht gut, und es ist schlecht."]) == "German"
    assert language_of(["C'était très mauvais, et les acteurs dans ce film"]) == "French"
    assert language_of(["хорошо"]) == "Cyrillic"
    assert language_of(["gut", "schlecht"]) == "German"
    assert language_of(["7", "!"]) == language_of(["blorp", "vexil"]) == ""
    words = ["gut", "schlecht"]
    told = told_of(rows(20, text=sentence, label=lambda i: words[i % 2]))
    assert any("labels look German and the texts English" in line for line in told)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_can_be_written_as_toml(text: str) -> None:
    assert tomllib.loads(f"x = {quoted(text)}") == {"x": text}


def test_drafted_tasks_are_tasks(tmp_path: Path) -> None:
    file = tmp_path / "task.toml"

    def drafted(roles: Roles, **more: Any) -> Any:
        choices = ProjectChoices("data", "model", roles, **more)
        file.write_text(draft_task(choices, "mine", "German"), encoding="utf-8")
        return load_task(str(file))

    roles = Roles("classification", ("a b", "c"), "verdict")
    task = drafted(roles, values=("1", "sehr gut", "01"), words=("so", 'sehr "gut"', "nie"))
    assert isinstance(task, ClassificationTask)
    assert (task.fields, task.label, task.cut) == (("a b", "c"), "verdict", "a b")
    assert task.question == " Es war {word}."
    assert task.labels == (("1",), ("sehr gut",), ("01",))
    choice = drafted(Roles("choice", ("text",), "label", ("one", "two")), values=("A", "B"))
    assert isinstance(choice, ChoiceTask)
    assert choice.labels == (("A",), ("B",))
    assert choice.candidates == ("{one}", "{two}")
    listed = drafted(Roles("choice", ("text",), "label", ("options",)))
    assert listed.candidates == "{options}"
    answered = drafted(Roles("generation", ("question",), "answer"))
    assert isinstance(answered, GenerationTask)
    assert answered.stop == "\n"


@pytest.mark.parametrize("users", [0, 500])
def test_a_drafted_scenario_is_one(users: int, tmp_path: Path) -> None:
    roles = Roles("classification", ("text",), "label")
    choices = ProjectChoices("my data.csv", "my model", roles, ("0", "1"), ("bad", "good"))
    (tmp_path / "task.toml").write_text(draft_task(choices, "mine", ""))
    file = tmp_path / "scenario.toml"
    file.write_text(draft_scenario(choices, str(tmp_path), DataSize(users, 5000, 6000)))
    config = load_scenario(file)
    assert config.data.path == "my data.csv"
    assert config.model.path == "my model"
    assert config.data.clients == (120 if users else 8)
    assert config.data.partition == ("user" if users else "dirichlet")
    assert 0 < config.evaluate.limit * config.data.clients * 2 <= 4_000
    assert Path(config.out).parent == Path(config.task).parent == tmp_path


def test_records_of_every_form_of_source(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.mkdir()
    for name in ("ann", "bob"):
        (users / f"{name}.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    raw = read_raw(str(users))
    assert Counter(record["user"] for record in raw.all) == {"ann": 2, "bob": 2}
    (users / "bob.jsonl").write_text('{"text": "a", "user": "eve"}\n')
    with pytest.raises(DataError, match=r"bob\.jsonl: has a row of user 'eve'"):
        read_raw(str(users))
    labels = tmp_path / "labels"
    (labels / "good").mkdir(parents=True)
    with pytest.raises(DataError, match=r"all folders in it are empty \(good\)"):
        read_raw(str(labels))
    (labels / "good" / "1.rst").write_text(" fine \n")
    with pytest.raises(DataError, match=r"its folders contain no \.txt files"):
        read_raw(str(labels))
    (labels / "good" / "1.txt").write_text(" fine \n")
    assert read_raw(str(labels)).all == [{"text": "fine", "label": "good"}]
    (labels / "good" / "1.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="is not UTF-8"):
        read_raw(str(labels))
    with pytest.raises(DataError, match="no such file"):
        read_raw(str(tmp_path / "nothing.csv"))


def test_a_project_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "deep" / "mine"
    check_folder(folder)
    write_project(folder, {"a": "1", "b": "2"})
    assert {file.name for file in folder.iterdir()} == {"a", "b"}
    with pytest.raises(ConfigError, match="is not empty"):
        check_folder(folder)
    with pytest.raises(ConfigError, match="is a file"):
        check_folder(folder / "a")
    written: list[Path] = []

    def no_room(file: Path, *parts: bytes) -> None:
        if written:
            raise OSError(28, "No space left on device", str(file))
        written.append(file)

    monkeypatch.setattr("samara.simulations.project.project.write_durably", no_room)
    with pytest.raises(ConfigError, match="No space left on device; give another folder"):
        write_project(tmp_path / "other", {"a": "1", "b": "2"})
    assert [file.name for file in tmp_path.iterdir()] == ["deep"]


def test_the_interval_of_zero_shot_does_not_vanish_at_its_ends() -> None:
    assert _wilson(1.0, 6) == pytest.approx((0.6096, 1.0), abs=1e-3)
    assert _wilson(0.5, 10_000) == pytest.approx((0.4902, 0.5098), abs=1e-4)


def test_a_file_alone_in_a_folder_is_no_users(tmp_path: Path) -> None:
    (tmp_path / "all.jsonl").write_text('{"text": "a", "user": "ann"}\n')
    raw = read_raw(str(tmp_path))
    assert raw.path == str(tmp_path / "all.jsonl")
    assert raw.all == [{"text": "a", "user": "ann"}]
