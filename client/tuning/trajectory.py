"""The trajectory checkpoint: base + (seed root, scalars) = the trained model, for float states.

One file: a header, then a record per step, appended and fsynced (docs/mezo.md has the tables).

    header   "SAMARATJ" · version u16 · 2 zero bytes · length of the text u32 and of the start u64
             · text (JSON) · start (float32, if the space begins elsewhere on another machine)
             · SHA-256 of all before
    record   step u32 · n u32 · learning rate f32 · CRC-32 · n × f32 · CRC-32
    return   step u32 · 0 u32 · 0 f32 · CRC-32 · step u32 after which θ is again as it was · CRC-32

All little-endian. Every CRC-32 goes on from the one before it, the first from that of the header's
hash, so that a record is sound in its place only.
"""

import hashlib
import json
import os
import struct
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from client.spaces.space import Space
from client.tuning.descent import Descent, Step, Update
from shared.directions import query_seeds
from shared.errors import SamaraError, TrajectoryError
from shared.files import make_folder, write_durably
from shared.normal_table import TABLE_SHA256

TRAJECTORY_VERSION = 1
MAX_QUERIES = 65_535
_MAGIC = b"SAMARATJ"
_PREFIX = struct.Struct("<8sHHIQ")
_RECORD = struct.Struct("<IIf")
_CHECKSUM = struct.Struct("<I")
_RETURN = struct.Struct("<I")
_RECORD_HEADER_BYTES = _RECORD.size + _CHECKSUM.size
_HASH_BYTES = 32


@dataclass(frozen=True)
class TrajectoryHeader:
    """What a trajectory belongs to; hashes in hexadecimal.

    Attributes:
        model_id: of the base model.
        space: its kind.
        state: the type in which θ is kept.
        size: d.
        tensors_hash: of the names and shapes.
        start_digest: of θ before the first step.
        distribution: of the directions.
        root: the seed from which those of the directions are derived.
        epsilon: ε.
        update: its name and settings.
        settings_hash: of all settings of the run.
        normal_table_hash: of the table that directions are made of.
    """

    model_id: str
    space: str
    state: str
    size: int
    tensors_hash: str
    start_digest: str
    distribution: str
    root: int
    epsilon: float
    update: dict[str, str | float]
    settings_hash: str
    normal_table_hash: str = TABLE_SHA256

    @classmethod
    def of(
        cls,
        space: Space,
        update: Update,
        *,
        model_id: bytes,
        root: int,
        epsilon: float,
        settings_hash: bytes,
    ) -> Self:
        """The header of a trajectory that begins where the space is now.

        Args:
            space: before its first step.
            update: how gradient estimates become steps.
            model_id: of the base model.
            root: 64 bits.
            epsilon: ε.
            settings_hash: of all settings that decide what the run does, 32 bytes.
        """
        return cls(
            model_id.hex(),
            space.kind,
            space.state,
            space.size,
            space.tensors_hash.hex(),
            space.digest().hex(),
            space.distribution,
            root,
            epsilon,
            {"name": type(update).__name__.lower()} | asdict(update),
            settings_hash.hex(),
        )

    def seeds(self, step: int, queries: int) -> NDArray[np.uint64]:
        """Seeds of a step's directions, uint64 [n]."""
        seeds: NDArray[np.uint64] = query_seeds(self.root, 0, 1, queries, first_step=step)[0]
        return seeds

    def encode(self, start: bytes) -> bytes:
        """The bytes before the first record.

        Args:
            start: θ before the first step as float32, or nothing.
        """
        text = json.dumps(asdict(self), sort_keys=True).encode()
        fields = _PREFIX.pack(_MAGIC, TRAJECTORY_VERSION, 0, len(text), len(start)) + text + start
        return fields + hashlib.sha256(fields).digest()

    @classmethod
    def decode(cls, data: bytes) -> tuple[Self, bytes, int]:
        """Read a header.

        Returns:
            The header, the start, and where the records begin.

        Raises:
            TrajectoryError: if it is not a sound header.
        """
        if len(data) < _PREFIX.size or not data.startswith(_MAGIC):
            raise TrajectoryError(f"it does not begin with {_MAGIC.decode()}")
        _, version, _, text_bytes, start_bytes = _PREFIX.unpack_from(data)
        if version != TRAJECTORY_VERSION:
            raise TrajectoryError(f"its version {version} is not {TRAJECTORY_VERSION}")
        begin = _PREFIX.size + text_bytes
        end = begin + start_bytes
        checksum = data[end : end + _HASH_BYTES]
        if hashlib.sha256(data[:end]).digest() != checksum:
            raise TrajectoryError("its header is damaged")
        try:
            header = cls(**json.loads(data[_PREFIX.size : begin]))
        except (ValueError, TypeError) as error:
            raise TrajectoryError(f"its header is of another kind: {error}") from error
        return header, data[begin:end], end + _HASH_BYTES


