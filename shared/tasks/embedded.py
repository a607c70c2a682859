"""Generated messages as data, so that a federation runs without any data at hand."""

from shared.errors import TaskError
from shared.tasks.kinds import ClassificationTask, Task
from shared.tasks.messages import Ceilings, Split, ceilings, messages, writers
from shared.tasks.rows import Example

MESSAGES_PER_WRITER: dict[Split, int] = {"train": 256, "validation": 20, "test": 100}


def embedded_examples(task: Task, clients: int, seed: int) -> list[Example]:
    """Messages of as many writers as there are clients, user by user.

    Args:
        task: the shipped task ``messages``, or one that reads the same fields.
        clients: how many writers.
        seed: of the community, its writers and their messages.

    Raises:
        TaskError: if the task is of another kind, does not know the labels 0 and 1, or reads other
            fields.
    """
    if not isinstance(task, ClassificationTask):
        raise TaskError(
            f"task {task.name!r} is a {task.kind} and generated messages have labels; "
            "set task to messages"
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
    """What the best common rule and the writers' own rules reach on their test messages.

    Args:
        clients: how many writers.
        seed: of the community.
    """
    people = writers(clients, seed)
    count = MESSAGES_PER_WRITER["test"]
    rows = [row for writer in people for row in messages(writer, count, "test", seed)]
    return ceilings(people, rows)
