import struct
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from helpers import delta_of, instruction_with, report_to

from samara.shared.errors import FrameError, RefusalCode
from samara.shared.protocol.frames.blob import PART_BYTES, BlobPart, BlobReceipt
from samara.shared.protocol.frames.bucket_keys import BucketKeyList
from samara.shared.protocol.frames.evaluation import (
    MAX_COLUMNS,
    MAX_LABELS,
    Evaluation,
    EvaluationColumn,
)
from samara.shared.protocol.frames.hello import Hello
from samara.shared.protocol.frames.instructions import (
    EvaluateInstruction,
    SeedPolicy,
    Split,
    TrainInstruction,
    token_of,
)
from samara.shared.protocol.frames.masking import (
    KeyList,
    KeyRequest,
    MaskingKeys,
    RevealedShares,
    SealedShares,
    SignatureList,
    SurvivorList,
    SurvivorSignature,
)
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.frames.report import MAX_GRADIENT, Report
from samara.shared.protocol.frames.round_cost import RoundCost
from samara.shared.protocol.frames.vector_report import (
    MaskedReport,
    NoisedVectorReport,
    VectorReport,
)
from samara.shared.protocol.round_delta import RoundDelta
from samara.shared.protocol.wire import FRAME_VERSION, MAX_FRAME_BYTES, Kind, kind_of, pack

PREFIX_BYTES = 8


def figures(name: str, loss: float) -> EvaluationColumn:
    return EvaluationColumn(name, loss, np.array([[1, 2], [3, 4]]))


ASKED = instruction_with()
POOL = instruction_with(seed_policy=SeedPolicy.POOL)
KEYS = MaskingKeys(bytes(8), 3, bytes(65), bytes(65), bytes(32), b"a public key", b"signature")
FRAMES: dict[Kind, Any] = {
    Kind.HELLO: Hello(3, 100, 7, bytes(range(32)), "{}", '{"größe": 1}'),
    Kind.TRAIN: ASKED,
    Kind.EVALUATE: EvaluateInstruction(bytes(8), 5, 0, Split.TEST, bytes(32), bytes(32)),
    Kind.REPORT: report_to(ASKED),
    Kind.EVALUATION: Evaluation(bytes(8), 3, (figures("global", 0.5), figures("zero-shot", 0.7))),
    Kind.REFUSAL: Refusal(bytes(8), 3, 7, RefusalCode.CATCH_UP, (9, 7)),
    Kind.ROUND_DELTA: delta_of(4),
    Kind.BLOB_PART: BlobPart(bytes(range(32)), 100, 50, b"content"),
    Kind.BLOB_RECEIPT: BlobReceipt(bytes(8), 3, bytes(range(32)), 57),
    Kind.REPORT_OF_SUMS: report_to(POOL),
    Kind.ROUND_COST: RoundCost(bytes(8), 3, 2.5, 0.5, 40.0),
    Kind.VECTOR_REPORT: VectorReport(bytes(8), 3, np.array([5, -7, 2**22, 9], np.int32)),
    Kind.NOISED_VECTOR_REPORT: NoisedVectorReport(
        bytes(8), 3, np.array([5, -7, 2**42, -(2**42)], np.int64)
    ),
    Kind.KEY_REQUEST: KeyRequest(bytes(8)),
    Kind.MASKING_KEYS: KEYS,
    Kind.KEY_LIST: KeyList(bytes(8), (3, 5, 8), (KEYS, replace(KEYS, client=5))),
    Kind.SEALED_SHARES: SealedShares(bytes(8), 3, {5: bytes(94), 8: bytes(range(94))}),
    Kind.MASKED_REPORT: MaskedReport(bytes(8), 3, np.array([5, 0, 7, 2**64 - 7], np.uint64)),
    Kind.SURVIVOR_LIST: SurvivorList(bytes(8), (3, 5, 8)),
    Kind.SURVIVOR_SIGNATURE: SurvivorSignature(bytes(8), 3, b"signature"),
    Kind.SIGNATURE_LIST: SignatureList(bytes(8), {3: b"signature", 5: b"another"}),
    Kind.REVEALED_SHARES: RevealedShares(bytes(8), 3, {3: bytes(33), 8: bytes(33)}, {5: bytes(33)}),
    Kind.BUCKET_KEY_LIST: BucketKeyList(KeyList(bytes(8), (3, 5), (KEYS,)), (bytes(32),) * 2),
}
DECODERS: set[Callable[[bytes], object]] = {type(frame).decode for frame in FRAMES.values()}
every_kind = pytest.mark.parametrize("kind", Kind)


