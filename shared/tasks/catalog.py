"""The catalog of tasks: loading and checking of a task's TOML file.

The file names the fields of a row, the question and the answers (docs/reference/tasks.md). The
shortest file is::

    name = "sst2"
    text = "{text}"                 # the text; any field of a row, in braces
    question = " It was {word}."    # the question; {word} exactly once
    words = ["terrible", "great"]   # one label word or phrase per label
    labels = [0, 1]                 # the value in the data, or list of values, that means word i

The shipped tasks are files in ``prompts/`` and are loaded by name.
"""

import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import Discriminator, Tag, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from samara.shared.errors import TaskError
from samara.shared.extensions import extension, stored_name
from samara.shared.tasks.kinds import (
    AUTO_FORM,
    ChoiceTask,
    ClassificationTask,
    Form,
    GenerationTask,
    Task,
)

_KINDS: dict[str, type[Task]] = {
    "classification": ClassificationTask,
    "choice": ChoiceTask,
    "generation": GenerationTask,
}


def _kind(content: Mapping[str, Any]) -> str:
    return str(content.get("kind", "classification"))


_READER: TypeAdapter[Task] = TypeAdapter(
    Annotated[
        Annotated[ClassificationTask, Tag("classification")]
        | Annotated[ChoiceTask, Tag("choice")]
        | Annotated[GenerationTask, Tag("generation")],
        Discriminator(_kind),
    ]
)


@cache
def shipped_tasks() -> Mapping[str, Any]:
    """Return the files of the shipped tasks by name."""
    return {
        entry.name.removesuffix(".toml"): entry
        for entry in (resources.files("samara.shared.tasks") / "prompts").iterdir()
        if entry.name.endswith(".toml")
    }


def stored_task(name_or_path: str) -> str | None:
    """Return the stored name of a registered task, or None for a shipped task or a file."""
    try:
        if name_or_path in shipped_tasks() or Path(name_or_path).is_file():
            return None
    except OSError:  # a name may be too long for the file system
        return None
    return stored_name("task", name_or_path)


def load_task(name_or_path: str) -> Task:
    """Load a task by the name of a shipped or registered task, or by the path of a TOML file.

    Raises:
        TaskError: if there is no such task or file, or if the content is wrong. The message names
            all mistakes in a file.
    """
    if (stored := stored_task(name_or_path)) is not None:
        task = extension("task", stored)
        if not isinstance(task, Task):
            raise TaskError(
                f"task {stored!r}: the registered object is a {type(task).__name__}, not a task"
            )
        return task
    shipped = shipped_tasks()
    source = shipped.get(name_or_path, Path(name_or_path))
    try:
        if not source.is_file():
            raise TaskError(
                f"{name_or_path!r}: this is neither a shipped task nor a file; give one of "
                f"{', '.join(sorted(shipped))} or the path of a TOML file"
            )
        toml = source.read_bytes().decode()
        return _READER.validate_python(tomllib.loads(toml))
    except ValidationError as error:
        mistakes = [_mistake(name_or_path, toml, details) for details in error.errors()]
        raise TaskError("\n".join(mistakes)) from None
    except OSError as error:
        raise TaskError(f"{name_or_path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TaskError(f"{name_or_path}: this is not a TOML file in UTF-8: {error}") from error


class AskedTask(Protocol):
    """Settings from which a task can be loaded: its name, and the form of its prompts."""

    @property
    def task(self) -> str:
        """The task, by its name or the path of its file."""

    @property
    def form(self) -> Form:
        """The form of prompts for a causal LM. ``auto`` means the task's own form."""


def task_of(settings: AskedTask) -> Task:
    """Load the task of a run in the run's form.

    Raises:
        TaskError: as in `load_task`, or if the form is not ``auto`` for a generation.
    """
    task = load_task(settings.task)
    if settings.form == AUTO_FORM:
        return task
    if isinstance(task, GenerationTask):
        raise TaskError(
            f"form = {settings.form}: only a classification or a choice can have a form, but task "
            f"{task.name!r} is a generation; omit form, or set chat = true in a task of chats"
        )
    return task.model_copy(update={"form": settings.form})


def _mistake(place: str, toml: str, details: ErrorDetails) -> str:
    """Describe a mistake reported by pydantic in one line: its file, its key and the problem."""
    kind, *path = details["loc"] or ("", "kind")
    key = str(path[0])
    for number, line in enumerate(toml.splitlines(), 1):
        if re.match(rf"""\s*(\[+{re.escape(key)}[].]|["']?{re.escape(key)}["']?\s*[=.])""", line):
            place = f"{place}:{number}"
            break
    match details["type"]:
        case "union_tag_invalid":
            what = f"must be one of {', '.join(_KINDS)}; it is {_kind(details['input'])}"
        case "extra_forbidden":
            fields = _KINDS[str(kind)].model_fields
            required = [name for name, field in fields.items() if field.is_required()]
            further = [name for name in fields if name not in required]
            near = get_close_matches(key, [*required, *further], n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            what = (
                f"is unknown{hint}; a task needs {', '.join(required)}, and can also have "
                f"{', '.join(further)}"
            )
        case "missing":
            what = "is missing"
        case _:
            what = details["msg"].removeprefix("Value error, ")
    return f"{place}: {'.'.join(str(part) for part in path)}: {what}"
