"""What the clients' evaluations amount to, for the whole split and for each client. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add
from typing import Any

from shared.frames import Evaluation
from shared.tasks.metrics import Confusion

GLOBAL = "global"
"""The column of the federation's model."""


def outliers(evaluations: Mapping[int, Evaluation]) -> list[int]:
    """Devices that evaluate other labels or columns than most do.

    Args:
        evaluations: by device, at least one.
    """
    shapes = {device: _shape(evaluation) for device, evaluation in evaluations.items()}
    usual, _ = Counter(shapes.values()).most_common(1)[0]
    return [device for device, shape in shapes.items() if shape != usual]


def summed(evaluations: Mapping[int, Evaluation]) -> dict[str, dict[str, Any]]:
    """Figures of every column that counts an example.

    Args:
        evaluations: by device, at least one, all of the same labels and columns.

    Returns:
        By column: loss, examples, accuracy, macro-F1 and confusion of all examples together, the
        means over clients, and each client's own under ``clients``.
    """
    names, _ = _shape(next(iter(evaluations.values())))
    columns = {
        name: [
            (device, column.mean_loss, Confusion(column.counts))
            for device, evaluation in sorted(evaluations.items())
            for column in evaluation.columns
            if column.name == name and column.counts.any()
        ]
        for name in names
    }
    return {name: _figures(parts) for name, parts in columns.items() if parts}


def best_round(events: Iterable[Mapping[str, Any]], first_newcomer: int) -> int | None:
    """The round after which the global model was best on validation; the later of equals.

    Args:
        events: of a run.
        first_newcomer: clients from this index on do not count.

    Returns:
        None if nobody validated it.
    """
    means: dict[int, float] = {}
    for event in events:
        if event["event"] != "evaluation" or event["split"] != "validation":
            continue
        if list(event["columns"]) == [GLOBAL]:
            clients = event["columns"][GLOBAL]["clients"]
            own = [c["accuracy"] for device, c in clients.items() if int(device) < first_newcomer]
            if own:
                means[event["round"]] = sum(own) / len(own)
    return max(means, key=lambda number: (means[number], number)) if means else None


def _shape(evaluation: Evaluation) -> tuple[tuple[str, ...], int]:
    """Names of an evaluation's columns, and how many labels they count."""
    return tuple(c.name for c in evaluation.columns), len(evaluation.columns[0].counts)


def _figures(parts: list[tuple[int, float, Confusion]]) -> dict[str, Any]:
    """Of all examples together, the mean over clients, and each client's own."""
    whole = reduce(add, (confusion for _, _, confusion in parts))
    return {
        "loss": sum(loss * confusion.examples for _, loss, confusion in parts) / whole.examples,
        **_of_confusion(whole),
        "mean_client_accuracy": sum(c.accuracy for _, _, c in parts) / len(parts),
        "mean_client_macro_f1": sum(c.macro_f1 for _, _, c in parts) / len(parts),
        "clients": {
            str(device): {"loss": loss, **_of_confusion(confusion)}
            for device, loss, confusion in parts
        },
    }


def _of_confusion(confusion: Confusion) -> dict[str, Any]:
    return {
        "examples": confusion.examples,
        "accuracy": confusion.accuracy,
        "macro_f1": confusion.macro_f1,
        "confusion": confusion.counts.tolist(),
    }
