"""Linear probing: logistic regression on what the frozen model makes of a text.

Features are the last layer's output: of a causal LM at the last token, which has seen all others,
otherwise the mean over all tokens. How strongly it is regularised is
chosen on the validation split.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from client.forward.body import PerturbedBody
from client.tuning.tuning_setup import EVALUATION_MICRO_BATCH, Figures, Split, TuningSetup
from shared.errors import DataError, TaskError
from shared.tasks.kinds import ClassificationTask

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""C, inverse regularisation, from strong to weak."""
ITERATIONS = 5_000


class LinearProbe:
    """A classifier on frozen features.

    Attributes:
        strength: C.

    Args:
        bench: with its model as it was read.

    Raises:
        TaskError: if the task is no classification.
        DataError: if all training examples have one label.
    """

    def __init__(self, bench: TuningSetup) -> None:
        if not isinstance(bench.task, ClassificationTask):
            raise TaskError(
                f"task {bench.task.name!r} is a {bench.task.kind}; linear probing needs labels "
                "that are the same for all rows: choose a classification, or another method"
            )
        self._bench, self._body = bench, PerturbedBody(bench.base, 0)
        train, validation = bench.splits["train"], bench.splits["validation"]
        if len(np.unique(train.labels)) < 2:
            raise DataError(
                f"all {len(train.labels)} training examples have one label; draw more of them"
            )
        own, held_out = self._features(train), self._features(validation)
        probes = {strength: _fitted(strength, own, train.labels) for strength in STRENGTHS}
        ranks = {
            strength: bench.judged(self._scores(probe, held_out), validation).rank
            for strength, probe in probes.items()
        }
        self.strength = max(STRENGTHS, key=ranks.__getitem__)
        self._probe = probes[self.strength]

    def figures(self, split: Split) -> Figures:
        """How good it is on a split."""
        return self._bench.judged(self._scores(self._probe, self._features(split)), split)

    def _scores(self, probe: Pipeline, features: NDArray[np.float64]) -> NDArray[np.float32]:
        """Log-probabilities, float32 [n, labels]; −∞ for labels that no training example has."""
        scores = np.full((len(features), self._bench.scorer.labels), -np.inf, np.float32)
        scores[:, probe.classes_] = probe.predict_log_proba(features)
        return scores

    @torch.inference_mode()
    def _features(self, split: Split) -> NDArray[np.float64]:
        found = []
        for start in range(0, len(split.prompts), EVALUATION_MICRO_BATCH):
            prompts = split.prompts[start : start + EVALUATION_MICRO_BATCH]
            sequences = [prompt.sequences[0] for prompt in prompts]
            for states, sequence in zip(self._body(sequences), sequences, strict=True):
                own = states[: len(sequence)].double()
                read = own[-1] if self._bench.base.family == "causal" else own.mean(0)
                found.append(read.cpu().numpy())
        return np.stack(found)


def _fitted(strength: float, features: NDArray[np.float64], labels: NDArray[np.int64]) -> Pipeline:
    regression = LogisticRegression(C=strength, max_iter=ITERATIONS)
    return make_pipeline(StandardScaler(), regression).fit(features, labels)
