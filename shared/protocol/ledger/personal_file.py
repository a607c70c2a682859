"""A client's private part as one small file (docs/reference/ledger.md): private rounds, or a fit.

Private rounds, 4 bytes per scalar:

    identity     "SAMARAPB", then the other fields of a segment's identity
    fields       run's seed u64 · client u32 · rounds u32 · steps K u16 · queries q u16
                 · digest of the global state 32 · digest of the personal state 32
                 · pull u8 · shrinks at the end u8
    closing      bits of each shrink at the end, u8
    shifts       4 bits per round, the earlier round in the low half of a byte
    coefficients int32 [rounds, K · q]
    checksum     SHA-256 of everything before

The file has no seeds, because they follow from the run's seed, the round and the client. Either
every round ends with the same shrink, or none does. Further shrinks may follow the last round.

A fit, 8 bytes per fitted number:

    identity     "SAMARAPV", then the other fields of a segment's identity
    fields       client u32 · digest of the global state 32 · digest of the personal state 32
                 · parts u16
    parts        of each: first element u32 · values n u32 · values int64 [n]
    checksum     SHA-256 of everything before
"""

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import FrameError, LedgerError
from samara.shared.protocol.directions import orthogonal_root, round_root
from samara.shared.protocol.frames.instructions import PERSONAL_TRACK
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.ledger.records import HASH_BYTES, IDENTITY_BYTES, LedgerHeader, Record
from samara.shared.protocol.replay import (
    MAX_SHIFT,
    MAX_SHRINK,
    CoefficientBlock,
    DenseValues,
    Shrink,
    digest,
    replay,
    zero_state,
)
from samara.shared.protocol.round_delta import (
    ConsecutiveSeeds,
    DerivedSeeds,
    Group,
    encode_dense_values,
    read_dense_values,
)
from samara.shared.protocol.wire import Reader

PERSONAL_MAGIC = b"SAMARAPB"
FIT_MAGIC = b"SAMARAPV"


