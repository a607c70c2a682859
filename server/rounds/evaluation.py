"""What the clients' evaluations amount to, for the whole split and for each client. Pure."""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from shared.frames.evaluation import Evaluation
from shared.tasks.metrics import Confusion

GLOBAL = "global"
"""The column of the federation's model."""


def find_outliers(evaluations: Mapping[int, Evaluation]) -> list[int]:
    """Clients that evaluate other labels or columns than most do.

    Args:
        evaluations: by client, at least one.
    """
    shapes = {client: _shape(evaluation) for client, evaluation in evaluations.items()}
    usual, _ = Counter(shapes.values()).most_common(1)[0]
    return [client for client, shape in shapes.items() if shape != usual]


def summarize_evaluations(evaluations: Mapping[int, Evaluation]) -> dict[str, dict[str, Any]]:
    """Figures of every column that counts an example.

    Args:
        evaluations: by client, at least one, all of the same labels and columns.

    Returns:
        By column: loss, examples, accuracy, macro-F1 and confusion of all examples together, the
        means over clients, and each client's own under ``clients``.
    """
    names, _ = _shape(next(iter(evaluations.values())))
    columns = {
        name: [
            (client, column.mean_loss, Confusion(column.counts))
            for client, evaluation in sorted(evaluations.items())
            for column in evaluation.columns
            if column.name == name and column.counts.any()
        ]
        for name in names
    }
    return {name: _figures(parts) for name, parts in columns.items() if parts}


def find_best_round(events: Iterable[Mapping[str, Any]], newcomers: Collection[int]) -> int | None:
    """The round after which the global model was best on validation; the later of equals.

    Args:
        events: of a run.
        newcomers: clients that do not count.

    Returns:
        None if nobody validated it.
    """
    means: dict[int, float] = {}
    for event in events:
        if event["event"] != "evaluation" or event["split"] != "validation":
            continue
        if list(event["columns"]) == [GLOBAL]:
            clients = event["columns"][GLOBAL]["clients"]
            own = [c["accuracy"] for client, c in clients.items() if int(client) not in newcomers]
            if own:
                means[event["round"]] = sum(own) / len(own)
    return max(means, key=lambda number: (means[number], number)) if means else None


def merge_histories(histories: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """What federations that ran side by side told, as if they were one.

    Args:
        histories: of each the events in their order. Rounds of one number belong together, and
            evaluations of one round, split and set of columns; of a repeated one the last counts.

    Returns:
        In the order of the longest history.
    """
    together: dict[tuple[Any, ...], dict[int, Mapping[str, Any]]] = {}
    for history in sorted(histories, key=len, reverse=True):
        for event in history:
            columns = tuple(event.get("columns", ()))
            key = event["event"], event["round"], event.get("split"), columns
            together.setdefault(key, {})[id(history)] = event
    return [
        _round_of_all(list(parts.values()))
        if kind == "round"
        else _evaluation_of_all(list(parts.values()))
        for (kind, *_), parts in together.items()
    ]


def _round_of_all(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    whole = _of_all(parts, ("bytes_up", "bytes_down", "ledger_bytes", "reports"))
    heard = [part for part in parts if part["loss"] is not None]
    reports = sum(part["reports"] for part in heard)
    loss = sum(part["loss"] * part["reports"] for part in heard) / reports if reports else None
    digests = "".join(part["digest"] for part in parts)
    return whole | {
        "loss": loss,
        "learning_rate": sum(part["learning_rate"] for part in parts) / len(parts),
        "absent": [client for part in parts for client in part["absent"]],
        "resting": [client for part in parts for client in part["resting"]],
        "late": {client: late for part in parts for client, late in part["late"].items()},
        "problem": "; ".join(part["problem"] for part in parts if part["problem"]),
        "digest": hashlib.sha256(bytes.fromhex(digests)).hexdigest(),
        "clients": {client: own for part in parts for client, own in part["clients"].items()},
    }


def _evaluation_of_all(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    columns: dict[str, list[tuple[int, float, Confusion]]] = {}
    for part in parts:
        for name, column in part["columns"].items():
            columns.setdefault(name, []).extend(
                (int(client), own["loss"], Confusion(np.array(own["confusion"])))
                for client, own in column["clients"].items()
            )
    whole = _of_all(parts, ("bytes_up", "bytes_down"))
    return whole | {
        "columns": {
            name: _figures(sorted(own, key=lambda p: p[0])) for name, own in columns.items()
        }
    }


def _of_all(parts: Sequence[Mapping[str, Any]], sums: Sequence[str]) -> dict[str, Any]:
    """The last one's keys, with sums, refusals of all, and the time of the slowest."""
    return {
        **parts[-1],
        **{key: sum(part[key] for part in parts) for key in sums},
        "refused": {client: why for part in parts for client, why in part["refused"].items()},
        "seconds": max(part["seconds"] for part in parts),
    }


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
            str(client): {"loss": loss, **_of_confusion(confusion)}
            for client, loss, confusion in parts
        },
    }


def _of_confusion(confusion: Confusion) -> dict[str, Any]:
    return {
        "examples": confusion.examples,
        "accuracy": confusion.accuracy,
        "macro_f1": confusion.macro_f1,
        "confusion": confusion.counts.tolist(),
    }
