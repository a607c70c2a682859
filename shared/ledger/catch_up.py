"""Catching up: from a state through the records after it, with the digests as proof."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.errors import LedgerError, ReplayError
from shared.layout import Layout
from shared.ledger.records import Record
from shared.replay import digest, replay

CHECK_EVERY = 256
"""Rounds between two digests while catching up; hashing d numbers is not free."""


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


class _WrongDigestError(LedgerError):
    """Replaying a round leads elsewhere than its record says."""


def _applied(state: NDArray[np.int64], record: Record, layout: Layout) -> NDArray[np.int64]:
    try:
        return replay(state, record.delta.scalar_groups(), layout.distribution)
    except ReplayError as error:
        raise LedgerError(f"round {record.delta.round}: {error}") from error


def _prove(state: NDArray[np.int64], record: Record, layout: Layout) -> None:
    if digest(layout.hash, state) != record.end_digest:
        raise _WrongDigestError(
            f"round {record.delta.round}: replaying it gives another digest than recorded"
        )


def follow(state: NDArray[np.int64], record: Record, layout: Layout) -> NDArray[np.int64]:
    """Replay one record and prove that it led where it says.

    Args:
        state: int64 [d], before the record.
        record: the next record.
        layout: of the adapter.

    Returns:
        int64 [d], after it.

    Raises:
        LedgerError: if the digest is another, naming the round.
    """
    state = _applied(state, record, layout)
    _prove(state, record, layout)
    return state


def advance(
    start: Callable[[], NDArray[np.int64]],
    records: Callable[[], Iterable[Record]],
    layout: Layout,
) -> tuple[NDArray[np.int64], Record | None]:
    """Replay records, and prove every `CHECK_EVERY`-th and the last.

    On a wrong digest everything is gone through again with a proof of every record, so that the
    message names the first wrong round; that is why both arguments are called for their values.

    Args:
        start: gives int64 [d], before the first record.
        records: gives the records in order.
        layout: of the adapter.

    Returns:
        int64 [d] after the last record, and that record; None if there was none.

    Raises:
        LedgerError: naming the first round that leads elsewhere than it says.
    """
    try:
        return _advance(start(), records(), layout, CHECK_EVERY)
    except _WrongDigestError:
        _advance(start(), records(), layout, 1)
        raise LedgerError(
            "replaying gave a wrong digest, and the right one when repeated: the memory or "
            "processor of this machine makes mistakes; use another one"
        ) from None


def _advance(
    state: NDArray[np.int64], records: Iterable[Record], layout: Layout, check_every: int
) -> tuple[NDArray[np.int64], Record | None]:
    record, unproven = None, 0
    for record in records:
        state = _applied(state, record, layout)
        unproven = (unproven + 1) % check_every
        if not unproven:
            _prove(state, record, layout)
    if record and unproven:
        _prove(state, record, layout)
    return state, record
