"""TensorBoard curves of a run, of all clients together and of each one."""

import shutil
from pathlib import Path

from client.tuning.tuning_curves import CURVES_FOLDER, open_curves
from server.store import METRICS_FILE
from shared.events import read_events


def write_curves(folder: Path) -> None:
    """Write the curves of a run's metrics; without TensorBoard, log that there are none.

    Raises:
        SamaraError: if the metrics are damaged.
    """
    shutil.rmtree(folder / CURVES_FOLDER, ignore_errors=True)
    curves = open_curves(folder, 0)
    for event in read_events(folder / METRICS_FILE):
        number = event["round"]
        if event["event"] == "round":
            if event["loss"] is not None:
                curves.add("loss", event["loss"], number)
            for client, own in event["clients"].items():
                curves.add(f"client {client}/loss", own["loss"], number)
            continue
        for name, column in event["columns"].items():
            what = f"{event['split']} accuracy, {name}"
            curves.add(what, column["mean_client_accuracy"], number)
            for client, own in column["clients"].items():
                curves.add(f"client {client}/{what}", own["accuracy"], number)
    curves.close()
