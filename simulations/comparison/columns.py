"""The columns of a result, one for each model or baseline, with every client's metrics."""

import math
from collections.abc import Iterable, Mapping

import numpy as np

from samara.shared.errors import SamaraError
from samara.shared.protocol.frames.hello import SPLIT_BYTES, SPLIT_TOKENS, stated_count
from samara.shared.results.result import ClientMetrics, RunResult
from samara.shared.tasks.label_scores import Confusion
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
from samara.simulations.comparison.measure import TextMetrics

Figures = Mapping[int, ClientMetrics]
"""The metrics of every client that has examples, by client index."""

MAJORITY = "majority"
"""Column for a constant answer: the most frequent label of all clients."""
START = "start"
"""Column for a run's initial weights if `adapter.start` is set."""
COMMON = (MAJORITY, BASE_RATE, ZERO_SHOT, LABEL_BIAS, IN_CONTEXT, START, LOCAL, GLOBAL, INTERCEPT)
"""Columns other than the personal model, in the order of the tables."""
TRAINED = (START, LOCAL, GLOBAL, INTERCEPT)
"""Common columns that depend on a run's training or initial weights."""
UNTRAINED = tuple(name for name in COMMON if name not in TRAINED)
"""Common columns that have equal values in all runs on the same clients."""

MEANINGS = {
    MAJORITY: "always the most frequent label of all clients",
    BASE_RATE: "always the client's most frequent label",
    ZERO_SHOT: "the base model (all labels equally likely for a readout below the last block)",
    LABEL_BIAS: "the base model and one private number per label",
    START: "the initial weights of the run",
    IN_CONTEXT: "the base model with the client's most similar examples in its prompt",
    LOCAL: "private rounds without the federation",
    GLOBAL: "the federation's model",
    INTERCEPT: "global and one private number per label",
    PERSONALIZED: "global and the private part",
    OWN_WORDS: "personalized, with word statistics of the client's texts mixed in",
}
"""Descriptions of the columns, which are printed under tables."""


def explain_columns(names: Iterable[str]) -> str:
    """Return the meanings of columns as one line."""
    return "; ".join(f"{name}: {MEANINGS[name]}" for name in names if name in MEANINGS)


def client_columns(result: RunResult) -> dict[str, Figures]:
    """Return the metrics of every column on the clients' own test examples.

    The first column is the majority, which answers every question with the most frequent label in
    all clients' validation examples. Runs on texts have no such column. If the run has a personal
    comparison, its columns follow. Otherwise the columns global and zero-shot (or start) follow.

    Raises:
        SamaraError: if no client evaluated on test examples, or a column is missing.
    """
    tests = [e.columns for e in result.evaluations if e.split == "test" and e.columns]
    if not tests:
        raise SamaraError("no client evaluated on test examples; use data with a test split")
    if any(GLOBAL not in columns for columns in tests):
        raise SamaraError(
            f"an evaluation has no column {GLOBAL!r}; the run's metrics.jsonl shows which clients "
            "did not answer"
        )
    columns: dict[str, Figures] = {}
    validated: dict[int, ClientMetrics] = {}  # a client may be absent from some evaluations
    for evaluation in () if has_texts(result) else result.evaluations:
        if evaluation.split == "validation" and GLOBAL in evaluation.columns:
            validated |= evaluation.columns[GLOBAL].clients
    if validated:
        labels = np.sum([own.confusion for own in validated.values()], axis=(0, 2))
        columns[MAJORITY] = _constant(tests[-1][GLOBAL].clients, int(labels.argmax()))
    by_name = {name: column.clients for name, column in tests[-1].items()}
    by_name.setdefault(first_column(result), tests[0][GLOBAL].clients)
    order = [name for name in COMMON if name in by_name]
    order += [name for name in by_name if name not in COMMON]
    return columns | {name: with_bytes(by_name[name], result, "test") for name in order}


def first_column(result: RunResult) -> str:
    """Return the column of the global model before the first round: zero-shot, or the start."""
    return START if result.config.get("adapter.start") else ZERO_SHOT


def has_texts(result: RunResult) -> bool:
    """Return whether a run's task is a generation: its clients report their texts' lengths."""
    return any(SPLIT_BYTES in own.facts for own in result.clients.values())


def with_bytes(figures: Figures, result: RunResult, split: str) -> Figures:
    """Return metrics on a split; for a generation, with the sizes of the texts in bytes.

    For a generation, clients that do not report these sizes are left out.
    """
    if not has_texts(result):
        return figures
    counted: dict[int, ClientMetrics] = {}
    for client, own in figures.items():
        facts = result.clients[client].facts
        tokens = stated_count(facts, SPLIT_TOKENS, split, 0)
        length = stated_count(facts, SPLIT_BYTES, split, 0)
        if tokens > 0 and length > 0:
            # the evaluation may cover only a part of the split
            share = own.examples / tokens
            counted[client] = TextMetrics(**own.model_dump(), bytes=length * share)
    return counted


def _constant(figures: Figures, label: int) -> Figures:
    """Return the metrics that a constant answer would have on the same examples.

    Args:
        figures: metrics of another model, with its confusion matrices on these examples.
        label: index of the answer.
    """
    answered = {}
    for client, client_figures in figures.items():
        counts = np.zeros_like(client_figures.confusion)
        counts[:, label] = np.sum(client_figures.confusion, axis=1)
        confusion = Confusion(counts)
        answered[client] = ClientMetrics(
            loss=math.nan,
            examples=client_figures.examples,
            accuracy=confusion.accuracy,
            macro_f1=confusion.macro_f1,
            confusion=counts.tolist(),
            auc=None if client_figures.auc is None else 0.5,
        )
    return answered
