"""TensorBoard curves of a run, for all clients together and for each client."""

import shutil
from collections import defaultdict
from contextlib import closing
from pathlib import Path

from samara.client.tuning.tuning_curves import CURVES_FOLDER, open_curves
from samara.server.store import METRICS_FILE
from samara.shared.storage.events import read_events


def write_curves(folder: Path) -> None:
    """Write the curves of a run's metrics, if TensorBoard is installed.

    A number that occurs only once in the run, such as a baseline's accuracy, has no curve.

    Raises:
        SamaraError: if the metrics are damaged.
    """
    shutil.rmtree(folder / CURVES_FOLDER, ignore_errors=True)
    points: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
    for event in read_events(folder / METRICS_FILE):
        number = event["round"]
        if event["event"] == "round":
            if event["loss"] is not None:
                points["loss"].append((event["loss"], number))
            for client, own in event["clients"].items():
                if "loss" in own:  # a run with differential privacy hides the loss
                    points[f"client {client}/loss"].append((own["loss"], number))
            continue
        for name, column in event["columns"].items():
            what = f"{event['split']} accuracy, {name}"
            points[what].append((column["mean_client_accuracy"], number))
            for client, own in column["clients"].items():
                points[f"client {client}/{what}"].append((own["accuracy"], number))
    with closing(open_curves(folder, 0)) as curves:
        for name, found in points.items():
            for value, number in found if len(found) > 1 else ():
                curves.add(name, value, number)
