"""File format of an exported readout, which can be used without Samara."""

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save

from samara.client.forward.readout import make_readout
from samara.client.forward.setup import make_scorer
from samara.client.training.client_data import ExampleTokenizer
from samara.shared.model.loading import BaseModel, load_base_model
from samara.shared.model.lora_fa import LABEL_BIAS, READOUT
from samara.shared.model.readout import merge_readout
from samara.shared.model.scorers import Scorer
from samara.shared.protocol.layout import Layout
from samara.shared.settings.sections import ModelAndTask
from samara.shared.storage.files import make_folder, write_durably
from samara.shared.tasks.catalog import task_of
from samara.shared.tasks.kinds import ClassificationTask, Task

READOUT_FILE = "readout.safetensors"
_FORMULA = "scores + weight @ h + bias"


def write_readout(
    config: ModelAndTask, layout: Layout, numbers: NDArray[np.float32], folder: Path
) -> None:
    """Write a readout and the label bias, if there is one, as ``readout.safetensors``.

    The tensors are the matrix ``weight`` [labels, features] and the vector ``bias`` [labels], with
    damping and contrasts merged. weight·h + bias is added to the base model's scores, where h is
    the representation (`samara.shared.model.readout.representations`).

    Args:
        config: settings of the run.
        layout: layout of the adapter.
        numbers: trained weights, float32 [elements].
        folder: folder for the file; created if missing.

    Raises:
        SamaraError: if the model, the task or the damping cannot be used.
        OSError: if the folder cannot be written.
    """
    base, task, scorer = load_scorer(config)
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
        "blocks": str(len(base.blocks)),
        "task": task.name,
        "words": json.dumps(words),
        "scores": _FORMULA,
    }
    make_folder(folder)
    tensors = {"weight": torch.from_numpy(matrix), "bias": torch.from_numpy(bias)}
    write_durably(folder / READOUT_FILE, save(tensors, metadata))


def load_scorer(config: ModelAndTask) -> tuple[BaseModel, Task, Scorer]:
    """Load the model, the task and the scorer of a run.

    Raises:
        SamaraError: if the model or the task cannot be used.
    """
    model = config.model
    task = task_of(config)
    base = load_base_model(
        model.path,
        model.family,
        model.torch_device,
        model.quantization,
        model.dtype,
        config.adapter.depth,
    )
    return base, task, make_scorer(base, task, model.max_length)
