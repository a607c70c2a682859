"""The frames in the golden files: at least one of each kind, by the version that introduced it."""

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
from golden.golden_ledger import LAYOUT, RUN_ID, private_fit

from samara.shared.errors import RefusalCode
from samara.shared.protocol.frames.blob import BlobPart, BlobReceipt
from samara.shared.protocol.frames.bucket_keys import BucketKeyList
from samara.shared.protocol.frames.evaluation import Evaluation, EvaluationColumn
from samara.shared.protocol.frames.hello import Hello
from samara.shared.protocol.frames.instructions import (
    INTERCEPT_TRACK,
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
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.frames.round_cost import RoundCost
from samara.shared.protocol.frames.vector_report import (
    MaskedReport,
    NoisedVectorReport,
    VectorReport,
)
from samara.shared.protocol.replay import CoefficientBlock, DenseValues, Shrink
from samara.shared.protocol.round_delta import (
    CommonDeviation,
    Contributor,
    DerivedSeeds,
    Group,
    PoolSeeds,
    RoundDelta,
)

SEEDS = (0, 1, 2**64 - 1, 0x9D39247E33776D41)


def frames() -> dict[str, Any]:
    """At least one frame of each kind."""
    train = TrainInstruction(
        run_id=RUN_ID,
        round=3,
        track=0,
        steps=2,
        queries=3,
        batch=16,
        seed_policy=SeedPolicy.INDEPENDENT,
        root=SEEDS[3],
        epsilon=0.01,
        learning_rate=0.3,
        clip=2.5,
        deadline=1.75e9,
        layout_hash=LAYOUT.hash,
        start_digest=bytes(range(32)),
    )
    token = token_of(train.encode())
    gradients = np.array([[0.5, -1.25, 3e-5], [1e6, -0.0, 7]], np.float32)
    groups = (
        Group(
            3,
            DerivedSeeds(SEEDS[3], 5, 2, 3),
            CoefficientBlock(2, np.arange(-3, 3, dtype=np.int32)),
        ),
        Group(
            2,
            np.array(SEEDS, np.uint64),
            CoefficientBlock(10, np.array([2**31 - 1, 1, 0, -9], np.int32)),
        ),
    )
    pool = replace(train, seed_policy=SeedPolicy.POOL, pool_root=SEEDS[3], pool_size=5)
    sums = np.array([0.5, -1.25, 3e-5, 1e6, -0.0], np.float32)
    from_the_pool = (
        Group(
            3,
            PoolSeeds(SEEDS[3], np.array([0, 4, 2**32 - 1], np.uint32)),
            CoefficientBlock(0, np.array([5, -(2**31) + 1, 0], np.int32)),
        ),
        Shrink(12),
        groups[0],
    )
    part = BlobPart(hashlib.sha256(b"basis" * 100).digest(), 500, 200, b"basis" * 20)
    return {
        "hello": Hello(4, 120, 2, bytes(range(32, 64)), LAYOUT.to_json(), '{"note": "größer"}'),
        "train": train,
        "evaluate": EvaluateInstruction(RUN_ID, 3, 0, Split.TEST, LAYOUT.hash, bytes(range(32))),
        "report": Report(token, 4, 120, 0.6875, gradients),
        "evaluation": Evaluation(
            token,
            4,
            (
                EvaluationColumn("global", 0.625, np.array([[10, 2], [3, 2**32 - 1]])),
                EvaluationColumn("zero-shot", 0.75, np.array([[9, 3], [0, 1]])),
            ),
        ),
        "refusal": Refusal(token, 4, 2, RefusalCode.CATCH_UP, (7, 2)),
        "refusal_of_a_small_batch": Refusal(token, 4, 2, RefusalCode.BATCH, (1, 2)),
        "refusal_of_an_evaluation": Refusal(token, 4, 2, RefusalCode.EVALUATION),
        "blob_part": part,
        "blob_receipt": BlobReceipt(token_of(part.encode()), 4, part.blob, 300),
        "round_delta": RoundDelta(
            3, 0, token, (Contributor(4, 120, 2), Contributor(9, 2**32 - 1, 1)), groups
        ),
        "train_with_a_pool": pool,
        "report_of_sums": Report(token_of(pool.encode()), 4, 120, 0.6875, sums, summed_steps=2),
        "train_that_measures_curvature": replace(train, curvature_every=2),
        "train_by_forward_differences": replace(train, differences="forward"),
        "report_with_curvature": Report(token, 4, 120, 0.6875, gradients, curvature=2.5),
        "round_delta_with_a_shrink": RoundDelta(3, 0, token, (), from_the_pool),
        "round_delta_with_dense_values": private_fit(),
    }


def later_frames() -> dict[str, Any]:
    """Kinds that are newer than the file of the first frames."""
    return {"round_cost": RoundCost(bytes(range(8)), 4, 61.5, 12.25, 430.5)}


def frames_of_privacy() -> dict[str, Any]:
    """The kind that was introduced with differential privacy."""
    gradients = np.array([[3.0, -4.0, 0.5], [0.25, 0.0, -1.0]], np.float32)
    report = Report(bytes(range(8)), 4, 120, 0.6875, gradients, curvature=-2.5)
    return {"vector_report": VectorReport.of(report, 2.0)}


def frames_of_local_privacy() -> dict[str, Any]:
    """The kind that was introduced with noise on clients; the noise is known here."""

    def known(count: int, sigma: int) -> Any:
        return np.array([sigma * (-1) ** n * 3**n for n in range(count)], object)

    plain_report = frames_of_privacy()["vector_report"]
    report = NoisedVectorReport.of(plain_report, 2**34, known)
    return {"noised_vector_report": report}


def frames_of_adaptive_clip() -> dict[str, Any]:
    """Instructions in the form introduced with the adaptive clip, and a report on one."""
    plain_train = frames()["train"]
    asked = replace(plain_train, joint_clip=1.75)
    forward = replace(asked, differences="forward", curvature_every=3)
    gradients = np.array([[3.0, -4.0, 0.5], [0.25, 0.0, -1.0]], np.float32)
    report = Report(bytes(range(8)), 4, 120, 0.6875, gradients, curvature=-2.5)
    return {
        "train_with_joint_clip": asked,
        "train_with_joint_clip_and_forward_differences": forward,
        "vector_report_with_indicator": VectorReport.of(report, 2.0, has_indicator=True),
    }


def frames_of_secure_aggregation() -> dict[str, Any]:
    """The kinds introduced with secure aggregation; points, seals and signatures are invalid."""
    token, share = bytes(range(8)), bytes(range(33))

    def keys(client: int) -> MaskingKeys:
        points = (bytes([4, *range(start, start + 64)]) for start in (client, 100 + client))
        seen = bytes(range(32)), f"a public key of {client}".encode(), b"a signature"
        return MaskingKeys(token, client, *points, *seen)

    sealed = {2: bytes(range(94)), 9: bytes(range(100, 194))}
    vector = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    return {
        "key_request": KeyRequest(token),
        "masking_keys": keys(4),
        "key_list": KeyList(token, (2, 4, 9, 2**32 - 2), (keys(2), keys(4), keys(9))),
        "sealed_shares": SealedShares(token, 4, sealed),
        "masked_report": MaskedReport(token, 4, vector),
        "survivor_list": SurvivorList(token, (2, 4, 2**32 - 2)),
        "survivor_signature": SurvivorSignature(token, 4, b"a signature"),
        "signature_list": SignatureList(token, {2: b"one", 4: b"another"}),
        "revealed_shares": RevealedShares(token, 4, {2: share, 4: share[::-1]}, {9: bytes(33)}),
    }


def frames_of_buckets() -> dict[str, Any]:
    """The kind that was introduced with buckets."""
    listed = frames_of_secure_aggregation()["key_list"]
    return {"bucket_key_list": BucketKeyList(listed, tuple(bytes([n] * 32) for n in range(4)))}


def frames_of_profiled_losses() -> dict[str, Any]:
    """Instructions to train with a profiled loss, with and without another flag."""
    train = replace(frames()["train"], is_profiled=True)
    return {
        "train_profiled": train,
        "train_profiled_forward": replace(train, differences="forward"),
    }


def frames_of_common_priors() -> dict[str, Any]:
    """The round delta in the form that was introduced with a common deviation."""
    entries = DenseValues(20, np.array([7, -2, -5], np.int64)), CommonDeviation(3)
    contributor = Contributor(4, 120, 1)
    return {
        "round_delta_with_a_common_deviation": RoundDelta(
            3, 0, bytes(range(8)), (contributor,), entries
        )
    }


def frames_of_intercepts() -> dict[str, Any]:
    """Instructions of a round of intercepts, with and without a joint clip."""
    train = replace(frames()["train"], track=INTERCEPT_TRACK, seed_policy=SeedPolicy.SHARED)
    return {"train_intercept": train, "train_intercept_clipped": replace(train, joint_clip=1.5)}