def refused_by_all(frame: bytes) -> None:
    for decode in DECODERS:
        with pytest.raises(FrameError):
            decode(frame)


def resealed(kind: Kind, offset: int, layout: str, *values: object) -> bytes:
    """A frame of this kind with other values at an offset of its body, and a valid checksum."""
    body = bytearray(FRAMES[kind].encode()[PREFIX_BYTES:])
    struct.pack_into(layout, body, offset, *values)
    return pack(kind, bytes(body))


def peak_of_refusing(decode: Callable[[bytes], object], frame: bytes) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(FrameError):
            decode(frame)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@every_kind
def test_only_the_decoder_of_its_kind_takes_a_frame(kind: Kind) -> None:
    frame = FRAMES[kind].encode()
    assert kind_of(frame) is kind
    for decode in DECODERS:
        if decode == type(FRAMES[kind]).decode:
            decode(frame)
        else:
            with pytest.raises(FrameError, match="expected a"):
                decode(frame)


@every_kind
def test_every_truncation_is_refused(kind: Kind) -> None:
    frame, decode = FRAMES[kind].encode(), type(FRAMES[kind]).decode
    for size in range(len(frame)):
        with pytest.raises(FrameError):
            decode(frame[:size])
    for size in range(len(frame) - PREFIX_BYTES):
        with pytest.raises(FrameError):
            decode(pack(kind, frame[PREFIX_BYTES:][:size]))


@every_kind
def test_what_follows_the_last_field_is_refused(kind: Kind) -> None:
    frame, decode = FRAMES[kind].encode(), type(FRAMES[kind]).decode
    for more in (b"\0", bytes(5), bytes(12)):
        with pytest.raises(FrameError, match="checksum"):
            decode(frame + more)
        with pytest.raises(FrameError):
            decode(pack(kind, frame[PREFIX_BYTES:] + more))


@pytest.mark.parametrize(
    ("kind", "field", "value", "size"),
    [
        (Kind.TRAIN, "curvature_every", 3, 2),
        (Kind.REPORT, "curvature", 2.5, 4),
        (Kind.REPORT_OF_SUMS, "curvature", 0.0, 4),
    ],
)
def test_the_curvature_is_what_may_follow_the_last_field(
    kind: Kind, field: str, value: float, size: int
) -> None:
    without, decode = FRAMES[kind].encode(), type(FRAMES[kind]).decode
    frame = replace(FRAMES[kind], **{field: value}).encode()
    assert frame[PREFIX_BYTES:-size] == without[PREFIX_BYTES:]
    assert getattr(decode(frame), field) == value
    assert not getattr(decode(without), field)
    with pytest.raises(FrameError):
        decode(pack(kind, frame[PREFIX_BYTES:] + b"\0"))
    for less in range(1, size):
        with pytest.raises(FrameError):
            decode(pack(kind, frame[PREFIX_BYTES:-less]))


@pytest.mark.parametrize("every", [0, 3])
def test_the_kind_of_differences_is_what_may_follow_the_curvature(every: int) -> None:
    asked = instruction_with(differences="forward", curvature_every=every)
    frame = asked.encode()
    assert TrainInstruction.decode(frame) == asked
    assert len(frame) == len(ASKED.encode()) + 3
    for last in (b"\0", b"\2", b"\1\1"):
        with pytest.raises(FrameError):
            TrainInstruction.decode(pack(Kind.TRAIN, frame[PREFIX_BYTES:-1] + last))


