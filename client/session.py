"""A client's place in a run: catch up by replay, prove the digest, or refuse.

A session is a value. It survives between messages as bytes and is never half changed.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from shared.errors import CatchUpError, LedgerError
from shared.layout import Layout
from shared.ledger import LedgerHeader, Position, Record, follow, records
from shared.replay import Backend, digest, rebuild, zero_state


@dataclass(frozen=True, eq=False)
class Session:
    """Where a client stands in a track.

    Attributes:
        position: the last round in the state, and the hash that the ledger continues from.
        state: int64 [d].
        digest: of the state, 32 bytes.
        token: of the last train instruction that was answered; empty if none was.
        report: the answer, a frame; a repeated instruction gets it again.
    """

    position: Position
    state: NDArray[np.int64]
    digest: bytes
    token: bytes = b""
    report: bytes = b""

    @classmethod
    def begin(cls, layout: Layout, run_id: bytes, track: int) -> Self:
        """The session of a client that has seen no round of this run."""
        state = zero_state(layout.size)
        header = LedgerHeader(track, run_id, layout.hash)
        return cls(header.start, state, digest(layout.hash, state))

    def caught_up(
        self, tail: bytes, layout: Layout, goal: bytes, backend: Backend | None = None
    ) -> Self:
        """The session after replaying a ledger tail.

        All its rounds are replayed together and the last digest is proved. Only if that fails
        are they followed one by one, to name the round that is wrong.

        Args:
            tail: records from the server, beginning right after this session's round.
            layout: of the adapter.
            goal: the digest that the server says the tail leads to.
            backend: what replays.

        Raises:
            CatchUpError: if the tail does not continue this session's ledger, is damaged, or
                leads elsewhere; this session is unchanged.
        """
        position, state, reached = self.position, self.state, self.digest
        try:
            rounds = list(records(io.BytesIO(tail), position))
            if rounds:
                state = _replayed(state, rounds, layout, backend)
                position, reached = rounds[-1].position, rounds[-1].end_digest
        except LedgerError as error:
            raise CatchUpError(
                f"cannot catch up from round {self.position.round}: {error}"
            ) from error
        if reached != goal:
            raise CatchUpError(
                f"stands at round {position.round} with digest {reached.hex()[:12]}, and the "
                f"server asks for {goal.hex()[:12]}; send the rounds after {self.position.round}"
            )
        return replace(self, position=position, state=state, digest=reached)

    def answered(self, token: bytes, report: bytes) -> Self:
        """The session after answering a train instruction."""
        return replace(self, token=token, report=report)

    def to_bytes(self) -> dict[str, bytes]:
        """The session as named byte strings."""
        return {
            "round": self.position.round.to_bytes(4, "little"),
            "head": self.position.head,
            "state": self.state.astype("<i8").tobytes(),
            "digest": self.digest,
            "token": self.token,
            "report": self.report,
        }

    @classmethod
    def from_bytes(cls, saved: dict[str, bytes]) -> Self:
        """Read what `to_bytes` gave.

        Raises:
            CatchUpError: if it is something else.
        """
        try:
            return cls(
                Position(int.from_bytes(saved["round"], "little"), saved["head"]),
                np.frombuffer(saved["state"], "<i8").astype(np.int64),
                saved["digest"],
                saved["token"],
                saved["report"],
            )
        except (KeyError, ValueError) as error:
            raise CatchUpError(f"the saved session is damaged: {error!r}; delete it") from error


def _replayed(
    state: NDArray[np.int64], rounds: Sequence[Record], layout: Layout, backend: Backend | None
) -> NDArray[np.int64]:
    """The state after some rounds, proved.

    Raises:
        LedgerError: naming the round that leads elsewhere than it says.
    """
    entries = [entry for record in rounds for entry in record.delta.scalar_groups()]
    after = rebuild(state, entries, layout.distribution, backend)
    if digest(layout.hash, after) == rounds[-1].end_digest:
        return after
    for record in rounds:
        state = follow(state, record, layout.hash, layout.distribution)
    return state
