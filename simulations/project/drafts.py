"""Drafts of a task file and of a scenario, with comments on values that users may change."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from samara.shared.settings.config import RunConfig
from samara.shared.tasks.base_task import USER_FIELD
from samara.shared.tasks.messages import EMBEDDED_DATA
from samara.simulations.project.columns import Roles
from samara.simulations.project.languages import QUESTIONS

TASK_FILE = "task.toml"
SCENARIO_FILE = "scenario.toml"
PROJECT_RUN = "run"
"""Folder of a project's run, inside the project's folder."""
_MOST_CLIENTS = 120
_CLIENTS = 8
_MOST_EVALUATED = 4_000
"""Number of validation and test rows up to which a scenario sets no limit."""


@dataclass(frozen=True)
class ProjectChoices:
    """The choices that determine a project's files.

    Attributes:
        data: path of the data, or their name on the hub.
        model: path of the model, or its name on the hub.
        roles: columns that the task reads.
        values: label values of a classification.
        words: label word of each value.
        task: shipped task whose wording is used; empty to draft a new task.
    """

    data: str
    model: str
    roles: Roles
    values: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    task: str = ""


@dataclass(frozen=True)
class DataSize:
    """The numbers that a scenario depends on.

    Attributes:
        users: number of users that can be clients; 0 if the data have no users or ignore them.
        training: number of training rows.
        evaluated: number of validation and test rows.
    """

    users: int
    training: int
    evaluated: int


def quoted(text: str) -> str:
    """Return a text as a TOML string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _list(entries: Sequence[str]) -> str:
    return f"[{', '.join(entries)}]"


def _value(value: str) -> str:
    """Return a label value as TOML, either as an integer or as a string."""
    return value if re.fullmatch(r"0|-?[1-9]\d{0,17}", value) else quoted(value)


def draft_task(choices: ProjectChoices, name: str, language: str) -> str:
    """Return the text of a task file.

    Args:
        choices: choices for the project; `task` is ignored.
        name: name of the task.
        language: language of the label words, for the question.
    """
    roles = choices.roles
    template = "\n".join(f"{{{column}}}" for column in roles.texts)
    lines = [
        "# The fields of a row, the wording of the question, and the answers.",
        f"name = {quoted(name)}",
    ]
    if roles.kind == "classification":
        question = QUESTIONS.get(language, "\nLabel: {word}")
        lines += [
            "# Column names are in braces; the text around them is part of the prompt.",
            f"text = {quoted(template)}",
            "# The question follows the text; each word in turn replaces {word}.",
            f"question = {quoted(question)}",
            "# words[i] is the answer for the label labels[i]; [1, 2] means label 1 or 2.",
            f"words = {_list([quoted(word) for word in choices.words])}",
            f"labels = {_list([_value(value) for value in choices.values])}",
        ]
        if len(choices.words) > 2:
            lines.append("# or macro-f1, which gives all labels equal weight")
        lines.append('metric = "accuracy"')
    elif roles.kind == "choice":
        before = " ".join(f"{{{column}}}" for column in roles.texts)
        lines += [
            'kind = "choice"',
            "# Each candidate in turn replaces {candidate}.",
            f"text = {quoted(f'{before} {{candidate}}'.strip())}",
        ]
        braced = [quoted(f"{{{column}}}") for column in roles.candidates]
        lines.append(f"candidates = {braced[0] if len(braced) == 1 else _list(braced)}")
        if choices.values:
            lines += [
                "# The label value of each candidate, in order.",
                f"labels = {_list([_value(value) for value in choices.values])}",
            ]
    else:
        lines += [
            'kind = "generation"',
            "# {answer} is the place of the answer; the text after it ends an answer.",
            f"text = {quoted(f'{template}' + chr(10) + '{answer}' + chr(10))}",
            "# maximum number of tokens of an answer",
            "tokens = 32",
            "# or exact-match",
            'metric = "token-f1"',
        ]
    if roles.label != "label":
        lines.append(f"label = {quoted(roles.label)}")
    lines += user_line(roles)
    if roles.texts and roles.kind != "generation":
        lines += [
            "# column that is shortened if a row is too long for the model",
            f"cut = {quoted(roles.texts[0])}",
        ]
    return "\n".join(lines) + "\n"


def user_line(roles: Roles) -> list[str]:
    """Return the lines of a task file that name the user column; empty if no line is needed."""
    if roles.user in ("", USER_FIELD):
        return []
    return ["# column with the user of a row", f"user = {quoted(roles.user)}"]


