"""Linear probing: logistic regression on features of the frozen model.

The features of a text are the output of the model's last block. With `adapter.layers = "readout:N"`
they are the output of block N. A causal LM's output is read at the last token, which attends to all
other tokens. Other models' output is the mean over all tokens. The regularization strength is
chosen on the validation split.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from samara.client.forward.body import PerturbedBody
from samara.client.forward.setup import EVALUATION_MICRO_BATCH
from samara.client.tuning.tuning_setup import EvaluationResult, TaskSplit, TuningSetup
from samara.shared.errors import DataError, TaskError
from samara.shared.tasks.kinds import ClassificationTask

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Values of the inverse regularization strength C, from strong to weak regularization."""
ITERATIONS = 5_000
TOLERANCE = 1e-4
EARLY_ITERATIONS = 1_000
"""Maximum number of iterations of a regression that stops early. Training of the whole model then
continues from the regression (MeZO, appendix F.1).
"""
EARLY_TOLERANCE = 1e-2
"""Tolerance of a regression that stops early."""


class LinearProbe:
    """A logistic regression on features of the frozen model.

    Attributes:
        strength: chosen value of C.

    Args:
        setup: setup whose model has not changed since loading.

    Raises:
        TaskError: if the task is not a classification.
        DataError: if all training examples have the same label.
    """

    def __init__(self, setup: TuningSetup) -> None:
        if not isinstance(setup.task, ClassificationTask):
            raise TaskError(
                f"task {setup.task.name!r} is a {setup.task.kind}; linear probing needs the "
                "same labels for all rows; choose a classification task, or another optimizer"
            )
        self._setup = setup
        self._body = PerturbedBody(setup.base, 0)
        train = setup.splits["train"]
        validation = setup.splits["validation"]
        self.strength, self._probe = fit_probe(
            setup, self._features(train), self._features(validation)
        )

    def evaluate(self, split: TaskSplit) -> EvaluationResult:
        """Evaluate the logistic regression on a split."""
        scores = _scores(self._probe, self._features(split), self._setup.scorer.labels)
        return self._setup.result_of(scores, [], split)

    @torch.inference_mode()
    def _features(self, split: TaskSplit) -> NDArray[np.float64]:
        features = []
        for start in range(0, len(split.prompts), EVALUATION_MICRO_BATCH):
            prompts = split.prompts[start : start + EVALUATION_MICRO_BATCH]
            sequences = [prompt.sequences[0] for prompt in prompts]
            for states, sequence in zip(self._body(sequences), sequences, strict=True):
                tokens = states[: len(sequence)].double()
                causal = self._setup.base.family == "causal"
                features.append((tokens[-1] if causal else tokens.mean(0)).cpu().numpy())
        return np.stack(features)


def fit_probe(
    setup: TuningSetup,
    features: NDArray[np.float64],
    held_out: NDArray[np.float64],
    early: bool = False,
) -> tuple[float, Pipeline]:
    """Fit one logistic regression for each C, and choose the best one on the validation split.

    Args:
        setup: setup with the splits of the features.
        features: features of the training examples, float64 [n, features].
        held_out: features of the validation examples, float64 [m, features].
        early: whether the regressions stop early.

    Returns:
        The best C, and its regression.

    Raises:
        DataError: if all training examples have the same label.
    """
    labels = setup.splits["train"].labels
    validation = setup.splits["validation"]
    if len(np.unique(labels)) < 2:
        raise DataError(f"all {len(labels)} training examples have one label; draw more examples")
    limits = (EARLY_ITERATIONS, EARLY_TOLERANCE) if early else (ITERATIONS, TOLERANCE)
    probes = {strength: _fit(strength, *limits, features, labels) for strength in STRENGTHS}
    ranks = {
        strength: setup.result_of(
            _scores(probe, held_out, setup.scorer.labels), [], validation
        ).rank
        for strength, probe in probes.items()
    }
    best = max(STRENGTHS, key=ranks.__getitem__)
    return best, probes[best]


def _scores(probe: Pipeline, features: NDArray[np.float64], labels: int) -> NDArray[np.float32]:
    """Return log-probabilities, float32 [n, labels]; −∞ for labels without training examples."""
    scores = np.full((len(features), labels), -np.inf, np.float32)
    scores[:, probe.classes_] = probe.predict_log_proba(features)
    return scores


def _fit(
    strength: float,
    iterations: int,
    tolerance: float,
    features: NDArray[np.float64],
    labels: NDArray[np.int64],
) -> Pipeline:
    regression = LogisticRegression(C=strength, max_iter=iterations, tol=tolerance)
    return make_pipeline(StandardScaler(), regression).fit(features, labels)
