"""Cells of any length."""

from pathlib import Path

from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.row_files import read_records, read_row_file

LONG = "a book chapter, " * 9000


def test_a_cell_may_be_longer_than_the_limit_of_pythons_csv(tmp_path: Path) -> None:
    file = tmp_path / "long.csv"
    file.write_text(f'text,label\n"{LONG}",1\nshort,0\n')
    problems: list[str] = []
    rows = read_row_file(file, load_task("sst2"), problems)
    assert problems == []
    assert [(row.example.text, row.example.label) for row in rows] == [(LONG, 1), ("short", 0)]


def test_a_quotation_mark_that_is_never_closed_is_named_by_its_line(tmp_path: Path) -> None:
    """The rest of a long file is then one cell."""
    file = tmp_path / "open.csv"
    file.write_text('text,label\nshort,0\n"open,1\n' + f"{LONG}\n")
    problems: list[tuple[int, str]] = []
    records = list(read_records(file, lambda line, what: problems.append((line, what))))
    assert len(records) == 1
    [(line, what)] = problems
    assert line == 3
    assert "unexpected end of data" in what
