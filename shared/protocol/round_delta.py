"""The round delta: seeds and coefficients that a round adds to a state, and its contributors."""

import hashlib
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import FrameError, ReplayError
from samara.shared.protocol.directions import consecutive_seeds, pool_seeds, query_seeds
from samara.shared.protocol.frames.instructions import PERSONAL_TRACK, TrainInstruction
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.replay import (
    MAX_DENSE_VALUE,
    MAX_SHIFT,
    MAX_SHRINK,
    CoefficientBlock,
    DenseValues,
    Entry,
    Shrink,
)
from samara.shared.protocol.wire import MAX_SCALARS, Kind, Reader, pack, unpack


@dataclass(frozen=True)
class DerivedSeeds:
    """Seeds from `samara.shared.protocol.directions.query_seeds`, stored as its arguments."""

    root: int
    seed_stream: int
    steps: int
    queries: int

    def seeds(self) -> NDArray[np.uint64]:
        """Return the seeds, uint64 [steps · queries]."""
        return query_seeds(self.root, self.seed_stream, self.steps, self.queries).ravel()


@dataclass(frozen=True, eq=False)
class PoolSeeds:
    """Pool seeds, given by their indices; see `samara.shared.protocol.directions.pool_seeds`.

    Attributes:
        root: root seed of the pool.
        indices: indices of the seeds in the pool, uint32 [n].
    """

    root: int
    indices: NDArray[np.uint32]

    def seeds(self) -> NDArray[np.uint64]:
        """Return the seeds, uint64 [n]."""
        return pool_seeds(self.root, self.indices)


@dataclass(frozen=True)
class ConsecutiveSeeds:
    """The consecutive seeds of orthogonal directions.

    Attributes:
        root: the first seed.
        count: number of seeds.
    """

    root: int
    count: int

    def seeds(self) -> NDArray[np.uint64]:
        """Return the seeds, uint64 [count]."""
        return consecutive_seeds(self.root, self.count)


SeedSource = DerivedSeeds | PoolSeeds | ConsecutiveSeeds | NDArray[np.uint64]
"""Source of a group's seeds, or explicit seeds, uint64 [n]."""


def source_of(
    instruction: TrainInstruction, client: int, steps: int
) -> DerivedSeeds | ConsecutiveSeeds:
    """Return the seed source of a client's queries in a run without a pool of seeds.

    Args:
        instruction: instruction of the round.
        client: client index; unused if clients share directions.
        steps: number of steps.
    """
    if instruction.asks_for_components:
        return ConsecutiveSeeds(instruction.root, instruction.queries)
    stream = instruction.seed_stream(client)
    return DerivedSeeds(instruction.root, stream, steps, instruction.queries)


INTERCEPT_DEVIATIONS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Candidate standard deviations of an intercept's additions to the log-odds of two labels.