@pytest.mark.parametrize("curvature", [np.nan, np.inf, -2e12, 1e60])
def test_a_curvature_out_of_range_is_refused(curvature: float) -> None:
    frame = replace(FRAMES[Kind.REPORT], curvature=curvature).encode()
    with pytest.raises(FrameError, match="curvature of client 0 is not finite, or is over"):
        Report.decode(frame)


def test_an_instruction_that_announces_no_curvature_is_refused() -> None:
    frame = FRAMES[Kind.TRAIN].encode()
    with pytest.raises(FrameError, match="out of its range"):
        TrainInstruction.decode(pack(Kind.TRAIN, frame[PREFIX_BYTES:] + bytes(2)))


@every_kind
def test_every_flipped_bit_is_refused_by_every_decoder(kind: Kind) -> None:
    frame = FRAMES[kind].encode()
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        refused_by_all(bytes(damaged))


def test_random_bytes_are_refused() -> None:
    rng = np.random.default_rng(0)
    for size in [*range(40), 100, 1000]:
        refused_by_all(rng.bytes(size))


def test_a_frame_of_another_version_kind_or_size_is_refused() -> None:
    frame = FRAMES[Kind.REFUSAL].encode()
    with pytest.raises(FrameError, match=f"version {FRAME_VERSION + 1} is not {FRAME_VERSION}"):
        kind_of(frame[:2] + bytes([FRAME_VERSION + 1]) + frame[3:])
    start = frame[:3] + bytes([200])
    checksum = zlib.crc32(frame[8:], zlib.crc32(start)).to_bytes(4, "little")
    with pytest.raises(FrameError, match="kind 200 is unknown"):
        kind_of(start + checksum + frame[8:])
    with pytest.raises(FrameError, match="checksum"):
        kind_of(start + frame[4:])
    with pytest.raises(FrameError, match="truncated or over"):
        kind_of(bytes(MAX_FRAME_BYTES + 1))


def test_size_of_a_report_of_32_gradients() -> None:
    assert len(report_to(instruction_with(steps=8, queries=4)).encode()) == 160


@pytest.mark.parametrize(
    "bad", [np.nan, np.inf, -np.inf, np.nextafter(np.float32(MAX_GRADIENT), np.float32(np.inf))]
)
def test_a_gradient_that_is_not_finite_or_over_the_limit_is_refused(bad: float) -> None:
    report = report_to(ASKED)
    report.gradients[1, 2] = MAX_GRADIENT
    assert Report.decode(report.encode()).gradients[1, 2] == MAX_GRADIENT
    report.gradients[1, 2] = bad
    with pytest.raises(FrameError, match="not finite, or is over"):
        Report.decode(report.encode())


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (65_535, 17)])
def test_a_report_of_no_or_too_many_gradients_is_refused(shape: tuple[int, int]) -> None:
    report = report_to(ASKED, gradients=np.zeros(shape, np.float32))
    with pytest.raises(FrameError, match="out of range"):
        Report.decode(report.encode())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_loss_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(FrameError, match="loss"):
        Report.decode(report_to(ASKED, mean_loss=bad).encode())
    with pytest.raises(FrameError, match="loss"):
        Evaluation.decode(Evaluation(bytes(8), 3, (figures("global", bad),)).encode())


def test_a_column_of_an_evaluation_that_is_named_twice_is_refused() -> None:
    twice = Evaluation(bytes(8), 3, (figures("global", 0.5), figures("global", 0.6)))
    with pytest.raises(FrameError, match="names a column twice"):
        Evaluation.decode(twice.encode())


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        *((field, 0) for field in ("round", "steps", "queries", "batch")),
        *((field, np.nan) for field in ("epsilon", "learning_rate", "clip", "deadline")),
        *((field, np.inf) for field in ("epsilon", "learning_rate", "clip", "deadline")),
        *((field, -0.1) for field in ("epsilon", "learning_rate", "clip", "deadline")),
        ("epsilon", 0.0),
        ("steps", 65_535),
    ],
)
def test_an_instruction_out_of_range_is_refused(field: str, bad: float) -> None:
    changes: dict[str, Any] = {"queries": 17, field: bad}
    with pytest.raises(FrameError, match="out of its range"):
        TrainInstruction.decode(instruction_with(**changes).encode())


