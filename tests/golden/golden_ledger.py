"""The golden files of a ledger: segments, a snapshot, and a personal ledger with its file."""

import hashlib
import struct
from typing import Any

import numpy as np

from samara.shared.protocol.directions import round_root
from samara.shared.protocol.frames.instructions import PERSONAL_TRACK
from samara.shared.protocol.layout import ADAPTER_GROUP, LABEL_BIAS_GROUP, Layout, Tensor
from samara.shared.protocol.ledger.personal_file import FitFile
from samara.shared.protocol.ledger.records import (
    LEDGER_VERSION,
    SEGMENT_VERSION,
    LedgerHeader,
    Link,
    Position,
    Record,
    Snapshot,
)
from samara.shared.protocol.replay import (
    MAX_DENSE_VALUE,
    DenseValues,
    digest,
    quantize,
    replay,
    to_float32,
    zero_state,
)
from samara.shared.protocol.round_delta import Contributor, DerivedSeeds, Group, RoundDelta

RUN_ID = bytes.fromhex("73616d6172610001")
LAYOUT = Layout(
    (
        Tensor("layer.0.query", 6, 2, ADAPTER_GROUP),
        Tensor("layer.0.value", 4, 2, ADAPTER_GROUP),
        Tensor("label bias", 3, 1, LABEL_BIAS_GROUP),
    ),
    2,
    4.0,
    11,
    "gaussian",
)


def rounds() -> list[RoundDelta]:
    """Independent seeds, shared seeds with a part too wide for one pass, and an empty round."""
    roots = [round_root(1, number, 0) for number in (1, 2, 3)]
    tokens = [bytes([number] * 8) for number in (1, 2, 3)]
    fine, wide = np.array([0.01, -0.02, 3e-9, 0.5]), np.array([1.5, -2.5, 0.25, 1e-6])
    both = (Contributor(0, 10, 2), Contributor(1, 30, 2))
    independent = tuple(
        Group(1, DerivedSeeds(roots[0], client, 2, 2), one_pass)
        for client, scale in ((1, 0.25), (2, 0.75))
        for one_pass in quantize(scale * fine)
    )
    shared = tuple(Group(2, DerivedSeeds(roots[1], 0, 2, 2), p) for p in quantize(wide))
    return [
        RoundDelta(1, 0, tokens[0], both, independent),
        RoundDelta(2, 0, tokens[1], both, shared),
        RoundDelta(3, 0, tokens[2], (), ()),
    ]


def private_fit() -> RoundDelta:
    """A client's private part: two numbers of a matrix, and a label bias with the widest values."""
    numbers = DenseValues.from_numbers(2, np.array([0.5, -1e-9]))
    widest = DenseValues(20, np.array([MAX_DENSE_VALUE, -MAX_DENSE_VALUE, 7]))
    return RoundDelta(1, PERSONAL_TRACK, bytes(8), (), (numbers, widest))


def made_private_fit() -> dict[str, bytes]:
    """A personal ledger with a private fit, and its personal file."""
    header, delta = LedgerHeader(PERSONAL_TRACK, RUN_ID, LAYOUT.hash), private_fit()
    state = replay(zero_state(LAYOUT.size), delta.scalar_groups(), LAYOUT.distribution)
    record = Record.create(header.start, delta, digest(LAYOUT.hash, state))
    segment = segment_header(header, header.start, LEDGER_VERSION) + record.encode()
    file = FitFile.from_records(header, [record], 4, bytes(range(32))).encode()
    return {f"private/{SEGMENT}": segment, "private.samara": file}


SEGMENT, SNAPSHOT, NEXT_SEGMENT = "0000000001.seg", "0000000002.snap", "0000000003.seg"


def segment_header(header: LedgerHeader, start: Position, version: int) -> bytes:
    fields = header.encode(version=version) + struct.pack("<I32s", start.round, start.head)
    return fields + hashlib.sha256(fields).digest()


def record_of(position: Position, delta: RoundDelta, end_digest: bytes, version: int) -> Record:
    """A record; earlier versions kept the contributors in the round delta."""
    if version == SEGMENT_VERSION:
        return Record.create(position, delta, end_digest)
    frame = delta.encode()
    hashed = hashlib.sha256(frame).digest()
    return Record(delta, frame, Link(position.head, delta.round, hashed, end_digest))


def made_ledger(version: int = LEDGER_VERSION) -> dict[str, Any]:
    """Two rounds in a segment, the snapshot after them, and one more round."""
    header = LedgerHeader(0, RUN_ID, LAYOUT.hash)
    state, position = zero_state(LAYOUT.size), header.start
    files = {SEGMENT: segment_header(header, position, version)}
    steps = [
        {
            "round": 0,
            "size": len(files[SEGMENT]),
            "digest": digest(LAYOUT.hash, state),
            "record_hash": position.head,
            "state": state,
        }
    ]
    for delta in rounds():
        state = replay(state, delta.scalar_groups(), LAYOUT.distribution)
        record = record_of(position, delta, digest(LAYOUT.hash, state), version)
        position, segment = record.position, NEXT_SEGMENT if SNAPSHOT in files else SEGMENT
        files[segment] += record.encode()
        steps.append(
            {
                "round": delta.round,
                "size": len(files[segment]),
                "digest": record.end_digest,
                "record_hash": position.head,
                "state": state,
            }
        )
        if delta.round == 2:
            files[SNAPSHOT] = b"".join(Snapshot(header, record.link, state).parts())
            files[NEXT_SEGMENT] = segment_header(header, position, version)
    for step in steps:
        step["state"] = [str(number) for number in step["state"].tolist()]  # type: ignore[union-attr]
    said = {
        "run_id": RUN_ID,
        "layout": LAYOUT.to_json(),
        "layout_hash": LAYOUT.hash,
        "rounds": steps,
        "weights": to_float32(state),
    }
    return {**files, "ledger.json": said}


def ledger_file(name: str, version: int = LEDGER_VERSION) -> bytes:
    made: bytes = made_ledger(version)[name]
    return made
