"""Figures of the clients' evaluations, over all examples of a split and per client."""

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np

from samara.server.rounds.aggregation import hostile_count, trimmed_mean
from samara.shared.errors import ReportError
from samara.shared.protocol.frames.evaluation import Evaluation
from samara.shared.protocol.frames.report import MAX_GRADIENT
from samara.shared.tasks.label_scores import Confusion
from samara.shared.terms.columns import GLOBAL, PERSONALIZED

TRIMMED_ACCURACY = "trimmed_client_accuracy"
"""Result key of the trimmed mean of the clients' accuracies, in runs with a robust rule."""


class _ClientFigures(NamedTuple):
    """One client's figures in a column; ``auc`` is None if the client does not know its AUC."""

    client: int
    loss: float
    confusion: Confusion
    auc: float | None


def check_evaluation(evaluation: Evaluation, most_predictions: int) -> None:
    """Check that an evaluation has a finite loss, and no more examples than its client declared.

    Args:
        evaluation: the evaluation.
        most_predictions: number of examples of the split that the client's hello declared; for
            generation, the number of tokens.

    Raises:
        ReportError: if a count or a loss is too large; the message names the column.
    """
    for column in evaluation.columns:
        if (count := int(column.counts.sum())) > most_predictions:
            raise ReportError(
                f"the evaluation counts {count} examples in column {column.name!r}, but the "
                f"client's hello declared {most_predictions}"
            )
        if abs(column.mean_loss) > MAX_GRADIENT:
            raise ReportError(
                f"the loss in column {column.name!r} is over {MAX_GRADIENT:g}, the largest allowed"
            )


def keep_requested(evaluation: Evaluation, requested: Sequence[str]) -> Evaluation:
    """Return an evaluation without the columns that were not requested.

    A client may lack some of the columns. For example, a phone has no personal model. The client's
    other columns are still used.

    Args:
        evaluation: the evaluation.
        requested: names of the columns.

    Raises:
        ReportError: if the evaluation has none of the columns.
    """
    columns = tuple(column for column in evaluation.columns if column.name in requested)
    if not columns:
        raise ReportError(
            f"the evaluation has none of the requested columns: {', '.join(requested)}"
        )
    return replace(evaluation, columns=columns)


def find_outliers(evaluations: Mapping[int, Evaluation]) -> list[int]:
    """Return the clients whose number of labels differs from the most frequent number of labels.

    Args:
        evaluations: evaluations by client; at least one.
    """
    counts = {client: len(own.columns[0].counts) for client, own in evaluations.items()}
    usual, _ = Counter(counts.values()).most_common(1)[0]
    return [client for client, count in counts.items() if count != usual]


def summarize_evaluations(
    evaluations: Mapping[int, Evaluation], names: Sequence[str], is_trimmed: bool = False
) -> dict[str, dict[str, Any]]:
    """Summarize every column with at least one example.

    Args:
        evaluations: evaluations by client; at least one, all with the same number of labels.
        names: names of the columns, in order.
        is_trimmed: whether to add the trimmed mean of the clients' accuracies, which a few clients
            cannot control.

    Returns:
        Figures by column. ``loss``, ``examples``, ``accuracy``, ``macro_f1`` and ``confusion`` are
        computed over all examples. ``mean_client_accuracy``, ``mean_client_macro_f1`` and
        ``mean_client_auc`` are means over the clients; the AUC is averaged over the clients that
        report one. ``clients`` contains each client's figures.
    """
    columns = {
        name: [
            _ClientFigures(client, column.mean_loss, Confusion(column.counts), column.auc)
            for client, evaluation in sorted(evaluations.items())
            for column in evaluation.columns
            if column.name == name and column.counts.any()
        ]
        for name in names
    }
    return {name: _figures(parts, is_trimmed) for name, parts in columns.items() if parts}


def is_global_validation(event: Mapping[str, Any]) -> bool:
    """Return whether an event is a validation of the global model.

    The final validation of the personal models has no column for the global model.
    """
    return (
        event["event"] == "evaluation"
        and event["split"] == "validation"
        and GLOBAL in event["columns"]
    )


def is_comparison(event: Mapping[str, Any]) -> bool:
    """Return whether an event is the final comparison or validation of personal models."""
    is_evaluation = event["event"] == "evaluation" and PERSONALIZED in event["columns"]
    return is_evaluation and not is_global_validation(event)


def find_best_round(events: Iterable[Mapping[str, Any]], newcomers: Collection[int]) -> int | None:
    """Return the round whose model has the best validation accuracy; among equals, the latest.

    If clients also validated personal models made from a round's global model, the accuracies of
    the personal models are used. The criterion is the mean of the clients' accuracies, or their
    trimmed mean if the evaluation has a trimmed mean.

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
    """Return the round whose model has the lowest validation loss; in doubt, the last round.

    Losses differ more between clients than between rounds. Every client's loss is therefore
    compared with the same client's loss after the last validated round. An earlier round is better
    than the last round only if its loss is lower by more than the standard error of the mean
    difference over the clients. The mean is trimmed if the evaluation has a trimmed mean. With a
    single client there is no standard error; see `_last_as_good`.

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
    best = last
    least = 0.0
    for number, losses, is_trimmed in validations:
        differences = [losses[client] - latest[client] for client in losses if client in latest]
        if number < last and differences:
            mean, error = _mean(differences, is_trimmed)
            if mean + error < least:
                best = number
                least = mean + error
    return best


