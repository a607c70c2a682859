"""Catching up: replay of the records after a state, checked by their digests."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import LedgerError, ReplayError
from samara.shared.layout import Layout
from samara.shared.ledger.records import Record
from samara.shared.replay import Backend, digest, rebuild

CHECK_EVERY = 256
"""The most rounds between two digest checks; hashing d numbers takes time."""
_BATCH_BYTES = 4 * 2**20
"""The most bytes of round deltas between two digest checks, which bounds the memory they take."""


@dataclass(frozen=True)
class CatchUp:
    """The data from which a client reaches the server's state.

    Attributes:
        snapshot: bytes of a snapshot of a later round; empty if none is needed.
        tail: records after the snapshot's round, or without one after the client's.
    """

    snapshot: bytes = b""
    tail: bytes = b""

    def __len__(self) -> int:
        """Return the number of bytes that are sent."""
        return len(self.snapshot) + len(self.tail)


class _DigestMismatchError(LedgerError):
    """The digest after a replayed round differs from its record's."""


def replay_batch(
    state: NDArray[np.int64],
    records: Sequence[Record],
    layout: Layout,
    backend: Backend | None = None,
) -> NDArray[np.int64]:
    """Replay some records together and check the digest of the last one.

    Args:
        state: state before the first record, int64 [d].
        records: consecutive records, at least one.
        layout: layout of the adapter.
        backend: replay backend; the default one if None.

    Returns:
        int64 [d], the state after the last record.

    Raises:
        LedgerError: if the digest differs, or dense values are outside the state or what the track
            may hold, naming the last round.
    """
    entries = [entry for record in records for entry in record.delta.scalar_groups()]
    try:
        for record in records:
            record.delta.check_dense_values(layout)
        state = rebuild(state, entries, layout.distribution, backend)
    except ReplayError as error:
        raise LedgerError(f"round {records[-1].delta.round} or before: {error}") from error
    if digest(layout.hash, state) != records[-1].end_digest:
        raise _DigestMismatchError(
            f"round {records[-1].delta.round}: replaying it gives another digest than recorded"
        )
    return state


def replay_records(
    start: Callable[[], NDArray[np.int64]],
    records: Callable[[], Iterable[Record]],
    layout: Layout,
    backend: Backend | None = None,
) -> tuple[NDArray[np.int64], Record | None]:
    """Replay records, and check the digest of every `CHECK_EVERY`-th and the last.

    After a wrong digest all is replayed again with a check of every record, so that the message
    names the first wrong round; `start` and `records` are functions because they are called twice.

    Args:
        start: function that returns the state before the first record, int64 [d].
        records: function that returns the records in order.
        layout: layout of the adapter.
        backend: replay backend; the default one if None.

    Returns:
        The state after the last record, int64 [d], and that record, or None if there were none.

    Raises:
        LedgerError: naming the first round whose digest differs from its record's.
    """
    try:
        return _replay_batches(start(), _batches(records(), CHECK_EVERY), layout, backend)
    except _DigestMismatchError:
        _replay_batches(start(), _batches(records(), 1), layout, backend)
        raise LedgerError(
            "replaying gave a wrong digest, and the right one when repeated: the memory or "
            "processor of this machine makes mistakes; use another one"
        ) from None


def _replay_batches(
    state: NDArray[np.int64],
    batches: Iterable[Sequence[Record]],
    layout: Layout,
    backend: Backend | None,
) -> tuple[NDArray[np.int64], Record | None]:
    last = None
    for batch in batches:
        state, last = replay_batch(state, batch, layout, backend), batch[-1]
    return state, last


def _batches(records: Iterable[Record], most: int) -> Iterator[Sequence[Record]]:
    """Yield records in batches of at most `most`, fewer where they are long."""
    batch: list[Record] = []
    size = 0
    for record in records:
        batch.append(record)
        size += record.size
        if len(batch) == most or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
