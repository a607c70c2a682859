"""Baselines that are known before a run: the most frequent label, and the untrained model."""

from collections import Counter
from collections.abc import Sequence
from math import exp, isnan, log, sqrt

import numpy as np
from numpy.typing import NDArray

from samara.client.training.client_data import ClientData
from samara.client.training.model_runtime import ModelRuntime
from samara.shared.model.scorers import HeadlessScorer, Prompt
from samara.shared.protocol.frames.instructions import Split
from samara.shared.tasks.kinds import GenerationTask
from samara.shared.tasks.label_scores import Confusion, auc
from samara.shared.tasks.metrics import label_metric

ZERO_SHOT_ROWS = 200
"""Maximum number of rows that the untrained model answers."""


def describe_baselines(runtime: ModelRuntime, shares: Sequence[ClientData]) -> list[str]:
    """Return lines about the validation results of constant answers and of the base model.

    Args:
        runtime: loaded model.
        shares: data of the clients.
    """
    task = runtime.task
    if isinstance(task, GenerationTask):
        return [_describe_texts(runtime, shares)]
    whole = Counter(int(label) for share in shares for label in share.labels(Split.TRAIN))
    split = Split.VALIDATION
    answers = np.concatenate([share.labels(split) for share in shares])
    if not len(answers):
        return ["no baselines: the data have no validation rows"]
    usual = whole.most_common(1)[0][0]
    of_users = np.concatenate(
        [np.full(len(share.labels(split)), _most_frequent(share, usual)) for share in shares]
    )
    width = runtime.label_count

    def metric(right: NDArray[np.int64], given: NDArray[np.int64]) -> float:
        return label_metric(task, Confusion.from_predictions(right, given, width))

    lines = [
        f"always the most frequent label: {metric(answers, np.full_like(answers, usual)):.1%} "
        f"{task.metric} on {len(answers):,} validation rows"
    ]
    if any(example.user for share in shares for example in share.examples):
        lines.append(f"each user's most frequent label: {metric(answers, of_users):.1%}")
    if isinstance(runtime.scorer, HeadlessScorer):  # all labels have equal scores before training
        return lines
    prompts, right = _spread(shares)
    scores = runtime.base_scores(prompts)
    reached = metric(right, scores.argmax(axis=1))
    low, high = _wilson(reached, len(right))
    interval = f"95 % interval {low:.0%} to {high:.0%}"
    lines.append(f"zero-shot: {reached:.1%} on {len(right):,} of them ({interval})")
    if width == 2 and not isnan(area := auc(scores, right)):
        lines[-1] += f", AUC {area:.3f} (independent of a label bias)"
    if high < metric(right, np.full_like(right, usual)):
        lines.append(
            "note: zero-shot is below the most frequent label; try other words or another question "
            "in the task file"
        )
    return lines


def _describe_texts(runtime: ModelRuntime, shares: Sequence[ClientData]) -> str:
    """Return a line about the base model's loss on validation texts."""
    prompts, _ = _spread(shares)
    if not prompts:
        return "no baselines: the data have no validation rows"
    tokens = [len(prompt.targets[0]) for prompt in prompts]
    nats = -float(runtime.base_scores(prompts)[:, 0] @ tokens)
    bits = nats / log(2) / sum(prompt.target_bytes for prompt in prompts)
    return (
        f"zero-shot: {bits:.3f} bits per byte, perplexity {exp(nats / sum(tokens)):,.1f} on "
        f"{len(prompts):,} validation rows"
    )


def _wilson(share: float, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share among a number of rows."""
    z = 1.96
    middle = share + z * z / (2 * count)
    half = z * sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    scale = 1 + z * z / count
    return (middle - half) / scale, (middle + half) / scale


def _most_frequent(share: ClientData, usual: int) -> int:
    """Return a client's most frequent training label; in a tie, prefer `usual`.

    Args:
        share: data of the client.
        usual: most frequent label of all clients.
    """
    counts = Counter(int(label) for label in share.labels(Split.TRAIN))
    return max(counts, key=lambda label: (counts[label], label == usual), default=usual)


def _spread(shares: Sequence[ClientData]) -> tuple[list[Prompt], NDArray[np.int64]]:
    """Return prompts and labels of validation rows, taken evenly from all clients' rows."""
    prompts = [p for share in shares for p in share.tokenized(Split.VALIDATION).prompts]
    labels = np.concatenate([share.labels(Split.VALIDATION) for share in shares])
    count = min(ZERO_SHOT_ROWS, len(prompts))
    chosen = np.linspace(0, len(prompts) - 1, count).astype(int)
    return [prompts[index] for index in chosen], labels[chosen]
