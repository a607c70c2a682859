"""A classifier in place of label words: a linear layer on the last hidden state.

A classifier allows tuning of models without a prompt (Malladi et al. 2023, appendix A.1), and
tuning of all parameters after linear probing (appendix F.1). The layer is part of the network, so
"all parameters" include the parameters of the layer.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from sklearn.pipeline import Pipeline
from torch import Tensor, nn

from samara.shared.errors import TaskError, TrainingError
from samara.shared.model.loading import BaseModel
from samara.shared.model.prompt_frame import first_tokens
from samara.shared.model.readout import representations
from samara.shared.model.scorers import Prompt, Scorer
from samara.shared.model.truncation import truncate
from samara.shared.storage.files import write_durably
from samara.shared.tasks.base_task import Span
from samara.shared.tasks.kinds import ClassificationTask, Task

MODULE = "label_classifier"
"""Name of the layer in the network."""

Weights = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Matrix W, float32 [labels, features], and bias b, float32 [labels], of a linear layer."""

CLASSIFIER_FILE = "classifier.safetensors"
"""Name of the file with a classifier's weights. A run's folder has the initial weights. An export
has the trained weights.
"""
_PARTS = ("weight", "bias")


class ClassifierScorer(Scorer):
    """A scorer that applies a linear layer instead of comparing label words.

    The layer reads the same representation as the scorer of the model's family. For a text without
    a question, it reads the first token of a masked LM or the last token of a causal LM.

    Args:
        base: model to which the layer is added in place; the layer starts at zero.
        task: a classification.
        max_length: maximum number of tokens in a sequence.
        scorer: scorer of the model's family.
        asks: whether the prompt contains the task's question.

    Raises:
        TaskError: if the task is not a classification.
    """

    def __init__(
        self, base: BaseModel, task: Task, max_length: int, scorer: Scorer, asks: bool
    ) -> None:
        if not isinstance(task, ClassificationTask):
            raise TaskError(
                f"task {task.name!r} is a {task.kind}; a classifier needs the same labels for all "
                "rows; choose a classification task, or set classifier to label-words"
            )
        super().__init__(base, task, max_length)
        self.labels = scorer.labels
        self._scorer = scorer
        self._asks = asks
        self._form = task.form
        network: Any = base.network
        self._layer = nn.Linear(
            base.features, self.labels, device=network.device, dtype=network.dtype
        ).requires_grad_(False)
        zeros = np.zeros((self.labels, base.features), np.float32)
        self.begin_at((zeros, zeros[:, 0]))
        network.add_module(MODULE, self._layer)

    def begin_at(self, weights: Weights) -> None:
        """Set the matrix and the bias of the layer, rounded to the layer's dtype."""
        for parameter, values in zip(self._layer.parameters(), weights, strict=True):
            parameter.copy_(torch.from_numpy(values))

    def take_out(self) -> Weights:
        """Remove the layer from the network, and return its weights."""
        delattr(self.base.network, MODULE)
        matrix, bias = (values.float().cpu().numpy() for values in self._layer.parameters())
        return matrix, bias

    def prompt(self, text: str, answers: Sequence[str] = (), cut: Span | None = None) -> Prompt:
        """Return the prompt of an example, with the question or with the text alone."""
        family = self.base.family
        if self._asks or family == "encoder":
            prompt = self._scorer.prompt(text, answers, cut)
            return Prompt(prompt.sequences[:1], (prompt.supervised[0][:1],))
        whole = text + "".join(answers)
        start = first_tokens(self.base, self._form) if family == "causal" else ()
        special = family == "masked"
        used = len(self._ids("", special)) + len(start)
        fitting = truncate(self.base, whole, self._remaining_tokens(used, "nothing"), cut)
        ids = (*start, *self._ids(fitting, special))
        return Prompt((ids,), ((0 if family == "masked" else len(ids) - 1,),))

    def scores(self, hidden: Tensor, lengths: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """Return W·h + b for the representation h of each prompt, float32 [P, n, labels]."""
        h = self.features(hidden, lengths, prompts)
        scores: Tensor = self._layer(h.to(self._layer.weight.dtype))
        return scores.float()

    def features(self, hidden: Tensor, lengths: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """Return the representation of each prompt, float32 [P, n, features]."""
        return representations(self._scorer, hidden, lengths, prompts)


def probe_weights(probe: Pipeline, labels: int) -> Weights:
    """Return the weights of a linear layer with the scores of a fitted probe.

    The scores are equal up to one constant per row.

    Args:
        probe: standardization of the features, followed by logistic regression.
        labels: number of labels. A label without training examples gets zero weights and the lowest
            bias.
    """
    scaler, regression = (step for _, step in probe.steps)
    own = regression.coef_
    bias = regression.intercept_
    if len(regression.classes_) == 2:  # for two labels, scikit-learn stores one row
        own = np.vstack([-own, own]) / 2
        bias = np.concatenate([-bias, bias]) / 2
    own = own / scaler.scale_
    bias = bias - own @ scaler.mean_
    matrix = np.zeros((labels, own.shape[1]), np.float32)
    every = np.full(labels, bias.min(), np.float32)
    matrix[regression.classes_], every[regression.classes_] = own, bias
    return matrix, every


def write_classifier(weights: Weights, folder: Path) -> None:
    """Write ``classifier.safetensors``: ``weight`` [labels, features] and ``bias`` [labels].

    Raises:
        TrainingError: if the file cannot be written.
    """
    file = folder / CLASSIFIER_FILE
    try:
        write_durably(file, save(dict(zip(_PARTS, weights, strict=True))))
    except OSError as error:
        raise TrainingError(
            f"{file}: cannot be written: {error.strerror}; free space, or make the folder writable"
        ) from error


def read_classifier(folder: Path) -> Weights:
    """Return the weights that `write_classifier` wrote to a folder.

    Raises:
        TrainingError: if the file is missing or damaged.
    """
    file = folder / CLASSIFIER_FILE
    try:
        tensors = load_file(file)
        return tensors["weight"], tensors["bias"]
    except (OSError, SafetensorError, KeyError) as error:
        raise TrainingError(f"{file}: is damaged or missing ({error!r}); repeat the run") from error
