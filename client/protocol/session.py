"""The session of a client in a run: its round, state and digest, and its last report.

A session is immutable: catching up returns another one, or raises and changes nothing. Between
messages it is kept as bytes.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import CatchUpError, FrameError, LedgerError
from samara.shared.layout import Layout
from samara.shared.ledger.records import (
    CatchUp,
    LedgerHeader,
    Position,
    Record,
    Snapshot,
    read_records,
    records_after,
    replay_records,
)
from samara.shared.replay import Backend, DenseValues, digest, replay, zero_state
from samara.shared.round_delta import encode_dense_values, read_dense_values
from samara.shared.wire import Reader


@dataclass(frozen=True, eq=False)
class Session:
    """A client's round, state and digest in a run, and its last report.

    Attributes:
        position: last round in the state, and the hash that the ledger continues from.
        state: int64 [d].
        digest: digest of the state, 32 bytes.
        token: token of the last train instruction that was carried out; empty before the first.
        report: report on that instruction, a frame; the reply if it is repeated.
        common: common intercept in the state, which private parts are fitted without; None if
            there is none.
    """

    position: Position
    state: NDArray[np.int64]
    digest: bytes
    token: bytes = b""
    report: bytes = b""
    common: DenseValues | None = None

    PARTS: ClassVar = ("round", "head", "state", "digest", "token", "report")
    COMMON: ClassVar = "common"
    """The part that sessions with a common intercept have after the others."""

    @classmethod
    def begin(cls, header: LedgerHeader, layout: Layout) -> Self:
        """Return the session of a client that has replayed no round of a run."""
        state = zero_state(layout.size)
        return cls(header.start, state, digest(layout.hash, state))

    def catch_up(
        self,
        catch_up: CatchUp,
        header: LedgerHeader,
        layout: Layout,
        goal_round: int,
        goal_digest: bytes,
        backend: Backend | None = None,
    ) -> Self:
        """Return the session at the server's round, after replaying the rounds that it lacks.

        If the catch-up leads from the beginning, or a snapshot, to the server's round, but not from
        this session's, the state is rebuilt from it: the server goes on from a backup that lacks
        rounds of this session (docs/decisions/0033).

        Args:
            catch_up: missed rounds from the server; a tail without a snapshot begins at the latest
                right after this session's round. Rounds in this session already are skipped.
            header: track, run and layout of the ledger.
            layout: layout of the adapter.
            goal_round: last round of the server.
            goal_digest: digest of the state after that round, 32 bytes.
            backend: replay backend.

        Raises:
            CatchUpError: if snapshot or tail are damaged, do not continue this session's ledger,
                or do not end at the server's round and digest.
        """
        goal = goal_round, goal_digest
        try:
            return self._follow(catch_up, header, layout, goal, backend)
        except CatchUpError as error:
            if not (self.position.round and len(catch_up)):
                raise
            try:
                rebuilt = Session.begin(header, layout)._follow(
                    catch_up, header, layout, goal, backend
                )
            except CatchUpError:
                raise error from None
            return replace(
                self,
                position=rebuilt.position,
                state=rebuilt.state,
                digest=rebuilt.digest,
                common=rebuilt.common,
            )

    def _follow(
        self,
        catch_up: CatchUp,
        header: LedgerHeader,
        layout: Layout,
        goal: tuple[int, bytes],
        backend: Backend | None,
    ) -> Self:
        """Return the session after the rounds of a catch-up that it lacks; see `catch_up`."""
        start, state, end_digest = self.position, self.state, self.digest
        goal_round, goal_digest = goal
        common = self.common

        def missed() -> Iterator[Record]:
            nonlocal common
            for record in read_records(io.BytesIO(tail), start, header.track):
                common = record.delta.common_intercept or common
                yield record

        try:
            if catch_up.snapshot:
                snapshot = Snapshot.decode(catch_up.snapshot, header, layout)
                if snapshot.position.round > self.position.round:
                    start, state = snapshot.position, snapshot.state
                    end_digest = snapshot.link.end_digest
            tail = records_after(catch_up.tail, start.round)
            state, last = replay_records(lambda: state, missed, layout, backend)
        except LedgerError as error:
            raise CatchUpError(
                f"cannot catch up from round {self.position.round}: {error}",
                (goal_round, self.position.round),
            ) from error
        position = last.position if last else start
        end_digest = last.end_digest if last else end_digest
        if (position.round, end_digest) != goal:
            raise CatchUpError(
                f"the session is at round {position.round} with digest {end_digest.hex()[:12]}, "
                f"and the server asks for round {goal_round} with {goal_digest.hex()[:12]}; send "
                f"the rounds after {self.position.round}",
                (goal_round, position.round),
            )
        return replace(self, position=position, state=state, digest=end_digest, common=common)

    @property
    def common_state(self) -> NDArray[np.int64] | None:
        """The common intercept as a state, int64 [d]; None if there is none."""
        if self.common is None:
            return None
        return replay(zero_state(len(self.state)), (self.common,), "gaussian")

    def with_report(self, token: bytes, report: bytes) -> Self:
        """Return the session after a train instruction was carried out."""
        return replace(self, token=token, report=report)

    def to_bytes(self) -> dict[str, bytes]:
        """Return the session as named byte strings, in the order of `PARTS`."""
        common = {self.COMMON: encode_dense_values(self.common)} if self.common else {}
        return {
            "round": self.position.round.to_bytes(4, "little"),
            "head": self.position.head,
            "state": self.state.astype("<i8").tobytes(),
            "digest": self.digest,
            "token": self.token,
            "report": self.report,
            **common,
        }

    @classmethod
    def from_bytes(cls, saved: dict[str, bytes]) -> Self:
        """Read the byte strings of `to_bytes`.

        Raises:
            CatchUpError: if one is missing or has another length.
        """
        try:
            common = None
            if cls.COMMON in saved:
                common = read_dense_values(Reader(memoryview(saved[cls.COMMON])))
            return cls(
                Position(int.from_bytes(saved["round"], "little"), saved["head"]),
                np.frombuffer(saved["state"], "<i8").astype(np.int64),
                saved["digest"],
                saved["token"],
                saved["report"],
                common,
            )
        except (KeyError, ValueError, FrameError) as error:
            raise CatchUpError(f"the saved session is damaged: {error!r}; delete it") from error
