"""The session of a client in a run: its round, state and digest, and its last report.

A session is immutable: catching up returns a new session, or raises an error. A long catch-up
proceeds in steps, each of which ends with a session that can be stored. Between messages a session
is stored as bytes.
"""

import io
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from samara.client.personal.private_fit import CommonPrior
from samara.shared.errors import (
    CatchUpError,
    FrameError,
    LedgerError,
    ReplayError,
    SamaraError,
)
from samara.shared.protocol.frames.instructions import (
    GLOBAL_TRACK,
    INTERCEPT_TRACK,
    EvaluateInstruction,
    TrainInstruction,
)
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.ledger.records import (
    CatchUp,
    LedgerHeader,
    Position,
    Record,
    Snapshot,
    read_records,
    records_after,
    replay_batch,
)
from samara.shared.protocol.replay import Backend, DenseValues, Shrink, digest, replay, zero_state
from samara.shared.protocol.round_delta import (
    CommonDeviation,
    encode_dense_values,
    read_dense_values,
)
from samara.shared.protocol.wire import Kind, Reader, kind_of
from samara.shared.terms.run_terms import RunTerms

Instruction = TrainInstruction | EvaluateInstruction
STEP_RECORDS = 256
"""Maximum number of records between two checked digests, because hashing d numbers takes time."""
STEP_ELEMENTS = 2**34
"""Approximate maximum number of direction elements in a step of a catch-up. Replaying them takes
about 15 s on one core."""
MOST_SHRINKS = 8
"""Maximum number of shrinks in a record, because each shrink reads the whole state."""
WRONG_LAYOUT = (
    "use the same model and adapter settings on client and server; for a phone, export its program "
    "with these settings"
)
"""The remedy in an error about an instruction with another layout."""


