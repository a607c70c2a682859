"""The initial weights of a classifier: random numbers, or linear probing."""

import numpy as np
import torch
from numpy.typing import NDArray

from samara.client.forward.body import PerturbedBody
from samara.client.forward.setup import EVALUATION_MICRO_BATCH
from samara.client.tuning.baselines.linear_probe import fit_probe
from samara.client.tuning.classifier import ClassifierScorer, Weights, probe_weights
from samara.client.tuning.tuning_setup import TaskSplit, TuningSetup
from samara.shared.protocol.directions import DIRECTION_BITS, directions, query_seeds

CLASSIFIER_STREAM = 2
"""Seed stream of random weights. The directions of steps use stream 0, those of norms stream 1."""
DEFAULT_SPREAD = 0.02
"""Standard deviation of random weights if the model's configuration does not name one."""


def start_classifier(setup: TuningSetup) -> Weights | None:
    """Initialize the classifier of a run, and return its weights; None for a run without one.

    Raises:
        DataError: if linear probing has training examples of only one label.
    """
    if not isinstance(setup.scorer, ClassifierScorer):
        return None
    probes = setup.settings.classifier == "linear-probe"
    weights = _probed(setup, setup.scorer) if probes else _random(setup)
    setup.begin_classifier(weights)
    return weights


def _random(setup: TuningSetup) -> Weights:
    """Return a matrix of normal numbers with the model's initial deviation, and a zero bias."""
    spread = getattr(setup.base.network.config, "initializer_range", DEFAULT_SPREAD)
    shape = setup.scorer.labels, setup.base.features
    seeds = query_seeds(setup.root, CLASSIFIER_STREAM, 1, 1)[0]
    z = directions(seeds, shape[0] * shape[1], "gaussian")[0].reshape(shape)
    weights = (z * (2.0**-DIRECTION_BITS * spread)).astype(np.float32)
    return weights, np.zeros(shape[0], np.float32)


def _probed(setup: TuningSetup, scorer: ClassifierScorer) -> Weights:
    train, validation = (_features(setup, scorer, setup.splits[n]) for n in ("train", "validation"))
    _, probe = fit_probe(setup, train, validation, early=True)
    return probe_weights(probe, scorer.labels)


@torch.inference_mode()
def _features(
    setup: TuningSetup, scorer: ClassifierScorer, split: TaskSplit
) -> NDArray[np.float64]:
    body = PerturbedBody(setup.base, 0)
    features = []
    for start in range(0, len(split.prompts), EVALUATION_MICRO_BATCH):
        prompts = split.prompts[start : start + EVALUATION_MICRO_BATCH]
        sequences = [prompt.sequences[0] for prompt in prompts]
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        own = scorer.features(body(sequences), lengths, prompts)[0]
        features.append(own.double().cpu().numpy())
    return np.concatenate(features)
