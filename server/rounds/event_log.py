"""What is told of rounds and evaluations, and what it tells."""

from collections.abc import Iterable, Mapping
from typing import Any


def describe(event: dict[str, Any]) -> str:
    """An event in one line."""
    if event["event"] == "round":
        loss = "" if event["loss"] is None else f"loss {event['loss']:.4f}, "
        return (
            f"round {event['round']}: {loss}learning rate {event['learning_rate']:.3g}, "
            f"{event['reports']} reports, "
            f"{event['bytes_up']} bytes up, {event['bytes_down']} bytes down"
            + (f", {event['problem']}" if event["problem"] else "")
        )
    figures = ", ".join(
        f"{name} {figures['accuracy']:.2%}" for name, figures in event["columns"].items()
    )
    return f"round {event['round']}: {event['split']} accuracy: {figures}"


def count_unused_rounds(events: Iterable[Mapping[str, Any]]) -> int:
    """How many of the last rounds in a row used no report; one that takes rounds back used some."""
    unused = 0
    for event in events:
        if event["event"] == "round":
            used = event["reports"] or event.get("back_to") is not None
            unused = 0 if used else unused + 1
    return unused
