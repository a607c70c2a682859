"""Proving a ledger: everything in its folder is read, replayed and held against everything else."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.errors import LedgerError
from shared.layout import Layout
from shared.ledger.catch_up import follow
from shared.ledger.reading import (
    LOCK_FILE,
    read_header,
    read_ledger,
    read_segment,
    segment_paths,
    snapshot_paths,
)
from shared.ledger.records import Position, Record
from shared.ledger.snapshots import read_snapshot
from shared.replay import zero_state


class Step(NamedTuple):
    """A proven round.

    Attributes:
        round: its number.
        state: int64 [d], after it.
        record: of the round; None where the proof begins, at nothing or at a snapshot.
    """

    round: int
    state: NDArray[np.int64]
    record: Record | None


def proven(folder: Path, layout: Layout) -> Iterator[Step]:
    """Replay a ledger from as far back as it goes, and prove everything that is in the folder.

    It begins at nothing if round 1 is there, and at the oldest snapshot otherwise. Every record
    must be whole and continue the chain, every digest is reproduced, every snapshot must be the
    state that the records lead to, and no file may be left over.

    Args:
        folder: of a ledger that nobody is writing.
        layout: of the adapter.

    Yields:
        Where the proof begins, and then every round.

    Raises:
        LedgerError: at the first thing that is damaged, naming file and round.
    """
    _check_names(folder)
    header = read_header(folder)
    if header.layout_hash != layout.hash:
        raise LedgerError(f"{folder}: round 0: the ledger is for another layout")
    snapshots = snapshot_paths(folder)

    def kept_at(position: Position) -> NDArray[np.int64] | None:
        path = snapshots.pop(position.round, None)
        if path is None:
            return None
        snapshot = read_snapshot(path, header, layout)
        if snapshot.position != position:
            raise LedgerError(f"{path}: round {position.round}: the records lead elsewhere")
        return snapshot.state

    begin = read_segment(next(iter(segment_paths(folder).values()))).start
    state = kept_at(begin) if begin.round else zero_state(layout.size)
    if state is not None:
        yield Step(begin.round, state, None)
    for record in read_ledger(folder, strict=True):
        number = record.delta.round
        if state is None:
            if (state := kept_at(record.position)) is not None:
                yield Step(number, state, None)
            continue
        try:
            state = follow(state, [record], layout)
        except LedgerError as error:
            raise LedgerError(f"{folder}: {error}") from error
        kept_at(record.position)
        yield Step(number, state, record)
    for number, path in snapshots.items():
        raise LedgerError(f"{path}: round {number}: its record is missing")
    if state is None:
        raise LedgerError(f"{folder}: neither round 1 nor a snapshot is there to begin with")


def _check_names(folder: Path) -> None:
    known = {*segment_paths(folder).values(), *snapshot_paths(folder).values(), folder / LOCK_FILE}
    for path in sorted(folder.iterdir()):
        if path not in known:
            raise LedgerError(
                f"{path}: it is no part of a ledger; opening the run removes what a crash left"
            )
