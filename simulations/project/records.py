"""Raw records of a source, for which no task exists yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samara.shared.errors import DataError
from samara.shared.tasks.row_files import is_table, read_records
from samara.shared.tasks.sources import (
    find_data_files,
    is_hub_name,
    load_hub_splits,
    no_such_source,
)
from samara.shared.tasks.text_folders import find_texts

Record = Mapping[str, object]


@dataclass(frozen=True)
class RawData:
    """The records of a source.

    Attributes:
        path: path of the source, or its name on the hub.
        form: description of the source's format.
        splits: records by split of the source.
        label_names: for a data set on the hub, the names of a label column's integers, by column.
        has_header: whether the names of the columns are the first row of a CSV file.
    """

    path: str
    form: str
    splits: Mapping[str, Sequence[Record]]
    label_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    has_header: bool = False

    @property
    def all(self) -> list[Record]:
        """The records of all splits."""
        return [record for records in self.splits.values() for record in records]


_FORMS = {
    "file": "one file",
    "splits": "a folder with a file for each split",
    "users": "a folder with a file for each user",
    "people": "a folder with a folder of files for each user",
    "labels": "a folder with a folder of texts for each label",
}


def read_raw(path: str) -> RawData:
    """Read all records of a source.

    Args:
        path: path of the source or its name on the hub, as in `shared.tasks.data.load_examples`.

    Raises:
        DataError: if the source does not exist, or a line is not a record; the message names the
            first such line.
    """
    if not Path(path).exists():
        if is_hub_name(path):
            return _read_hub(path)
        raise no_such_source(path)
    try:
        return _read_local(Path(path))
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error


def _read_local(path: Path) -> RawData:
    files = find_data_files(path)
    if files.form == "users" and len(files.splits["train"]) == 1:
        return _read_local(files.splits["train"][0])  # one file alone holds the rows of all users
    if files.form == "repository":
        return _read_hub(str(path))
    if files.form == "labels":
        return RawData(
            str(path),
            _FORMS[files.form],
            {split: _texts_of(folder) for split, (folder,) in files.splits.items()},
        )
    splits: dict[str, list[Record]] = {}
    for split, parts in files.splits.items():
        splits[split] = []
        for part in parts:
            found = _records_of(part)
            if owner := files.owner_of(part):
                found = [{**record, "user": _owner(part, owner, record)} for record in found]
            splits[split] += found
    tables = any(is_table(part) for parts in files.splits.values() for part in parts)
    return RawData(str(path), _FORMS[files.form], splits, has_header=tables)


def _texts_of(folder: Path) -> list[Record]:
    records: list[Record] = [
        {"text": _text_of(text), "label": text.parent.name}
        for label in sorted(folder.iterdir())
        if label.is_dir() and not label.name.startswith(".")
        for text in find_texts(label)
    ]
    if not records:
        raise DataError(
            f"{folder}: its folders contain no .txt files; give rows as JSON lines or CSV, or one "
            "folder of .txt files for each label"
        )
    return records


def _records_of(path: Path) -> list[Record]:
    def refuse(line: int, what: str) -> None:
        raise DataError(f"{path}:{line}: {what}")

    records = [record for _, record in read_records(path, refuse)]
    if not records:
        refuse(1, "the file has no rows; add rows, or delete the file")
    return records


def _owner(path: Path, owner: str, record: Record) -> str:
    """Return the user of a row, after whom its file or folder is named.

    Raises:
        DataError: if the row names another user.
    """
    if record.get("user", owner) not in ("", owner):
        raise DataError(
            f"{path}: has a row of user {record['user']!r}, but is named after user {owner!r}; "
            "join the files of the folder into one file, and give the path of that file"
        )
    return owner


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8; save the file in UTF-8") from error


def _read_hub(name: str) -> RawData:
    splits: dict[str, list[Record]] = {}
    names: dict[str, list[str]] = {}
    for split, (_, part) in load_hub_splits(name).items():
        splits[split] = part.to_list()
        features: Mapping[str, Any] = part.features
        names |= {
            column: list(feature.names)
            for column, feature in features.items()
            if getattr(feature, "names", None)
        }
    return RawData(name, "a Hugging Face data set", splits, names)