@dataclass(frozen=True, eq=False)
class Recorded:
    """What a trajectory file holds.

    Attributes:
        path: of the file.
        header: what it belongs to.
        start: θ before the first step as float32, if the header alone does not give it.
        records: in their order: steps, and returns to what θ was after so many records.
        checksum: of the last whole record, or what takes its place before the first.
        dropped: bytes behind the last whole record.
    """

    path: Path
    header: TrajectoryHeader
    start: bytes
    records: tuple[Step | int, ...]
    checksum: int
    dropped: int

    @property
    def steps(self) -> tuple[Step, ...]:
        """Those that θ is made of: without the ones that a return undid."""
        made: list[tuple[int, Step]] = []
        last = [0]  # after so many records: the last step θ is made of, counted from 1 in `made`
        for record in self.records:
            if isinstance(record, int):
                last.append(last[record])
            else:
                made.append((last[-1], record))
                last.append(len(made))
        steps, place = [], last[-1]
        while place:
            place, step = made[place - 1]
            steps.append(step)
        return tuple(reversed(steps))

    @property
    def note(self) -> str:
        """What the operator should know; mostly empty."""
        if not self.dropped:
            return ""
        return (
            f"{self.path}: dropped {self.dropped} bytes of step {len(self.records) + 1}, which was "
            f"never completely written; the last whole step is {len(self.records)}"
        )

    def check_same(self, header: TrajectoryHeader, portable: bool) -> None:
        """Refuse to continue or rebuild what belongs to something else.

        Args:
            header: what it should belong to.
            portable: whether θ must begin with the same bits.

        Raises:
            TrajectoryError: naming what differs.
        """
        there, here = asdict(self.header), asdict(header)
        ignored = set() if portable else {"start_digest"}
        if different := [key for key in there if there[key] != here[key] and key not in ignored]:
            said = ", ".join(f"{key} ({there[key]} there, {here[key]} here)" for key in different)
            raise TrajectoryError(
                f"{self.path}: it belongs to something else: {said}; "
                "use the model and settings that it was made with, or another file"
            )

    def rebuild(
        self,
        space: Space,
        update: Update,
        model_id: bytes,
        hold_moments: bool = False,
    ) -> Descent:
        """Move a space from where it begins to the end of the trajectory, to the same bits.

        Args:
            space: before its first step.
            update: as in training.
            model_id: of the space's base model.
            hold_moments: as for `Descent`.

        Returns:
            The descent, ready for the next step.

        Raises:
            TrajectoryError: if model, space or update is another one; the space is as it was then.
        """
        own = TrajectoryHeader.of(
            space,
            update,
            model_id=model_id,
            root=self.header.root,
            epsilon=self.header.epsilon,
            settings_hash=bytes.fromhex(self.header.settings_hash),
        )
        self.check_same(own, space.portable)
        if self.start:
            start = torch.from_numpy(np.frombuffer(self.start, "<f4").astype(np.float32))
            for first, count in space.chunks():
                space.assign(first, start[first : first + count])
        descent = Descent(space, update, hold_moments)
        descent.replay(self.steps)
        return descent


