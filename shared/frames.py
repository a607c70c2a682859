"""What server and clients say to each other, as frames; nothing is believed unchecked.

The bytes of each frame are described in docs/wire.md; golden files in tests/golden hold them still.
"""

import hashlib
import struct
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from shared.directions import Differences, pool_indices, pool_seeds, query_seeds
from shared.errors import FrameError
from shared.wire import MAX_SCALARS, Kind, Reader, pack, text_bytes, unpack

MAX_GRADIENT = 1e6
"""A projected gradient or a mean loss beyond this is refused with its report."""
MAX_CURVATURE = 1e12
"""Likewise a curvature."""
MAX_LABELS = 1024
MAX_CLIENT = 2**32 - 2
"""Device index + 1 must fit 32 bits where it stands for the client in seeds."""
MAX_COLUMNS = 64
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


def _check_client(client: int) -> None:
    if client > MAX_CLIENT:
        raise FrameError(f"client index {client} is over {MAX_CLIENT}")


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


@dataclass(frozen=True)
class Hello:
    """How a client introduces itself.

    Attributes:
        client: client index.
        examples: training examples it holds.
        round: the last round in its state.
        model_id: 32 bytes.
        layout: the layout's canonical JSON.
        facts: JSON object: `clients`, among how many its data set is dealt, 0 if it is all its own;
            the rest (versions, threads and the like) is for the record only.
    """

    client: int
    examples: int
    round: int
    model_id: bytes
    layout: str
    facts: str

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<III32s")

    def encode(self) -> bytes:
        """The introduction as a frame."""
        fields = self._FIELDS.pack(self.client, self.examples, self.round, self.model_id)
        return pack(Kind.HELLO, fields + text_bytes(self.layout) + text_bytes(self.facts))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Read an introduction.

        Raises:
            FrameError: if the frame is not a sound hello.
        """
        reader = Reader(unpack(frame, Kind.HELLO))
        client, examples, last_round, model_id = reader.fields(cls._FIELDS)
        hello = cls(client, examples, last_round, model_id, reader.text(), reader.text())
        reader.end()
        _check_client(client)
        return hello


@dataclass(frozen=True, eq=False)
class Report:
    """What a client uploads after a round: 32 bytes and 4 per projected gradient.

    Attributes:
        token: of the instruction it answers, 8 bytes.
        client: client index.
        examples: training examples the client holds.
        mean_loss: over the points of all local steps, but for those that began far from where the
            round did (`shared.step_size.REACH`): they tell nothing of the global model.
        gradients: float32 [K, q]; of a pool float32 [n], one sum per used seed in order of first
            use (`TrainInstruction.sums`).
        seeds: uint64 [K, q] where they do not derive from the instruction's root (8 bytes each).
        summed_steps: K where the gradients are sums; 0 otherwise.
        curvature: mean of (L₊ + L₋ − 2·L₀)/ε² over the directions of the steps that took L₀, a
            float32; None if none did.
    """

    token: bytes
    client: int
    examples: int
    mean_loss: float
    gradients: NDArray[np.float32]
    seeds: NDArray[np.uint64] | None = None
    summed_steps: int = 0
    curvature: float | None = None

    _CURVATURE: ClassVar[struct.Struct] = struct.Struct("<f")
    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<8sIIHHf")
    _SUMMED_FIELDS: ClassVar[struct.Struct] = struct.Struct("<8sIIHfI")

    @property
    def steps(self) -> int:
        """Local steps that the client did."""
        return self.summed_steps or len(self.gradients)

    def encode(self) -> bytes:
        """The report as a frame."""
        bend = b"" if self.curvature is None else self._CURVATURE.pack(self.curvature)
        if self.summed_steps:
            fields = self._SUMMED_FIELDS.pack(
                *(self.token, self.client, self.examples),
                *(self.summed_steps, self.mean_loss, len(self.gradients)),
            )
            sums = self.gradients.astype("<f4").tobytes()
            return pack(Kind.REPORT_OF_SUMS, fields + sums + bend)
        steps, queries = self.gradients.shape
        fields = self._FIELDS.pack(
            self.token, self.client, self.examples, steps, queries, self.mean_loss
        )
        gradients = self.gradients.astype("<f4").tobytes()
        if self.seeds is None:
            return pack(Kind.REPORT, fields + gradients + bend)
        seeds = self.seeds.astype("<u8").tobytes()
        return pack(Kind.REPORT_WITH_SEEDS, fields + seeds + gradients + bend)

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Read a report.

        Raises:
            FrameError: if the frame is not a sound report, or a number in it is not finite or
                over `MAX_GRADIENT`.
        """
        body = unpack(frame, Kind.REPORT, Kind.REPORT_WITH_SEEDS, Kind.REPORT_OF_SUMS)
        reader = Reader(body)
        shape: tuple[int, ...]
        seeds, summed_steps = None, 0
        if frame[3] == Kind.REPORT_OF_SUMS:
            token, client, examples, summed_steps, mean_loss, count = reader.fields(
                cls._SUMMED_FIELDS
            )
            shape, sound = (count,), summed_steps >= 1 and 1 <= count <= MAX_SCALARS
        else:
            token, client, examples, steps, queries, mean_loss = reader.fields(cls._FIELDS)
            shape, count = (steps, queries), steps * queries
            sound = 1 <= count <= MAX_SCALARS
        if not sound:
            raise FrameError(f"a report of {count} scalars is out of range")
        if frame[3] == Kind.REPORT_WITH_SEEDS:
            seeds = reader.array("<u8", count).reshape(shape)
        gradients = reader.array("<f4", count).reshape(shape)
        (curvature,) = reader.fields(cls._CURVATURE) if reader.left else (None,)
        reader.end()
        _check_client(client)
        if not (abs(mean_loss) <= MAX_GRADIENT and np.all(np.abs(gradients) <= MAX_GRADIENT)):
            raise FrameError(
                f"a projected gradient or the loss of client {client} is not finite or "
                f"over {MAX_GRADIENT:g}"
            )
        if curvature is not None and not abs(curvature) <= MAX_CURVATURE:
            raise FrameError(
                f"the curvature of client {client} is not finite or over {MAX_CURVATURE:g}"
            )
        return cls(token, client, examples, mean_loss, gradients, seeds, summed_steps, curvature)


