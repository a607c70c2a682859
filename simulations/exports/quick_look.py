"""Answers to a text by a run's base, global and personal models, or by a tuned model."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from samara.client.forward.body import PerturbedBody
from samara.client.forward.resident import ResidentForward
from samara.client.forward.setup import make_forward
from samara.client.personal.readout_file import load_scorer
from samara.client.training.client_data import ExampleTokenizer
from samara.client.tuning.finished_tuning import FinishedTuning
from samara.shared.errors import DataError, ModelError
from samara.shared.model.lora_fa import empty_adapter, inject
from samara.shared.model.perturbations import Perturbations
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.kinds import ClassificationTask, GenerationTask, Task
from samara.shared.tasks.rows import Example, read_rows
from samara.simulations.exports.adapter import FinishedRun

Probabilities = NDArray[np.float64]
Text = str | Mapping[str, object]
"""A text, or a mapping of fields for tasks that read several fields."""


class LoadedModel:
    """The base model of a finished run, which classifies texts with weights of the run's adapter.

    Attributes:
        task: task of the run.

    Args:
        run: finished run.

    Raises:
        SamaraError: if the model differs from the run's model, or cannot be used.
    """

    def __init__(self, run: FinishedRun) -> None:
        config = run.config
        self._layout = run.layout
        self._device = torch.device(config.model.torch_device)
        base, self.task, self._scorer = load_scorer(config)
        run.check_model(base)
        adapter = inject(base, config.adapter, self._scorer.labels)
        if adapter.layout.hash != run.layout.hash:
            raise ModelError(f"{run.folder}: its layout does not match its settings; update Samara")
        tokenize = ExampleTokenizer(self._scorer)
        self._forward = make_forward(
            base, self.task, self._scorer, tokenize, adapter, config.adapter.damping
        )

    def probabilities(
        self, texts: Sequence[Text], numbers: NDArray[np.float32]
    ) -> list[tuple[list[str], Probabilities]]:
        """Return the labels of each text (label words or candidates), and their probabilities.

        Args:
            texts: texts, or mappings with the fields that the task reads.
            numbers: weights of the adapter, float32 [elements].

        Raises:
            DataError: if a text lacks a field that the task reads, or the task has no labels.
        """
        examples = [_example(self.task, text) for text in texts]
        weights = Perturbations.from_arrays(self._layout, numbers, device=self._device)
        answers = []
        for example in examples:
            prompt = self._scorer.prompt(example.text, example.answers, example.cut)
            scores = self._forward.scores(weights, [prompt])[0, 0].astype(np.float64)
            task = self.task
            labels = task.words if isinstance(task, ClassificationTask) else example.answers
            answers.append((list(labels), softmax(scores)))
        return answers


def quick_look(
    run: Path, text: str, client: int | None = None, personal: Path | None = None
) -> tuple[list[str], dict[str, Probabilities]]:
    """Return the labels, and their probabilities under each model by its name.

    Args:
        run: folder of a finished run.
        text: the text; a JSON object if the task reads several fields.
        client: client whose personal model is used; None for no personal model.
        personal: a personal file to use instead of the client's ledger.

    Raises:
        SamaraError: if the run, the model, the text or the private rounds cannot be used.
    """
    opened = FinishedRun.at(run)
    _example(load_task(opened.config.task), text)  # fails before the model is loaded
    states = {}
    if client is None or not opened.result.groups:
        states["global"] = opened.model()
    if personal is not None:
        states["personal"] = opened.model(private=opened.state_in(personal))
    elif client is not None:
        states["personal"] = opened.model(client)
    weights = {"base": np.zeros(opened.layout.element_count, np.float32)} | {
        name: opened.weight_map.weights(state) for name, state in states.items()
    }
    loaded = LoadedModel(opened)
    answers = {name: loaded.probabilities([text], own)[0] for name, own in weights.items()}
    return answers["base"][0], {name: own for name, (_, own) in answers.items()}


def tuned_look(run: Path, text: str) -> tuple[list[str], dict[str, Probabilities]]:
    """Return the labels, and their probabilities under a tuning run's base and best model.

    Args:
        run: folder of a finished run of `samara tune`.
        text: the text; a JSON object if the task reads several fields.

    Raises:
        SamaraError: if the run, the model or the text cannot be used.
    """
    opened = FinishedTuning.at(run)
    # fails before the model is loaded
    example = _example(load_task(opened.settings.task), text)
    setup = opened.load()
    base = setup.base
    task = setup.task
    scorer = setup.scorer
    prompt = scorer.prompt(example.text, example.answers, example.cut)
    adapter, no_adapters = empty_adapter()
    plain = ResidentForward(adapter, scorer, PerturbedBody(base, 0))
    answers = {"base": plain.scores(no_adapters, [prompt])[0, 0]}
    space = opened.restore(setup)
    if space is None:
        answers["tuned"] = plain.scores(no_adapters, [prompt])[0, 0]
    else:
        damping = opened.settings.adapter.damping
        tokenize = ExampleTokenizer(scorer)
        forward = make_forward(base, task, scorer, tokenize, space.adapter, damping)
        answers["tuned"] = space.evaluate(lambda state: forward.scores(state, [prompt]))[0, 0]
    labels = task.words if isinstance(task, ClassificationTask) else example.answers
    return list(labels), {name: softmax(own.astype(np.float64)) for name, own in answers.items()}


def _example(task: Task, text: Text) -> Example:
    """Return the text as an example of the task, with an arbitrary label.

    Raises:
        DataError: if the text lacks a field that the task reads.
    """
    if isinstance(task, GenerationTask) or not task.labels:
        raise DataError(
            f"task {task.name!r} has no fixed labels; name a run of a classification task"
        )
    record: dict[str, object] = {}
    if isinstance(text, Mapping):
        record |= text
    elif len(task.fields) == 1:
        record[task.fields[0]] = text
    else:
        wanted = (
            f"task {task.name!r} reads {', '.join(task.fields)}; give a JSON object with these keys"
        )
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{wanted} ({error})") from error
        if not isinstance(record, dict):
            raise DataError(wanted)
    record[task.label_names[0]] = task.labels[0][0]
    return read_rows(record, task)[0].example
