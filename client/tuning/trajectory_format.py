"""The bytes of a trajectory file: its header and its records (tables: docs/concepts/mezo.md).

    header   "SAMARATJ" · version u16 · 2 zero bytes · length of the text u32 and of the start u64
             · text (JSON) · start (float32, if the initial θ depends on the machine)
             · SHA-256 of all bytes before
    step     index u32 · n u32 · learning rate f32 · CRC-32 · n × f32 · CRC-32
             if D is computed, the n numbers begin with one d per group of parameters
    revert   index u32 · 0 u32 · 0 f32 · CRC-32 · number of records u32 · CRC-32
             θ returns to its value after this number of records

All numbers are little-endian. Every CRC-32 continues the previous CRC-32. The first CRC-32
continues the CRC-32 of the header's hash. So a record is valid only in its position.
"""

import hashlib
import json
import struct
import zlib
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from samara.client.spaces.scaling import ScalingPlan
from samara.shared.errors import TrajectoryError
from samara.shared.protocol.directions import query_seeds
from samara.shared.protocol.normal_table import TABLE_SHA256

TRAJECTORY_VERSION = 1
MAX_QUERIES = 65_535
_MAGIC = b"SAMARATJ"
_PREFIX = struct.Struct("<8sHHIQ")
_RECORD = struct.Struct("<IIf")
_CHECKSUM = struct.Struct("<I")
_REVERT = struct.Struct("<I")
_RECORD_HEADER_BYTES = _RECORD.size + _CHECKSUM.size
_HASH_BYTES = 32


@dataclass(frozen=True)
class TrajectoryHeader:
    """The model, space and settings to which a trajectory belongs; hashes are in hexadecimal.

    Attributes:
        model_id: model id of the base model.
        space: kind of the space.
        state: name of θ's storage type.
        size: number d of elements.
        tensors_hash: hash of the tensors' names and shapes.
        start_digest: digest of the initial θ.
        distribution: distribution of the directions.
        root: seed from which the directions' seeds are derived.
        epsilon: size ε of the perturbations.
        update: name and parameters of the update rule, and of the diagonal scaling D if it is used.
        settings_hash: hash of all settings of the run.
        normal_table_hash: hash of the table from which directions are computed.
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

    def seeds(self, step: int, queries: int) -> NDArray[np.uint64]:
        """Return the seeds of a step's directions, uint64 [n]."""
        seeds: NDArray[np.uint64] = query_seeds(self.root, 0, 1, queries, first_step=step)[0]
        return seeds

    @property
    def scaling_plan(self) -> ScalingPlan | None:
        """Plan of the diagonal scaling D; None without scaling."""
        match self.update:
            case {"modify": ("variance" | "expectation") as modify, "groups": groups, **rest}:
                return ScalingPlan(modify, int(groups), int(rest.get("interval", 0)))
        return None

    def encode(self, start: bytes) -> bytes:
        """Return all bytes of the file before the first record.

        Args:
            start: initial θ as float32; empty if the settings determine it.
        """
        text = json.dumps(asdict(self), sort_keys=True).encode()
        fields = _PREFIX.pack(_MAGIC, TRAJECTORY_VERSION, 0, len(text), len(start)) + text + start
        return fields + hashlib.sha256(fields).digest()

    @classmethod
    def decode(cls, data: bytes) -> tuple[Self, bytes, int]:
        """Decode the header of a file.

        Returns:
            The header, the initial θ or no bytes, and the offset of the first record.

        Raises:
            TrajectoryError: if the header is damaged, or has an unknown version.
        """
        if len(data) < _PREFIX.size or not data.startswith(_MAGIC):
            raise TrajectoryError(f"the file does not begin with {_MAGIC.decode()}")
        _, version, _, text_bytes, start_bytes = _PREFIX.unpack_from(data)
        if version != TRAJECTORY_VERSION:
            raise TrajectoryError(
                f"the trajectory has version {version}, but this Samara reads only version "
                f"{TRAJECTORY_VERSION}"
            )
        begin = _PREFIX.size + text_bytes
        end = begin + start_bytes
        checksum = data[end : end + _HASH_BYTES]
        if hashlib.sha256(data[:end]).digest() != checksum:
            raise TrajectoryError("the trajectory's header is damaged")
        try:
            header = cls(**json.loads(data[_PREFIX.size : begin]))
        except (ValueError, TypeError) as error:
            raise TrajectoryError(f"the header has missing or unknown fields: {error}") from error
        start = data[begin:end]
        if start and len(start) != 4 * header.size:
            raise TrajectoryError("the initial θ does not have the size of the space")
        return header, start, end + _HASH_BYTES

    def differences(self, other: "TrajectoryHeader", portable: bool) -> str:
        """Return the fields in which another header differs, with both values; "" if equal.

        Args:
            other: header to compare with.
            portable: whether the initial θ must be bit-identical.
        """
        stored = asdict(self)
        expected = asdict(other)
        ignored = set() if portable else {"start_digest"}
        return ", ".join(
            f"{key} ({stored[key]} in the file, {expected[key]} here)"
            for key in stored
            if stored[key] != expected[key] and key not in ignored
        )


