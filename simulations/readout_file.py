"""Files about readouts: an exported readout, and a damping measured on texts."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save

from client.forward.body import PerturbedBody
from client.forward.readout import DAMPING_MICRO_BATCH, make_base_engine, make_readout, run_base
from client.training.client_data import ExampleTokenizer
from shared.config import RunConfig
from shared.errors import ConfigError, DataError
from shared.files import make_folder, write_durably
from shared.layout import Layout
from shared.model.damping import (
    RANDOM_SEED,
    RANDOM_TEXTS,
    encode_damping,
    measure_damping,
    random_examples,
)
from shared.model.loading import BaseModel, load_base_model
from shared.model.lora_fa import LABEL_BIAS, READOUT
from shared.model.readout import merge_readout
from shared.model.scorers import Scorer, scorer_for
from shared.tasks.catalog import load_task
from shared.tasks.kinds import ClassificationTask, Task
from shared.tasks.rows import Example

READOUT_FILE = "readout.safetensors"
_FORMULA = "scores + weight @ h + bias"


def write_readout(
    config: RunConfig, layout: Layout, numbers: NDArray[np.float32], folder: Path
) -> None:
    """Write a readout, with the label bias if there is one, as ``readout.safetensors``.

    Its tensors are the matrix ``weight`` [labels, features] and the vector ``bias`` [labels], with
    damping and contrasts merged: the scores of the base model get weight·h + bias added, where h is
    the representation (`shared.model.readout.representations`).

    Args:
        config: settings of the run.
        layout: layout of the adapter.
        numbers: trained numbers, float32 [elements].
        folder: folder for the file; it is created if it is missing.

    Raises:
        SamaraError: if the model, the task or the damping cannot be used.
        OSError: if the folder cannot be written.
    """
    base, task, scorer = _load(config)
    tokenize = ExampleTokenizer(scorer)
    readout = make_readout(base, task, scorer, config.adapter.damping, tokenize)
    elements, rows = layout.tensor_slice(READOUT)
    matrix, bias = merge_readout(numbers[elements].reshape(rows, -1), readout.load_damping())
    if any(tensor.name == LABEL_BIAS for tensor in layout.tensors):
        bias = bias + numbers[layout.tensor_slice(LABEL_BIAS)[0]]
    words = task.words if isinstance(task, ClassificationTask) else ()
    metadata = {
        "format": "samara readout 1",
        "base_model_name_or_path": config.model.path,
        "model_id": base.model_id.hex(),
        "family": base.family,
        "task": task.name,
        "words": json.dumps(words),
        "scores": _FORMULA,
    }
    make_folder(folder)
    tensors = {"weight": torch.from_numpy(matrix), "bias": torch.from_numpy(bias)}
    write_durably(folder / READOUT_FILE, save(tensors, metadata))


def write_damping(config: RunConfig, texts: Path | None, count: int, file: Path) -> float:
    """Measure the damping of a model on texts, write it, and return their effective rank.

    Args:
        config: settings that name model and task.
        texts: file with one text per line, or with JSON objects whose ``text`` is one; None for
            random tokens.
        count: most texts.
        file: file to be written.

    Raises:
        SamaraError: if the model, the task or the texts cannot be used, or the file not written.
    """
    base, task, scorer = _load(config)
    if texts is None:
        examples = random_examples(base, task, count or RANDOM_TEXTS, RANDOM_SEED)
    else:
        examples = [_example(task, text) for text in _read_texts(texts, count)]
    prompts = [scorer.prompt(each.text, each.answers, each.cut) for each in examples]
    rows = run_base(make_base_engine(base, scorer, False), prompts, DAMPING_MICRO_BATCH)
    damping, rank = measure_damping(rows[:, scorer.labels :])
    try:
        make_folder(file.parent)
        write_durably(file, encode_damping(damping, base, len(prompts), rank))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from error
    return rank


def _load(config: RunConfig) -> tuple[BaseModel, Task, Scorer]:
    """Load the model, the task and the scorer of a run."""
    model, task = config.model, load_task(config.task)
    base = load_base_model(
        model.path, model.family, model.torch_device, model.quantization, model.dtype
    )
    with torch.no_grad():
        scorer = scorer_for(base, task, model.max_length, PerturbedBody(base, 0))
    return base, task, scorer


def _example(task: Task, text: str) -> Example:
    """Return a text as an example of a classification with one field."""
    if not isinstance(task, ClassificationTask) or len(task.fields) != 1:
        raise DataError(
            f"task {task.name!r} reads {', '.join(task.fields)}, and a line of texts is one field; "
            "leave --from out for random tokens"
        )
    return Example(task.render({task.fields[0]: text}), 0, "", "")


def _read_texts(file: Path, count: int) -> Sequence[str]:
    """Read the texts of a file, at most `count`; 0 reads all."""
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
                f"{file}: a line is no JSON object with a text: {error!r}; write one per line"
            ) from error
    if len(lines) < 2:
        raise DataError(f"{file}: holds {len(lines)} texts; a covariance needs two or more")
    return lines
