"""Figures of the clients' evaluations, for the whole split and for each client. Pure."""

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from samara.server.rounds.aggregation import hostile_count, trimmed_mean
from samara.shared.columns import GLOBAL, PERSONALIZED
from samara.shared.errors import ReportError
from samara.shared.frames.evaluation import Evaluation
from samara.shared.frames.report import MAX_GRADIENT
from samara.shared.label_scores import Confusion

TRIMMED_ACCURACY = "trimmed_client_accuracy"
"""The key of the trimmed mean of the clients' accuracies, which runs with a robust rule have."""


def check_evaluation(evaluation: Evaluation, most_predictions: int) -> None:
    """Raise an error for an evaluation that counts more than its client can have.

    Args:
        evaluation: the evaluation.
        most_predictions: number of examples of the split, in a generation of tokens, that the
            client introduced itself with.

    Raises:
        ReportError: naming the column and what is wrong with it.
    """
    for column in evaluation.columns:
        if (count := int(column.counts.sum())) > most_predictions:
            raise ReportError(
                f"it counts {count} examples in column {column.name!r}; it introduced itself "
                f"with {most_predictions}"
            )
        if abs(column.mean_loss) > MAX_GRADIENT:
            raise ReportError(f"its loss in column {column.name!r} is over {MAX_GRADIENT:g}")


def keep_requested(evaluation: Evaluation, requested: Sequence[str]) -> Evaluation:
    """Return an evaluation with those of its columns that were asked for.

    A client may lack some, as a phone does that has no personal model; it counts in the others.

    Args:
        evaluation: the evaluation.
        requested: names of the columns.

    Raises:
        ReportError: if it has none of them.
    """
    columns = tuple(column for column in evaluation.columns if column.name in requested)
    if not columns:
        raise ReportError(f"it evaluates no column that was asked for: {', '.join(requested)}")
    return replace(evaluation, columns=columns)


def find_outliers(evaluations: Mapping[int, Evaluation]) -> list[int]:
    """Return the clients that evaluate another number of labels than most clients do.

    Args:
        evaluations: at least one evaluation, by client.
    """
    counts = {client: len(own.columns[0].counts) for client, own in evaluations.items()}
    usual, _ = Counter(counts.values()).most_common(1)[0]
    return [client for client, count in counts.items() if count != usual]


def summarize_evaluations(
    evaluations: Mapping[int, Evaluation], names: Sequence[str], is_trimmed: bool = False
) -> dict[str, dict[str, Any]]:
    """Return the figures of every column that counts an example.

    Args:
        evaluations: at least one evaluation, by client, all of the same labels.
        names: names of the columns, in their order.
        is_trimmed: whether to add the trimmed mean of the clients' accuracies, which a few
            clients cannot set.

    Returns:
        By column: loss, examples, accuracy, macro-F1 and confusion of all examples together, the
        means over clients, and each client's figures under ``clients``.
    """
    columns = {
        name: [
            (client, column.mean_loss, Confusion(column.counts))
            for client, evaluation in sorted(evaluations.items())
            for column in evaluation.columns
            if column.name == name and column.counts.any()
        ]
        for name in names
    }
    return {name: _figures(parts, is_trimmed) for name, parts in columns.items() if parts}


def is_global_validation(event: Mapping[str, Any]) -> bool:
    """Return whether an event is a validation of the global model.

    The clients' personal models after the last round are validated without it.
    """
    return (
        event["event"] == "evaluation"
        and event["split"] == "validation"
        and GLOBAL in event["columns"]
    )


def is_comparison(event: Mapping[str, Any]) -> bool:
    """Return whether an event compares or validates the clients' personal models, at the end."""
    is_evaluation = event["event"] == "evaluation" and PERSONALIZED in event["columns"]
    return is_evaluation and not is_global_validation(event)


def find_best_round(events: Iterable[Mapping[str, Any]], newcomers: Collection[int]) -> int | None:
    """Return the round after which the model was best on validation, the later of equals.

    Where clients also validated the personal models that they would have, these count, and the
    global model otherwise. Best is the mean of the clients' accuracies, or their trimmed mean where
    an evaluation has one.

    Args:
        events: events of a run.
        newcomers: clients whose validation does not count.

    Returns:
        The round, or None if no client has validated the model.
    """
    means = {
        number: _mean(list(accuracies.values()), is_trimmed)[0]
        for number, accuracies, is_trimmed in _validations(events, newcomers, "accuracy")
    }
    return max(means, key=lambda number: (means[number], number)) if means else None


