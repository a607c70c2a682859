"""Instructions: frames in which the server asks a client to train or to evaluate."""

import hashlib
import struct
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from shared.directions import Differences, pool_indices, pool_seeds, query_seeds
from shared.errors import FrameError
from shared.wire import MAX_SCALARS, Kind, Reader, pack, unpack

GLOBAL_TRACK = 0
PERSONAL_TRACK = 2**32 - 1
CLUSTERING_TRACK = 2**32 - 2
"""Of an instruction whose scalars say who belongs together; they move no state."""


class SeedPolicy(IntEnum):
    """Which directions the clients of a round try: the same, their own, or those of a pool."""

    SHARED = 0
    INDEPENDENT = 1
    POOL = 2


class Split(IntEnum):
    """Which of a client's examples an evaluation reads."""

    TRAIN = 0
    VALIDATION = 1
    TEST = 2


def token_of(instruction: bytes) -> bytes:
    """The 8 bytes that tie an answer to the instruction frame it answers."""
    return hashlib.sha256(instruction).digest()[:8]


_E = TypeVar("_E", bound=IntEnum)


def _member(kind: type[_E], value: int) -> _E:
    try:
        return kind(value)
    except ValueError:
        raise FrameError(f"{value} is no {kind.__name__}") from None


@dataclass(frozen=True)
class TrainInstruction:
    """What the server asks of a cohort for a round; the same bytes for every client.

    Attributes:
        run_id: 8 bytes that name the run.
        round: counted from 1.
        track: which list of scalars is trained; 0 is the global one.
        steps: local steps K.
        queries: directions q tried per step.
        batch: examples B per step.
        seed_policy: shared directions, independent ones, or independent ones from a pool.
        root: root seed of the round.
        epsilon: ε, the size of a perturbation.
        learning_rate: η.
        clip: g's are clipped to ±clip; 0 is no clipping.
        deadline: seconds that the server waits for the report; 0 is no limit. No point in time,
            so that a repeated instruction is the same and clocks need not agree.
        layout_hash: 32 bytes.
        start_digest: 32 bytes, of the state that the round starts from.
        pool_root: root seed of the pool; 0 without one.
        pool_size: seeds in the pool; 0 without one.
        curvature_every: steps between those that take the losses at both sides and at the centre;
            0 is never.
        differences: what projected gradients are made of in the other steps.
    """

    run_id: bytes
    round: int
    track: int
    steps: int
    queries: int
    batch: int
    seed_policy: SeedPolicy
    root: int
    epsilon: float
    learning_rate: float
    clip: float
    deadline: float
    layout_hash: bytes
    start_digest: bytes
    pool_root: int = 0
    pool_size: int = 0
    curvature_every: int = 0
    differences: Differences = "central"

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<8sIIHHIBQdddd32s32s")
    _POOL: ClassVar[struct.Struct] = struct.Struct("<QI")
    _CURVATURE: ClassVar[struct.Struct] = struct.Struct("<H")
    _FORWARD: ClassVar[bytes] = b"\x01"

    def encode(self) -> bytes:
        """The instruction as a frame."""
        fields = self._FIELDS.pack(
            self.run_id,
            self.round,
            self.track,
            self.steps,
            self.queries,
            self.batch,
            self.seed_policy,
            self.root,
            self.epsilon,
            self.learning_rate,
            self.clip,
            self.deadline,
            self.layout_hash,
            self.start_digest,
        )
        if self.seed_policy is SeedPolicy.POOL:
            fields += self._POOL.pack(self.pool_root, self.pool_size)
        forward = self.differences == "forward"
        if self.curvature_every or forward:
            fields += self._CURVATURE.pack(self.curvature_every)
        if forward:
            fields += self._FORWARD
        return pack(Kind.TRAIN, fields)

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Read an instruction.

        Raises:
            FrameError: if the frame is not a sound train instruction.
        """
        reader = Reader(unpack(frame, Kind.TRAIN))
        values = list(reader.fields(cls._FIELDS))
        values[6] = _member(SeedPolicy, values[6])
        pooled = values[6] is SeedPolicy.POOL
        pool = reader.fields(cls._POOL) if pooled else (0, 0)
        measured = reader.left > 0
        every = reader.fields(cls._CURVATURE) if measured else (0,)
        forward = reader.left > 0
        if forward and reader.take(1) != cls._FORWARD:
            raise FrameError("the train instruction asks for differences of an unknown kind")
        differences: Differences = "forward" if forward else "central"
        instruction = replace(cls(*values, *pool, *every), differences=differences)
        reader.end()
        if not (
            min(instruction.steps, instruction.queries, instruction.batch, instruction.round) >= 1
            and instruction.steps * instruction.queries <= MAX_SCALARS
            and 0 < instruction.epsilon < np.inf
            and 0 <= instruction.learning_rate < np.inf
            and 0 <= instruction.clip < np.inf
            and 0 <= instruction.deadline < np.inf
            and pooled <= instruction.pool_size <= MAX_SCALARS
            and (measured and not forward) <= instruction.curvature_every
        ):
            raise FrameError("the train instruction holds a number out of its range")
        return instruction

    def seeds(self, client: int) -> NDArray[np.uint64]:
        """Seeds of a client's queries, uint64 [K, q]."""
        if self.seed_policy is SeedPolicy.POOL:
            return pool_seeds(self.pool_root, self.pool_indices(client))
        return query_seeds(self.root, self.seed_stream(client), self.steps, self.queries)

    def pool_indices(self, client: int) -> NDArray[np.uint32]:
        """Which seeds of the pool a client's queries try, uint32 [K, q]."""
        seed_stream = self.seed_stream(client)
        return pool_indices(self.root, seed_stream, self.steps, self.queries, self.pool_size)

    def uses(self, steps: int) -> NDArray[np.int64]:
        """How often each seed of the pool is tried in so many steps, in order of first use.

        Returns:
            int64 [min(steps·q, pool size)].
        """
        queries = steps * self.queries
        first_uses = np.arange(min(queries, self.pool_size))
        return -(-(queries - first_uses) // self.pool_size)

    def sums(self, gradients: NDArray[np.float32]) -> NDArray[np.float32]:
        """What a client reports of a pool: one sum of clipped projected gradients per used seed.

        Args:
            gradients: float32 [K, q].

        Returns:
            float32 [n], in order of first use; each sum is rounded once.
        """
        sums = np.zeros(-(-gradients.size // self.pool_size) * self.pool_size)
        sums[: gradients.size] = self.clipped(gradients).ravel()
        used = len(self.uses(len(gradients)))
        rounded: NDArray[np.float32] = sums.reshape(-1, self.pool_size).sum(axis=0).astype("f4")
        return rounded[:used]

    def clipped(self, gradients: NDArray[np.float32]) -> NDArray[np.float64]:
        """The projected gradients within ±clip, same shape."""
        return self.clipped_sums(gradients, 1)

    def clipped_sums(
        self, sums: NDArray[np.float32], uses: NDArray[np.int64] | int
    ) -> NDArray[np.float64]:
        """Sums of so many projected gradients each within ±clip · uses, same shape."""
        # float32, so that examples · g stays exact in float64
        limit = np.float32(self.clip) * np.asarray(uses, np.float32)
        clipped = np.clip(sums, -limit, limit) if self.clip else sums
        return clipped.astype(np.float64)

    def coefficients(self, gradients: NDArray[np.float64]) -> NDArray[np.float64]:
        """−η·g/q: what a client of weight 1 multiplies its directions by, same shape."""
        return -self.learning_rate * gradients / self.queries

    def measures_curvature(self, step: int) -> bool:
        """Whether a step, counted from 0, takes the losses at both sides and at the centre."""
        return bool(self.curvature_every) and step % self.curvature_every == 0

    def measured_directions(self, steps: int) -> int:
        """Over how many directions the curvature in a report of so many steps is a mean."""
        return self.queries * sum(map(self.measures_curvature, range(steps)))

    def seed_stream(self, client: int) -> int:
        """What stands for the client in the derivation of seeds: 0 if they are shared."""
        return 0 if self.seed_policy is SeedPolicy.SHARED else client + 1


@dataclass(frozen=True)
class EvaluateInstruction:
    """Asks a client to evaluate a state on one of its splits.

    Attributes as in `TrainInstruction`; ``round`` is the last one that is in the state.
    """

    run_id: bytes
    round: int
    track: int
    split: Split
    layout_hash: bytes
    digest: bytes

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<8sIIB32s32s")

    def encode(self) -> bytes:
        """The instruction as a frame."""
        values = (
            self.run_id,
            self.round,
            self.track,
            self.split,
            self.layout_hash,
            self.digest,
        )
        return pack(Kind.EVALUATE, self._FIELDS.pack(*values))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Read an instruction.

        Raises:
            FrameError: if the frame is not a sound evaluate instruction.
        """
        reader = Reader(unpack(frame, Kind.EVALUATE))
        values = list(reader.fields(cls._FIELDS))
        reader.end()
        values[3] = _member(Split, values[3])
        return cls(*values)