def read_trajectory(path: Path) -> Recorded:
    """Read a trajectory, also one that is being written; the file is left as it is.

    Raises:
        TrajectoryError: if it cannot be read, or is damaged before the last record.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TrajectoryError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return _decoded(path, data)
    except SamaraError as error:
        raise TrajectoryError(
            f"{path}: {error}; restore the file or begin the run in another place"
        ) from error


def _decoded(path: Path, data: bytes) -> Recorded:
    header, start, place = TrajectoryHeader.decode(data)
    if start and len(start) != 4 * header.size:
        raise TrajectoryError("its start has another size than its space")
    records: list[Step | int] = []
    # Of the header's hash; every record goes on from the one before it.
    checksum = zlib.crc32(data[place - _HASH_BYTES : place])
    while place < len(data):
        found = _read_record(data, place, len(records), checksum)
        if found is None:
            break
        learning_rate, scalars, place, checksum = found
        if isinstance(scalars, int):
            records.append(scalars)
        else:
            seeds = header.seeds(len(records), len(scalars))
            records.append(Step(seeds, scalars, learning_rate, header.epsilon))
    return Recorded(path, header, start, tuple(records), checksum, len(data) - place)


def _encode_record(
    step: int, learning_rate: float, scalars: NDArray[np.float32] | int, crc: int
) -> bytes:
    queries = 0 if isinstance(scalars, int) else len(scalars)
    fields = _RECORD.pack(step, queries, learning_rate)
    crc = zlib.crc32(fields, crc)
    data = _RETURN.pack(scalars) if isinstance(scalars, int) else scalars.astype("<f4").tobytes()
    return fields + _CHECKSUM.pack(crc) + data + _CHECKSUM.pack(zlib.crc32(data, crc))


def _read_record(
    data: bytes, place: int, number: int, crc: int
) -> tuple[float, NDArray[np.float32] | int, int, int] | None:
    """Learning rate, gradients, end and checksum of a record; None for one that was not finished.

    A return has the step in the place of the gradients.

    That is one that the file ends inside of, or zeros, or one with zeros for its checksum that
    ends the file: some file systems leave these after a power cut.

    Raises:
        TrajectoryError: if it is damaged otherwise.
    """
    rest = memoryview(data)[place:]
    if len(rest) < _RECORD_HEADER_BYTES or not any(rest):
        return None
    step, queries, learning_rate = _RECORD.unpack_from(rest)
    crc = zlib.crc32(rest[: _RECORD.size], crc)
    end = _RECORD_HEADER_BYTES + (4 * queries or _RETURN.size)
    sound = (crc,) == _CHECKSUM.unpack_from(rest, _RECORD.size)
    if not sound or step != number or queries > MAX_QUERIES:
        raise TrajectoryError(f"the record of step {number + 1} is damaged or not the next one")
    if len(rest) < end + _CHECKSUM.size:
        return None
    scalars = rest[_RECORD_HEADER_BYTES:end]
    crc = zlib.crc32(scalars, crc)
    (found,) = _CHECKSUM.unpack_from(rest, end)
    if crc != found:
        if not found and len(rest) == end + _CHECKSUM.size:
            return None
        raise TrajectoryError(f"the projected gradients of step {number + 1} are damaged")
    place += end + _CHECKSUM.size
    if not queries:
        (back_to,) = _RETURN.unpack(scalars)
        if back_to > number:
            raise TrajectoryError(f"step {number + 1} returns to step {back_to}")
        return learning_rate, back_to, place, crc
    return learning_rate, np.frombuffer(scalars, "<f4").astype(np.float32), place, crc


class Trajectory:
    """A trajectory file opened by its only writer.

    Attributes:
        recorded: what it held on opening.
    """

    def __init__(self, path: Path, header: TrajectoryHeader, space: Space) -> None:
        """Open the file, or begin it.

        A last record that was never completely written is cut off; `recorded.note` says so.

        Args:
            path: of the file; ``….lock`` beside it tells other processes that it is being written.
            header: what it belongs to.
            space: before its first step, as it was when the header was made.

        Raises:
            TrajectoryError: if the file is damaged, is being written by another process, belongs
                to something else, or cannot be written.
        """
        self._path = path
        try:
            make_folder(path.parent)
            self._lock = FileLock(path.with_name(path.name + ".lock"), thread_local=False)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise TrajectoryError(f"{path}: another process is writing it") from None
        except OSError as error:
            raise TrajectoryError(f"{path}: cannot be opened: {error.strerror}") from error
        try:
            self._open(header, space)
        except OSError as error:
            self._lock.release()
            raise TrajectoryError(f"{path}: cannot be written: {error.strerror}") from error
        except BaseException:
            self._lock.release()
            raise

    def _open(self, header: TrajectoryHeader, space: Space) -> None:
        if not self._path.exists():
            write_durably(self._path, header.encode(b"" if space.portable else _bytes_of(space)))
        self.recorded = read_trajectory(self._path)
        self.recorded.check_same(header, space.portable)
        self._steps, self._checksum = len(self.recorded.records), self.recorded.checksum
        self._end = self._path.stat().st_size - self.recorded.dropped
        with self._path.open("r+b") as file:
            file.truncate(self._end)
            os.fsync(file.fileno())
        self._file = self._path.open("r+b", buffering=0)

    def seeds(self, queries: int) -> NDArray[np.uint64]:
        """Seeds of the next step's directions, uint64 [n]."""
        return self.recorded.header.seeds(self._steps, queries)

    def append(self, gradients: NDArray[np.float32], learning_rate: float) -> Step:
        """Record the next step; it is on the disk when this returns.

        Args:
            gradients: float32 [n], the projected gradients of `seeds(n)`.
            learning_rate: η, rounded to float32.

        Returns:
            The step, as a rebuild will take it.

        Raises:
            TrainingError: if a number is not finite; nothing is recorded then.
            TrajectoryError: if the disk refuses; the file is then as it was before.
        """
        rate = float(np.float32(learning_rate))
        step = Step(self.seeds(len(gradients)), gradients, rate, self.recorded.header.epsilon)
        self._write(_encode_record(self._steps, rate, gradients, self._checksum))
        return step

    def append_return(self, back_to: int) -> None:
        """Record a step after which θ is what it was; it is on the disk when this returns.

        Args:
            back_to: after so many records.

        Raises:
            TrajectoryError: if the disk refuses; the file is then as it was before.
        """
        self._write(_encode_record(self._steps, 0.0, back_to, self._checksum))

    def _write(self, record: bytes) -> None:
        try:
            self._file.truncate(self._end)  # what a refused append may have left behind
            self._file.seek(self._end)
            rest = memoryview(record)
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(self._end)
            raise TrajectoryError(
                f"{self._path}: cannot append step {self._steps + 1}: {error.strerror}"
            ) from error
        self._end += len(record)
        self._steps += 1
        (self._checksum,) = _CHECKSUM.unpack(record[-_CHECKSUM.size :])

    def close(self) -> None:
        """Let another process write."""
        self._file.close()
        self._lock.release()


def _bytes_of(space: Space) -> bytes:
    """θ as little-endian float32."""
    parts = (space.values(first, count).cpu().numpy() for first, count in space.chunks())
    return b"".join(part.astype("<f4").tobytes() for part in parts)