def find_lowest_loss(events: Iterable[Mapping[str, Any]], newcomers: Collection[int]) -> int | None:
    """Return the round whose model has the lowest loss on validation, the last one in doubt.

    Every client's loss is compared with its own after the last validated round, since clients
    differ more than rounds do. A round must be better by more than the standard error of the mean
    difference over the clients. The mean is trimmed where an evaluation has a trimmed mean. One
    client has no such error; see `_last_as_good`.

    Args:
        events: events of a run.
        newcomers: clients whose validation does not count.

    Returns:
        The round, or None if no client has validated the model.
    """
    known = list(events)
    validations = list(_validations(known, newcomers, "loss"))
    if not validations:
        return None
    last, latest, _ = max(validations, key=lambda validation: validation[0])
    if len({client for _, losses, _ in validations for client in losses}) == 1:
        (client,) = latest
        of_one = {number: losses[client] for number, losses, _ in validations}
        return _last_as_good(of_one, _training_losses(known), _examples(known, client))
    best, least = last, 0.0
    for number, losses, is_trimmed in validations:
        differences = [losses[client] - latest[client] for client in losses if client in latest]
        if number < last and differences:
            mean, error = _mean(differences, is_trimmed)
            if mean + error < least:
                best, least = number, mean + error
    return best


def _last_as_good(losses: Mapping[int, float], training: Mapping[int, float], examples: int) -> int:
    """Return the last round whose loss is not above the lowest one by more than its error.

    A mean over n examples errs by their spread over √n. The changes of single examples are taken
    to be spread by as much as their mean changes, which the training loss shows.

    Args:
        losses: mean loss of one client on validation, by round.
        training: mean loss on its training examples, by round.
        examples: number n of the validation examples.
    """
    lowest = min(losses, key=lambda number: (losses[number], -number))

    def error(number: int) -> float:
        if not {number, lowest} <= training.keys():
            return 0.0
        return abs(training[number] - training[lowest]) / math.sqrt(max(1, examples))

    return max(n for n in losses if n >= lowest and losses[n] - losses[lowest] <= error(n))


