"""The columns of a client's evaluation: its personal model, the global model and baselines."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from samara.client.personal.label_bias import base_rate, fit_label_bias
from samara.client.personal.learner import Learner
from samara.client.personal.methods import composition
from samara.client.personal.own_words import OwnWords
from samara.client.personal.private_fit import (
    NO_PRIOR,
    CommonPrior,
    intercept_state,
    make_private_fit,
)
from samara.client.personal.private_rounds import run_private_rounds
from samara.shared.protocol.frames.evaluation import EvaluationColumn
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.replay import zero_state
from samara.shared.tasks.label_scores import evaluation_column
from samara.shared.tasks.profiled_loss import profiled_cross_entropy
from samara.shared.terms.columns import (
    BASE_RATE,
    GLOBAL,
    IN_CONTEXT,
    INTERCEPT,
    LABEL_BIAS,
    LOCAL,
    OWN_WORDS,
    PERSONALIZED,
    ZERO_SHOT,
)
from samara.shared.terms.run_terms import RunTerms


def evaluate_global_model(
    learner: Learner,
    terms: RunTerms,
    state: NDArray[np.int64],
    split: Split,
    prior: CommonPrior = NO_PRIOR,
) -> tuple[EvaluationColumn, ...]:
    """Evaluate the federation's model on a client's examples.

    With ``evaluate.best`` and the method readout, a validation also has the column personalized,
    which decides the best round. Its model is the personal model that the client would have if the
    federation ended here. The private part of this model is not recorded.

    With other methods, a personal model would need all private rounds, so the global model decides
    the best round, by the loss of `global_column`.

    Args:
        learner: model and examples of the client.
        terms: terms of the run.
        state: int64 [d], state of the federation.
        split: split to evaluate on.
        prior: common prior of the private intercepts.

    Raises:
        TrainingError: if the private part cannot be fitted.
        ReplayError: if a fitted number is beyond the range of dense values.
    """
    parts = composition(terms, learner.layout)
    models = {GLOBAL: parts.model(state)}
    if PERSONALIZED in terms.requested_columns(split, personal=False):
        private = make_private_fit(learner, terms, state, prior)
        models[PERSONALIZED] = parts.model(state, private)
    scored = {name: learner.score_evaluated(model, split) for name, model in models.items()}
    first = global_column(terms, split, *scored.pop(GLOBAL))
    return (first, *(evaluation_column(name, *own) for name, own in scored.items()))


def global_column(
    terms: RunTerms,
    split: Split,
    scores: NDArray[np.float32],
    labels: NDArray[np.int64],
    tokens: NDArray[np.int64] | None = None,
) -> EvaluationColumn:
    """Return the column of the federation's model.

    If clients report shifts after training, the loss of a validation is the profiled loss. The run
    then chooses its best round by the loss that the steps minimize.
    """
    column = evaluation_column(GLOBAL, scores, labels, tokens)
    if terms.reports_shifts and split is Split.VALIDATION and len(labels):
        return replace(column, mean_loss=float(profiled_cross_entropy(scores[None], labels)[0]))
    return column


def evaluate_personal_model(
    learner: Learner,
    terms: RunTerms,
    state: NDArray[np.int64],
    private: NDArray[np.int64],
    split: Split = Split.TEST,
    prior: CommonPrior = NO_PRIOR,
    own_words: OwnWords | None = None,
) -> tuple[EvaluationColumn, ...]:
    """Evaluate every column on a client's test examples.

    The columns are:

    - base rate: the client's most frequent training label for every text.
    - zero-shot: the base model alone.
    - label bias: the base model with one number per label, fitted to the client's training labels.
      It shows the gain from a client's base rate alone.
    - icl-personal, with ``evaluate.retrieved``: the base model with the client's most similar
      training examples before each prompt.
    - global: the federation's model.
    - personalized: the model that the run's method makes for the client, own words included.
    - local-only, with the method finetune: private rounds without a federation, from the base model
      or the run's start.
    - intercept, with the method readout: the federation's model with a fitted label bias.

    A generation has only the columns that need no labels.

    Args:
        learner: model and examples of the client.
        terms: terms of the run.
        state: int64 [d], state of the federation.
        private: int64 [d], private state of the client.
        split: split to evaluate on. Only the test split has columns besides the personal model.
        prior: common prior of the private intercepts.
        own_words: the client's own words; None without any.

    Raises:
        TrainingError: if a label bias cannot be fitted, or a loss is not finite in the first round
            of local-only.
        ReplayError: if the first round of local-only leaves the exact range of the state.
    """
    parts = composition(terms, learner.layout)
    personal, labels, tokens = learner.score_evaluated(parts.model(state, private), split)
    if split is not Split.TEST:
        return (evaluation_column(PERSONALIZED, personal, labels, tokens),)
    zero_shot = learner.score_evaluated(None, split).scores
    scores = {ZERO_SHOT: zero_shot}
    if tokens is None:
        train = learner.score(None, Split.TRAIN)
        bias = fit_label_bias(train.scores, train.labels, learner.solve)
        scores = {
            BASE_RATE: np.broadcast_to(base_rate(train.labels, len(bias)), zero_shot.shape),
            ZERO_SHOT: zero_shot,
            LABEL_BIAS: zero_shot + bias,
        }
    in_context = learner.score_in_context(split)
    if in_context is not None:
        scores[IN_CONTEXT] = in_context
    if terms.method == "finetune":
        local = run_private_rounds(learner, terms, zero_state(len(state)))
        scores[LOCAL] = learner.score_evaluated(local, split).scores
    scores[GLOBAL] = learner.score_evaluated(parts.model(state), split).scores
    if terms.method == "readout":
        model = parts.model(state, intercept_state(learner, state, prior))
        scores[INTERCEPT] = learner.score_evaluated(model, split).scores
    scores[PERSONALIZED] = personal
    if own_words is not None:
        model = parts.model(state, private)
        scores[OWN_WORDS] = learner.score_own_words(model, own_words, split).scores
    return tuple(evaluation_column(name, its, labels, tokens) for name, its in scores.items())
