"""Curves of a run's rounds for TensorBoard, without torch."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from samara.server.store import METRICS_FILE
from samara.shared.errors import SamaraError
from samara.shared.storage.events import EventFollower


def write_curves(run: Path, folder: Path) -> int:
    """Write the figures of every round and evaluation as a TensorBoard event file.

    A figure with only one value is left out.

    Args:
        run: folder of a run, which may still be in progress.
        folder: folder of the event file, which replaces the folder's earlier files in TensorBoard.

    Returns:
        The number of curves. If the number is 0, no file is written.

    Raises:
        SamaraError: if TensorBoard is not installed.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise SamaraError(
            "curves need TensorBoard; install it with: pip install 'samara-fl[tensorboard]'"
        ) from error
    points: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for event in EventFollower(run / METRICS_FILE).read_new():
        for tag, value in _curve_values(event).items():
            points[tag].append((event["round"], value))
    curves = {tag: found for tag, found in points.items() if len(found) > 1}
    if not curves:
        return 0
    writer = EventFileWriter(str(folder))
    try:
        for tag, found in curves.items():
            for number, value in found:
                summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
                writer.add_event(Event(step=number, summary=summary))
    finally:
        writer.close()
    return len(curves)


def _curve_values(event: dict[str, Any]) -> dict[str, float]:
    """Return the values that an event adds to the curves, by TensorBoard tag."""
    if event["event"] == "round":
        figures = {name: event[name] for name in ("reports", "bytes_up", "bytes_down")}
        figures |= {"refused": len(event["refused"]), "absent": len(event.get("absent", []))}
        if event["loss"] is not None:
            figures["loss"] = event["loss"]
        return {f"round/{name}": float(value) for name, value in figures.items()}
    return {
        f"{event['split']}/{column} {name}": float(figures[key])
        for column, figures in event["columns"].items()
        for name, key in (("accuracy", "mean_client_accuracy"), ("loss", "loss"))
        if key in figures
    }
