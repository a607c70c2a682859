"""Look-up of a label by its name, and of a task's only text field."""

from samara.shared.errors import DataError, TaskError
from samara.shared.tasks.kinds import ClassificationTask, Task


def label_value(task: Task, name: str) -> str:
    """Return the value that rows of the data use for a label.

    Args:
        task: task of the label.
        name: a value of the label, or its label word in upper or lower case. A task without common
            labels expects the right answer, which is returned unchanged.

    Raises:
        TaskError: if the task has no such label.
    """
    if not isinstance(task, ClassificationTask):
        return name
    if any(name in values for values in task.labels):
        return name
    words = [word.strip().casefold() for word in task.words]
    if (word := name.strip().casefold()) in words:
        return task.labels[words.index(word)][0]
    known = ", ".join(
        f"{values[0]} ({word.strip()})"
        for values, word in zip(task.labels, task.words, strict=True)
    )
    raise TaskError(f"label {name!r} is unknown; task {task.name!r} knows {known}")


def only_text_field(task: Task) -> str:
    """Return the only text field of a task.

    Raises:
        DataError: if the task's rows have several fields, or a list of candidates.
    """
    if len(task.fields) != 1 or not isinstance(task, ClassificationTask) or task.each:
        fields = ", ".join((*task.fields, task.label_names[0]))
        raise DataError(
            f"task {task.name!r} reads {fields}, which are more than a text and a label; give JSON "
            "lines with these fields"
        )
    return task.fields[0]
