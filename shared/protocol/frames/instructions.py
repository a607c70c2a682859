"""Instructions: frames in which the server asks a client to train or to evaluate."""

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import FrameError
from samara.shared.protocol.directions import (
    Differences,
    consecutive_seeds,
    orthogonal_root,
    pool_indices,
    pool_seeds,
    query_seeds,
    round_root,
)
from samara.shared.protocol.wire import MAX_SCALARS, Kind, Reader, pack, unpack

GLOBAL_TRACK = 0
PERSONAL_TRACK = 2**32 - 1
CLUSTERING_TRACK = 2**32 - 2
"""Track of clustering rounds. The server groups clients by their scalars, and no state changes."""
INTERCEPT_TRACK = 2**32 - 3
"""Track of the round of intercepts, whose scalars are the clients' private intercepts.

The round starts from a state of the global track, and the global ledger receives its result. The
instruction carries a flag that makes clients of earlier versions refuse it. Without the flag they
would take ordinary steps.
"""


class SeedPolicy(IntEnum):
    """The source of the clients' seeds in a round: shared, independent, or drawn from a pool."""

    SHARED = 0
    INDEPENDENT = 1
    POOL = 2


class Split(IntEnum):
    """The part of a client's examples that an evaluation reads."""

    TRAIN = 0
    VALIDATION = 1
    TEST = 2


def token_of(instruction: bytes) -> bytes:
    """Return the token of an instruction frame, 8 bytes; answers refer to it."""
    return hashlib.sha256(instruction).digest()[:8]


_E = TypeVar("_E", bound=IntEnum)


def _member(kind: type[_E], value: int) -> _E:
    try:
        return kind(value)
    except ValueError:
        raise FrameError(f"{value} is not a valid {kind.__name__}") from None