@dataclass(frozen=True, eq=False)
class PersonalFile:
    """The private rounds of one client.

    Attributes:
        header: run and layout of the personal ledger.
        seed: seed of the run.
        client: client index.
        steps: steps per round, K.
        queries: directions per step, q.
        global_digest: digest of the global state that the rounds were trained on, 32 bytes.
        digest: digest of the personal state, 32 bytes.
        pull: bits of the shrink after every round; 0 for none.
        closing: bits of the shrinks after the last round.
        shifts: shift of the coefficients of each round.
        coefficients: coefficients of all rounds, int32 [rounds, K · q].
    """

    header: LedgerHeader
    seed: int
    client: int
    steps: int
    queries: int
    global_digest: bytes
    digest: bytes
    pull: int
    closing: tuple[int, ...]
    shifts: tuple[int, ...]
    coefficients: NDArray[np.int32]

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<QIIHH32s32sBB")

    @classmethod
    def from_records(
        cls,
        header: LedgerHeader,
        records: Iterable[Record],
        seed: int,
        client: int,
        global_digest: bytes,
    ) -> Self:
        """Collect the private rounds in a client's personal ledger, from round 1 on.

        Raises:
            LedgerError: if rounds are missing, or have a kind that this file cannot hold.
        """
        blocks: list[CoefficientBlock] = []
        pulls: set[int] = set()
        closing: tuple[int, ...] | None = None
        shape, end = None, b""
        for number, record in enumerate(records, start=1):
            entries = record.delta.entries
            if closing is not None:
                raise LedgerError(f"round {record.delta.round} follows the shrinks at the end")
            match entries:
                case [Group(_, (DerivedSeeds() | ConsecutiveSeeds()) as source) as group]:
                    pulls.add(0)
                case [
                    Group(_, (DerivedSeeds() | ConsecutiveSeeds()) as source) as group,
                    Shrink(bits),
                ]:
                    pulls.add(bits)
                case _ if blocks and not record.delta.groups:
                    closing = tuple(e.bits for e in entries if isinstance(e, Shrink))
                    end = record.end_digest
                    continue
                case _:
                    raise LedgerError(
                        f"round {record.delta.round} does not consist of one group of scalars"
                    )
            is_consecutive = isinstance(source, ConsecutiveSeeds)
            steps, queries = (
                (1, source.count)
                if isinstance(source, ConsecutiveSeeds)
                else (source.steps, source.queries)
            )
            shape = shape or (steps, queries)
            if source != _source(seed, number, client, *shape, is_consecutive):
                raise LedgerError(
                    f"round {record.delta.round} does not follow from the run's seed; a "
                    "snapshot may have replaced earlier rounds"
                )
            blocks.append(group.scalars)
            end = record.end_digest
        if shape is None:
            raise LedgerError("the ledger holds no private round")
        if len(pulls) > 1:
            raise LedgerError(
                "the rounds end with different shrinks, but all must end with the same shrink"
            )
        return cls(
            header,
            seed,
            client,
            *shape,
            global_digest,
            end,
            pulls.pop(),
            closing or (),
            tuple(block.shift for block in blocks),
            np.stack([block.coefficients for block in blocks]),
        )

    def encode(self) -> bytes:
        """Encode the file: 174 bytes plus 4 per scalar, ½ per round and 1 per shrink at the end."""
        rounds = len(self.shifts)
        fields = self._FIELDS.pack(
            self.seed,
            self.client,
            rounds,
            self.steps,
            self.queries,
            self.global_digest,
            self.digest,
            self.pull,
            len(self.closing),
        )
        halves = np.array([*self.shifts, 0], np.uint8)[: rounds + rounds % 2].reshape(-1, 2)
        shifts = (halves[:, 0] | halves[:, 1] << 4).tobytes()
        content = self.header.encode(PERSONAL_MAGIC) + fields + bytes(self.closing) + shifts
        content += self.coefficients.astype("<i4").tobytes()
        return content + hashlib.sha256(content).digest()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a file of private rounds.

        Raises:
            LedgerError: if the file is damaged or of another kind.
        """
        start = IDENTITY_BYTES + cls._FIELDS.size
        content = _checked_content(data, PERSONAL_MAGIC, start)
        header = LedgerHeader.decode(content, PERSONAL_MAGIC)
        seed, client, rounds, steps, queries, started, end, pull, last = cls._FIELDS.unpack_from(
            content, IDENTITY_BYTES
        )
        closing = tuple(content[start : start + last])
        start = start + last
        middle = start + (rounds + 1) // 2
        if not rounds * steps * queries or len(content) != middle + 4 * rounds * steps * queries:
            raise LedgerError("the file's length does not match its fields")
        halves = np.frombuffer(content[start:middle], np.uint8)
        shifts = np.column_stack([halves & 15, halves >> 4]).ravel()[:rounds]
        if shifts.max() > MAX_SHIFT:
            raise LedgerError("a shift is out of range")
        if max(pull, *closing, 0) > MAX_SHRINK or 0 in closing:
            raise LedgerError("a shrink is out of range")
        coefficients = np.frombuffer(content[middle:], "<i4").astype(np.int32)
        return cls(
            header,
            seed,
            client,
            steps,
            queries,
            started,
            end,
            pull,
            closing,
            tuple(shifts.tolist()),
            coefficients.reshape(rounds, steps * queries),
        )

    def state(self, layout: Layout) -> NDArray[np.int64]:
        """Return the personal state, int64 [d], which is added to the global state.

        Raises:
            LedgerError: if the file is for another layout, or replay gives another digest.
            ReplayError: if the coefficients do not fit the exact range of a state.
        """
        if self.header.layout_hash != layout.hash:
            raise LedgerError("the file is for another layout")
        state = zero_state(layout.size)
        pulled = [Shrink(self.pull)] if self.pull else []
        for number, (shift, coefficients) in enumerate(
            zip(self.shifts, self.coefficients, strict=True), start=1
        ):
            source = _source(
                *(self.seed, number, self.client, self.steps, self.queries),
                layout.distribution == "orthogonal",
            )
            scalars = source.seeds(), CoefficientBlock(shift, coefficients)
            state = replay(state, [scalars, *pulled], layout.distribution)
        state = replay(state, [Shrink(bits) for bits in self.closing], layout.distribution)
        if digest(layout.hash, state) != self.digest:
            raise LedgerError(
                "the digest of the replayed scalars differs from the digest in the file"
            )
        return state


@dataclass(frozen=True, eq=False)
class FitFile:
    """A private part whose values were fitted, not trained in rounds.

    Attributes:
        header: run and layout of the personal ledger.
        client: client index.
        global_digest: digest of the global state to which the part was fitted, 32 bytes.
        digest: digest of the personal state, 32 bytes.
        parts: fitted values.
    """

    header: LedgerHeader
    client: int
    global_digest: bytes
    digest: bytes
    parts: tuple[DenseValues, ...]

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<I32s32sH")

    @classmethod
    def from_records(
        cls, header: LedgerHeader, records: Iterable[Record], client: int, global_digest: bytes
    ) -> Self:
        """Return the latest fit in a client's personal ledger.

        Raises:
            LedgerError: if round 1 or a later round is missing, or if a record is not of a fit.
        """
        values: dict[int, NDArray[np.int64]] = {}
        end = b""
        for number, record in enumerate(records, start=1):
            if record.delta.round != number:
                raise LedgerError(f"a snapshot has replaced the record of round {number}")
            for entry in record.delta.entries:
                if not isinstance(entry, DenseValues):
                    raise LedgerError(f"round {number} is not a private fit")
                earlier = values.get(entry.first, np.zeros_like(entry.values))
                values[entry.first] = earlier + entry.values
            end = record.end_digest
        if not end:
            raise LedgerError("the ledger holds no private fit")
        parts = (DenseValues.of(first, sums) for first, sums in sorted(values.items()))
        return cls(header, client, global_digest, end, tuple(parts))

    def encode(self) -> bytes:
        """Encode the file: 158 bytes plus 8 per value and 8 per part."""
        content = self.header.encode(FIT_MAGIC)
        content += self._FIELDS.pack(self.client, self.global_digest, self.digest, len(self.parts))
        content += b"".join(map(encode_dense_values, self.parts))
        return content + hashlib.sha256(content).digest()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a file of a fit.

        Raises:
            LedgerError: if the file is damaged or of another kind.
        """
        start = IDENTITY_BYTES + cls._FIELDS.size
        content = _checked_content(data, FIT_MAGIC, start)
        header = LedgerHeader.decode(content, FIT_MAGIC)
        client, fitted_to, end, count = cls._FIELDS.unpack_from(content, IDENTITY_BYTES)
        reader = Reader(memoryview(content)[start:])
        try:
            parts = tuple(read_dense_values(reader) for _ in range(count))
            reader.end()
        except FrameError as error:
            raise LedgerError(f"the file's values cannot be read: {error}") from error
        return cls(header, client, fitted_to, end, parts)

    def state(self, layout: Layout) -> NDArray[np.int64]:
        """Return the personal state, int64 [d], which is added to the global state.

        Raises:
            LedgerError: if the file is for another layout, or its values give another digest.
            ReplayError: if the values do not fit the layout, or the exact range of a state.
        """
        if self.header.layout_hash != layout.hash:
            raise LedgerError("the file is for another layout")
        state = replay(zero_state(layout.size), self.parts, layout.distribution)
        if digest(layout.hash, state) != self.digest:
            raise LedgerError(
                "the digest of the file's values is not the digest that the file states"
            )
        return state


