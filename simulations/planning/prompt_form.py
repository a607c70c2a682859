"""Choice of the prompt form for an instruct model, by its losses on training rows.

Only simulations and `samara new` choose a form in this way, because a live server has no rows.
"""

import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from samara.client.forward.readout import make_base_engine, run_base
from samara.client.forward.setup import make_scorer
from samara.client.streaming.loading import load_model
from samara.client.training.client_data import example_reader
from samara.shared.machine.process import cores
from samara.shared.model.loading import BaseModel
from samara.shared.model.model_folder import find_model_folder
from samara.shared.model.structure import detect_family
from samara.shared.model.tokenizer import load_tokenizer
from samara.shared.settings.config import RunConfig
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.kinds import (
    AUTO_FORM,
    CHAT,
    ChoiceTask,
    ClassificationTask,
    Form,
    GenerationTask,
)
from samara.shared.tasks.label_scores import auc, cross_entropy
from samara.shared.tasks.profiled_loss import fitted_shift, profiled_cross_entropy
from samara.shared.tasks.rows import Example

log = logging.getLogger("samara.simulation")

ROWS = 64
"""Maximum number of training rows whose losses are compared."""
FEWEST_ROWS = 10
"""Minimum number of training rows for a comparison of losses."""
FOLDS = 5
"""Number of cross-validation folds."""
STRENGTHS = (1e-4, 1e-3, 1e-2, 0.1)
"""Values of the logistic regression's C to try."""
_TOGETHER = 8


class FormChoice(NamedTuple):
    """A chosen prompt form.

    Attributes:
        form: the form.
        reason: reason for the choice.
        seconds: processor seconds of the comparison, without loading.
    """

    form: Form
    reason: str
    seconds: float = 0.0


def choose_form(config: RunConfig) -> FormChoice | None:
    """Choose the form of the prompts for a run's task.

    The model processes the same training rows in both forms, and the form with the lower loss is
    chosen. For a readout, the loss is the loss of a cross-validated logistic regression on the
    readout's input. For adapters inside the model, the loss is the untrained model's loss with the
    best label bias.

    Args:
        config: settings of the run.

    Returns:
        The choice, or None. There is no choice if the run or the task sets the form, if rows have
        separate candidates, if there are fewer than `FEWEST_ROWS` training rows, or if the model is
        not causal, has no chat template or is streamed.

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
    log.info("comparing two forms of the prompt on %d training rows", len(rows))
    torch.set_num_threads(config.threads or cores())
    base = load_model(config.model, config.adapter.depth).base
    begun = time.process_time()
    labels = np.array([row.label for row in rows], np.int64)
    losses = {}
    said = []
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
        "cross-validated loss of a logistic regression on a readout's input"
        if config.adapter.has_readout
        else "loss of the untrained model at the best label bias"
    )
    reason = f"{what}, on {len(rows)} training rows: {', '.join(said)}"
    chosen = CHAT if losses[CHAT] < losses[AUTO_FORM] else AUTO_FORM
    return FormChoice(chosen, reason, time.process_time() - begun)


def held_out_scores(
    features: NDArray[np.float32], labels: NDArray[np.int64], width: int
) -> NDArray[np.float32]:
    """Return each row's log-probabilities under a regression fitted without the row's fold.

    Features are standardized. The function tries several regularization strengths and returns the
    result with the lowest loss. A label's probability is at least 1 / (rows · labels), even if a
    fold lacks the label.

    Args:
        features: float32 [rows, features].
        labels: int64 [rows].
        width: number of labels.

    Returns:
        float32 [rows, width].
    """
    # imported here, because most runs do not choose a form
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows = len(labels)
    fold = np.random.default_rng(0).permutation(rows) % FOLDS
    found = []
    for strength in STRENGTHS:
        known = np.zeros((rows, width))
        for own in range(FOLDS):
            train = fold != own
            held = fold == own
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
    """Describe the share of correct rows and, for two labels, the AUC."""
    right = f"{np.mean(scores.argmax(axis=1) == labels):.0%} right"
    if scores.shape[1] > 2 or np.ptp(labels) == 0:
        return right
    return f"{right}, AUC {auc(scores, labels):.3f}"


def _read(
    base: BaseModel, task: ClassificationTask | ChoiceTask, most: int, rows: Sequence[Example]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the scores [rows, labels] and representations [rows, features] of rows, float32."""
    scorer = make_scorer(base, task, most)
    prompts = [scorer.prompt(row.text, row.answers, row.cut) for row in rows]
    numbers = run_base(make_base_engine(base, scorer, streamed=False), prompts, _TOGETHER)
    return numbers[:, : scorer.labels], numbers[:, scorer.labels :]
