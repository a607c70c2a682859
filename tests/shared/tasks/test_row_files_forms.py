"""Common formats of files: separators, JSON arrays, gzip, a folder per person."""

import csv
import gzip
import io
import json
from pathlib import Path

import pytest
from data_rows import TASK, messages, rows_of, sizes, write_csv, write_jsonl
from hypothesis import given
from hypothesis import strategies as st

from samara.shared.tasks import json_arrays
from samara.shared.tasks.data import load_examples
from samara.shared.tasks.json_arrays import array_elements

ROWS = rows_of(40, user="ann")


def examples_of(path: Path) -> list[tuple[str, int, str, str]]:
    return [(e.text, e.label, e.user, e.split) for e in load_examples(str(path), TASK, 0)]


def csv_text(separator: str, quoting: int, pad: str = "") -> str:
    text = io.StringIO()
    rows = csv.writer(text, delimiter=separator, quoting=quoting)  # type: ignore[arg-type]
    rows.writerow([f"{pad}{name}{pad}" for name in ROWS[0]])
    rows.writerows(row.values() for row in ROWS)
    return text.getvalue()


def test_every_form_of_a_file_gives_the_same_examples(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "plain.jsonl", ROWS)
    expected = examples_of(tmp_path / "plain.jsonl")
    contents = {
        "tabs.tsv": csv_text("\t", csv.QUOTE_MINIMAL),
        "tabs.csv": csv_text("\t", csv.QUOTE_MINIMAL),
        "bars.csv": csv_text("|", csv.QUOTE_MINIMAL),
        "semicolons.csv": csv_text(";", csv.QUOTE_ALL),
        "spaces.csv": csv_text(",", csv.QUOTE_MINIMAL, " "),
        "array.json": json.dumps(ROWS, indent=1),
        "array.jsonl": json.dumps(ROWS),
        "lines.json": "".join(json.dumps(row) + "\n" for row in ROWS),
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
        with gzip.open(tmp_path / f"{name}.gz", "wt") as packed:
            packed.write(content)
        assert examples_of(tmp_path / name) == expected, name
        assert examples_of(tmp_path / f"{name}.gz") == expected, name


def test_a_separator_in_a_quoted_name_is_none(tmp_path: Path) -> None:
    file = tmp_path / "all.csv"
    file.write_text('"a;b;c;d",text,label\n1,good,1\n')
    assert [example[:2] for example in examples_of(file)] == [("good", 1)]


def test_a_folder_per_person_holds_any_files(tmp_path: Path) -> None:
    for person in ("anna", "bo"):
        (tmp_path / person).mkdir()
        write_csv(tmp_path / person / "may.csv", rows_of(10, f"{person} may"))
        write_jsonl(tmp_path / person / "june.jsonl", rows_of(10, f"{person} june"))
    (tmp_path / ".cache").mkdir()
    write_jsonl(tmp_path / ".cache" / "old.jsonl", rows_of(5))
    examples = load_examples(str(tmp_path), TASK, 0)
    assert sizes(examples) == {"train": 28, "validation": 4, "test": 8}
    assert {example.user for example in examples} == {"anna", "bo"}
    assert all(example.text.startswith(f"{example.user} ") for example in examples)


def test_a_folder_per_person_may_hold_splits(tmp_path: Path) -> None:
    for person in ("anna", "bo"):
        (tmp_path / person).mkdir()
        write_csv(tmp_path / person / "train.csv", rows_of(10, "row"))
        write_csv(tmp_path / person / "test.csv", rows_of(3, "test"))
    examples = load_examples(str(tmp_path), TASK, 0)
    assert sizes(examples) == {"train": 18, "validation": 2, "test": 6}
    assert all(e.text.startswith("test") == (e.split == "test") for e in examples)
    (tmp_path / "bo" / "train.csv").unlink()
    assert "bo: the folder has no training file" in messages(str(tmp_path))[0]


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ('[{"text": "a", "label": 0},\n 7]', 2, "is not a JSON object"),
        ('[\n{"text": "a", "label": 0}\n', 3, "is not JSON: the array does not end"),
        ('[{"text": "a", "label": 0} {"text": "b"}]', 1, "is not JSON: a comma is missing"),
        ('[{"text": "a", "label": 0}]\n[]', 2, "is not JSON: there is text after the end"),
        ('[{"text": "a", "label": 0},\n{"text": b}]', 2, "is not JSON, in the element that begins"),
        ("[]", 1, "the file contains no row"),
    ],
)
def test_a_bad_array_is_named_by_its_line(
    tmp_path: Path, content: str, line: int, message: str
) -> None:
    file = tmp_path / "all.json"
    file.write_text(content)
    assert messages(str(file))[0].startswith(f"{file}:{line}: {message}")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(), parts, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=5), st.integers(1, 9))
def test_an_array_is_read_as_a_whole_and_in_pieces_alike(
    values: list[dict[str, object]], piece: int
) -> None:
    """Each piece is one character, so pieces end inside names, numbers and escapes."""
    whole = json.dumps(values, indent=1)
    first, _, rest = whole.partition("\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_arrays, "_PIECE", piece)
        found = list(array_elements(io.StringIO(rest), f"{first}\n", 1))
    assert [value for _, value in found] == values
    lines = whole.split("\n")
    assert all(lines[line - 1].lstrip().startswith("{") for line, _ in found)


def test_a_damaged_gzip_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "all.csv.gz"
    file.write_bytes(gzip.compress(b"text,label\na,0\n" * 50)[:-12])
    assert messages(str(file))[0].startswith(f"{file}: this gzip file cannot be unpacked")
    file.write_bytes(b"text,label\na,0\n")
    assert messages(str(file))[0].startswith(f"{file}: this gzip file cannot be unpacked")