@dataclass(frozen=True, eq=False)
class Figures:
    """How one set of weights does on a client's examples.

    Attributes:
        name: of the weights: global, zero-shot, personalized …
        mean_loss: over the examples; 0 where there are none.
        counts: confusion matrix, int64 [labels, labels], rows true, columns predicted.
    """

    name: str
    mean_loss: float
    counts: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A client's answer to an evaluate instruction.

    Attributes:
        token: of the instruction it answers, 8 bytes.
        client: client index.
        columns: one per set of weights; names differ, labels agree.
    """

    token: bytes
    client: int
    columns: tuple[Figures, ...]

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<8sIHH")
    _LOSS: ClassVar[struct.Struct] = struct.Struct("<d")

    def encode(self) -> bytes:
        """The evaluation as a frame."""
        labels = len(self.columns[0].counts)
        parts = [self._FIELDS.pack(self.token, self.client, labels, len(self.columns))]
        for column in self.columns:
            parts += [text_bytes(column.name), self._LOSS.pack(column.mean_loss)]
            parts.append(column.counts.astype("<u4").tobytes())
        return pack(Kind.EVALUATION, b"".join(parts))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Read an evaluation.

        Raises:
            FrameError: if the frame is not a sound evaluation.
        """
        reader = Reader(unpack(frame, Kind.EVALUATION))
        token, client, labels, count = reader.fields(cls._FIELDS)
        if not (1 <= labels <= MAX_LABELS and 1 <= count <= MAX_COLUMNS):
            raise FrameError(f"the evaluation of client {client} is out of range")
        columns = []
        for _ in range(count):
            name = reader.text()
            (mean_loss,) = reader.fields(cls._LOSS)
            counts = reader.array("<u4", labels * labels).astype(np.int64)
            columns.append(Figures(name, mean_loss, counts.reshape(labels, labels)))
        reader.end()
        if not all(np.isfinite(column.mean_loss) for column in columns):
            raise FrameError(f"a loss in the evaluation of client {client} is not finite")
        if len({column.name for column in columns}) < count:
            raise FrameError(f"the evaluation of client {client} names a column twice")
        return cls(token, client, tuple(columns))


@dataclass(frozen=True)
class Refusal:
    """Why a client does not do what it was asked.

    Attributes:
        token: of the instruction it answers, 8 bytes.
        client: client index.
        round: the last round in the client's state, so that the server can send what is missing.
        reason: for the operator.
    """

    token: bytes
    client: int
    round: int
    reason: str

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<8sII")

    def encode(self) -> bytes:
        """The refusal as a frame."""
        fields = self._FIELDS.pack(self.token, self.client, self.round)
        return pack(Kind.REFUSAL, fields + text_bytes(self.reason))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Read a refusal.

        Raises:
            FrameError: if the frame is not a sound refusal.
        """
        reader = Reader(unpack(frame, Kind.REFUSAL))
        token, client, last_round = reader.fields(cls._FIELDS)
        refusal = cls(token, client, last_round, reader.text())
        reader.end()
        return refusal
