"""The golden files: what the format makes of given numbers, for every implementation to agree with.

`python tests/golden/write.py`, run in the repository's root, writes them anew. Do that only for a
new version of the format: what it changes, old ledgers and other implementations do not follow.
Numbers of 64 bits and bytes are hexadecimal, because JSON readers lose bits beyond 2⁵³.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from golden_ledger import (
    LAYOUT,
    NEXT_SEGMENT,
    RUN_ID,
    SEGMENT,
    SNAPSHOT,
    ledger_file,
    made_ledger,
    made_private_fit,
    private_fit,
)
from golden_masks import made_masks
from golden_scenario import fields_of, golden_scenario, made_scenario

from shared.basis import Basis, BasisOrigin
from shared.directions import (
    Distribution,
    batch_order,
    cohort_keys,
    directions,
    pool_indices,
    pool_seeds,
    query_seeds,
    round_root,
)
from shared.errors import RefusalCode
from shared.frames.blob import BlobPart, BlobReceipt
from shared.frames.bucket_keys import BucketKeyList
from shared.frames.evaluation import Evaluation, EvaluationColumn
from shared.frames.hello import Hello
from shared.frames.instructions import (
    EvaluateInstruction,
    SeedPolicy,
    Split,
    TrainInstruction,
    token_of,
)
from shared.frames.masking import (
    KeyList,
    KeyRequest,
    MaskingKeys,
    RevealedShares,
    SealedShares,
    SignatureList,
    SurvivorList,
    SurvivorSignature,
)
from shared.frames.refusal import Refusal
from shared.frames.report import Report
from shared.frames.round_cost import RoundCost
from shared.frames.vector_report import MaskedReport, NoisedVectorReport, VectorReport
from shared.replay import (
    CoefficientBlock,
    Shrink,
    replay,
)
from shared.replay_numpy import NumpyBackend
from shared.round_delta import Contributor, DerivedSeeds, Group, PoolSeeds, RoundDelta
from shared.start import Start

FOLDER = Path(__file__).parent
SEEDS = (0, 1, 2**64 - 1, 0x9D39247E33776D41)
ELEMENTS: dict[Distribution, int] = {"gaussian": 5000, "rademacher": 9000}
HEAD = 64


def sha256(array: np.ndarray[Any, Any]) -> str:
    """Of the array's little-endian bytes."""
    return hashlib.sha256(array.astype(array.dtype.newbyteorder("<")).tobytes()).hexdigest()