@dataclass(frozen=True, eq=False)
class Record:
    """A record of a trajectory file, with its position in the file.

    Attributes:
        learning_rate: learning rate of a step; 0 in a revert.
        content: projected gradients of a step, float32 [n]; in a revert, the number of records to
            which θ returns.
        end: offset of the first byte after the record.
        checksum: CRC-32 at the end of the record.
    """

    learning_rate: float
    content: NDArray[np.float32] | int
    end: int
    checksum: int


def encode_record(
    index: int, learning_rate: float, content: NDArray[np.float32] | int, checksum: int
) -> bytes:
    """Return the bytes of a record.

    Args:
        index: index of the record, from 0.
        learning_rate: learning rate of a step; 0 in a revert.
        content: projected gradients of a step, or the number of records to which a revert returns.
        checksum: CRC-32 before this record.
    """
    queries = 0 if isinstance(content, int) else len(content)
    fields = _RECORD.pack(index, queries, learning_rate)
    crc = zlib.crc32(fields, checksum)
    data = _REVERT.pack(content) if isinstance(content, int) else content.astype("<f4").tobytes()
    return fields + _CHECKSUM.pack(crc) + data + _CHECKSUM.pack(zlib.crc32(data, crc))


def first_checksum(data: bytes, offset: int) -> int:
    """Return the CRC-32 of the header's hash, which the first record continues.

    Args:
        data: bytes of the file.
        offset: offset of the first record.
    """
    return zlib.crc32(data[offset - _HASH_BYTES : offset])


def last_checksum(record: bytes) -> int:
    """Return the CRC-32 at the end of a record's bytes."""
    (checksum,) = _CHECKSUM.unpack(record[-_CHECKSUM.size :])
    return int(checksum)


def decode_record(data: bytes, offset: int, index: int, checksum: int) -> Record | None:
    """Read a record, or return None if it was only partly written.

    A record is incomplete if the file ends inside the record, or contains only zeros from the
    start of the record. The last record is also incomplete if its checksum is zero. Some file
    systems leave such zeros after a power cut.

    Args:
        data: bytes of the file.
        offset: offset of the record.
        index: index that the record must have.
        checksum: CRC-32 before the record.

    Raises:
        TrajectoryError: if the record is damaged in another way.
    """
    rest = memoryview(data)[offset:]
    if len(rest) < _RECORD_HEADER_BYTES or not any(rest):
        return None
    stored_index, queries, learning_rate = _RECORD.unpack_from(rest)
    crc = zlib.crc32(rest[: _RECORD.size], checksum)
    end = _RECORD_HEADER_BYTES + (4 * queries or _REVERT.size)
    valid = (crc,) == _CHECKSUM.unpack_from(rest, _RECORD.size)
    if not valid or stored_index != index or queries > MAX_QUERIES:
        raise TrajectoryError(f"the record of step {index + 1} is damaged or out of order")
    if len(rest) < end + _CHECKSUM.size:
        return None
    content = rest[_RECORD_HEADER_BYTES:end]
    crc = zlib.crc32(content, crc)
    (stored_crc,) = _CHECKSUM.unpack_from(rest, end)
    if crc != stored_crc:
        if not stored_crc and len(rest) == end + _CHECKSUM.size:
            return None
        raise TrajectoryError(f"the projected gradients of step {index + 1} are damaged")
    offset += end + _CHECKSUM.size
    if queries:
        gradients = np.frombuffer(content, "<f4").astype(np.float32)
        return Record(learning_rate, gradients, offset, crc)
    (reverts_to,) = _REVERT.unpack(content)
    if reverts_to > index:
        raise TrajectoryError(
            f"step {index + 1} reverts to step {reverts_to}, which is not an earlier step"
        )
    return Record(learning_rate, int(reverts_to), offset, crc)
