"""Generated messages as a federation's data, for runs without real data."""

from samara.shared.errors import DataError, TaskError
from samara.shared.tasks.kinds import ClassificationTask, GenerationTask, Task
from samara.shared.tasks.messages import (
    EMBEDDED_DATA,
    Ceilings,
    SplitName,
    ceilings,
    messages,
    writers,
)
from samara.shared.tasks.rows import Example
from samara.shared.tasks.style import styled_messages

STYLE_TASK = "style"
GENERATED_TASKS = (EMBEDDED_DATA, STYLE_TASK)
"""Names of the shipped tasks that can have generated data."""
MESSAGES_PER_WRITER: dict[SplitName, int] = {"train": 32, "validation": 20, "test": 100}
"""Number of messages of a writer in each split.

Training messages are few, because a person's device has few labelled messages. With many, a client
could train a good model alone.
"""
STYLED_PER_WRITER: dict[SplitName, int] = {"train": 128, "validation": 8, "test": 20}


def check_data_is_given(task: Task, path: str) -> None:
    """Check that ``data.path`` is set for a task without generated data.

    Args:
        task: the task.
        path: value of ``data.path``.

    Raises:
        DataError: if the task needs data and none are given.
    """
    if path == EMBEDDED_DATA and task.name not in GENERATED_TASKS:
        raise DataError(
            f"task {task.name!r} has no data: set data.path (--data) to a file, a folder or a name "
            "on the hub, and model.path (--model) to a model that can read it; only the tasks "
            f"{' and '.join(GENERATED_TASKS)} have generated messages"
        )


def embedded_examples(task: Task, clients: int, seed: int) -> list[Example]:
    """Return the messages of one writer per client, writer by writer.

    Args:
        task: the shipped task ``messages`` or ``style``, or a task that reads the same fields.
        clients: number of writers.
        seed: seed of the community, its writers and their messages.

    Raises:
        TaskError: if the task is neither a classification nor `style`, lacks the labels 0 and 1, or
            reads other fields.
    """
    if isinstance(task, GenerationTask) and task.name == STYLE_TASK:
        return [
            Example(
                task.render({"prompt": message["prompt"]}),
                0,
                message["user"],
                split,
                (message["response"],),
            )
            for writer in range(clients)
            for split, count in STYLED_PER_WRITER.items()
            for message in styled_messages(writer, count, split, seed)
        ]
    if not isinstance(task, ClassificationTask):
        raise TaskError(
            f"task {task.name!r} is a {task.kind}, but generated messages are for a "
            "classification; set task to messages"
        )
    return [
        Example(
            task.render({"text": message["text"]}),
            task.label_index(message["label"]),
            message["user"],
            split,
        )
        for writer in writers(clients, seed)
        for split, count in MESSAGES_PER_WRITER.items()
        for message in messages(writer, count, split, seed)
    ]


def embedded_ceilings(clients: int, seed: int) -> Ceilings:
    """Return the highest accuracies that models can reach on the generated test messages.

    Args:
        clients: number of writers.
        seed: seed of the community.
    """
    people = writers(clients, seed)
    count = MESSAGES_PER_WRITER["test"]
    rows = [row for writer in people for row in messages(writer, count, "test", seed)]
    return ceilings(people, rows)
