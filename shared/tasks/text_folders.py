"""Folders of texts: one folder per label, with one ``.txt`` file per example."""

from pathlib import Path

from shared.errors import DataError, TaskError
from shared.tasks.kinds import Task
from shared.tasks.named_labels import label_value, only_text_field
from shared.tasks.rows import Row, read_rows

TEXT_SUFFIX = ".txt"


def read_text_folders(folder: Path, task: Task, problems: list[str]) -> list[Row]:
    """Read the texts of a folder, in the order of labels and then of file names.

    Args:
        folder: folder with one folder per label, named by a value or a word of the label; names
            that begin with a dot are left out, so that a text can be written under such a name and
            then renamed.
        task: task whose rows have one text and a label.
        problems: list that the problems with single files are appended to.

    Returns:
        Rows whose time is that of their file's last change.

    Raises:
        DataError: if the task reads something else.
        OSError: if a folder cannot be read.
    """
    field = only_text_field(task)
    rows: list[Row] = []
    for labelled in sorted(folder.iterdir()):
        if not labelled.is_dir() or labelled.name.startswith("."):
            continue
        try:
            label = label_value(task, labelled.name)
        except TaskError as error:
            problems.append(f"{labelled}: {error}; name the folder by a label")
            continue
        for path in find_texts(labelled):
            rows += _read_text(path, field, label, task, problems)
    return rows


def find_texts(folder: Path) -> list[Path]:
    """Return the files of a label's folder that hold texts, by name."""
    texts = sorted(folder.glob(f"*{TEXT_SUFFIX}"))
    return [path for path in texts if not path.name.startswith(".")]


def _read_text(path: Path, field: str, label: str, task: Task, problems: list[str]) -> list[Row]:
    try:
        changed, text = path.stat().st_mtime, path.read_text(encoding="utf-8-sig").strip()
        rows = read_rows({field: text, task.label_names[0]: label}, task)
    except FileNotFoundError:  # it was there when the folder was listed
        return []
    except UnicodeDecodeError:
        problems.append(f"{path}: is not UTF-8; save the file in UTF-8")
        return []
    except DataError as error:
        problems.append(f"{path}: {error}")
        return []
    return [row._replace(time=changed) for row in rows]
