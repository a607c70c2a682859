"""Rows of benchmarks: each row is measured once, even after an interruption."""

from pathlib import Path

from benchmarks.accuracy.rows import Rows


def test_rows_are_found_by_their_values_and_after_reading_again(tmp_path: Path) -> None:
    file = tmp_path / "out" / "rows.jsonl"
    rows = Rows(file)
    assert rows.find(seed=0) is None
    added = rows.add({"seed": 0, "method": "lora", "losses": {10: 0.5}})
    rows.add({"seed": 1, "method": "lora", "losses": {}})
    assert rows.find(seed=0, method="lora") is added
    assert rows.find(seed=0, method="full") is None
    assert list(Rows(file)) == list(rows)


def test_half_a_row_is_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    Rows(file).add({"seed": 0})
    with file.open("a") as opened:
        opened.write('{"seed": 1, "acc')
    rows = Rows(file)
    assert rows.find(seed=1) is None
    rows.add({"seed": 1})
    assert [row["seed"] for row in Rows(file)] == [0, 1]
