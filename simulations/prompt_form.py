"""The form that an instruct model is asked in, chosen by losses on training rows.

A federation's server has no rows, so that this is for simulations and for `samara new`.
"""

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samara.client.forward.body import PerturbedBody
from samara.client.forward.turns import forward_pass
from samara.client.streaming.loading import load_model
from samara.client.training.client_data import example_reader
from samara.shared.config import RunConfig
from samara.shared.label_scores import auc, cross_entropy
from samara.shared.machine import cores
from samara.shared.model.loading import BaseModel
from samara.shared.model.model_folder import find_model_folder
from samara.shared.model.readout import representations
from samara.shared.model.scorers import scorer_for
from samara.shared.model.structure import detect_family
from samara.shared.model.tokenizer import load_tokenizer
from samara.shared.profiled_loss import fitted_shift, profiled_cross_entropy
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.kinds import (
    AUTO_FORM,
    CHAT,
    ChoiceTask,
    ClassificationTask,
    Form,
    GenerationTask,
)
from samara.shared.tasks.rows import Example

log = logging.getLogger("samara.simulation")

ROWS, FEWEST_ROWS = 64, 10
"""The most training rows whose losses are compared, and the fewest."""
FOLDS, STRENGTHS = 5, (1e-4, 1e-3, 1e-2, 1e-1)
"""Parts of the rows of which each is held out once, and the values of C that are tried."""
_TOGETHER = 8


class FormChoice(NamedTuple):
    """A form that is chosen.

    Attributes:
        form: the form.
        reason: why this one.
    """

    form: Form
    reason: str


def choose_form(config: RunConfig) -> FormChoice | None:
    """Choose the form that a run's task is asked in.

    The model is asked the same training rows in both forms, and the lower loss decides. Of a
    readout it is that of a cross-validated logistic regression on what the readout reads, and of
    adapters inside the model that of the model as it is, at the label bias that fits it best.

    Args:
        config: settings of the run.

    Returns:
        None where nothing is to be chosen: the run or the task says it, rows have candidates of
        their own, there are few training rows, or the model has no chat template, or is streamed.

    Raises:
        SamaraError: if the model, the task or the data cannot be used.
    """
    task = load_task(config.task)
    if isinstance(task, GenerationTask) or {config.form, task.form} != {AUTO_FORM}:
        return None
    if isinstance(task, ChoiceTask) and task.list_names:
        return None
    folder = find_model_folder(config.model.path)
    if config.model.stream != "off" or detect_family(folder) != "causal":
        return None
    if not load_tokenizer(folder).chat_template:
        return None
    examples = example_reader(task, config.data)(config.data.clients)
    rows = [example for example in examples if example.split == "train"]
    if len(rows) < FEWEST_ROWS:
        return None
    rows = [rows[i] for i in np.linspace(0, len(rows) - 1, min(ROWS, len(rows))).astype(int)]
    log.info("asking the model %d training rows in two forms", len(rows))
    torch.set_num_threads(config.threads or cores())
    base = load_model(config.model, config.adapter.depth).base
    labels = np.array([row.label for row in rows], np.int64)
    losses, said = {}, []
    for form in (AUTO_FORM, CHAT):
        asked = task.model_copy(update={"form": form})
        scores, features = _read(base, asked, config.model.max_length, rows)
        if config.adapter.has_readout:
            scores = held_out_scores(features, labels, scores.shape[1])
            losses[form] = float(cross_entropy(scores[None], labels)[0])
        else:
            losses[form] = float(profiled_cross_entropy(scores[None], labels)[0])
            scores = scores + fitted_shift(scores[None], labels)[0].astype(np.float32)
        said.append(f"{form} {losses[form]:.3f} ({_describe(scores, labels)})")
    what = (
        "loss of a logistic regression on what a readout reads, cross-validated"
        if config.adapter.has_readout
        else "the model's loss as it is, at the best label bias"
    )
    reason = f"{what}, on {len(rows)} training rows: {', '.join(said)}"
    return FormChoice(CHAT if losses[CHAT] < losses[AUTO_FORM] else AUTO_FORM, reason)


def held_out_scores(
    features: NDArray[np.float32], labels: NDArray[np.int64], width: int
) -> NDArray[np.float32]:
    """Return each row's log-probabilities by a regression that is fitted without its fold.

    Features are standardised, and of some strengths of regularisation the one with the lowest loss
    counts. A label's probability is at least 1 / (rows · labels), also where a fold lacks it.

    Args:
        features: float32 [n, features].
        labels: int64 [n].
        width: number of labels.

    Returns:
        float32 [n, width].
    """
    from sklearn.linear_model import LogisticRegression  # here, since most runs choose no form
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows = len(labels)
    fold = np.random.default_rng(0).permutation(rows) % FOLDS
    found = []
    for strength in STRENGTHS:
        known = np.zeros((rows, width))
        for own in range(FOLDS):
            train, held = fold != own, fold == own
            present = np.unique(labels[train])
            if len(present) == 1:
                known[np.ix_(held, present)] = 1
                continue
            probe = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=1_000))
            probe.fit(features[train], labels[train])
            known[np.ix_(held, present)] = probe.predict_proba(features[held])
        found.append(np.log(known + 1 / (rows * width)).astype(np.float32))
    return min(found, key=lambda scores: float(cross_entropy(scores[None], labels)[0]))


def _describe(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> str:
    """Return how many rows are right and, of two labels, the AUC."""
    right = f"{np.mean(scores.argmax(axis=1) == labels):.0%} right"
    if scores.shape[1] > 2 or np.ptp(labels) == 0:
        return right
    return f"{right}, AUC {auc(scores, labels):.3f}"


def _read(
    base: BaseModel, task: ClassificationTask | ChoiceTask, most: int, rows: Sequence[Example]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the scores of rows, float32 [n, labels], and their representations [n, features]."""
    with forward_pass(), torch.no_grad():
        body = PerturbedBody(base, 0)
        scorer = scorer_for(base, task, most, body)
        prompts = [scorer.prompt(row.text, row.answers, row.cut) for row in rows]
        order = sorted(range(len(rows)), key=lambda i: len(prompts[i].sequences[0]))
        found: list[tuple[Tensor, Tensor]] = [(torch.empty(0), torch.empty(0))] * len(rows)
        for start in range(0, len(rows), _TOGETHER):  # of similar length, with little padding
            own = order[start : start + _TOGETHER]
            part = [prompts[i] for i in own]
            sequences = [ids for prompt in part for ids in prompt.sequences]
            lengths = torch.tensor([len(ids) for ids in sequences])
            hidden = body(sequences)
            scores = scorer.whole_scores(hidden, lengths, part)[0]
            features = representations(scorer, hidden, lengths, part)[0]
            for i, *both in zip(own, scores.float().cpu(), features.cpu(), strict=True):
                found[i] = (both[0], both[1])
    scored, read = zip(*found, strict=True)
    return torch.stack(scored).numpy(), torch.stack(read).numpy()
