"""The text of a task file and of a scenario, with a comment beside what one may want to change."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from samara.shared.config import RunConfig
from samara.shared.data_settings import EMBEDDED_DATA
from samara.shared.tasks.base_task import USER_FIELD
from samara.simulations.project.columns import Roles
from samara.simulations.project.languages import QUESTIONS

TASK_FILE, SCENARIO_FILE = "task.toml", "scenario.toml"
PROJECT_RUN = "run"
"""The folder of a project's run, in the project's folder."""
_MOST_CLIENTS, _CLIENTS = 120, 8
_MOST_EVALUATED = 4_000
"""The most validation and test rows of a scenario that takes all of them."""


@dataclass(frozen=True)
class ProjectChoices:
    """The choices that a project's files are made of.

    Attributes:
        data: path of the data, or name on the hub.
        model: path of the model, or name on the hub.
        roles: columns that the task reads.
        values: values of the label, of a classification.
        words: label word of each value.
        task: shipped task whose wording is taken; empty writes a new one.
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
        users: number of users who can be clients; 0 without users, or where they are left out.
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
    """Return a label value as TOML: an integer where it is one."""
    return value if re.fullmatch(r"0|-?[1-9]\d{0,17}", value) else quoted(value)


def draft_task(choices: ProjectChoices, name: str, language: str) -> str:
    """Return the text of a task file.

    Args:
        choices: what it is made of; `task` is not looked at.
        name: name of the task.
        language: language of the label words, for the question.
    """
    roles = choices.roles
    template = "\n".join(f"{{{column}}}" for column in roles.texts)
    lines = [
        "# What is read of a row, how the answer is asked for, and the answers.",
        f"name = {quoted(name)}",
    ]
    if roles.kind == "classification":
        question = QUESTIONS.get(language, "\nLabel: {word}")
        lines += [
            "# Names of columns stand in braces; text around them is part of the prompt.",
            f"text = {quoted(template)}",
            "# The question follows the text, and {word} stands once for each of the words.",
            f"question = {quoted(question)}",
            "# words[i] is the answer where the label is labels[i]; [1, 2] stands for both values.",
            f"words = {_list([quoted(word) for word in choices.words])}",
            f"labels = {_list([_value(value) for value in choices.values])}",
        ]
        if len(choices.words) > 2:
            lines.append("# or macro-f1, which weighs rare labels like frequent ones")
        lines.append('metric = "accuracy"')
    elif roles.kind == "choice":
        before = " ".join(f"{{{column}}}" for column in roles.texts)
        lines += [
            'kind = "choice"',
            "# {candidate} stands where each of the candidates goes.",
            f"text = {quoted(f'{before} {{candidate}}'.strip())}",
        ]
        braced = [quoted(f"{{{column}}}") for column in roles.candidates]
        lines.append(f"candidates = {braced[0] if len(braced) == 1 else _list(braced)}")
        if choices.values:
            lines += [
                "# the value of the label that stands for each candidate",
                f"labels = {_list([_value(value) for value in choices.values])}",
            ]
    else:
        lines += [
            'kind = "generation"',
            "# {answer} stands where the answer goes; what follows it ends an answer.",
            f"text = {quoted(f'{template}' + chr(10) + '{answer}' + chr(10))}",
            "# most tokens of an answer",
            "tokens = 32",
            "# or exact-match",
            'metric = "token-f1"',
        ]
    if roles.label != "label":
        lines.append(f"label = {quoted(roles.label)}")
    lines += user_line(roles)
    if roles.texts and roles.kind != "generation":
        lines += [
            "# the column that is shortened where a row is too long for the model",
            f"cut = {quoted(roles.texts[0])}",
        ]
    return "\n".join(lines) + "\n"


def user_line(roles: Roles) -> list[str]:
    """Return the lines of a task file that name the column of users, if it needs any."""
    if roles.user in ("", USER_FIELD):
        return []
    return ["# the column that says whose a row is", f"user = {quoted(roles.user)}"]


def _seen_from(folder: str, path: str) -> str:
    """Return a path relative to a project's folder if it lies in it, or beside it."""
    place, parent = Path(path), Path(folder).parent
    if not place.is_absolute() or not place.is_relative_to(parent) or parent == Path("/"):
        return path
    relative = os.path.relpath(place, folder)
    return relative if relative.startswith("..") else f"./{relative}"


def draft_scenario(choices: ProjectChoices, folder: str, size: DataSize) -> str:
    """Return the text of a scenario.

    Args:
        choices: what it is made of.
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
        "# Paths that begin with ./ or ../ begin in the folder of this file, which can be moved.",
        "# Any setting of docs/reference/settings.md may be added; the others have their defaults.",
        "",
        f"task = {quoted(f'./{TASK_FILE}')}",
        "# The same command continues the run in this folder; another setting needs another one,",
        "# as --out gives it.",
        f'out = "./{PROJECT_RUN}"',
    ]
    is_text = choices.roles.kind == "generation"
    if by_user and is_text:
        lines += [
            "# A global model, and for each client private rounds on top of it; ditto, mixture,",
            "# partial, local, global and cluster are other ways.",
            'method = "finetune"',
        ]
    elif by_user:
        lines += [
            "# A global model, and for each client a private part that is fitted to its own rows;",
            "# finetune, ditto, mixture, partial, local, global and cluster are other ways.",
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
            f"# Each user is a client: {size.users:,} have rows enough, and those with most rows",
            "# are taken.",
            'partition = "user"',
        ]
    else:
        lines += [
            "# The rows are dealt to clients who differ in their labels: the smaller alpha, the",
            '# more. "iid" deals them evenly.',
            'partition = "dirichlet"',
            "alpha = 5.0",
        ]
    lines += [f"clients = {clients}", ""]
    if is_text:
        lines += _last_sections_of_texts(choices, limit)
        return "\n".join(lines) + "\n"
    lines += [
        "[adapter]",
        "# A readout on one representation: the model runs once for each row. top:1 has adapters",
        "# in the last block instead, which cost more passes and may gain more.",
        'layers = "readout:auto"',
    ]
    if by_user:
        lines += [
            "# an intercept for each label, which can learn a user's habit",
            "label-bias = true",
        ]
    lines += [
        "",
        "[evaluate]",
        "# most validation and most test rows of a client; 0 is all",
        f"limit = {limit}",
        "",
        "[personal]",
        "# rounds that each client takes alone at the end, for a personal model"
        + (" (the method fits one)" if by_user else "; 5 is usual"),
        "rounds = 0",
    ]
    return "\n".join(lines) + "\n"


def _last_sections_of_texts(choices: ProjectChoices, limit: int) -> list[str]:
    """Return the last lines of a scenario whose clients learn how they write."""
    lines = [
        "[adapter]",
        "# Adapters in the last block of the model; top:2 has more, and every step costs more.",
        'layers = "top:1"',
        "",
        "[evaluate]",
        "# most validation and most test rows of a client; 0 is all",
        f"limit = {limit}",
    ]
    if choices.roles.texts != (choices.roles.label,):
        lines += [
            "# own examples that the base model reads before a prompt, as a baseline; 0 is none",
            "retrieved = 4",
        ]
    return [
        *lines,
        "",
        "[personal]",
        "# rounds that each client takes alone at the end, for a personal model",
        "rounds = 10",
    ]