Records name a candidate by its index, so a new candidate goes to the end.
"""


@dataclass(frozen=True)
class CommonDeviation:
    """The standard deviation of all private intercepts, chosen by the clients together.

    It is an entry of the round of intercepts, and changes no state.

    Attributes:
        index: index in `INTERCEPT_DEVIATIONS`.

    Raises:
        FrameError: if there is no candidate with this index.
    """

    index: int

    def __post_init__(self) -> None:
        if self.index >= len(INTERCEPT_DEVIATIONS):
            raise FrameError(
                f"the common deviation {self.index} is not a candidate of this version"
            )

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        return INTERCEPT_DEVIATIONS[self.index]


class _EntryKind(IntEnum):
    """The first byte of an entry of a round delta."""

    EXPLICIT = 0
    DERIVED = 1
    POOL = 2
    SHRINK = 3
    DENSE_VALUES = 4
    CONSECUTIVE = 5
    COMMON_DEVIATION = 6


TOKEN_BYTES = 8
_CONTRIBUTOR = struct.Struct("<IIH")
_ENTRY_KIND = struct.Struct("<B")
_SHRINK_BITS = struct.Struct("<B")
_DEVIATION_INDEX = struct.Struct("<B")
_DENSE_FIELDS = struct.Struct("<II")


@dataclass(frozen=True, eq=False)
class Group:
    """Coefficients of a round whose seeds have a common source.

    Attributes:
        origin: round whose instruction the scalars answer.
        source: source of the seeds, or explicit seeds, uint64 [n].
        scalars: n coefficients with a common shift.
    """

    origin: int
    source: SeedSource
    scalars: CoefficientBlock

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<IBI")
    _DERIVED: ClassVar[struct.Struct] = struct.Struct("<QIHH")
    _ROOT: ClassVar[struct.Struct] = struct.Struct("<Q")
    _KINDS: ClassVar[tuple[_EntryKind, ...]] = (
        _EntryKind.EXPLICIT,
        _EntryKind.DERIVED,
        _EntryKind.POOL,
        _EntryKind.CONSECUTIVE,
    )

    def seeds(self) -> NDArray[np.uint64]:
        """Return the seeds of the coefficients, uint64 [n]."""
        return self.source if isinstance(self.source, np.ndarray) else self.source.seeds()

    def encode(self) -> bytes:
        """Encode the group for a round delta."""
        match self.source:
            case DerivedSeeds(root, seed_stream, steps, queries):
                kind = _EntryKind.DERIVED
                seeds = self._DERIVED.pack(root, seed_stream, steps, queries)
            case PoolSeeds(root, indices):
                kind = _EntryKind.POOL
                seeds = self._ROOT.pack(root) + indices.astype("<u4").tobytes()
            case ConsecutiveSeeds(root, _):
                kind = _EntryKind.CONSECUTIVE
                seeds = self._ROOT.pack(root)
            case explicit:
                kind = _EntryKind.EXPLICIT
                seeds = explicit.astype("<u8").tobytes()
        coefficients = self.scalars.coefficients
        fields = self._FIELDS.pack(self.origin, self.scalars.shift, len(coefficients))
        return _ENTRY_KIND.pack(kind) + fields + seeds + coefficients.astype("<i4").tobytes()

    @classmethod
    def read(cls, kind: int, reader: Reader) -> Self:
        """Read a group of a round delta, after its kind byte.

        Raises:
            FrameError: if the group is out of range or truncated.
        """
        origin, shift, count = reader.fields(cls._FIELDS)
        if not (kind in cls._KINDS and shift <= MAX_SHIFT and 1 <= count <= MAX_SCALARS):
            raise FrameError("a group of the round delta is out of range")
        source: SeedSource
        if kind == _EntryKind.DERIVED:
            source = DerivedSeeds(*reader.fields(cls._DERIVED))
            if source.steps * source.queries != count:
                raise FrameError("a group does not have one coefficient per derived seed")
        elif kind == _EntryKind.POOL:
            (root,) = reader.fields(cls._ROOT)
            source = PoolSeeds(root, reader.array("<u4", count))
        elif kind == _EntryKind.CONSECUTIVE:
            (root,) = reader.fields(cls._ROOT)
            source = ConsecutiveSeeds(root, count)
        else:
            source = reader.array("<u8", count)
        return cls(origin, source, CoefficientBlock(shift, reader.array("<i4", count)))


DeltaEntry = Group | Shrink | DenseValues | CommonDeviation
"""An entry of a round delta."""


def encode_dense_values(dense: DenseValues) -> bytes:
    """Encode dense values without the kind byte, which precedes them in a round delta."""
    fields = _DENSE_FIELDS.pack(dense.first, len(dense.values))
    return fields + dense.values.astype("<i8").tobytes()


def read_dense_values(reader: Reader) -> DenseValues:
    """Read dense values, after their kind byte.

    Raises:
        FrameError: if the values are too many, too large, or truncated.
    """
    first, count = reader.fields(_DENSE_FIELDS)
    if not 1 <= count <= MAX_SCALARS:
        raise FrameError(f"an entry of {count} dense values is out of range")
    dense = DenseValues(first, reader.array("<i8", count))
    if dense.bound > MAX_DENSE_VALUE:
        raise FrameError(f"a dense value is beyond ±{MAX_DENSE_VALUE}")
    return dense


def _encode_entry(entry: DeltaEntry) -> bytes:
    match entry:
        case Group():
            return entry.encode()
        case Shrink(bits):
            return _ENTRY_KIND.pack(_EntryKind.SHRINK) + _SHRINK_BITS.pack(bits)
        case CommonDeviation(index):
            return _ENTRY_KIND.pack(_EntryKind.COMMON_DEVIATION) + _DEVIATION_INDEX.pack(index)
    return _ENTRY_KIND.pack(_EntryKind.DENSE_VALUES) + encode_dense_values(entry)


def _read_entry(reader: Reader) -> DeltaEntry:
    (kind,) = reader.fields(_ENTRY_KIND)
    if kind == _EntryKind.DENSE_VALUES:
        return read_dense_values(reader)
    if kind == _EntryKind.COMMON_DEVIATION:
        return CommonDeviation(*reader.fields(_DEVIATION_INDEX))
    if kind != _EntryKind.SHRINK:
        return Group.read(kind, reader)
    (bits,) = reader.fields(_SHRINK_BITS)
    if not 1 <= bits <= MAX_SHRINK:
        raise FrameError(f"a shrink of the round delta by {bits} bits is out of range")
    return Shrink(bits)


@dataclass(frozen=True)
class Contributor:
    """A client whose report is in a round delta."""

    client: int
    examples: int
    steps: int


def _ascend(contributors: Sequence[Contributor]) -> bool:
    return all(a.client < b.client for a, b in pairwise(contributors))


@dataclass(frozen=True, eq=False)
class RoundDelta:
    """The changes of a round to the state, and its contributors; stored in the ledger.

    A client replays only the changes. So the ledger stores contributors separately, and sends
    clients the delta without them (`without_contributors`).

    Attributes:
        round: number of the round, counted from 1 without gaps.
        track: track that the delta extends.
        token: token of the round's instruction, 8 bytes.
        contributors: contributing clients, sorted by index, each once.
        entries: groups of scalars, shrinks, and in a private track dense values. Their order is
            part of the encoding, although entries between two shrinks give the same state in any
            order. In other tracks dense values are a common intercept (`check_dense_values`). Only
            a common deviation may be beside it.
    """

    round: int
    track: int
    token: bytes
    contributors: tuple[Contributor, ...]
    entries: tuple[DeltaEntry, ...]

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<II8sII")

    def encode(self) -> bytes:
        """Encode the round delta as a frame."""
        parts = [
            self._FIELDS.pack(
                self.round, self.track, self.token, len(self.contributors), len(self.entries)
            )
        ]
        parts += [_CONTRIBUTOR.pack(c.client, c.examples, c.steps) for c in self.contributors]
        parts += [_encode_entry(entry) for entry in self.entries]
        return pack(Kind.ROUND_DELTA, b"".join(parts))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Decode a round delta.

        Raises:
            FrameError: if the frame is not a valid round delta.
        """
        reader = Reader(unpack(frame, Kind.ROUND_DELTA))
        round_number, track, token, contributor_count, entry_count = reader.fields(cls._FIELDS)
        contributors = tuple(
            Contributor(*reader.fields(_CONTRIBUTOR)) for _ in range(contributor_count)
        )
        entries = tuple(_read_entry(reader) for _ in range(entry_count))
        reader.end()
        has_dense_values = any(isinstance(entry, DenseValues) for entry in entries)
        chosen = [entry for entry in entries if isinstance(entry, CommonDeviation)]
        follows = [type(entry) for entry in entries] == [DenseValues, CommonDeviation]
        if chosen and (track == PERSONAL_TRACK or not follows):
            raise FrameError("a common deviation may only follow a common intercept")
        if has_dense_values and track != PERSONAL_TRACK and len(entries) > 1 + len(chosen):
            raise FrameError(
                f"dense values are among other entries of a round delta of track {track}; only "
                "private tracks may mix them"
            )
        if round_number < 1 or not _ascend(contributors):
            raise FrameError("the round delta's round or contributors are out of order")
        return cls(round_number, track, token, contributors, entries)

    def encode_contributors(self) -> bytes:
        """Encode the token and the contributors in 8 + 10·n bytes; empty without contributors."""
        if not self.contributors:
            return b""
        each = [_CONTRIBUTOR.pack(c.client, c.examples, c.steps) for c in self.contributors]
        return self.token + b"".join(each)

    def without_contributors(self) -> Self:
        """Return the delta for clients; its token is a hash of the old token and contributors."""
        if not self.contributors:
            return self
        return replace(self, token=_commitment(self.encode_contributors()), contributors=())

    def with_contributors(self, kept: bytes) -> Self:
        """Add stored contributors to a delta that lacks them.

        Args:
            kept: result of the complete delta's `encode_contributors`.

        Raises:
            FrameError: if this delta's token was not computed from `kept`, or the contributors in
                `kept` are out of order.
        """
        each, rest = divmod(len(kept) - TOKEN_BYTES, _CONTRIBUTOR.size)
        if rest or each < 1 or self.contributors or _commitment(kept) != self.token:
            raise FrameError("the contributors are not those of the round delta")
        fields = _CONTRIBUTOR.iter_unpack(kept[TOKEN_BYTES:])
        contributors = tuple(Contributor(*one) for one in fields)
        if not _ascend(contributors):
            raise FrameError("the contributors are out of order")
        return replace(self, token=kept[:TOKEN_BYTES], contributors=contributors)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of scalars, without other entries."""
        return tuple(entry for entry in self.entries if isinstance(entry, Group))

    @property
    def origins(self) -> dict[int, int]:
        """The round that each contributor's report answers, by client index.

        Only a report with independent seeds can answer an earlier round; all others answer this
        round.
        """
        answered = {
            group.source.seed_stream - 1: group.origin
            for group in self.groups
            if isinstance(group.source, DerivedSeeds) and group.source.seed_stream
        }
        return {c.client: answered.get(c.client, self.round) for c in self.contributors}

    @property
    def has_dense_values(self) -> bool:
        """Return whether an entry holds dense values."""
        return any(isinstance(entry, DenseValues) for entry in self.entries)

    @property
    def common_intercept(self) -> DenseValues | None:
        """The common intercept that this round adds; None in all other rounds."""
        if self.track == PERSONAL_TRACK:
            return None
        return next((entry for entry in self.entries if isinstance(entry, DenseValues)), None)

    @property
    def common_deviation(self) -> CommonDeviation | None:
        """The common deviation of this round; None in all other rounds."""
        chosen = (entry for entry in self.entries if isinstance(entry, CommonDeviation))
        return next(chosen, None)

    def check_dense_values(self, layout: Layout) -> None:
        """Check that the round's track may hold the delta's dense values.

        In a track that other clients replay, dense values would be an upload of weights. The only
        exception is the label bias: one number per label.

        Args:
            layout: layout of the adapter.

        Raises:
            ReplayError: if the track may not hold the dense values.
        """
        values = self.common_intercept
        if values is None:
            return
        taken = slice(values.first, values.first + len(values.values))
        others = len(self.entries) - 1 - bool(self.common_deviation)
        if others or taken != layout.label_bias:
            raise ReplayError(
                f"round {self.round}: only private tracks may hold dense values other than "
                f"the label bias alone; this is track {self.track}"
            )

    @property
    def changes(self) -> list[CoefficientBlock | Shrink | DenseValues]:
        """The entries without their seeds, as arguments of `replay.check_fits`."""
        return [
            entry.scalars if isinstance(entry, Group) else entry
            for entry in self.entries
            if not isinstance(entry, CommonDeviation)
        ]

    def scalar_groups(self) -> list[Entry]:
        """Return the entries as input of `samara.shared.protocol.replay.replay`."""
        seeds = seeds_of(self.groups)
        return [
            (next(seeds), entry.scalars) if isinstance(entry, Group) else entry
            for entry in self.entries
            if not isinstance(entry, CommonDeviation)
        ]


def seeds_of(groups: Sequence[Group]) -> Iterator[NDArray[np.uint64]]:
    """Yield the seeds of each group, uint64 [n].

    The seeds of all clients with equal numbers of steps and queries are computed together, because
    a NumPy call per client would cost more than the computation.
    """
    alike = defaultdict[tuple[int, int], list[DerivedSeeds]](list)
    for group in groups:
        if isinstance(group.source, DerivedSeeds):
            alike[group.source.steps, group.source.queries].append(group.source)
    derived = {shape: _derive(*shape, sources) for shape, sources in alike.items()}
    for group in groups:
        if isinstance(group.source, DerivedSeeds):
            yield next(derived[group.source.steps, group.source.queries])
        else:
            yield group.seeds()


def _derive(
    steps: int, queries: int, sources: Sequence[DerivedSeeds]
) -> Iterator[NDArray[np.uint64]]:
    """Yield the seeds of each source, uint64 [steps · queries]."""
    roots = np.array([source.root for source in sources], np.uint64)
    streams = np.array([source.seed_stream for source in sources], np.uint32)
    return iter(query_seeds(roots, streams, steps, queries).reshape(len(sources), -1))


def _commitment(contributors: bytes) -> bytes:
    return hashlib.sha256(contributors).digest()[:TOKEN_BYTES]


def revert_delta(
    number: int, track: int, token: bytes, reverted: Sequence[RoundDelta]
) -> RoundDelta:
    """Return a round delta whose negated coefficients exactly revert other rounds.

    A group whose reversal is also among the rounds is left out together with it.

    Args:
        number: number of the new round.
        track: track of all these rounds.
        token: token of the new round's instruction.
        reverted: all rounds after the state to return to, in order.

    Raises:
        ReplayError: if a round has a shrink, whose rounding cannot be undone, or dense values,
            which have no coefficients.
    """
    if any(not isinstance(entry, Group) for delta in reverted for entry in delta.entries):
        raise ReplayError("a round with shrinks or dense values cannot be reverted")
    left: dict[bytes, list[Group]] = {}
    for group in (group for delta in reverted for group in delta.groups):
        negated = replace(
            group, scalars=CoefficientBlock(group.scalars.shift, -group.scalars.coefficients)
        )
        if opposites := left.get(negated.encode()):
            opposites.pop()
        else:
            left.setdefault(group.encode(), []).append(negated)
    groups = [group for some in left.values() for group in some]
    return RoundDelta(number, track, token, (), tuple(groups))