def plain(value: Any) -> Any:
    """A value as JSON: bytes and 64-bit numbers hexadecimal, arrays as lists."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {
            str(key): f"{item:016x}" if key in ("root", "seed") else plain(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return f"{value:016x}" if isinstance(value, int) and value >= 2**53 else value


def made_directions() -> list[dict[str, Any]]:
    cases = []
    for distribution, count in ELEMENTS.items():
        for seed in SEEDS:
            z = directions(np.array([seed], np.uint64), count, distribution)[0]
            cases.append(
                {
                    "distribution": distribution,
                    "seed": seed,
                    "count": count,
                    "sha256": sha256(z),
                    "head": z[:HEAD],
                }
            )
    return cases


def made_seeds() -> dict[str, Any]:
    def hexadecimal(seeds: np.ndarray[Any, Any]) -> list[str]:
        return [f"{seed:016x}" for seed in seeds.ravel().tolist()]

    return {
        "query_seeds": [
            {
                "root": root,
                "seed_stream": client,
                "steps": 3,
                "queries": 4,
                "seeds": hexadecimal(query_seeds(root, client, 3, 4)),
            }
            for root in SEEDS
            for client in (0, 1, 2**32 - 1)
        ],
        "round_root": [
            {"seed": seed, "round": number, "track": track, "root": round_root(seed, number, track)}
            for seed in SEEDS
            for number, track in ((1, 0), (2, 0), (1, 1), (2**32 - 1, 2**32 - 1))
        ],
        "batch_order": [
            {
                "root": root,
                "client": client,
                "step": step,
                "examples": examples,
                "order": batch_order(root, client, step, examples),
            }
            for root in SEEDS
            for client, step, examples in ((0, 0, 1), (0, 1, 16), (7, 3, 33))
        ],
        "pool_seeds": [
            {
                "root": root,
                "indices": [0, 1, 4095, 2**32 - 1],
                "seeds": hexadecimal(
                    pool_seeds(root, np.array([0, 1, 4095, 2**32 - 1], np.uint32))
                ),
            }
            for root in SEEDS
        ],
        "pool_indices": [
            {
                "root": root,
                "seed_stream": client,
                "steps": 3,
                "queries": 4,
                "size": size,
                "indices": pool_indices(root, client, 3, 4, size),
            }
            for root in SEEDS
            for client, size in ((1, 1), (1, 5), (2**32 - 1, 4096))
        ],
        "cohort_keys": [
            {
                "seed": seed,
                "round": 5,
                "clients": [0, 1, 2, 2**32 - 1],
                "keys": hexadecimal(
                    cohort_keys(seed, 5, np.array([0, 1, 2, 2**32 - 1], np.uint32))
                ),
            }
            for seed in SEEDS
        ],
    }


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
    """Kinds that came after the file of the others."""
    return {"round_cost": RoundCost(bytes(range(8)), 4, 61.5, 12.25, 430.5)}


def frames_of_privacy() -> dict[str, Any]:
    """The kind that came with differential privacy."""
    gradients = np.array([[3.0, -4.0, 0.5], [0.25, 0.0, -1.0]], np.float32)
    report = Report(bytes(range(8)), 4, 120, 0.6875, gradients, curvature=-2.5)
    return {"vector_report": VectorReport.of(report, 2.0)}


def frames_of_local_privacy() -> dict[str, Any]:
    """The kind that came with noise on clients, with noise that is known here."""

    def known(count: int, sigma: int) -> Any:
        return np.array([sigma * (-1) ** n * 3**n for n in range(count)], object)

    plain_report = frames_of_privacy()["vector_report"]
    report = NoisedVectorReport.of(plain_report, 2**34, known)
    return {"noised_vector_report": report}


def frames_of_adaptive_clip() -> dict[str, Any]:
    """The form of an instruction that came with the adaptive clip, and a report on it."""
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
    """The kinds that came with secure aggregation; no point, seal or signature in them is sound."""
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
    """The kind that came with buckets."""
    listed = frames_of_secure_aggregation()["key_list"]
    return {"bucket_key_list": BucketKeyList(listed, tuple(bytes([n] * 32) for n in range(4)))}


def made_frames(frames: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {"frame": frame.encode(), "fields": fields_of(frame)}
        for name, frame in frames.items()
    }


def made_signatures() -> list[dict[str, Any]]:
    """Both forms of signatures on two curves: of short numbers, and of first bytes over 7f."""
    cases = []
    for curve, size in (("P-256", 32), ("P-384", 48)):
        largest, short = 2 ** (8 * size) - 1, 2 ** (8 * size - 1) - 1
        for r, s in (
            (largest, largest - 1),
            (short, 1),
            (127, 128),
            (2**64, 255),
            (short, largest),
        ):
            raw = r.to_bytes(size, "big") + s.to_bytes(size, "big")
            cases.append({"curve": curve, "raw": raw, "der": encode_dss_signature(r, s)})
    return cases


def replay_case(distribution: Distribution) -> dict[str, Any]:
    """Seeds that come back, coefficients whose sum is wide, a shrink, and elements past a block."""
    size, widest = ELEMENTS[distribution], 2**31 - 1
    state = (np.arange(size) - size // 2) * 2**46
    seeds = np.array([*SEEDS, SEEDS[1]], np.uint64)
    steps = [
        {"seeds": seeds, "shift": 3, "coefficients": [7, -widest, 0, 12_345, widest]},
        {"seeds": seeds[:2], "shift": 10, "coefficients": [widest, -3]},
        {"shrink": 5},
        {"seeds": seeds[3:], "shift": 0, "coefficients": [-1, 99_999]},
    ]
    entries = [
        Shrink(step["shrink"])
        if "shrink" in step
        else (
            step["seeds"],
            CoefficientBlock(step["shift"], np.array(step["coefficients"], np.int32)),
        )
        for step in steps
    ]
    after = replay(state, entries, distribution, NumpyBackend())
    for step in steps:
        if "seeds" in step:
            step["seeds"] = [f"{seed:016x}" for seed in step["seeds"].tolist()]
    return {
        "distribution": distribution,
        "count": size,
        "start": "element i is (i - count // 2) * 2**46",
        "entries": steps,
        "head": [str(number) for number in after[:HEAD].tolist()],
        "sha256": sha256(after),
    }


def made_frozen_a() -> list[dict[str, Any]]:
    from shared.model.frozen_a import frozen_a  # here, since the other files need no torch

    cases = []
    for seed in SEEDS:
        a = frozen_a(seed, 4, 768)
        first = a[0, :8].astype("<f4").tobytes()
        cases.append({"seed": seed, "rank": 4, "features": 768, "sha256": sha256(a), "head": first})
    return cases


def made_start() -> Start:
    values = (np.arange(LAYOUT.size) - LAYOUT.size // 2) * 2**46 + 1
    return Start.from_state(values, LAYOUT, bytes(range(32)), "top:1")


def made_start_without_layout() -> Start:
    """A start as earlier versions wrote it."""
    return replace(made_start(), layout=None, layers="")


def as_json(made: Any) -> bytes:
    return (json.dumps(plain(made), indent=1, ensure_ascii=False) + "\n").encode()


def golden_basis() -> Basis:
    """A basis of LAYOUT's adapter with every number from -127 to 127."""
    elements = LAYOUT.adapter_element_count
    vectors = (np.arange(13 * elements).reshape(13, elements) * 37 % 255 - 127).astype(np.int8)
    origin = BasisOrigin("5a" * 32, LAYOUT.adapter_hash.hex(), "sst2", "random-tokens", 2000, 0.96)
    return Basis.of(origin, vectors, np.array([1, 300, 4096, 77] * 3 + [2**14], np.int32))


