"""Data sets by their names on the hub, and folders with the hub's layout."""

from pathlib import Path

import pytest
from data_rows import TASK, messages, rows_of, sizes, write_jsonl

from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.data import load_examples


def hub_data_set(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **splits: list[dict[str, object]]
) -> str:
    """Write a data set with the hub's layout, so that `datasets` finds it by name."""
    datasets = pytest.importorskip("datasets")
    home = folder / "owner" / "name"
    home.mkdir(parents=True)
    files = ""
    for split, rows in splits.items():
        write_jsonl(home / f"{split}.jsonl", rows)
        files += f"  - split: {split}\n    path: {split}.jsonl\n"
    (home / "README.md").write_text(
        f"---\nconfigs:\n- config_name: small\n  data_files:\n{files}---\n"
    )
    monkeypatch.chdir(folder)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
    return "owner/name:small"


def test_hub_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = hub_data_set(
        tmp_path,
        monkeypatch,
        train=[*rows_of(10, user="ann"), {"text": "unlabelled", "label": -1, "user": "ann"}],
        validation=rows_of(4),
        test=[{"text": "a", "label": -1}],
    )
    examples = load_examples(name, TASK, 0)
    assert sizes(examples) == {"train": 8, "validation": 4, "test": 2}
    assert {(e.user, e.text[:3]) for e in examples} == {("ann", "row"), ("", "row")}


def test_hub_data_set_with_matched_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = {"train": 10, "validation_matched": 4, "validation_mismatched": 3}
    name = hub_data_set(tmp_path, monkeypatch, **{s: rows_of(n) for s, n in splits.items()})
    assert sizes(load_examples(name, TASK, 0)) == {"train": 8, "validation": 4, "test": 2}


def test_hub_data_set_with_nested_fields_and_unanswered_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def row(number: int, *answers: str) -> dict[str, object]:
        texts = {"text": list(answers), "answer_start": [0] * len(answers)}
        return {"id": f"{number}", "title": "t", "context": "c", "question": "q", "answers": texts}

    name = hub_data_set(
        tmp_path,
        monkeypatch,
        train=[row(i, f"answer {i}", "other") for i in range(8)],
        validation=[row(8, "yes"), row(9)],
    )
    examples = load_examples(name, load_task("squad"), 0)
    assert sizes(examples) == {"train": 6, "validation": 1, "test": 2}
    assert {e.answers for e in examples if e.split == "validation"} == {("yes",)}
    assert {len(e.answers) for e in examples if e.split != "validation"} == {2}


def test_label_minus_one_counts_where_the_task_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = hub_data_set(tmp_path, monkeypatch, train=[{"text": "a", "label": -1}] * 5)
    task = TASK.model_copy(update={"labels": (("-1",), ("1",))})
    assert len(load_examples(name, task, 0)) == 5
    assert "no row of the split 'train' has a label" in messages(name)[0]


def test_hub_data_set_with_bad_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = hub_data_set(
        tmp_path,
        monkeypatch,
        train=[*rows_of(2), {"text": "a", "label": 2}],
        test=[{"text": "", "label": 1}],
    )
    assert messages(name)[:2] == [
        f"{name}[train] row 2: label 2 is unknown; task 'sst2' knows 0, 1",
        f"{name}[test] row 0: the text is empty",
    ]


def test_hub_data_set_with_other_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = hub_data_set(tmp_path, monkeypatch, train=[{"review": "a", "label": 0}])
    lacks = f"{name}[train]: lacks 'text' or 'sentence'; it has 'review', 'label'"
    assert messages(name)[0] == lacks


def test_hub_data_set_that_does_not_hold_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = hub_data_set(tmp_path, monkeypatch, train=rows_of(2), test=[{"other": 1}])
    assert "column names don't match" in messages(name)[0]


def test_hub_data_set_without_training_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = hub_data_set(tmp_path, monkeypatch, test=rows_of(2))
    assert "has no split 'train', only test" in messages(name)[0]


def test_hub_data_set_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    assert "save the rows as train.jsonl in a folder" in messages("owner/name")[0]
    name = hub_data_set(tmp_path, monkeypatch, train=rows_of(2)).replace("small", "large")
    assert "'large' not found" in messages(name)[0]


def test_a_data_set_may_lie_in_a_folder_as_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set" / "data").mkdir(parents=True)
    for split, count in (("train", 30), ("test", 4)):
        file = tmp_path / "set" / "data" / f"{split}-00000-of-00001.parquet"
        datasets.Dataset.from_list(rows_of(count)).to_parquet(str(file))
    (tmp_path / "set" / "README.md").write_text("# A data set")
    examples = load_examples(str(tmp_path / "set"), TASK, 0)
    assert sizes(examples) == {"train": 27, "validation": 3, "test": 4}
    file.write_bytes(b"PAR1")
    (message,) = messages(str(tmp_path / "set"))
    assert "cannot be loaded as a Hugging Face data set" in message
    assert "no file or folder of this name" not in message
