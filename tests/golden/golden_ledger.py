"""The golden files of a ledger: segments, a snapshot, and a personal ledger with its file."""

from typing import Any

import numpy as np

from samara.shared.directions import round_root
from samara.shared.frames.instructions import PERSONAL_TRACK
from samara.shared.layout import ADAPTER_GROUP, LABEL_BIAS_GROUP, Layout, Tensor
from samara.shared.ledger.personal_file import FitFile
from samara.shared.ledger.records import LedgerHeader, Record, Snapshot, encode_segment_header
from samara.shared.replay import (
    MAX_DENSE_VALUE,
    DenseValues,
    digest,
    quantize,
    replay,
    to_float32,
    zero_state,
)
from samara.shared.round_delta import Contributor, DerivedSeeds, Group, RoundDelta

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
    """A personal ledger with a private fit, and the personal file of it."""
    header, delta = LedgerHeader(PERSONAL_TRACK, RUN_ID, LAYOUT.hash), private_fit()
    state = replay(zero_state(LAYOUT.size), delta.scalar_groups(), LAYOUT.distribution)
    record = Record.create(header.start, delta, digest(LAYOUT.hash, state))
    segment = encode_segment_header(header, header.start) + record.encode()
    file = FitFile.from_records(header, [record], 4, bytes(range(32))).encode()
    return {f"private/{SEGMENT}": segment, "private.samara": file}


SEGMENT, SNAPSHOT, NEXT_SEGMENT = "0000000001.seg", "0000000002.snap", "0000000003.seg"


def made_ledger() -> dict[str, Any]:
    """Two rounds in a segment, the snapshot after them, and one more round."""
    header = LedgerHeader(0, RUN_ID, LAYOUT.hash)
    state, position = zero_state(LAYOUT.size), header.start
    files = {SEGMENT: encode_segment_header(header, position)}
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
        record = Record.create(position, delta, digest(LAYOUT.hash, state))
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
            files[NEXT_SEGMENT] = encode_segment_header(header, position)
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


def ledger_file(name: str) -> bytes:
    made: bytes = made_ledger()[name]
    return made
