"""Folders of texts: one folder per label or per person, with one file per example."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from samara.shared.errors import DataError, TaskError
from samara.shared.tasks.kinds import GenerationTask, Task
from samara.shared.tasks.named_labels import label_value, only_text_field
from samara.shared.tasks.rows import Row, read_rows

TEXT_SUFFIXES = (".txt",)
PLAIN_TEXT_SUFFIXES = (".txt", ".md")
"""File name suffixes of texts. Only tasks of plain texts accept both."""


def read_text_folders(folder: Path, task: Task, problems: list[str]) -> list[Row]:
    """Read the texts of a folder, sorted by subfolder and then by file name.

    Args:
        folder: folder with a subfolder of texts for each label, named by the label's value or word.
            For plain texts, there is a subfolder for each person, named after the person. Names
            that begin with a dot are ignored, so that a text can be written under such a name and
            then renamed.
        task: task of plain texts, or task with one text field and a label.
        problems: list to which problems with individual files and subfolders are appended.

    Returns:
        Rows whose time is their file's modification time.

    Raises:
        DataError: if the task reads other fields.
        OSError: if a folder cannot be read.
    """
    is_plain = isinstance(task, GenerationTask) and task.is_plain_text
    field = task.label_names[0] if is_plain else only_text_field(task)
    suffixes = PLAIN_TEXT_SUFFIXES if is_plain else TEXT_SUFFIXES
    rows: list[Row] = []
    for named in sorted(folder.iterdir()):
        if not named.is_dir() or named.name.startswith("."):
            continue
        try:
            rest = {task.user_names[0]: named.name}
            if not is_plain:
                rest = {task.label_names[0]: label_value(task, named.name)}
        except TaskError as error:
            problems.append(f"{named}: {error}; name the folder after a label")
            continue
        for path in find_texts(named, suffixes):
            rows += _read_text(path, field, rest, task, problems)
    return rows


def find_texts(folder: Path, suffixes: Sequence[str] = TEXT_SUFFIXES) -> list[Path]:
    """Return the text files of a folder, sorted by name."""
    texts = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in suffixes]
    return [path for path in texts if not path.name.startswith(".")]


def _read_text(
    path: Path, field: str, rest: Mapping[str, str], task: Task, problems: list[str]
) -> list[Row]:
    try:
        changed = path.stat().st_mtime
        text = path.read_text(encoding="utf-8-sig").strip()
        rows = read_rows({field: text, **rest}, task)
    except FileNotFoundError:  # the file was deleted after the folder was listed
        return []
    except UnicodeDecodeError:
        problems.append(f"{path}: is not UTF-8; save the file in UTF-8")
        return []
    except DataError as error:
        problems.append(f"{path}: {error}")
        return []
    return [row._replace(time=changed) for row in rows]
