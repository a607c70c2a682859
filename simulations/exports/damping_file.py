"""Measurement of a readout's damping on texts, with the result in a file."""

import json
from collections.abc import Sequence
from pathlib import Path

from samara.client.forward.readout import DAMPING_MICRO_BATCH, make_base_engine, run_base
from samara.client.personal.readout_file import load_scorer
from samara.shared.errors import ConfigError, DataError
from samara.shared.model.damping import (
    DAMPING_FORMAT,
    RANDOM_SEED,
    RANDOM_TEXTS,
    encode_damping,
    measure_damping,
    random_examples,
)
from samara.shared.settings.config import RunConfig
from samara.shared.storage.files import check_requested, make_folder, write_requested
from samara.shared.tasks.kinds import ClassificationTask, Task
from samara.shared.tasks.rows import Example


def write_damping(config: RunConfig, texts: Path | None, count: int, file: Path) -> float:
    """Measure the damping of a model on texts, write it, and return the effective rank.

    Args:
        config: settings that name model and task.
        texts: file with one text per line, or with one JSON object with the key ``text`` per line;
            None for random tokens.
        count: largest number of texts; 0 for all texts of the file, or for 256 random texts.
        file: path of the file to write.

    Raises:
        SamaraError: if the model, the task or the texts cannot be used, or the file cannot be
            written.
    """
    try:
        make_folder(file.parent)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from error
    check_requested(file, DAMPING_FORMAT.encode())
    base, task, scorer = load_scorer(config)
    if texts is None:
        examples = random_examples(base, task, count or RANDOM_TEXTS, RANDOM_SEED)
    else:
        examples = [_example(task, text) for text in _read_texts(texts, count)]
    prompts = [scorer.prompt(each.text, each.answers, each.cut) for each in examples]
    rows = run_base(make_base_engine(base, scorer, False), prompts, DAMPING_MICRO_BATCH)
    damping, rank = measure_damping(rows[:, scorer.labels :])
    write_requested(
        file, encode_damping(damping, base, len(prompts), rank), DAMPING_FORMAT.encode()
    )
    return rank


def _example(task: Task, text: str) -> Example:
    """Return a text as an example of a classification with one field.

    Raises:
        DataError: if the task is not a classification with one field.
    """
    if not isinstance(task, ClassificationTask) or len(task.fields) != 1:
        raise DataError(
            f"task {task.name!r} reads {', '.join(task.fields)}, but a line of --from is one "
            "field; leave out --from to use random tokens"
        )
    return Example(task.render({task.fields[0]: text}), 0, "", "")


def _read_texts(file: Path, count: int) -> Sequence[str]:
    """Return at most `count` texts of a file; 0 for all texts.

    Raises:
        DataError: if the file cannot be read or has fewer than two texts.
    """
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read as text: {error}") from error
    lines = lines[:count] if count else lines
    if file.suffix in (".jsonl", ".json"):
        try:
            lines = [str(json.loads(line)["text"]) for line in lines]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{file}: a line is not a JSON object with the key text: {error!r}; write one "
                "object per line"
            ) from error
    if len(lines) < 2:
        raise DataError(
            f"{file}: holds {len(lines)} texts, but a covariance needs at least two; add texts"
        )
    return lines