def read_personal_file(data: bytes) -> PersonalFile | FitFile:
    """Decode a file of private rounds or of a fit.

    Raises:
        LedgerError: if the file is damaged or of neither kind.
    """
    return FitFile.decode(data) if data.startswith(FIT_MAGIC) else PersonalFile.decode(data)


def _checked_content(data: bytes, magic: bytes, least: int) -> bytes:
    """Check a file and return its content without the checksum.

    Raises:
        LedgerError: if the file is damaged, too short, or of another kind.
    """
    content, checksum = data[:-HASH_BYTES], data[-HASH_BYTES:]
    if len(content) < least or not content.startswith(magic):
        raise LedgerError(
            "not a file of private rounds or of a private fit; give a file of `samara adapter "
            "export --form ledger`"
        )
    if hashlib.sha256(content).digest() != checksum:
        raise LedgerError("the file is damaged; export it again")
    return content


def _source(
    seed: int, number: int, client: int, steps: int, queries: int, is_consecutive: bool
) -> DerivedSeeds | ConsecutiveSeeds:
    """Return the seed source of a private round; the seeds of components are consecutive."""
    if is_consecutive:
        return ConsecutiveSeeds(orthogonal_root(seed, number, queries, PERSONAL_TRACK), queries)
    return DerivedSeeds(round_root(seed, number, PERSONAL_TRACK), client + 1, steps, queries)