def _seen_from(folder: str, path: str) -> str:
    """Return a path relative to a project's folder if it is inside or beside that folder."""
    place = Path(path)
    parent = Path(folder).parent
    if not place.is_absolute() or not place.is_relative_to(parent) or parent == Path("/"):
        return path
    relative = os.path.relpath(place, folder)
    return relative if relative.startswith("..") else f"./{relative}"


def draft_scenario(choices: ProjectChoices, folder: str, size: DataSize) -> str:
    """Return the text of a scenario.

    Args:
        choices: choices for the project.
        folder: absolute path of the project's folder.
        size: size of the data.
    """
    by_user = size.users > 1
    clients = min(size.users, _MOST_CLIENTS) if by_user else min(_CLIENTS, size.training)
    limit = 0
    if size.evaluated > _MOST_EVALUATED:
        limit = max(10, _MOST_EVALUATED // clients // 2)
    lines = [
        f"# {Path(folder).name}: simulated clients with data and a model of your own.",
        f"# samara simulate {SCENARIO_FILE}",
        "# Paths that begin with ./ or ../ are relative to this file's folder, which can be moved.",
        "# Add any setting of docs/reference/settings.md; other settings have their defaults.",
        "",
        f"task = {quoted(f'./{TASK_FILE}')}",
        "# The same command continues the run in this folder. With other settings, give another",
        "# folder with --out.",
        f'out = "./{PROJECT_RUN}"',
    ]
    is_text = choices.roles.kind == "generation"
    if by_user and is_text:
        lines += [
            "# A global model, and private rounds of each client on top of it. Other methods are",
            "# ditto, mixture, partial, local, global and cluster.",
            'method = "finetune"',
        ]
    elif by_user:
        lines += [
            "# A global model, and a private part of each client that is fitted to its rows. Other",
            "# methods are finetune, ditto, mixture, partial, local, global and cluster.",
            'method = "readout"',
        ]
    lines += [
        f"rounds = {RunConfig.model_fields['rounds'].default}",
        "",
        "[model]",
        f"path = {quoted(_seen_from(folder, choices.model))}",
        "",
        "[data]",
        f"path = {quoted(_seen_from(folder, choices.data))}",
    ]
    if choices.data == EMBEDDED_DATA:
        lines += ["# Each client is a generated writer.", 'partition = "user"']
    elif by_user:
        lines += [
            f"# Each user is a client. {size.users:,} users have enough rows; the users with the",
            "# most rows are used.",
            'partition = "user"',
        ]
    else:
        lines += [
            "# The rows are divided so that clients differ in their labels; a smaller alpha makes",
            '# them differ more. "iid" divides the rows evenly.',
            'partition = "dirichlet"',
            "alpha = 5.0",
        ]
    lines += [f"clients = {clients}", ""]
    if is_text:
        lines += _last_sections_of_texts(choices, limit)
        return "\n".join(lines) + "\n"
    lines += [
        "[adapter]",
        "# A readout on one representation, so that the model runs once for each row. top:1 trains",
        "# adapters in the last block instead, which need more passes and may gain more.",
        'layers = "readout:auto"',
    ]
    if by_user:
        lines += [
            "# one intercept per label, which can represent a user's habit",
            "label-bias = true",
        ]
    lines += [
        "",
        "[evaluate]",
        "# maximum validation rows, and maximum test rows, of a client; 0: all rows",
        f"limit = {limit}",
        "",
        "[personal]",
        "# private rounds of each client at the end, for a personal model"
        + (" (this method fits one without them)" if by_user else "; 5 is usual"),
        "rounds = 0",
    ]
    return "\n".join(lines) + "\n"


def _last_sections_of_texts(choices: ProjectChoices, limit: int) -> list[str]:
    """Return the last lines of a scenario whose clients learn to write in their style."""
    lines = [
        "[adapter]",
        "# Adapters in the last block of the model; top:2 trains two blocks with costlier steps.",
        'layers = "top:1"',
        "",
        "[evaluate]",
        "# maximum validation rows, and maximum test rows, of a client; 0: all rows",
        f"limit = {limit}",
    ]
    if choices.roles.texts != (choices.roles.label,):
        lines += [
            "# in-context examples for the base model, as a baseline; 0 for none",
            "retrieved = 4",
        ]
    return [
        *lines,
        "",
        "[personal]",
        "# private rounds of each client at the end, for a personal model",
        "rounds = 10",
        "# whether words of a client's texts are mixed in, if that helps on its validation texts",
        "own-words = true",
    ]
