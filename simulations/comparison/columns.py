"""The ways in which a run served its clients, each with the clients' own figures."""

import math
from collections.abc import Mapping

import numpy as np

from shared.errors import SamaraError
from shared.result import ClientFigures, RunResult
from shared.tasks.metrics import Confusion

Figures = Mapping[int, ClientFigures]
"""Of every client that has examples, by its number."""

MAJORITY, ZERO_SHOT, LOCAL, GLOBAL = "majority", "zero-shot", "local-only", "global"
COMMON = (MAJORITY, "base rate", ZERO_SHOT, "label bias", LOCAL, GLOBAL)
"""What needs no private rounds on top of the federation's model; the other columns do."""
TRAINED = (LOCAL, GLOBAL)
"""Those of them that depend on how a run trains."""
UNTRAINED = tuple(name for name in COMMON if name not in TRAINED)
"""Those that do not: the same in every run on the same clients."""


def client_columns(result: RunResult) -> dict[str, Figures]:
    """Figures per way of serving a client, on the clients' own test examples.

    Majority is the answer that is commonest in all clients' validation examples together, given
    to every question. Then the personal comparison where there is one, otherwise zero-shot and
    global.

    Raises:
        SamaraError: if nobody evaluated on test examples, or not as it was asked to.
    """
    tests = [e.columns for e in result.evaluations if e.split == "test" and e.columns]
    if not tests:
        raise SamaraError("no client evaluated on test examples; give the data a test split")
    if any(GLOBAL not in columns for columns in tests):
        raise SamaraError(f"an evaluation has no column {GLOBAL!r}; see which devices answered it")
    columns: dict[str, Figures] = {}
    for evaluation in result.evaluations:
        if evaluation.split == "validation" and GLOBAL in evaluation.columns:
            labels = np.sum(evaluation.columns[GLOBAL].confusion, axis=1)
            columns[MAJORITY] = _constant(tests[0][GLOBAL].clients, int(labels.argmax()))
            break
    last = tests[-1]
    if len(last) == 1:
        found = {ZERO_SHOT: tests[0][GLOBAL].clients, GLOBAL: last[GLOBAL].clients}
    else:
        found = {name: column.clients for name, column in last.items()}
        found.setdefault(ZERO_SHOT, tests[0][GLOBAL].clients)
    order = [name for name in COMMON if name in found]
    order += [name for name in found if name not in COMMON]
    return columns | {name: found[name] for name in order}


def _constant(figures: Figures, label: int) -> Figures:
    """Figures of answering one label to every question that `figures` counts."""
    answered = {}
    for client, own in figures.items():
        counts = np.zeros_like(own.confusion)
        counts[:, label] = np.sum(own.confusion, axis=1)
        confusion = Confusion(counts)
        answered[client] = ClientFigures(
            loss=math.nan,
            examples=own.examples,
            accuracy=confusion.accuracy,
            macro_f1=confusion.macro_f1,
            confusion=counts.tolist(),
        )
    return answered