@pytest.mark.parametrize(("kind", "offset"), [(Kind.TRAIN, 24), (Kind.EVALUATE, 16)])
def test_an_unknown_choice_is_refused(kind: Kind, offset: int) -> None:
    with pytest.raises(FrameError, match=r"9 is not a valid (SeedPolicy|Split)"):
        type(FRAMES[kind]).decode(resealed(kind, offset, "<B", 9))


@pytest.mark.parametrize(
    ("labels", "columns"),
    [(0, 2), (MAX_LABELS + 1, 2), (2, 0), (2, MAX_COLUMNS + 1)],
)
def test_an_evaluation_of_no_or_too_many_labels_or_columns_is_refused(
    labels: int, columns: int
) -> None:
    with pytest.raises(FrameError, match="out of range"):
        Evaluation.decode(resealed(Kind.EVALUATION, 12, "<HH", labels, columns))


def test_a_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(FrameError, match="UTF-8"):
        Hello.decode(resealed(Kind.HELLO, 48, "<2s", b"\xff\xfe"))


@pytest.mark.parametrize("kind", [5, 7])
def test_a_retired_kind_is_refused_and_named(kind: int) -> None:
    frame = pack(cast(Kind, kind), FRAMES[Kind.REPORT].encode()[PREFIX_BYTES:])
    assert kind not in {*Kind}
    for decode in DECODERS:
        with pytest.raises(FrameError, match=f"frame kind {kind} .* is retired"):
            decode(frame)


@pytest.mark.parametrize(
    ("size", "offset", "length"),
    [(2**28 + 1, 50, 7), (56, 50, 7), (100, 94, 7), (100, 50, 0), (100, 2**32 - 1, 7)],
)
def test_a_part_outside_of_its_blob_is_refused(size: int, offset: int, length: int) -> None:
    with pytest.raises(FrameError, match="part of blob"):
        BlobPart.decode(resealed(Kind.BLOB_PART, 32, "<III", size, offset, length))


def test_a_part_of_more_bytes_than_a_part_has_is_refused() -> None:
    BlobPart.decode(BlobPart(bytes(32), 2**27, 1, bytes(PART_BYTES)).encode())
    with pytest.raises(FrameError, match="part of blob"):
        BlobPart.decode(BlobPart(bytes(32), 2**27, 1, bytes(PART_BYTES + 1)).encode())


def test_a_receipt_of_more_bytes_than_a_blob_has_is_refused() -> None:
    with pytest.raises(FrameError, match="client 3"):
        BlobReceipt.decode(resealed(Kind.BLOB_RECEIPT, 44, "<I", 2**28 + 1))


@pytest.mark.parametrize(
    ("offset", "layout", "values"),
    [
        (0, "<I", (0,)),  # round 0
        (16, "<I", (2,)),  # more contributors than there are
        (20, "<I", (3,)),  # more groups than there are
        (34, "<B", (4,)),  # a kind of entry that does not exist
        (34, "<BB", (3, 0)),  # a shrink by nothing
        (34, "<BB", (3, 63)),  # a shrink by more than the state has
        (39, "<B", (11,)),  # shift 11
        (40, "<I", (0,)),  # no coefficient
        (40, "<I", (2**20 + 1,)),  # too many coefficients
        (56, "<HH", (2, 3)),  # seeds of 6 queries for 4 coefficients
    ],
)
def test_an_unsound_round_delta_is_refused(
    offset: int, layout: str, values: tuple[int, ...]
) -> None:
    with pytest.raises(FrameError):
        RoundDelta.decode(resealed(Kind.ROUND_DELTA, offset, layout, *values))


@pytest.mark.parametrize(
    ("seconds", "paused", "joules"),
    [
        (1.0, 2.0, 0.0),
        (-1.0, -2.0, 0.0),
        (1.0, 0.0, -1.0),
        (float("nan"), 0.0, 0.0),
        (1.0, float("nan"), 0.0),
        (1.0, 0.0, float("nan")),
        (float("inf"), 0.0, 0.0),
        (1.0, 0.0, 2e9),
    ],
)
def test_a_cost_that_cannot_be_is_refused(seconds: float, paused: float, joules: float) -> None:
    with pytest.raises(FrameError, match="the cost of client 3 is out of range"):
        RoundCost.decode(RoundCost(bytes(8), 3, seconds, paused, joules).encode())


