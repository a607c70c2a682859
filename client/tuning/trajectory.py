"""The trajectory checkpoint: base model + (seed root, scalars) = trained model, for float states.

The file holds a header and one record per step, each appended and fsynced. Its bytes are defined in
`samara.client.tuning.trajectory_format`.
"""

import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from samara.client.spaces.scaling import scaling_by
from samara.client.spaces.space import Space
from samara.client.tuning.descent import Descent, UpdateRule, UpdateStep
from samara.client.tuning.trajectory_format import (
    TrajectoryHeader,
    decode_record,
    encode_record,
    first_checksum,
    last_checksum,
)
from samara.shared.errors import SamaraError, TrajectoryError
from samara.shared.storage.files import make_folder, write_durably


def make_header(
    space: Space,
    rule: UpdateRule,
    *,
    model_id: bytes,
    root: int,
    epsilon: float,
    settings_hash: bytes,
) -> TrajectoryHeader:
    """Return the header of a trajectory that starts at the current θ of a space.

    Args:
        space: space before its first step.
        rule: update rule for gradient estimates.
        model_id: id of the base model.
        root: 64-bit seed from which the directions' seeds are derived.
        epsilon: size ε of the perturbations.
        settings_hash: hash of all settings that determine the run's results, 32 bytes.
    """
    update = {"name": type(rule).__name__.lower()} | asdict(rule)
    if not rule.weight_decay:
        del update["weight_decay"]  # as in files from before weight decay existed
    if space.scaling_plan is not None:
        update |= asdict(space.scaling_plan)
    return TrajectoryHeader(
        model_id.hex(),
        space.kind,
        space.state,
        space.size,
        space.tensors_hash.hex(),
        space.digest().hex(),
        space.distribution,
        root,
        epsilon,
        update,
        settings_hash.hex(),
    )


@dataclass(frozen=True, eq=False)
class Trajectory:
    """The contents of a trajectory file.

    Attributes:
        path: path of the file.
        header: header of the file.
        start: initial θ as float32; empty if the header determines it.
        records: records in order. A record is a step, or for a revert the number of records to
            which θ returns.
        d: D of the next step, float32 [groups], unless it is computed again; None without D.
        checksum: CRC-32 that the next record continues.
        dropped: number of bytes of an incomplete record at the end.
    """

    path: Path
    header: TrajectoryHeader
    start: bytes
    records: tuple[UpdateStep | int, ...]
    d: NDArray[np.float32] | None
    checksum: int
    dropped: int

    @property
    def steps(self) -> tuple[UpdateStep, ...]:
        """Steps that lead to the present θ, without reverted steps."""
        taken: list[tuple[int, UpdateStep]] = []  # (number of the predecessor, step)
        # last[n] is the number of the last step after n records: its place in `taken`, from 1, or 0
        last = [0]
        for record in self.records:
            if isinstance(record, int):
                last.append(last[record])
            else:
                taken.append((last[-1], record))
                last.append(len(taken))
        steps = []
        number = last[-1]
        while number:
            number, step = taken[number - 1]
            steps.append(step)
        return tuple(reversed(steps))

    @property
    def warning(self) -> str:
        """Warning about an incomplete record at the end; empty if all records are complete."""
        if not self.dropped:
            return ""
        return (
            f"{self.path}: dropped {self.dropped} bytes of step {len(self.records) + 1}, which was "
            f"never completely written; the last complete step is {len(self.records)}"
        )

    def check_belongs_to(self, header: TrajectoryHeader, portable: bool) -> None:
        """Raise an error if the trajectory belongs to another model, space or run.

        Args:
            header: expected header.
            portable: whether the initial θ must be bit-identical.

        Raises:
            TrajectoryError: if the headers differ; the message names the differences.
        """
        if differences := self.header.differences(header, portable):
            raise TrajectoryError(
                f"{self.path}: the file was made with another model or other settings: "
                f"{differences}; use the model and settings of the file, or give another file"
            )

    def rebuild(
        self,
        space: Space,
        rule: UpdateRule,
        model_id: bytes,
        hold_moments: bool = False,
    ) -> Descent:
        """Move a space from its initial state to the end of the trajectory, with the same bits.

        Args:
            space: space before its first step.
            rule: update rule of the training.
            model_id: id of the space's base model.
            hold_moments: whether to hold moments in memory, as in `Descent`.

        Returns:
            The descent, ready for the next step.

        Raises:
            TrajectoryError: if the trajectory has another model, space or update rule; the space is
                then unchanged.
        """
        header = make_header(
            space,
            rule,
            model_id=model_id,
            root=self.header.root,
            epsilon=self.header.epsilon,
            settings_hash=bytes.fromhex(self.header.settings_hash),
        )
        self.check_belongs_to(header, space.portable)
        if self.start:
            start = torch.from_numpy(np.frombuffer(self.start, "<f4").astype(np.float32))
            for first, count in space.chunks():
                space.assign(first, start[first : first + count])
        descent = Descent(space, rule, hold_moments)
        descent.replay(self.steps)
        return descent


