"""Bytes of a client's frames in a round, with projected gradients and with components.

    python -m benchmarks.accuracy.frame_bytes --data SOURCES --model MODEL --out FOLDER \\
        [--sets demo,popquorn5]

The set `demo` has the settings and the model of `samara demo`. Every line has the largest sizes of
a kind of message in a run of six rounds: the frame and the catch-up of a message, and the frame of
its reply.
"""

import logging
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message

from benchmarks.accuracy.data_sets import DATA_SETS
from benchmarks.arguments import arguments
from samara.shared.protocol.wire import RECORD, kind_of
from samara.shared.settings.config import RunConfig
from samara.simulations.engines.in_process import InProcessGrid
from samara.simulations.simulate import simulate


def bytes_of(message: Message, name: str) -> bytes:
    """Return an entry of a message's record; empty if there is none."""
    value = message.content.config_records[RECORD].get(name, b"")
    assert isinstance(value, bytes)
    return value


def main() -> None:
    given = arguments(__doc__, data=Path, model=str, out=Path, sets=["demo", "popquorn5"])
    logging.disable(logging.INFO)
    deliver = InProcessGrid._deliver
    sizes = defaultdict[str, list[tuple[int, int, int]]](list)

    def measured(grid: InProcessGrid, message: Message) -> Message:
        reply = deliver(grid, message)
        frame = bytes_of(reply, "frame")
        catch_up = len(bytes_of(message, "snapshot")) + len(bytes_of(message, "tail"))
        row = len(bytes_of(message, "frame")), catch_up, len(frame)
        sizes[kind_of(frame).name].append(row)
        return reply

    setattr(InProcessGrid, "_deliver", measured)  # noqa: B010
    for name in given.sets:
        for differences in ("central", "components"):
            sizes.clear()
            settings: dict[str, Any] = {
                "differences": differences,
                "rounds": 6,
                "out": str(given.out / "run"),
            }
            settings |= {"personal.rounds": 0, "threads": 1, "data.clients": 8}
            if name != "demo":
                settings |= DATA_SETS[name].prepare(given.data, given.out / "data")
                settings |= {"model.path": given.model, "data.limit": 400, "data.partition": "iid"}
            shutil.rmtree(given.out / "run", ignore_errors=True)
            simulate(RunConfig.of(settings, "frames"))
            for kind, rows in sizes.items():
                print(name, differences, kind, len(rows), *np.max(rows, axis=0))


if __name__ == "__main__":
    main()
