"""Verification of a ledger: every file in its folder is read, replayed and checked."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import LedgerError
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.ledger.reading import (
    LOCK_FILE,
    damage_explained,
    read_header,
    read_ledger,
    read_segment,
    segment_paths,
    snapshot_paths,
)
from samara.shared.protocol.ledger.records import Position, Record, read_snapshot, replay_batch
from samara.shared.protocol.replay import zero_state


class VerifiedRound(NamedTuple):
    """A round whose record, digest and snapshot have been verified.

    Attributes:
        round: number of the round.
        state: int64 [d], after the round.
        record: record of the round; None for the initial state, which is all zeros or comes from a
            snapshot.
    """

    round: int
    state: NDArray[np.int64]
    record: Record | None


def verify_ledger(folder: Path, layout: Layout) -> Iterator[VerifiedRound]:
    """Replay a ledger from its oldest state, and verify every file in its folder.

    Replay starts from zero if round 1 is kept, and from the oldest snapshot otherwise. Every record
    must be whole and continue the chain. Replay must reproduce every digest, and every snapshot
    must equal the state after its round. The folder may hold no other file.

    Args:
        folder: folder of a ledger that no process is writing.
        layout: layout of the adapter.

    Yields:
        The initial state, then every round.

    Raises:
        LedgerError: at the first damage, naming file and round.
    """
    _check_names(folder)
    with damage_explained(folder):
        yield from _verified_rounds(folder, layout)


def _verified_rounds(folder: Path, layout: Layout) -> Iterator[VerifiedRound]:
    header = read_header(folder)
    if header.layout_hash != layout.hash:
        raise LedgerError(f"{folder}: round 0: the ledger is for another layout")
    snapshots = snapshot_paths(folder)

    def snapshot_state(position: Position) -> NDArray[np.int64] | None:
        path = snapshots.pop(position.round, None)
        if path is None:
            return None
        snapshot = read_snapshot(path, header, layout)
        if snapshot.position != position:
            raise LedgerError(
                f"{path}: round {position.round}: the position in the snapshot is not the position "
                "after the records"
            )
        return snapshot.state

    begin = read_segment(next(iter(segment_paths(folder).values()))).start
    state = snapshot_state(begin) if begin.round else zero_state(layout.size)
    if state is not None:
        yield VerifiedRound(begin.round, state, None)
    for record in read_ledger(folder, strict=True):
        number = record.delta.round
        if state is None:
            if (state := snapshot_state(record.position)) is not None:
                yield VerifiedRound(number, state, None)
            continue
        state = replay_batch(state, [record], layout)
        snapshot_state(record.position)
        yield VerifiedRound(number, state, record)
    for number, path in snapshots.items():
        raise LedgerError(f"{path}: round {number}: its record is missing")
    if state is None:
        raise LedgerError(f"{folder}: holds neither round 1 nor a snapshot to start from")


def _check_names(folder: Path) -> None:
    known = {*segment_paths(folder).values(), *snapshot_paths(folder).values(), folder / LOCK_FILE}
    for path in sorted(folder.iterdir()):
        if path not in known:
            raise LedgerError(
                f"{path}: not part of a ledger; if a crash left it, opening the run removes it"
            )
