import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import assert_same
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from samara.shared.errors import FrameError
from samara.shared.privacy.vector import NOISED_LIMIT
from samara.shared.protocol.client_index import MAX_CLIENT
from samara.shared.protocol.frames.blob import BlobPart, BlobReceipt
from samara.shared.protocol.frames.bucket_keys import BucketKeyList
from samara.shared.protocol.frames.evaluation import Evaluation, EvaluationColumn
from samara.shared.protocol.frames.hello import Hello
from samara.shared.protocol.frames.instructions import (
    PERSONAL_TRACK,
    EvaluateInstruction,
    SeedPolicy,
    Split,
    TrainInstruction,
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
from samara.shared.protocol.replay import MAX_DENSE_VALUE, CoefficientBlock, DenseValues, Shrink
from samara.shared.protocol.round_delta import (
    Contributor,
    DerivedSeeds,
    Group,
    PoolSeeds,
    RoundDelta,
)
from samara.shared.protocol.wire import Kind, pack
from samara.shared.storage.blob_store import MAX_BLOB_BYTES

U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
CLIENT = st.integers(0, MAX_CLIENT)
FROM_ONE = st.integers(1, 2**16 - 1)
TEXT = st.text(max_size=20)
NUMBER = st.floats(0, allow_infinity=False)
NAME, HASH = st.binary(min_size=8, max_size=8), st.binary(min_size=32, max_size=32)

HELLOS = st.builds(Hello, CLIENT, U32, U32, HASH, TEXT, TEXT)
REFUSALS = st.builds(Refusal, NAME, CLIENT, U32, U16, st.tuples(U32, U32))
EVALUATES = st.builds(EvaluateInstruction, NAME, U32, U32, st.sampled_from(Split), HASH, HASH)
COST = st.floats(0, 2**20, width=32)
COSTS = st.builds(
    lambda token, client, cost: RoundCost(token, client, max(cost[:2]), min(cost[:2]), cost[2]),
    *(NAME, CLIENT, st.tuples(COST, COST, COST)),
)
RECEIPTS = st.builds(BlobReceipt, NAME, CLIENT, HASH, st.integers(0, MAX_BLOB_BYTES))


@st.composite
def blob_parts(draw: st.DrawFn) -> BlobPart:
    content = draw(st.binary(min_size=1, max_size=40))
    size = draw(st.integers(len(content), MAX_BLOB_BYTES))
    return BlobPart(draw(HASH), size, draw(st.integers(0, size - len(content))), content)


@st.composite
def trains(draw: st.DrawFn) -> TrainInstruction:
    steps = draw(FROM_ONE)
    policy = draw(st.sampled_from(SeedPolicy))
    pooled = policy is SeedPolicy.POOL
    pool = (draw(U64), draw(st.integers(1, 2**20))) if pooled else (0, 0)
    return TrainInstruction(
        *(draw(NAME), draw(U32.filter(bool)), draw(U32)),
        *(steps, draw(st.integers(1, min(2**16 - 1, 2**20 // steps))), draw(U32.filter(bool))),
        *(policy, draw(U64)),
        *(draw(NUMBER.filter(bool)), draw(NUMBER), draw(NUMBER), draw(NUMBER)),
        *(draw(HASH), draw(HASH)),
        *pool,
        draw(U16),
        draw(st.sampled_from(("central", "forward"))),
        draw(NUMBER),
    )


@st.composite
def reports(draw: st.DrawFn) -> Report:
    shape = draw(hnp.array_shapes(min_dims=2, max_dims=2, max_side=4))
    gradient = st.floats(-MAX_GRADIENT, MAX_GRADIENT, width=32)
    loss = gradient
    bend = draw(st.none() | st.floats(-MAX_GRADIENT, MAX_GRADIENT, width=32))
    begin = draw(NAME), draw(CLIENT), draw(U32), draw(loss)
    if draw(st.booleans()):
        sums = draw(hnp.arrays(np.float32, shape[0], elements=gradient))
        return Report(*begin, sums, draw(FROM_ONE), bend)
    gradients = draw(hnp.arrays(np.float32, shape, elements=gradient))
    return Report(*begin, gradients, curvature=bend)


@st.composite
def evaluations(draw: st.DrawFn) -> Evaluation:
    labels = draw(st.integers(1, 4))
    counts = hnp.arrays(np.int64, (labels, labels), elements=U32)
    loss = st.floats(allow_nan=False, allow_infinity=False)
    names = draw(st.sets(TEXT, min_size=1, max_size=3))
    columns = [EvaluationColumn(name, draw(loss), draw(counts)) for name in sorted(names)]
    if labels == 2 and draw(st.booleans()):
        pairs = [2 * math.prod(column.counts.sum(axis=1).tolist()) for column in columns]
        most = [min(count, 2**64 - 1) for count in pairs]
        ordered = [draw(st.integers(0, count)) for count in most]
        columns = [replace(c, ordered=o) for c, o in zip(columns, ordered, strict=True)]
    return Evaluation(draw(NAME), draw(CLIENT), tuple(columns))


@st.composite
def groups(draw: st.DrawFn) -> Group:
    steps, queries = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    count, whole = steps * queries, st.integers(-(2**31), 2**31 - 1)
    derived = st.builds(DerivedSeeds, U64, U32, st.just(steps), st.just(queries))
    pooled = st.builds(PoolSeeds, U64, hnp.arrays(np.uint32, count, elements=U32))
    source = derived | pooled | hnp.arrays(np.uint64, count, elements=U64)
    scalars = CoefficientBlock(
        draw(st.integers(0, 10)), draw(hnp.arrays(np.int32, count, elements=whole))
    )
    return Group(draw(U32), draw(source), scalars)


WIDE = st.integers(-MAX_DENSE_VALUE, MAX_DENSE_VALUE)
DENSE = st.builds(DenseValues, U32, hnp.arrays(np.int64, st.integers(1, 4), elements=WIDE))


@st.composite
def deltas(draw: st.DrawFn) -> RoundDelta:
    contributors = tuple(
        Contributor(client, draw(U32), draw(U16))
        for client in sorted(draw(st.sets(CLIENT, max_size=3)))
    )
    track = draw(U32 | st.just(PERSONAL_TRACK))
    kinds = groups() | st.builds(Shrink, st.integers(1, 62))
    some = tuple(draw(st.lists(kinds | DENSE if track == PERSONAL_TRACK else kinds, max_size=3)))
    return RoundDelta(draw(U32.filter(bool)), track, draw(NAME), contributors, some)


VECTORS = st.builds(VectorReport.of, reports(), st.floats(1e-3, 1e3))
NOISED = st.integers(-NOISED_LIMIT, NOISED_LIMIT)
NOISED_VECTORS = st.builds(
    NoisedVectorReport, NAME, CLIENT, hnp.arrays(np.int64, st.integers(4, 9), elements=NOISED)
)
BYTES, SHARE, POINT = (st.binary(min_size=n, max_size=n) for n in (94, 33, 65))
SIGNATURE = st.binary(min_size=1, max_size=40)
KEY_REQUESTS = st.builds(KeyRequest, NAME)
MASKED_REPORTS = st.builds(
    MaskedReport, NAME, CLIENT, hnp.arrays(np.uint64, st.integers(4, 9), elements=U64)
)
SIGNATURES = st.builds(SurvivorSignature, NAME, CLIENT, SIGNATURE)


@st.composite
def masking_frames(draw: st.DrawFn) -> Any:
    token, client = draw(NAME), draw(CLIENT)
    clients = sorted(draw(st.sets(CLIENT, min_size=1, max_size=4)))
    kind = draw(st.sampled_from([KeyList, SealedShares, SignatureList, RevealedShares, None]))
    if kind is SealedShares:
        return SealedShares(token, client, {one: draw(BYTES) for one in clients})
    if kind is SignatureList:
        return SignatureList(token, {one: draw(SIGNATURE) for one in clients})
    if kind is RevealedShares:
        of_kind = dict[bool, dict[int, bytes]]({True: {}, False: {}})
        for one in clients:
            of_kind[draw(st.booleans())][one] = draw(SHARE)
        return RevealedShares(token, client, of_kind[True], of_kind[False])
    if kind is None:
        return SurvivorList(token, tuple(clients))
    keys = [
        MaskingKeys(
            *(token, one, draw(POINT), draw(POINT), draw(HASH), draw(SIGNATURE), draw(SIGNATURE))
        )
        for one in clients
    ]
    listed = KeyList(token, tuple(clients), tuple(keys))
    drawn = BucketKeyList(listed, tuple(own.digest for own in keys))
    return draw(st.sampled_from([keys[0], listed, drawn]))


FRAMES = HELLOS | REFUSALS | EVALUATES | trains() | reports() | evaluations() | deltas()
FRAMES |= RECEIPTS | blob_parts() | COSTS | VECTORS | NOISED_VECTORS
FRAMES |= KEY_REQUESTS | MASKED_REPORTS | SIGNATURES | masking_frames()
DECODED_BY: dict[Kind, Any] = {
    Kind.HELLO: Hello,
    Kind.TRAIN: TrainInstruction,
    Kind.EVALUATE: EvaluateInstruction,
    Kind.REPORT: Report,
    Kind.EVALUATION: Evaluation,
    Kind.REFUSAL: Refusal,
    Kind.BLOB_PART: BlobPart,
    Kind.BLOB_RECEIPT: BlobReceipt,
    Kind.ROUND_DELTA: RoundDelta,
    Kind.REPORT_OF_SUMS: Report,
    Kind.ROUND_COST: RoundCost,
    Kind.VECTOR_REPORT: VectorReport,
    Kind.NOISED_VECTOR_REPORT: NoisedVectorReport,
    Kind.KEY_REQUEST: KeyRequest,
    Kind.MASKING_KEYS: MaskingKeys,
    Kind.KEY_LIST: KeyList,
    Kind.SEALED_SHARES: SealedShares,
    Kind.MASKED_REPORT: MaskedReport,
    Kind.SURVIVOR_LIST: SurvivorList,
    Kind.SURVIVOR_SIGNATURE: SurvivorSignature,
    Kind.SIGNATURE_LIST: SignatureList,
    Kind.REVEALED_SHARES: RevealedShares,
    Kind.BUCKET_KEY_LIST: BucketKeyList,
}


@given(FRAMES)
def test_decoding_undoes_encoding(frame: Any) -> None:
    assert_same(type(frame).decode(frame.encode()), frame)


def assert_refused_or_canonical(kind: Kind, body: bytes) -> None:
    """Check that a body is refused, or that decoding and encoding returns it unchanged."""
    sealed = pack(kind, body)
    try:
        frame = DECODED_BY[kind].decode(sealed)
    except FrameError:
        return
    assert frame.encode() == sealed


@given(st.sampled_from(Kind), st.binary(max_size=200))
def test_any_bytes_are_refused_or_mean_one_thing(kind: Kind, body: bytes) -> None:
    assert_refused_or_canonical(kind, body)


@given(FRAMES, st.data())
def test_any_forged_field_is_refused_or_means_one_thing(frame: Any, data: st.DataObject) -> None:
    sealed = frame.encode()
    kind, body = Kind(sealed[3]), bytearray(sealed[8:])
    at = data.draw(st.integers(0, len(body) - 1))
    forged = data.draw(st.binary(min_size=1, max_size=8))
    body[at : at + len(forged)] = forged
    assert_refused_or_canonical(kind, bytes(body))


@given(FRAMES, st.data())
def test_a_damaged_frame_is_refused(frame: Any, data: st.DataObject) -> None:
    sealed = bytearray(frame.encode())
    start = data.draw(st.integers(0, len(sealed) - 1))
    noise = data.draw(st.binary(min_size=1, max_size=4).filter(any))
    for offset, byte in enumerate(noise[: len(sealed) - start]):
        sealed[start + offset] ^= byte
    if bytes(sealed) != frame.encode():
        with pytest.raises(FrameError):
            type(frame).decode(bytes(sealed))
