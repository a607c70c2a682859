"""Catching up: from a state through the records after it, with the digests as proof."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.errors import LedgerError
from shared.layout import Layout
from shared.ledger.records import Record
from shared.replay import Backend, digest, rebuild

CHECK_EVERY = 256
"""Most rounds between two digests while catching up; hashing d numbers is not free."""
_BATCH_BYTES = 4 * 2**20
"""Of round deltas, after which a digest is due too, so that no more of them are in memory."""


@dataclass(frozen=True)
class CatchUp:
    """What a client needs to stand where the server stands.

    Attributes:
        snapshot: of a round after the client's, as its file has it; empty if none is needed.
        tail: the records after the snapshot's round, or after the client's.
    """

    snapshot: bytes = b""
    tail: bytes = b""

    def __len__(self) -> int:
        """Bytes on their way to the client."""
        return len(self.snapshot) + len(self.tail)


class _DigestMismatchError(LedgerError):
    """Replaying a round leads elsewhere than its record says."""


def replay_batch(
    state: NDArray[np.int64],
    records: Sequence[Record],
    layout: Layout,
    backend: Backend | None = None,
) -> NDArray[np.int64]:
    """Replay some records together and prove that they led where the last of them says.

    Args:
        state: int64 [d], before the first record.
        records: at least one, in order.
        layout: of the adapter.
        backend: what replays.

    Returns:
        int64 [d], after the last.

    Raises:
        LedgerError: if the digest is another, naming the last round.
    """
    entries = [entry for record in records for entry in record.delta.scalar_groups()]
    state = rebuild(state, entries, layout.distribution, backend)
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
    """Replay records, and prove every `CHECK_EVERY`-th and the last.

    On a wrong digest everything is gone through again with a proof of every record, so that the
    message names the first wrong round; that is why both arguments are called for their values.

    Args:
        start: gives int64 [d], before the first record.
        records: gives the records in order.
        layout: of the adapter.
        backend: what replays.

    Returns:
        int64 [d] after the last record, and that record; None if there was none.

    Raises:
        LedgerError: naming the first round that leads elsewhere than it says.
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
    """The records in pieces of at most so many, ended early by long ones."""
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
