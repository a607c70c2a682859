"""The round delta: the aggregated scalars of one round."""

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from shared.directions import query_seeds
from shared.errors import FrameError
from shared.replay import MAX_SHIFT, Pass
from shared.wire import MAX_SCALARS, Kind, Reader, pack, unpack


@dataclass(frozen=True)
class DerivedSeeds:
    """Seeds given by a root: `shared.directions.query_seeds` of these four numbers, flattened."""

    root: int
    client: int
    steps: int
    queries: int

    def seeds(self) -> NDArray[np.uint64]:
        """The seeds themselves, uint64 [steps · queries]."""
        return query_seeds(self.root, self.client, self.steps, self.queries).ravel()


@dataclass(frozen=True, eq=False)
class Group:
    """Some of a round's scalars.

    Attributes:
        origin: the round whose instruction the scalars answer.
        source: where the seeds come from; explicit ones are uint64 [n].
        scalars: n coefficients under one shift.
    """

    origin: int
    source: DerivedSeeds | NDArray[np.uint64]
    scalars: Pass

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<BIBI")
    _DERIVED: ClassVar[struct.Struct] = struct.Struct("<QIHH")

    def seeds(self) -> NDArray[np.uint64]:
        """The seeds of the coefficients, uint64 [n]."""
        return self.source.seeds() if isinstance(self.source, DerivedSeeds) else self.source

    def encode(self) -> bytes:
        """The group's part of a round delta."""
        coefficients = self.scalars.coefficients
        derived = isinstance(self.source, DerivedSeeds)
        fields = self._FIELDS.pack(derived, self.origin, self.scalars.shift, len(coefficients))
        if isinstance(self.source, DerivedSeeds):
            s = self.source
            seeds = self._DERIVED.pack(s.root, s.client, s.steps, s.queries)
        else:
            seeds = self.source.astype("<u8").tobytes()
        return fields + seeds + coefficients.astype("<i4").tobytes()

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Take a group off a round delta.

        Raises:
            FrameError: if it is not sound.
        """
        derived, origin, shift, count = reader.fields(cls._FIELDS)
        if not (derived <= 1 and shift <= MAX_SHIFT and 1 <= count <= MAX_SCALARS):
            raise FrameError("a group of the round delta is out of range")
        source: DerivedSeeds | NDArray[np.uint64]
        if derived:
            source = DerivedSeeds(*reader.fields(cls._DERIVED))
            if source.steps * source.queries != count:
                raise FrameError("a group's coefficients are not one per derived seed")
        else:
            source = reader.array("<u8", count)
        return cls(origin, source, Pass(shift, reader.array("<i4", count)))


@dataclass(frozen=True)
class Contributor:
    """A device whose report is in a round delta."""

    device: int
    examples: int
    steps: int


@dataclass(frozen=True, eq=False)
class RoundDelta:
    """What a round does to the state, and who contributed; the payload of a ledger record.

    Attributes:
        round: counted from 1, without gaps.
        track: which list of scalars it extends.
        token: of the round's instruction, 8 bytes.
        contributors: sorted by device; each at most once.
        groups: in a fixed order, though any order gives the same state.
    """

    round: int
    track: int
    token: bytes
    contributors: tuple[Contributor, ...]
    groups: tuple[Group, ...]

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<II8sII")
    _CONTRIBUTOR: ClassVar[struct.Struct] = struct.Struct("<IIH")

    def encode(self) -> bytes:
        """The round delta as a frame."""
        parts = [
            self._FIELDS.pack(
                self.round, self.track, self.token, len(self.contributors), len(self.groups)
            )
        ]
        parts += [self._CONTRIBUTOR.pack(c.device, c.examples, c.steps) for c in self.contributors]
        parts += [group.encode() for group in self.groups]
        return pack(Kind.ROUND_DELTA, b"".join(parts))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Read a round delta.

        Raises:
            FrameError: if the frame is not a sound round delta.
        """
        reader = Reader(unpack(frame, Kind.ROUND_DELTA))
        round_number, track, token, contributor_count, group_count = reader.fields(cls._FIELDS)
        contributors = tuple(
            Contributor(*reader.fields(cls._CONTRIBUTOR)) for _ in range(contributor_count)
        )
        groups = tuple(Group.read(reader) for _ in range(group_count))
        reader.end()
        devices = [c.device for c in contributors]
        if round_number < 1 or any(a >= b for a, b in pairwise(devices)):
            raise FrameError("the round delta's round or contributors are out of order")
        return cls(round_number, track, token, contributors, groups)

    def scalar_groups(self) -> list[tuple[NDArray[np.uint64], Pass]]:
        """The groups as `shared.replay.replay` takes them."""
        return [(group.seeds(), group.scalars) for group in self.groups]
