"""A client's place in a run: catch up by replay, prove the digest, or refuse.

A session is a value. It survives between messages as bytes and is never half changed.
"""

import io
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from shared.errors import CatchUpError, LedgerError
from shared.layout import Layout
from shared.ledger.catch_up import CatchUp, advance
from shared.ledger.records import LedgerHeader, Position, read_records, records_after
from shared.ledger.snapshots import Snapshot
from shared.replay import Backend, digest, zero_state


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

    PARTS: ClassVar = ("round", "head", "state", "digest", "token", "report")

    @classmethod
    def begin(cls, header: LedgerHeader, layout: Layout) -> Self:
        """The session of a client that has seen no round of this run."""
        state = zero_state(layout.size)
        return cls(header.start, state, digest(layout.hash, state))

    def caught_up(
        self,
        catch_up: CatchUp,
        header: LedgerHeader,
        layout: Layout,
        goal_round: int,
        goal_digest: bytes,
        backend: Backend | None = None,
    ) -> Self:
        """The session where the server stands.

        Args:
            catch_up: from the server; a tail alone begins at the latest right after this
                session's round. What this session has already is passed over.
            header: what the instruction says that the ledger belongs to.
            layout: of the adapter.
            goal_round: the last round of the server.
            goal_digest: of the state after it.
            backend: what replays.

        Raises:
            CatchUpError: if snapshot or tail are damaged, do not continue this session's ledger,
                or lead elsewhere; this session is unchanged.
        """
        begun, state, reached = self.position, self.state, self.digest
        try:
            if catch_up.snapshot:
                snapshot = Snapshot.decode(catch_up.snapshot, header, layout)
                if snapshot.position.round > self.position.round:
                    begun, state = snapshot.position, snapshot.state
                    reached = snapshot.link.end_digest
            tail = records_after(catch_up.tail, begun.round)
            state, last = advance(
                lambda: state,
                lambda: read_records(io.BytesIO(tail), begun),
                layout,
                backend,
            )
        except LedgerError as error:
            raise CatchUpError(
                f"cannot catch up from round {self.position.round}: {error}",
                (goal_round, self.position.round),
            ) from error
        position = last.position if last else begun
        reached = last.end_digest if last else reached
        if (position.round, reached) != (goal_round, goal_digest):
            raise CatchUpError(
                f"stands at round {position.round} with digest {reached.hex()[:12]}, and the "
                f"server asks for round {goal_round} with {goal_digest.hex()[:12]}; send the "
                f"rounds after {self.position.round}",
                (goal_round, position.round),
            )
        return replace(self, position=position, state=state, digest=reached)

    def answered(self, token: bytes, report: bytes) -> Self:
        """The session after answering a train instruction."""
        return replace(self, token=token, report=report)

    def to_bytes(self) -> dict[str, bytes]:
        """The session as named byte strings, in the order of `PARTS`."""
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