@pytest.mark.parametrize("clients", [(1, 1), (2, 1)])
def test_contributors_must_ascend(clients: tuple[int, int]) -> None:
    body = struct.pack("<II8sII", 1, 0, bytes(8), 2, 0)
    body += b"".join(struct.pack("<IIH", client, 10, 1) for client in clients)
    with pytest.raises(FrameError, match="out of order"):
        RoundDelta.decode(pack(Kind.ROUND_DELTA, body))


@pytest.mark.parametrize(
    ("kind", "offset", "layout", "values"),
    [
        (Kind.REPORT, 16, "<HH", (65_535, 16)),
        (Kind.REPORT, 16, "<HH", (65_535, 65_535)),
        (Kind.REPORT_OF_SUMS, 22, "<I", (2**20,)),
        (Kind.REPORT_OF_SUMS, 22, "<I", (2**32 - 1,)),
        (Kind.VECTOR_REPORT, 12, "<I", (3,)),
        (Kind.VECTOR_REPORT, 12, "<I", (2**32 - 1,)),
        (Kind.VECTOR_REPORT, 16, "<ii", (2**24, 1)),
        (Kind.VECTOR_REPORT, 16, "<i", (-(2**31),)),
        (Kind.EVALUATION, 12, "<H", (1024,)),
        (Kind.EVALUATION, 12, "<HH", (1024, 64)),
        (Kind.EVALUATION, 16, "<I", (2**32 - 1,)),
        (Kind.HELLO, 44, "<I", (2**20,)),
        (Kind.HELLO, 44, "<I", (2**32 - 1,)),
        (Kind.BLOB_PART, 32, "<III", (2**28, 0, PART_BYTES)),
        (Kind.BLOB_PART, 32, "<III", (2**28, 0, 2**32 - 1)),
        (Kind.ROUND_DELTA, 16, "<I", (2**32 - 1,)),
        (Kind.ROUND_DELTA, 20, "<I", (2**32 - 1,)),
        (Kind.ROUND_DELTA, 40, "<I", (2**20,)),
        (Kind.ROUND_DELTA, 40, "<I", (2**32 - 1,)),
    ],
)
def test_a_count_beyond_the_frame_is_refused_without_allocating(
    kind: Kind, offset: int, layout: str, values: tuple[int, ...]
) -> None:
    frame = resealed(kind, offset, layout, *values)
    assert peak_of_refusing(type(FRAMES[kind]).decode, frame) < 2**16


def test_token_changes_with_every_field_of_the_instruction() -> None:
    changes: list[dict[str, Any]] = [
        {"round": 2}, {"track": 1}, {"steps": 3}, {"queries": 5}, {"batch": 9},
        {"seed_policy": SeedPolicy.SHARED}, {"root": 1}, {"epsilon": 0.02},
        {"learning_rate": 0.2}, {"clip": 1.0}, {"deadline": 1.0}, {"run_id": bytes(8)},
        {"layout_hash": bytes([1] * 32)}, {"start_digest": bytes(32)}, {"curvature_every": 1},
        {"differences": "forward"}, {"differences": "forward", "curvature_every": 1}, {},
        {"is_profiled": True},
        {"joint_clip": 1.0}, {"joint_clip": 2.0}, {"joint_clip": 1.0, "differences": "forward"},
    ]  # fmt: skip
    pool: dict[str, Any] = {"seed_policy": SeedPolicy.POOL}
    changes += [pool, pool | {"pool_root": 1}, pool | {"pool_size": 7}]
    assert {field for change in changes for field in change} == set(vars(ASKED))
    tokens = {token_of(instruction_with(**change).encode()) for change in changes}
    assert len(tokens) == len(changes)
    assert {len(token) for token in tokens} == {8}