@dataclass(frozen=True)
class TrainInstruction:
    """An instruction to train for a round. All clients of the cohort receive the same bytes.

    Attributes:
        run_id: run id, 8 bytes.
        round: number of the round, counted from 1.
        track: track to train; 0 is the global track.
        steps: number of local steps, K.
        queries: directions per step, q.
        batch: examples per step, B.
        seed_policy: whether clients share directions, use independent ones, or draw them from a
            pool.
        root: root seed of the round; with components, the seed of its first direction.
        epsilon: ε, the size of a perturbation.
        learning_rate: η; with components, the step size of a client's update on the sum of its
            losses (`samara.client.personal.components`).
        clip: limit of the absolute value of a projected gradient; 0 for none.
        deadline: seconds that the server waits for the report; 0 for no limit. The limit is a
            duration, so that a repeated instruction has the same bytes and clocks need not agree.
        layout_hash: hash of the run's layout, 32 bytes.
        start_digest: digest of the state that the round starts from, 32 bytes.
        pool_root: root seed of the pool; 0 without one.
        pool_size: number of seeds in the pool; 0 without one.
        curvature_every: interval, in steps, between measurements of curvature from L₊, L₋ and L₀; 0
            for none.
        differences: central or forward differences in the steps that do not measure curvature, or
            components. With components the report is about one step and holds the components of the
            client's update.
        joint_clip: largest L2 norm of all projected gradients together, in a run with an adaptive
            clip; otherwise 0.
        is_profiled: whether losses are profiled (`samara.shared.tasks.profiled_loss`).
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
    joint_clip: float = 0.0
    is_profiled: bool = False

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<8sIIHHIBQdddd32s32s")
    _POOL: ClassVar[struct.Struct] = struct.Struct("<QI")
    _CURVATURE: ClassVar[struct.Struct] = struct.Struct("<H")
    _FORWARD: ClassVar[int] = 1
    _JOINTLY_CLIPPED: ClassVar[int] = 2
    _INTERCEPTS: ClassVar[int] = 4
    _COMPONENTS: ClassVar[int] = 8
    _PROFILED: ClassVar[int] = 16
    _CLIP: ClassVar[struct.Struct] = struct.Struct("<d")

    def encode(self) -> bytes:
        """Encode the train instruction as a frame."""
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
        flags = self._FORWARD * (self.differences == "forward")
        flags |= self._JOINTLY_CLIPPED * (self.joint_clip > 0)
        flags |= self._INTERCEPTS * (self.track == INTERCEPT_TRACK)
        flags |= self._COMPONENTS * self.asks_for_components
        flags |= self._PROFILED * self.is_profiled
        if self.curvature_every or flags:
            fields += self._CURVATURE.pack(self.curvature_every)
        if flags:
            fields += bytes([flags])
        if self.joint_clip:
            fields += self._CLIP.pack(self.joint_clip)
        return pack(Kind.TRAIN, fields)

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Decode a train instruction from a frame.

        Raises:
            FrameError: if the frame is not a valid train instruction.
        """
        reader = Reader(unpack(frame, Kind.TRAIN))
        values = list(reader.fields(cls._FIELDS))
        values[6] = _member(SeedPolicy, values[6])
        pooled = values[6] is SeedPolicy.POOL
        pool = reader.fields(cls._POOL) if pooled else (0, 0)
        measured = reader.left > 0
        every = reader.fields(cls._CURVATURE) if measured else (0,)
        has_flags = reader.left > 0
        flags = reader.take(1)[0] if has_flags else 0
        if has_flags and not 0 < flags < 2 * cls._PROFILED:
            raise FrameError("the train instruction asks for scalars of an unknown kind")
        differences: Differences = "forward" if flags & cls._FORWARD else "central"
        if flags & cls._COMPONENTS:
            differences = "components"
        is_clipped = bool(flags & cls._JOINTLY_CLIPPED)
        (clip,) = reader.fields(cls._CLIP) if is_clipped else (0.0,)
        values += [*pool, *every, differences, clip, bool(flags & cls._PROFILED)]
        instruction = cls(*values)
        reader.end()
        if not (
            min(instruction.steps, instruction.queries, instruction.batch, instruction.round) >= 1
            and instruction.steps * instruction.queries <= MAX_SCALARS
            and 0 < instruction.epsilon < np.inf
            and 0 <= instruction.learning_rate < np.inf
            and 0 <= instruction.clip < np.inf
            and 0 <= instruction.deadline < np.inf
            and pooled <= instruction.pool_size <= MAX_SCALARS
            and (measured and not has_flags) <= instruction.curvature_every
            and (instruction.joint_clip > 0) == is_clipped
            and instruction.joint_clip < np.inf
            and (instruction.track == INTERCEPT_TRACK) == bool(flags & cls._INTERCEPTS)
            and (differences != "components" or instruction._is_of_one_step(flags))
        ):
            raise FrameError("the train instruction holds a number out of its range")
        return instruction

    def _is_of_one_step(self, flags: int) -> bool:
        """Return whether an instruction with these flags can request components."""
        return (
            self.steps == 1
            and self.seed_policy is SeedPolicy.SHARED
            and self.learning_rate > 0
            and not self.curvature_every
            and not flags & (self._FORWARD | self._INTERCEPTS | self._PROFILED)
        )

    @property
    def asks_for_components(self) -> bool:
        """Return whether reports hold components of an update instead of projected gradients."""
        return self.differences == "components"

    @property
    def report_scalars(self) -> int:
        """The number of projected gradients or components in a report."""
        scalars = self.steps * self.queries
        return min(scalars, self.pool_size) if self.seed_policy is SeedPolicy.POOL else scalars

    def seeds(self, client: int) -> NDArray[np.uint64]:
        """Return the seeds of a client's queries, uint64 [K, q]."""
        if self.seed_policy is SeedPolicy.POOL:
            return pool_seeds(self.pool_root, self.pool_indices(client))
        if self.asks_for_components:
            return consecutive_seeds(self.root, self.queries)[None]
        return query_seeds(self.root, self.seed_stream(client), self.steps, self.queries)

    def pool_indices(self, client: int) -> NDArray[np.uint32]:
        """Return the indices in the pool of the seeds that a client uses, uint32 [K, q]."""
        seed_stream = self.seed_stream(client)
        return pool_indices(self.root, seed_stream, self.steps, self.queries, self.pool_size)

    def uses(self, steps: int) -> NDArray[np.int64]:
        """Return the number of uses of each pool seed in the first steps, in order of first use.

        Args:
            steps: number of these local steps.

        Returns:
            int64 [min(steps·q, pool size)].
        """
        queries = steps * self.queries
        first_uses = np.arange(min(queries, self.pool_size))
        return -(-(queries - first_uses) // self.pool_size)

    def sums(self, gradients: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the sum of clipped projected gradients for each used pool seed.

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
        """Return projected gradients clipped to ±clip, same shape."""
        return self.clipped_sums(gradients, 1)

    def clipped_sums(
        self, sums: NDArray[np.float32], uses: NDArray[np.int64] | int
    ) -> NDArray[np.float64]:
        """Return sums of projected gradients clipped to ±clip · uses, same shape.

        Args:
            sums: float32, each a sum of projected gradients of one seed.
            uses: number of projected gradients in each sum.
        """
        # the limit is a float32, so that examples · g stays exact in float64
        limit = np.float32(self.clip) * np.asarray(uses, np.float32)
        clipped = np.clip(sums, -limit, limit) if self.clip else sums
        return clipped.astype(np.float64)

    def coefficients(self, gradients: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return −η·g/q, the coefficients of a client with weight 1, same shape.

        Components are coefficients already, and are returned unchanged.
        """
        if self.asks_for_components:
            return gradients
        return -self.learning_rate * gradients / self.queries

    def measures_curvature(self, step: int) -> bool:
        """Return whether a step, counted from 0, measures curvature from L₊, L₋ and L₀."""
        return bool(self.curvature_every) and step % self.curvature_every == 0

    def measured_directions(self, steps: int) -> int:
        """Return the number of directions whose curvature is measured in the first steps."""
        return self.queries * sum(map(self.measures_curvature, range(steps)))

    def seed_stream(self, client: int) -> int:
        """Return a client's `seed_stream`: its index + 1, or 0 for shared directions."""
        return 0 if self.seed_policy is SeedPolicy.SHARED else client + 1


def make_local_instruction(
    number: int,
    track: int,
    seed: int,
    *,
    steps: int,
    queries: int,
    batch: int,
    epsilon: float,
    learning_rate: float,
    clip: float,
    layout_hash: bytes,
    start_digest: bytes,
    curvature_every: int = 0,
    differences: Differences = "central",
    is_profiled: bool = False,
) -> TrainInstruction:
    """Return an instruction made on the client itself, for a private round or a measurement.

    Run id and deadline are zero. Seeds are derived from the client's index. Components use
    consecutive directions instead, which no other client sees.

    Args:
        number: number of the round, counted from 1.
        track: track to train; the round's root seed depends on it.
        seed: seed of the run.
        steps, queries, batch, epsilon, learning_rate, clip, layout_hash, start_digest,
            curvature_every, differences, is_profiled: as in `TrainInstruction`.
    """
    has_components = differences == "components"
    root = round_root(seed, number, track)
    if has_components:
        root = orthogonal_root(seed, number, queries, track)
    return TrainInstruction(
        run_id=bytes(8),
        round=number,
        track=track,
        steps=steps,
        queries=queries,
        batch=batch,
        seed_policy=SeedPolicy.SHARED if has_components else SeedPolicy.INDEPENDENT,
        root=root,
        epsilon=epsilon,
        learning_rate=learning_rate,
        clip=clip,
        deadline=0.0,
        layout_hash=layout_hash,
        start_digest=start_digest,
        curvature_every=curvature_every,
        differences=differences,
        is_profiled=is_profiled,
    )


@dataclass(frozen=True)
class EvaluateInstruction:
    """An instruction to a client to evaluate a state on one of its splits.

    Attributes:
        run_id: run id, 8 bytes.
        round: last round in the state.
        track: track of the state.
        split: part of the client's examples.
        layout_hash: hash of the run's layout, 32 bytes.
        digest: digest of the state, 32 bytes.
    """

    run_id: bytes
    round: int
    track: int
    split: Split
    layout_hash: bytes
    digest: bytes

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<8sIIB32s32s")

    def encode(self) -> bytes:
        """Encode the evaluate instruction as a frame."""
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
        """Decode an evaluate instruction from a frame.

        Raises:
            FrameError: if the frame is not a valid evaluate instruction.
        """
        reader = Reader(unpack(frame, Kind.EVALUATE))
        values = list(reader.fields(cls._FIELDS))
        reader.end()
        values[3] = _member(Split, values[3])
        return cls(*values)
