"""The evaluation columns of a client: its personal model beside the global model and baselines."""

import numpy as np
from numpy.typing import NDArray

from samara.client.personal.label_bias import base_rate, fit_label_bias
from samara.client.personal.learner import Learner
from samara.client.personal.methods import composition
from samara.client.personal.private_fit import intercept_state, make_private_fit
from samara.client.personal.private_rounds import run_private_rounds
from samara.shared.columns import (
    BASE_RATE,
    GLOBAL,
    IN_CONTEXT,
    INTERCEPT,
    LABEL_BIAS,
    LOCAL,
    PERSONALIZED,
    ZERO_SHOT,
)
from samara.shared.frames.evaluation import EvaluationColumn
from samara.shared.frames.instructions import Split
from samara.shared.label_scores import evaluation_column
from samara.shared.replay import zero_state
from samara.shared.run_terms import RunTerms


def evaluate_global_model(
    learner: Learner,
    terms: RunTerms,
    state: NDArray[np.int64],
    split: Split,
    common: NDArray[np.int64] | None = None,
) -> tuple[EvaluationColumn, ...]:
    """Evaluate the federation's model on a client's examples.

    With ``evaluate.best`` and the method readout, a validation also has the column personalized:
    the model that the client would have if the federation ended here, by which the best round is
    found. Its private part is not recorded. Of other methods a personal model would take all
    private rounds, so that their best round is found by the global model.

    Args:
        learner: model and examples of the client.
        terms: terms of the run.
        state: int64 [d], state of the federation.
        split: split to evaluate on.
        common: int64 [d], common intercept in the federation's state; None without one.

    Raises:
        TrainingError: if the private part cannot be fitted.
        ReplayError: if a fitted number is beyond the range of dense values.
    """
    parts = composition(terms, learner.layout)
    models = {GLOBAL: parts.model(state)}
    if PERSONALIZED in terms.requested_columns(split, personal=False):
        models[PERSONALIZED] = parts.model(state, make_private_fit(learner, terms, state, common))
    return tuple(
        evaluation_column(name, *learner.score_evaluated(model, split))
        for name, model in models.items()
    )


def evaluate_personal_model(
    learner: Learner,
    terms: RunTerms,
    state: NDArray[np.int64],
    private: NDArray[np.int64],
    split: Split = Split.TEST,
    common: NDArray[np.int64] | None = None,
) -> tuple[EvaluationColumn, ...]:
    """Evaluate every column on a client's test examples; a generation has those without labels.

    Base rate always answers the client's most frequent training label, without reading the text.
    Zero-shot is the base model alone. Label bias adds one number per label, fitted to the client's
    training labels: it separates learning a client's base rate from learning the client. With
    ``evaluate.retrieved`` icl-personal is the base model with the client's most similar training
    examples before each prompt. Global is the federation's model, and personalized the one that the
    run's method makes for the client.
    Finetune has local-only beside it: its private rounds without a federation, from the base model
    or the run's start.
    Readout has intercept beside it: the federation's model and a label bias fitted to it.

    Args:
        learner: model and examples of the client.
        terms: terms of the run.
        state: int64 [d], state of the federation.
        private: int64 [d], private state of the client.
        split: split to evaluate on; on others than test only the personal model is evaluated.
        common: int64 [d], common intercept in the federation's state; None without one.

    Raises:
        TrainingError: if a label bias cannot be fitted, or a loss is not finite in the first round
            of local-only.
        ReplayError: if that round leaves the exact range of the state.
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
        model = parts.model(state, intercept_state(learner, state, common))
        scores[INTERCEPT] = learner.score_evaluated(model, split).scores
    scores[PERSONALIZED] = personal
    return tuple(evaluation_column(name, its, labels, tokens) for name, its in scores.items())