def _last_as_good(losses: Mapping[int, float], training: Mapping[int, float], examples: int) -> int:
    """Return the last round whose validation loss is within one standard error of the lowest.

    The standard error of a difference of two mean losses over n examples is s / √n. Here s is the
    standard deviation of the per-example differences, which the server does not know. The change of
    the mean training loss between the two rounds replaces s.

    Args:
        losses: one client's mean validation loss, by round.
        training: the client's mean loss on training examples, by round.
        examples: number n of validation examples.
    """
    lowest = min(losses, key=lambda number: (losses[number], -number))

    def error(number: int) -> float:
        if not {number, lowest} <= training.keys():
            return 0.0
        return abs(training[number] - training[lowest]) / math.sqrt(max(1, examples))

    return max(n for n in losses if n >= lowest and losses[n] - losses[lowest] <= error(n))


def _training_losses(events: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Return the training loss of each round; round 0 gets the training loss of round 1."""
    rounds = {e["round"]: e["loss"] for e in events if e["event"] == "round"}
    known = {number: loss for number, loss in rounds.items() if loss is not None}
    return {0: known[1], **known} if 1 in known else known


def _examples(events: Iterable[Mapping[str, Any]], client: str) -> int:
    """Return a client's number of validation examples; 0 if it is unknown."""
    columns = (event["columns"][GLOBAL] for event in events if is_global_validation(event))
    known = (column["clients"].get(client) for column in columns)
    return max((one["examples"] for one in known if one), default=0)


def _validations(
    events: Iterable[Mapping[str, Any]], newcomers: Collection[int], figure: str
) -> Iterator[tuple[int, dict[str, float], bool]]:
    """Yield the round, the clients' figures, and whether to trim means, for each validation."""
    for event in filter(is_global_validation, events):
        columns = event["columns"]
        column = columns.get(PERSONALIZED, columns[GLOBAL])
        clients = column["clients"].items()
        figures = {i: client[figure] for i, client in clients if int(i) not in newcomers}
        if figures:
            yield event["round"], figures, TRIMMED_ACCURACY in column


def _mean(values: Sequence[float], is_trimmed: bool) -> tuple[float, float]:
    """Return the mean or trimmed mean, and its standard error (0 for a single value)."""
    cut = hostile_count(len(values)) if is_trimmed else 0
    kept = np.sort(np.array(values))[cut : len(values) - cut]
    error = kept.std(ddof=1) / np.sqrt(len(kept)) if len(kept) > 1 else 0.0
    mean = trimmed_mean(np.array(values)) if is_trimmed else sum(values) / len(values)
    return float(mean), float(error)


def merge_histories(histories: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Merge the events of federations that ran at the same time.

    Rounds with the same number are merged, and so are evaluations with the same round, split and
    columns. If a federation repeats an event, only the last of these events is used.

    Args:
        histories: events of each federation, in the order in which they were written.

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
    columns: dict[str, list[_ClientFigures]] = {}
    for event in events:
        for name, column in event["columns"].items():
            columns.setdefault(name, []).extend(
                _ClientFigures(
                    int(client),
                    figures["loss"],
                    Confusion(np.array(figures["confusion"])),
                    figures.get("auc"),
                )
                for client, figures in column["clients"].items()
            )
    common = _merge_common(events, ("bytes_up", "bytes_down", "catch_up_bytes"))
    is_trimmed = all(TRIMMED_ACCURACY in c for event in events for c in event["columns"].values())
    return common | {
        "columns": {
            name: _figures(sorted(clients, key=lambda own: own.client), is_trimmed)
            for name, clients in columns.items()
        }
    }


def _merge_common(events: Sequence[Mapping[str, Any]], sums: Sequence[str]) -> dict[str, Any]:
    """Merge events into one event.

    It is the last event, with summed values, all refusals, and the longest duration.

    Args:
        events: events to merge.
        sums: keys whose values are summed over the events.
    """
    return {
        **events[-1],
        **{key: sum(event.get(key, 0) for event in events) for key in sums},
        "refused": {c: reason for event in events for c, reason in event["refused"].items()},
        "seconds": max(event["seconds"] for event in events),
    }


def _merge_by_stream(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a merged field ``by_stream`` with the clients of all events; empty without clients."""
    clients = sorted(client for event in events for client in event.get("by_stream", []))
    return {"by_stream": clients} if clients else {}


def _figures(clients: Sequence[_ClientFigures], is_trimmed: bool) -> dict[str, Any]:
    """Return the figures of one column; see `summarize_evaluations`.

    Args:
        clients: figures of each client.
        is_trimmed: whether to add the trimmed mean of the clients' accuracies.
    """
    accuracies = np.array([own.confusion.accuracy for own in clients])
    trimmed = {TRIMMED_ACCURACY: float(trimmed_mean(accuracies))} if is_trimmed else {}
    areas = [own.auc for own in clients if own.auc is not None]
    whole = reduce(add, (own.confusion for own in clients))
    return {
        "loss": sum(own.loss * own.confusion.examples for own in clients) / whole.examples,
        **_confusion_figures(whole),
        **trimmed,
        "mean_client_accuracy": sum(accuracies.tolist()) / len(clients),
        "mean_client_macro_f1": sum(own.confusion.macro_f1 for own in clients) / len(clients),
        **({"mean_client_auc": sum(areas) / len(areas)} if areas else {}),
        "clients": {
            str(own.client): {
                "loss": own.loss,
                **_confusion_figures(own.confusion),
                **({} if own.auc is None else {"auc": own.auc}),
            }
            for own in clients
        },
    }


def _confusion_figures(confusion: Confusion) -> dict[str, Any]:
    return {
        "examples": confusion.examples,
        "accuracy": confusion.accuracy,
        "macro_f1": confusion.macro_f1,
        "confusion": confusion.counts.tolist(),
    }