def read_trajectory(path: Path) -> Trajectory:
    """Read a trajectory, even while it is being written; the file is not changed.

    Raises:
        TrajectoryError: if the file cannot be read, or is damaged before the last record.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TrajectoryError(
            f"{path}: cannot be read: {error.strerror}; restore the file"
        ) from error
    try:
        return _decode(path, data)
    except SamaraError as error:
        raise TrajectoryError(
            f"{path}: {error}; restore the file, or begin the run in another folder"
        ) from error


def _decode(path: Path, data: bytes) -> Trajectory:
    header, start, offset = TrajectoryHeader.decode(data)
    records: list[UpdateStep | int] = []
    plan = header.scaling_plan
    d = None
    checksum = first_checksum(data, offset)
    while offset < len(data):
        record = decode_record(data, offset, len(records), checksum)
        if record is None:
            break
        if isinstance(record.content, int):
            records.append(record.content)
        else:
            gradients = record.content
            if plan is not None and plan.finds_anew(len(records)):
                d, gradients = _split_d(gradients, plan.groups, len(records))
            seeds = header.seeds(len(records), len(gradients))
            scaling = scaling_by(plan, d)
            records.append(
                UpdateStep(seeds, gradients, record.learning_rate, header.epsilon, scaling)
            )
        offset = record.end
        checksum = record.checksum
    return Trajectory(path, header, start, tuple(records), d, checksum, len(data) - offset)


def _split_d(
    content: NDArray[np.float32], groups: int, step: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Split a record into the d of each group (see `Scaling`) and the projected gradients."""
    d = content[:groups]
    gradients = content[groups:]
    if not len(gradients) or not (np.isfinite(d) & (d > 0)).all():
        raise TrajectoryError(f"step {step + 1} lacks the d of {groups} groups of parameters")
    return d, gradients


class TrajectoryWriter:
    """A trajectory file that this process alone writes.

    Attributes:
        trajectory: contents of the file when it was opened.
    """

    def __init__(self, path: Path, header: TrajectoryHeader, space: Space) -> None:
        """Open the file, or create it.

        An incomplete last record is cut off, and `trajectory.warning` reports it.

        Args:
            path: path of the file; a lock file `….lock` beside it keeps other writers out.
            header: header that the file must have.
            space: space before its first step, as when the header was made.

        Raises:
            TrajectoryError: if the file is damaged, is being written by another process, belongs to
                another run, or cannot be written.
        """
        self._path = path
        try:
            make_folder(path.parent)
            self._lock = FileLock(path.with_name(path.name + ".lock"), thread_local=False)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise TrajectoryError(
                f"{path}: another process is writing the file; wait for that process, or end it"
            ) from None
        except OSError as error:
            raise TrajectoryError(
                f"{path}: cannot be opened: {error.strerror}; make the folder writable"
            ) from error
        try:
            self._open(header, space)
        except OSError as error:
            self._lock.release()
            raise TrajectoryError(
                f"{path}: cannot be written: {error.strerror}; free space on this disk, or make "
                "the folder writable"
            ) from error
        except BaseException:
            self._lock.release()
            raise

    def _open(self, header: TrajectoryHeader, space: Space) -> None:
        if not self._path.exists():
            write_durably(self._path, header.encode(b"" if space.portable else _to_bytes(space)))
        self.trajectory = read_trajectory(self._path)
        self.trajectory.check_belongs_to(header, space.portable)
        self._records = len(self.trajectory.records)
        self._checksum = self.trajectory.checksum
        self._end = self._path.stat().st_size - self.trajectory.dropped
        with self._path.open("r+b") as file:
            file.truncate(self._end)
            os.fsync(file.fileno())
        self._file = self._path.open("r+b", buffering=0)

    def seeds(self, queries: int) -> NDArray[np.uint64]:
        """Return the seeds of the next step's directions, uint64 [n]."""
        return self.trajectory.header.seeds(self._records, queries)

    def append(
        self,
        gradients: NDArray[np.float32],
        learning_rate: float,
        d: NDArray[np.float32] | None = None,
    ) -> UpdateStep:
        """Append the next step to the file, durably.

        Args:
            gradients: float32 [n], the projected gradients of `seeds(n)`.
            learning_rate: learning rate η, rounded to float32.
            d: D of the step, float32 [groups], if there is one.

        Returns:
            The step, with the numbers that a rebuild will read.

        Raises:
            TrainingError: if a number is not finite; then nothing is written.
            TrajectoryError: if writing fails; the file is then unchanged.
        """
        rate = float(np.float32(learning_rate))
        epsilon = self.trajectory.header.epsilon
        plan = self.trajectory.header.scaling_plan
        seeds = self.seeds(len(gradients))
        step = UpdateStep(seeds, gradients, rate, epsilon, scaling_by(plan, d))
        if plan is not None and d is not None and plan.finds_anew(self._records):
            gradients = np.concatenate([d, gradients])
        self._write(encode_record(self._records, rate, gradients, self._checksum))
        return step

    def append_revert(self, records: int) -> None:
        """Append a record that returns θ to its value after the first `records` records.

        Raises:
            TrajectoryError: if writing fails; the file is then unchanged.
        """
        self._write(encode_record(self._records, 0.0, records, self._checksum))

    def _write(self, record: bytes) -> None:
        try:
            self._file.truncate(self._end)  # a failed append may have left some bytes
            self._file.seek(self._end)
            rest = memoryview(record)
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(self._end)
            raise TrajectoryError(
                f"{self._path}: step {self._records + 1} cannot be appended: {error.strerror}; "
                "free space on this disk, and run the same command again"
            ) from error
        self._end += len(record)
        self._records += 1
        self._checksum = last_checksum(record)

    def close(self) -> None:
        """Close the file, so that another process can write it."""
        self._file.close()
        self._lock.release()


def _to_bytes(space: Space) -> bytes:
    """Return a space's θ as little-endian float32."""
    parts = (space.values(first, count).cpu().numpy() for first, count in space.chunks())
    return b"".join(part.astype("<f4").tobytes() for part in parts)
