"""The columns of a result: one model or baseline each, with the figures of every client."""

import math
from collections.abc import Iterable, Mapping

import numpy as np

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
from samara.shared.errors import SamaraError
from samara.shared.frames.hello import SPLIT_BYTES, SPLIT_TOKENS, stated_count
from samara.shared.label_scores import Confusion
from samara.shared.result import ClientMetrics, RunResult
from samara.simulations.comparison.measure import TextMetrics

Figures = Mapping[int, ClientMetrics]
"""The figures of every client that has examples, by client index."""

MAJORITY, START = "majority", "start"
"""The columns of one answer to every question, and of the weights that a run begins with, where
these are not the base model."""
COMMON = (MAJORITY, BASE_RATE, ZERO_SHOT, LABEL_BIAS, IN_CONTEXT, START, LOCAL, GLOBAL, INTERCEPT)
"""Columns beside the personal model, in the order of the tables."""
TRAINED = (START, LOCAL, GLOBAL, INTERCEPT)
"""The common columns that depend on how a run trains, or on what it begins with."""
UNTRAINED = tuple(name for name in COMMON if name not in TRAINED)
"""The common columns that are the same in every run on the same clients."""

MEANINGS = {
    MAJORITY: "the commonest label of all clients, always",
    BASE_RATE: "the client's own commonest label, always",
    ZERO_SHOT: "the base model (all labels as likely if it is read below its last block)",
    LABEL_BIAS: "the base model and a private number per label",
    START: "the weights that the run began with",
    IN_CONTEXT: "the base model after the client's own most similar examples",
    LOCAL: "private rounds alone",
    GLOBAL: "the federation's model",
    INTERCEPT: "global and a private number per label",
    PERSONALIZED: "global and what is private",
}
"""The columns in words, for the notes under tables."""


def explain_columns(names: Iterable[str]) -> str:
    """Return what columns mean, in a line."""
    return "; ".join(f"{name}: {MEANINGS[name]}" for name in names if name in MEANINGS)


def client_columns(result: RunResult) -> dict[str, Figures]:
    """Return the figures of every column on the clients' own test examples.

    The first column is the majority: the most frequent label in the validation examples of all
    clients, given as the answer to every question; texts have none. The personal comparison
    follows where the run has one, otherwise global and what it began with: zero-shot, or the start.

    Raises:
        SamaraError: if no client evaluated on test examples, or a column is missing.
    """
    tests = [e.columns for e in result.evaluations if e.split == "test" and e.columns]
    if not tests:
        raise SamaraError("no client evaluated on test examples; give the data a test split")
    if any(GLOBAL not in columns for columns in tests):
        raise SamaraError(f"an evaluation has no column {GLOBAL!r}; see which clients answered it")
    columns: dict[str, Figures] = {}
    for evaluation in () if has_texts(result) else result.evaluations:
        if evaluation.split == "validation" and GLOBAL in evaluation.columns:
            labels = np.sum(evaluation.columns[GLOBAL].confusion, axis=1)
            columns[MAJORITY] = _constant(tests[0][GLOBAL].clients, int(labels.argmax()))
            break
    by_name = {name: column.clients for name, column in tests[-1].items()}
    by_name.setdefault(first_column(result), tests[0][GLOBAL].clients)
    order = [name for name in COMMON if name in by_name]
    order += [name for name in by_name if name not in COMMON]
    return columns | {name: with_bytes(by_name[name], result, "test") for name in order}


def first_column(result: RunResult) -> str:
    """Return the name of the global model before the first round: zero-shot, or the start."""
    return START if result.config.get("adapter.start") else ZERO_SHOT


def has_texts(result: RunResult) -> bool:
    """Return whether a run is a generation: its clients state the length of their texts."""
    return any(SPLIT_BYTES in own.facts for own in result.clients.values())


def with_bytes(figures: Figures, result: RunResult, split: str) -> Figures:
    """Return figures on a split, in a generation with the bytes of the texts that they are of.

    A client of a generation that does not state how long its texts are is left out.
    """
    if not has_texts(result):
        return figures
    counted: dict[int, ClientMetrics] = {}
    for client, own in figures.items():
        facts = result.clients[client].facts
        tokens = stated_count(facts, SPLIT_TOKENS, split, 0)
        length = stated_count(facts, SPLIT_BYTES, split, 0)
        if tokens > 0 and length > 0:
            share = own.examples / tokens  # 1, unless an evaluation counts a part of the split
            counted[client] = TextMetrics(**own.model_dump(), bytes=length * share)
    return counted


def _constant(figures: Figures, label: int) -> Figures:
    """Return the figures of a constant answer on the same examples."""
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
        )
    return answered