def _training_losses(events: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Return the training loss of every round, that of the first one for the start too."""
    rounds = {e["round"]: e["loss"] for e in events if e["event"] == "round"}
    known = {number: loss for number, loss in rounds.items() if loss is not None}
    return {0: known[1], **known} if 1 in known else known


def _examples(events: Iterable[Mapping[str, Any]], client: str) -> int:
    """Return the number of validation examples of a client."""
    columns = (event["columns"][GLOBAL] for event in events if is_global_validation(event))
    known = (column["clients"].get(client) for column in columns)
    return max((one["examples"] for one in known if one), default=0)


def _validations(
    events: Iterable[Mapping[str, Any]], newcomers: Collection[int], figure: str
) -> Iterator[tuple[int, dict[str, float], bool]]:
    """Yield the round of each validation, a figure by client, and whether means are trimmed."""
    for event in filter(is_global_validation, events):
        columns = event["columns"]
        column = columns.get(PERSONALIZED, columns[GLOBAL])
        clients = column["clients"].items()
        figures = {i: client[figure] for i, client in clients if int(i) not in newcomers}
        if figures:
            yield event["round"], figures, TRIMMED_ACCURACY in column


def _mean(values: Sequence[float], is_trimmed: bool) -> tuple[float, float]:
    """Return the mean, or the trimmed mean, and its standard error, 0 of a single value."""
    cut = hostile_count(len(values)) if is_trimmed else 0
    kept = np.sort(np.array(values))[cut : len(values) - cut]
    error = kept.std(ddof=1) / np.sqrt(len(kept)) if len(kept) > 1 else 0.0
    mean = trimmed_mean(np.array(values)) if is_trimmed else sum(values) / len(values)
    return float(mean), float(error)


def merge_histories(histories: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Merge the events of federations that ran side by side into those of one.

    Args:
        histories: the events of each federation in their order. Rounds of one number are merged,
            and evaluations of one round, split and set of columns; of a repeated one the last
            counts.

    Returns:
        The merged events, in the order of the longest history.
    """
    merged: dict[tuple[Any, ...], dict[int, Mapping[str, Any]]] = {}
    for history in sorted(histories, key=len, reverse=True):
        for event in history:
            columns = tuple(event.get("columns", ()))
            key = event["event"], event["round"], event.get("split"), columns
            merged.setdefault(key, {})[id(history)] = event
    return [
        _merge_rounds(list(events.values()))
        if kind == "round"
        else _merge_evaluations(list(events.values()))
        for (kind, *_), events in merged.items()
    ]


def _merge_rounds(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    common = _merge_common(events, ("bytes_up", "bytes_down", "ledger_bytes", "reports"))
    with_loss = [event for event in events if event["loss"] is not None]
    reports = sum(event["reports"] for event in with_loss)
    loss = sum(e["loss"] * e["reports"] for e in with_loss) / reports if reports else None
    digests = "".join(event["digest"] for event in events)
    return common | {
        "loss": loss,
        "learning_rate": sum(event["learning_rate"] for event in events) / len(events),
        **_merge_by_stream(events),
        "absent": [client for event in events for client in event["absent"]],
        "resting": [client for event in events for client in event["resting"]],
        "late": {client: late for event in events for client, late in event["late"].items()},
        "problem": "; ".join(event["problem"] for event in events if event["problem"]),
        "digest": hashlib.sha256(bytes.fromhex(digests)).hexdigest(),
        "clients": {client: c for event in events for client, c in event["clients"].items()},
    }


def _merge_evaluations(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    columns: dict[str, list[tuple[int, float, Confusion]]] = {}
    for event in events:
        for name, column in event["columns"].items():
            columns.setdefault(name, []).extend(
                (int(client), figures["loss"], Confusion(np.array(figures["confusion"])))
                for client, figures in column["clients"].items()
            )
    common = _merge_common(events, ("bytes_up", "bytes_down", "catch_up_bytes"))
    is_trimmed = all(TRIMMED_ACCURACY in c for event in events for c in event["columns"].values())
    return common | {
        "columns": {
            name: _figures(sorted(clients, key=lambda client: client[0]), is_trimmed)
            for name, clients in columns.items()
        }
    }


def _merge_common(events: Sequence[Mapping[str, Any]], sums: Sequence[str]) -> dict[str, Any]:
    """Return the last event with some keys summed, all refusals, and the longest time."""
    return {
        **events[-1],
        **{key: sum(event.get(key, 0) for event in events) for key in sums},
        "refused": {c: reason for event in events for c, reason in event["refused"].items()},
        "seconds": max(event["seconds"] for event in events),
    }


def _merge_by_stream(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the clients of all events that report by a stream; nothing if there are none."""
    clients = sorted(client for event in events for client in event.get("by_stream", []))
    return {"by_stream": clients} if clients else {}


def _figures(clients: list[tuple[int, float, Confusion]], is_trimmed: bool) -> dict[str, Any]:
    """Return the figures of all examples together, the means over clients, and each client's.

    Args:
        clients: index, mean loss and confusion of each client.
        is_trimmed: whether to add the trimmed mean of the clients' accuracies.
    """
    accuracies = np.array([confusion.accuracy for _, _, confusion in clients])
    trimmed = {TRIMMED_ACCURACY: float(trimmed_mean(accuracies))} if is_trimmed else {}
    whole = reduce(add, (confusion for _, _, confusion in clients))
    return {
        "loss": sum(loss * confusion.examples for _, loss, confusion in clients) / whole.examples,
        **_confusion_figures(whole),
        **trimmed,
        "mean_client_accuracy": sum(c.accuracy for _, _, c in clients) / len(clients),
        "mean_client_macro_f1": sum(c.macro_f1 for _, _, c in clients) / len(clients),
        "clients": {
            str(client): {"loss": loss, **_confusion_figures(confusion)}
            for client, loss, confusion in clients
        },
    }


def _confusion_figures(confusion: Confusion) -> dict[str, Any]:
    return {
        "examples": confusion.examples,
        "accuracy": confusion.accuracy,
        "macro_f1": confusion.macro_f1,
        "confusion": confusion.counts.tolist(),
    }
