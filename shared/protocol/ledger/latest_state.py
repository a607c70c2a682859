"""Reading of the latest state in a ledger, even while a process writes it."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import LedgerError
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.ledger.reading import (
    damage_explained,
    read_header,
    read_ledger,
    snapshot_paths,
)
from samara.shared.protocol.ledger.records import read_snapshot, replay_records
from samara.shared.protocol.replay import zero_state


def read_latest_state(folder: Path, layout: Layout) -> tuple[int, NDArray[np.int64]]:
    """Return the last round in a ledger and the state after it, int64 [d], checked by its digest.

    Args:
        folder: folder of a ledger; a process may be writing to it.
        layout: layout of the adapter.

    Raises:
        LedgerError: if the ledger is for another layout, or is damaged.
    """
    header = read_header(folder)
    if header.layout_hash != layout.hash:
        raise LedgerError(f"{folder}: the ledger is for another layout")
    start = header.start
    state = zero_state(layout.size)
    for path in reversed(snapshot_paths(folder).values()):
        try:
            snapshot = read_snapshot(path, header, layout)
        except LedgerError:  # try an older snapshot, or the first round
            continue
        start, state = snapshot.position, snapshot.state
        break
    with damage_explained(folder):
        state, last = replay_records(
            lambda: state, lambda: read_ledger(folder, since=start.round), layout
        )
    return (last.position.round if last else start.round), state
