"""Users in a column that the task file names, in every format of data."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pandas
import pytest
from data_rows import TASK, messages

from samara.client.training.client_data import example_reader
from samara.shared.errors import DataError
from samara.shared.settings.data import DataSettings
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.data import load_examples
from samara.shared.tasks.kinds import Task


def task_with(user: str) -> Task:
    return load_task("sst2").model_copy(update={"user": user})


def rows_of(count: int, **fields: object) -> list[dict[str, object]]:
    return [{"text": f"row {i}", "label": i % 2, **fields} for i in range(count)]


def write_jsonl(path: Path, rows: Iterable[object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def users_of(path: str, user: str) -> dict[str, int]:
    return dict(Counter(example.user for example in load_examples(path, task_with(user), 0)))


def test_a_field_may_be_nested_have_several_names_and_be_absent(tmp_path: Path) -> None:
    rows = rows_of(2, author={"id": 3}, user="ann") + rows_of(2, rater="bob") + rows_of(2)
    path = write_jsonl(tmp_path / "all.jsonl", rows)
    assert users_of(path, "author.id|rater") == {"3": 2, "bob": 2, "": 2}


def test_a_user_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "all.jsonl", rows_of(2, author=[]))
    with pytest.raises(DataError, match=r"all\.jsonl:1: 'author' is a list, not text or a number"):
        load_examples(path, task_with("author"), 0)


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    path.write_text("rater,text,label\neve,a,0\nada,b,1\n")
    assert users_of(str(path), "rater") == {"eve": 1, "ada": 1}


def test_a_folder_of_parquet_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set" / "data").mkdir(parents=True)
    rows = rows_of(6, annotator_id=5) + rows_of(4, annotator_id=7)
    file = tmp_path / "set" / "data" / "train-00000-of-00001.parquet"
    pandas.DataFrame(rows).to_parquet(file)
    assert users_of(str(tmp_path / "set"), "annotator_id") == {"5": 6, "7": 4}
    printed = capfd.readouterr()
    assert printed.out + printed.err == "", "the library's own progress"
    assert not datasets.are_progress_bars_disabled()


def test_a_folder_of_a_file_per_user_needs_no_column(tmp_path: Path) -> None:
    for name in ("ann", "bob"):
        write_jsonl(tmp_path / f"{name}.jsonl", rows_of(3))
    assert users_of(str(tmp_path), "author") == {"ann": 3, "bob": 3}


def test_a_named_user_that_no_row_has_is_refused(tmp_path: Path) -> None:
    settings = DataSettings(path=write_jsonl(tmp_path / "all.jsonl", rows_of(9)))
    with pytest.raises(DataError, match="no row has 'author', which task 'sst2' names as user"):
        example_reader(task_with("author"), settings)
    assert len(example_reader(task_with("user"), settings)(1)) == 9


def test_an_empty_folder_beside_those_of_people_is_named(tmp_path: Path) -> None:
    for person in ("ann", "bob", "cleo"):
        (tmp_path / person).mkdir()
    assert messages(str(tmp_path)) == [
        f"{tmp_path}: all folders in it are empty (ann, bob, cleo); put a person's rows, or a "
        "label's texts, into each"
    ]
    write_jsonl(tmp_path / "ann" / "rows.jsonl", rows_of(4))
    write_jsonl(tmp_path / "cleo" / "rows.jsonl", rows_of(4))
    [said] = messages(str(tmp_path))
    assert said.startswith(
        f"{tmp_path / 'bob'}: this folder is empty, but each folder beside it contains a person"
    )
    (tmp_path / "bob").rmdir()
    (tmp_path / ".git").mkdir()
    assert {e.user for e in load_examples(str(tmp_path), TASK, 0)} == {"ann", "cleo"}
