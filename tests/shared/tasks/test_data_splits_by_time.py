"""Splits by time: a user's newest rows are test rows; rows without a time are named by line."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samara.shared.errors import DataError
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.data import load_examples
from samara.shared.tasks.row_files import read_time

TEXTS = load_task("texts")


def written(folder: Path, rows: list[dict[str, object]]) -> str:
    file = folder / "texts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@given(st.lists(st.integers(0, 2**31), min_size=3, max_size=40), st.integers(0, 3))
def test_no_row_is_newer_than_one_of_a_later_split(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], seed: int
) -> None:
    rows: list[dict[str, object]] = [
        {"text": f"{time} row {index}", "time": time, "user": "ab"[index % 2]}
        for index, time in enumerate(times)
    ]
    data = written(tmp_path_factory.mktemp("data"), rows)
    examples = load_examples(data, TEXTS, seed, split="time")
    assert len(examples) == len(rows)
    for user in "ab":
        own = {
            split: [
                int(one.answers[0].split()[0])
                for one in examples
                if (one.user, one.split) == (user, split)
            ]
            for split in ("train", "validation", "test")
        }
        count = sum(map(len, own.values()))
        if count >= 3:
            assert len(own["test"]) == max(1, (count * 20 + 50) // 100)
            assert max(own["train"]) <= min(own["validation"])
            assert max(own["validation"]) <= min(own["test"])


def test_dates_and_numbers_are_times() -> None:
    assert read_time({"time": "1970-01-02"}) == read_time({"time": 86_400}) == 86_400
    assert read_time({"time": "1970-01-01T01:00+01:00"}) == read_time({"time": "0.0"}) == 0
    assert read_time({"time": "1969-12-31T23:59:59"}) == -1


@pytest.mark.parametrize("time", [None, True, "soon", "nan", [1], 2.0**41, "", "9999999999999999"])
def test_a_row_without_a_usable_time_is_named_by_its_line(tmp_path: Path, time: object) -> None:
    data = written(tmp_path, [{"text": "a", "time": 1}, {"text": "b", "time": time}])
    with pytest.raises(DataError, match=r"texts.jsonl:2: 'time' is .*2026-01-31"):
        load_examples(data, TEXTS, 0, split="time")


def test_a_row_that_lacks_a_time_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"texts.jsonl:1: .time. is missing"):
        load_examples(written(tmp_path, [{"text": "a"}]), TEXTS, 0, split="time")
    assert load_examples(written(tmp_path, [{"text": "a"}]), TEXTS, 0)


def test_a_data_set_of_the_hub_is_not_split_by_time() -> None:
    with pytest.raises(DataError, match="cannot be split by time"):
        load_examples("owner/name", TEXTS, 0, split="time")