@dataclass(frozen=True, eq=False)
class Session:
    """A client's round, state, digest and last report in a run.

    Attributes:
        position: last round in the state, and the hash that the ledger continues from.
        state: int64 [d].
        digest: digest of the state, 32 bytes.
        token: token of the last train instruction that was carried out; empty before the first.
        report: report for that instruction, a frame. It also answers a repeated instruction.
        common: common intercept in the state; None without a common intercept. Private parts are
            fitted to the state without it.
        went_back: whether the last catch-up replaced the session's ledger with another ledger. This
            flag is not stored.
        deviation: common deviation of the private intercepts; None without one.
    """

    position: Position
    state: NDArray[np.int64]
    digest: bytes
    token: bytes = b""
    report: bytes = b""
    common: DenseValues | None = None
    went_back: bool = False
    deviation: CommonDeviation | None = None

    PARTS: ClassVar = ("round", "head", "state", "digest", "token", "report")
    COMMON: ClassVar = "common"
    """Name of the additional last part of a stored session with a common intercept.

    It holds the intercept's dense values, and then the index of a common deviation if there is one.
    """

    @classmethod
    def begin(cls, header: LedgerHeader, layout: Layout) -> Self:
        """Return the session of a client that has not replayed any round of a run."""
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
        """Replay the rounds that this session lacks, and return the session at the server's round.

        This is the last session that `steps_to` yields; see there for arguments and errors.
        """
        steps = self.steps_to(catch_up, header, layout, goal_round, goal_digest, backend)
        return deque(steps, maxlen=1)[0]

    def steps_to(
        self,
        catch_up: CatchUp,
        header: LedgerHeader,
        layout: Layout,
        goal_round: int,
        goal_digest: bytes,
        backend: Backend | None = None,
    ) -> Iterator[Self]:
        """Yield sessions on the way to the server's round; the last session is at that round.

        The records are checked first: they must lead to the server's round and digest. Each step
        then replays some records and checks the state's digest. This check fails only if a record
        contains a false digest.

        A server that continues from a backup may lack rounds of this session (docs/decisions/0033).
        The server's catch-up then cannot continue this session. The state is rebuilt from the
        snapshot in the catch-up, or from round 0.

        Args:
            catch_up: missed rounds from the server. Without a snapshot, no round may be missing
                between this session's round and the first record. Rounds that are already in this
                session are skipped.
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
            session, tail = self._begin_of(catch_up, header, layout, goal)
        except CatchUpError as error:
            if not (self.position.round and len(catch_up)):
                raise
            try:
                anew = Session.begin(header, layout)
                rebuilt, tail = anew._begin_of(catch_up, header, layout, goal)
            except CatchUpError:
                raise error from None
            session = replace(
                self,
                position=rebuilt.position,
                state=rebuilt.state,
                digest=rebuilt.digest,
                common=rebuilt.common,
                deviation=rebuilt.deviation,
                went_back=True,
            )
        records = read_records(io.BytesIO(tail), session.position, header.track)
        yield session
        for batch in _batches(records, layout.size):
            try:
                state = replay_batch(session.state, batch, layout, backend)
            except LedgerError as error:
                raise self._cannot(error, goal_round) from error
            added = [record.delta.common_intercept for record in batch]
            chosen = [record.delta.common_deviation for record in batch]
            session = replace(
                session,
                position=batch[-1].position,
                state=state,
                digest=batch[-1].end_digest,
                common=next(filter(None, reversed(added)), session.common),
                deviation=next(filter(None, reversed(chosen)), session.deviation),
            )
            yield session

    def _begin_of(
        self, catch_up: CatchUp, header: LedgerHeader, layout: Layout, goal: tuple[int, bytes]
    ) -> tuple[Self, bytes]:
        """Return the session from which the replay starts, and the records to replay.

        The session is this session, or a session at the snapshot's round. Nothing is replayed yet.

        Raises:
            CatchUpError: if snapshot or tail are damaged, do not continue this session's ledger,
                or do not end at the goal.
        """
        session = self
        try:
            if catch_up.snapshot:
                snapshot = Snapshot.decode(catch_up.snapshot, header, layout)
                if snapshot.position.round > self.position.round:
                    session = replace(
                        self,
                        position=snapshot.position,
                        state=snapshot.state,
                        digest=snapshot.link.end_digest,
                    )
            tail = records_after(catch_up.tail, session.position.round)
            position, end_digest = session.position, session.digest
            for record in read_records(io.BytesIO(tail), position, header.track):
                _check_entries(record, layout)
                position, end_digest = record.position, record.end_digest
        except (LedgerError, ReplayError) as error:
            raise self._cannot(error, goal[0]) from error
        if (position.round, end_digest) != goal:
            raise CatchUpError(
                f"the session is at round {position.round} with digest {end_digest.hex()[:12]}, "
                f"but the server asks for round {goal[0]} with digest {goal[1].hex()[:12]}; the "
                f"server must send the rounds after {self.position.round}",
                (goal[0], position.round),
            )
        return session, tail

    def _cannot(self, error: SamaraError, goal_round: int) -> CatchUpError:
        return CatchUpError(
            f"cannot catch up from round {self.position.round}: {error}",
            (goal_round, self.position.round),
        )

    def common_prior(self, terms: RunTerms) -> CommonPrior:
        """Return the common prior of the private intercepts in a run with these terms."""
        intercept = deviation = None
        if self.common:
            intercept = replay(zero_state(len(self.state)), (self.common,), "gaussian")
        if self.deviation and terms.has_common_prior:
            deviation = self.deviation.deviation
        return CommonPrior(intercept, deviation)

    def with_report(self, token: bytes, report: bytes) -> Self:
        """Return a copy of the session with the report for the last train instruction."""
        return replace(self, token=token, report=report)

    def to_bytes(self) -> dict[str, bytes]:
        """Return the session as named byte strings, in the order of `PARTS`."""
        index = bytes([self.deviation.index]) if self.deviation else b""
        common = {self.COMMON: encode_dense_values(self.common) + index} if self.common else {}
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
        """Return the session that `to_bytes` converted.

        Raises:
            CatchUpError: if a byte string is missing or has another length.
        """
        try:
            common = deviation = None
            if cls.COMMON in saved:
                reader = Reader(memoryview(saved[cls.COMMON]))
                common = read_dense_values(reader)
                deviation = CommonDeviation(*reader.take(1)) if reader.left else None
            return cls(
                Position(int.from_bytes(saved["round"], "little"), saved["head"]),
                np.frombuffer(saved["state"], "<i8").astype(np.int64),
                saved["digest"],
                saved["token"],
                saved["report"],
                common,
                deviation=deviation,
            )
        except (KeyError, ValueError, FrameError) as error:
            raise CatchUpError(f"the saved session is damaged: {error!r}; delete it") from error


Reach = Callable[[Session, CatchUp, LedgerHeader, Layout, int, bytes, Backend | None], Session]
"""A function that brings a session to the server's round, like `Session.catch_up`."""
_LEDGERS = 16
"""Maximum number of ledgers whose latest replay stays in memory. Each cluster has a ledger."""
_Given = tuple[Position, bytes, CatchUp, int, bytes]