def made_basis() -> dict[str, Any]:
    """Coordinates with bits that are rounded off, ties among them, and their elements."""
    basis = golden_basis()
    layout = replace(LAYOUT, basis=basis.reference)
    theta = (np.arange(13, dtype=np.int64) - 6) * (2**44 + 2**21)
    return {
        "layout": layout.to_json(),
        "layout_hash": layout.hash,
        "theta": [str(number) for number in theta.tolist()],
        "elements": [str(number) for number in basis.lift(theta).tolist()],
    }


FILES: dict[str, Callable[[], bytes]] = {
    "directions.json": lambda: as_json(made_directions()),
    "seeds.json": lambda: as_json(made_seeds()),
    "frames.json": lambda: as_json(made_frames(frames())),
    "frames-2.json": lambda: as_json(made_frames(later_frames())),
    "frames-3.json": lambda: as_json(made_frames(frames_of_privacy())),
    "frames-4.json": lambda: as_json(made_frames(frames_of_local_privacy())),
    "frames-5.json": lambda: as_json(made_frames(frames_of_adaptive_clip())),
    "frames-6.json": lambda: as_json(made_frames(frames_of_secure_aggregation())),
    "frames-7.json": lambda: as_json(made_frames(frames_of_buckets())),
    "signatures.json": lambda: as_json(made_signatures()),
    "masks.json": lambda: as_json(made_masks()),
    **{f"ledger/{name}": partial(ledger_file, name) for name in (SEGMENT, SNAPSHOT, NEXT_SEGMENT)},
    "ledger.json": lambda: as_json(made_ledger()["ledger.json"]),
    f"private/{SEGMENT}": lambda: made_private_fit()[f"private/{SEGMENT}"],
    "private.samara": lambda: made_private_fit()["private.samara"],
    "replay.json": lambda: as_json([replay_case(distribution) for distribution in ELEMENTS]),
    "frozen_a.json": lambda: as_json(made_frozen_a()),
    "basis.safetensors": lambda: golden_basis().encoded,
    "basis.json": lambda: as_json(made_basis()),
    "start.safetensors": lambda: made_start_without_layout().encode(),
    "start-2.safetensors": lambda: made_start().encode(),
    "scenario.signed": lambda: golden_scenario().encode(),
    "scenario.json": lambda: as_json(made_scenario(LAYOUT.hash)),
}
"""The content of every golden file."""


if __name__ == "__main__":
    for name, content in FILES.items():
        (FOLDER / name).parent.mkdir(exist_ok=True)
        (FOLDER / name).write_bytes(content())
