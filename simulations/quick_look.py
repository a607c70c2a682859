"""The answers of a run's base, global and personal models to a text."""

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from client.forward.body import PerturbedBody
from client.forward.readout import (
    ReadoutForward,
    make_base_engine,
    make_readout,
)
from client.forward.representation_store import RepresentationStore
from client.forward.resident import ResidentForward
from client.training.client_data import ExampleTokenizer
from shared.errors import DataError, ModelError
from shared.model.loading import load_base_model
from shared.model.lora_fa import Perturbations, inject
from shared.model.scorers import scorer_for
from shared.tasks.catalog import load_task
from shared.tasks.kinds import ClassificationTask, GenerationTask, Task
from shared.tasks.rows import Example, read_rows
from simulations.adapter import FinishedRun

Probabilities = NDArray[np.float64]


def quick_look(
    run: Path, text: str, client: int | None = None, personal: Path | None = None
) -> tuple[list[str], dict[str, Probabilities]]:
    """Return the labels and their probabilities under each model.

    Args:
        run: folder of a finished run.
        text: the text; a JSON object where the task reads several fields.
        client: the client whose private rounds make the personal model.
        personal: a personal file to use instead of the client's ledger.

    Raises:
        SamaraError: if the run, the model, the text or the private rounds cannot be used.
    """
    opened = FinishedRun.at(run)
    config, layout = opened.config, opened.layout
    task = load_task(config.task)
    example = _example(task, text)
    states = {}
    if client is None or not opened.result.groups:
        states["global"] = opened.model()
    if personal is not None:
        states["personal"] = opened.model(private=opened.state_in(personal))
    elif client is not None:
        states["personal"] = opened.model(client)
    model = config.model
    base = load_base_model(
        model.path, model.family, model.torch_device, model.quantization, model.dtype
    )
    opened.check_model(base)
    with torch.inference_mode():
        body = PerturbedBody(base, 0)
        scorer = scorer_for(base, task, model.max_length, body)
        adapter = inject(base, config.adapter, scorer.labels)
    if adapter.layout.hash != layout.hash:
        raise ModelError(f"{run}: its layout is not what its settings give today; update Samara")
    readout = None
    if config.adapter.has_readout:
        readout = make_readout(base, task, scorer, config.adapter.damping, ExampleTokenizer(scorer))
    forward: ResidentForward | ReadoutForward = ResidentForward(adapter, scorer, body, readout)
    if readout is not None and not config.adapter.inner_layers:
        engine, store = make_base_engine(base, scorer, streamed=False), RepresentationStore(0)
        forward = ReadoutForward(engine, layout, scorer.labels, readout, store, lambda: 1)
    prompts = [scorer.prompt(example.text, example.answers, example.cut)]
    weights = {"base": np.zeros(layout.element_count, np.float32)} | {
        name: opened.weight_map.weights(state) for name, state in states.items()
    }
    probabilities = {}
    for name, numbers in weights.items():
        perturbations = Perturbations.from_arrays(
            layout, numbers, device=torch.device(model.torch_device)
        )
        probabilities[name] = softmax(
            forward.scores(perturbations, prompts)[0, 0].astype(np.float64)
        )
    labels = task.words if isinstance(task, ClassificationTask) else example.answers
    return list(labels), probabilities


def _example(task: Task, text: str) -> Example:
    """Return the text as an example of the task, with an arbitrary label.

    Raises:
        DataError: if it lacks a field that the task reads.
    """
    if isinstance(task, GenerationTask) or not task.labels:
        raise DataError(f"task {task.name!r} has no fixed labels to show")
    record: dict[str, object] = {}
    if len(task.fields) == 1:
        record[task.fields[0]] = text
    else:
        wanted = f"task {task.name!r} reads {', '.join(task.fields)}: give them as a JSON object"
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{wanted} ({error})") from error
        if not isinstance(record, dict):
            raise DataError(wanted)
    record[task.label_names[0]] = task.labels[0][0]
    return read_rows(record, task)[0].example