class SessionStore(Protocol):
    """Protocol of stores that keep a client's sessions between messages."""

    def read_session(self, run_id: bytes) -> Session | None:
        """Return the session of a run, or None if the client has replayed no round of the run."""

    def write_session(self, run_id: bytes, session: Session) -> None:
        """Store the session of a run."""


class Replayer(Protocol):
    """Protocol of objects with the requirements of a replay: an adapter's layout and a backend."""

    @property
    def layout(self) -> Layout:
        """The layout of the adapter."""

    @property
    def backend(self) -> Backend:
        """The replay backend."""


def session_at(
    session: Session | None,
    replayer: Replayer,
    instruction: Instruction,
    catch_up: CatchUp,
    reach: Reach = Session.catch_up,
) -> Session:
    """Return the session at the state from which an instruction starts.

    Args:
        session: the client's session of the run; None if the client has replayed no round.
        replayer: layout and replay backend.
        instruction: instruction with the server's round and digest.
        catch_up: missed rounds from the server; empty if the session must already have all rounds.
        reach: function that brings the session to the server's round.

    Raises:
        LayoutError: if the instruction is for another layout.
        CatchUpError: if the session does not reach the server's round and digest.
    """
    layout, run_id = replayer.layout, instruction.run_id
    layout.check_hash(instruction.layout_hash, WRONG_LAYOUT)
    track = GLOBAL_TRACK if instruction.track == INTERCEPT_TRACK else instruction.track
    header = LedgerHeader(track, run_id, instruction.layout_hash)
    if isinstance(instruction, TrainInstruction):
        goal = instruction.round - 1, instruction.start_digest
    else:
        goal = instruction.round, instruction.digest
    begun = session or Session.begin(header, layout)
    return reach(begun, catch_up, header, layout, *goal, replayer.backend)


def _batches(records: Iterable[Record], elements: int) -> Iterator[list[Record]]:
    """Yield the records of each step, at most `STEP_RECORDS` with about `STEP_ELEMENTS` elements.

    A record is never divided, because only its end has a digest.
    """
    batch: list[Record] = []
    cost = 0
    for record in records:
        batch.append(record)
        cost += sum(len(group.scalars.coefficients) for group in record.delta.groups) * elements
        if len(batch) == STEP_RECORDS or cost >= STEP_ELEMENTS:
            yield batch
            batch, cost = [], 0
    if batch:
        yield batch


def _check_entries(record: Record, layout: Layout) -> None:
    """Check that a record has no more shrinks and dense values than a round may have.

    Raises:
        LedgerError: if the record has more than `MOST_SHRINKS` shrinks.
        ReplayError: if the record has dense values that a round may not have.
    """
    shrinks = sum(isinstance(entry, Shrink) for entry in record.delta.entries)
    if shrinks > MOST_SHRINKS:
        raise LedgerError(
            f"round {record.delta.round}: the record has {shrinks} shrinks, but at most "
            f"{MOST_SHRINKS} are allowed"
        )
    record.delta.check_dense_values(layout)


def decode_instruction(frame: bytes) -> Instruction:
    """Decode a train or an evaluate instruction.

    Raises:
        FrameError: if the frame is another kind of frame, or is damaged.
    """
    if kind_of(frame) is Kind.TRAIN:
        return TrainInstruction.decode(frame)
    return EvaluateInstruction.decode(frame)


class SharedCatchUp:
    """A catch-up that replays records only once for all sessions of a process that need them.

    With independent seeds, a round has the directions of all its clients. If every client replayed
    all directions, the time of a simulation would grow with the square of the number of clients.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: dict[LedgerHeader, tuple[_Given, Session]] = {}

    def reach(
        self,
        session: Session,
        catch_up: CatchUp,
        header: LedgerHeader,
        layout: Layout,
        goal_round: int,
        goal_digest: bytes,
        backend: Backend | None = None,
    ) -> Session:
        """Return the session at the server's round; see `Session.catch_up`."""
        if not len(catch_up):
            return session.catch_up(catch_up, header, layout, goal_round, goal_digest, backend)
        given = session.position, session.digest, catch_up, goal_round, goal_digest
        with self._lock:
            known = self._latest.get(header)
            if known is None or known[0] != given:
                reached = session.catch_up(
                    catch_up, header, layout, goal_round, goal_digest, backend
                )
                if header not in self._latest and len(self._latest) == _LEDGERS:
                    del self._latest[next(iter(self._latest))]
                known = given, reached
                self._latest[header] = known
        return replace(known[1], token=session.token, report=session.report)
