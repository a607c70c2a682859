"""Files of a rehearsal's task and of each client's examples."""

import json
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from samara.client.training.client_data import ClientData
from samara.shared.errors import ConfigError
from samara.shared.protocol.frames.instructions import Split
from samara.shared.storage.files import make_folder
from samara.shared.tasks.kinds import ClassificationTask, Task

TASK_FILE = "task.toml"


def write_task(task: Task, file: Path) -> None:
    """Write the task file for the clients' examples, whose texts are already rendered.

    Raises:
        ConfigError: if the task is not a classification, or has no question.
    """
    if not isinstance(task, ClassificationTask):
        raise ConfigError(
            f"task {task.name!r} is a {task.kind}, but a rehearsal supports only classifications; "
            "choose a classification, or give each client its data yourself (samara server up, "
            "samara client up)"
        )
    if task.word_is_inside:
        raise ConfigError(
            f"task {task.name!r} has its label word inside the text, but a rehearsal needs a "
            "question after the text; choose a task with a question"
        )
    written = {
        "name": task.name,
        "text": "{text}",
        "question": task.question,
        "words": list(task.words),
        "labels": list(range(len(task.words))),
        "metric": task.metric,
    }
    if task.positive is not None:
        written["positive"] = str(task.label_index(task.positive))
    file.write_text(tomli_w.dumps(written), encoding="utf-8")


def write_shares(shares: Sequence[ClientData], folder: Path) -> list[Path]:
    """Write each client's examples to a separate folder; return these folders."""
    folders = []
    for number, share in enumerate(shares):
        own = folder / str(number)
        make_folder(own)
        for split in Split:
            rows = [{"text": e.text, "label": e.label} for e in share.in_split(split)]
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            if rows:
                (own / f"{split.name.lower()}.jsonl").write_text(text, encoding="utf-8")
        folders.append(own)
    return folders
