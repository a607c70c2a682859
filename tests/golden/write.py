"""The golden files: the results of the format for given numbers, which every implementation needs.

`PYTHONPATH=tests python -m golden.write`, run in the repository's root, writes them again. Do that
only for a new version of the format: old ledgers and other implementations do not follow a change.
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
from golden.golden_frames import (
    SEEDS,
    frames,
    frames_of_adaptive_clip,
    frames_of_buckets,
    frames_of_common_priors,
    frames_of_intercepts,
    frames_of_local_privacy,
    frames_of_privacy,
    frames_of_profiled_losses,
    frames_of_secure_aggregation,
    later_frames,
)
from golden.golden_ledger import (
    LAYOUT,
    NEXT_SEGMENT,
    SEGMENT,
    SNAPSHOT,
    ledger_file,
    made_ledger,
    made_private_fit,
)
from golden.golden_masks import made_masks
from golden.golden_scenario import fields_of, golden_scenario, made_scenario

from samara.shared.protocol.basis import Basis, BasisOrigin
from samara.shared.protocol.directions import (
    Distribution,
    batch_order,
    cohort_keys,
    directions,
    pool_indices,
    pool_seeds,
    query_seeds,
    round_root,
)
from samara.shared.protocol.ledger.records import SEGMENT_VERSION
from samara.shared.protocol.replay import (
    CoefficientBlock,
    Shrink,
    replay,
)
from samara.shared.protocol.replay_numpy import NumpyBackend
from samara.shared.protocol.start import Start

FOLDER = Path(__file__).parent
LEDGER_FILES = SEGMENT, SNAPSHOT, NEXT_SEGMENT
ELEMENTS: dict[Distribution, int] = {"gaussian": 5000, "rademacher": 9000}
HEAD = 64


def sha256(array: np.ndarray[Any, Any]) -> str:
    """Return the SHA-256 of the array's little-endian bytes."""
    return hashlib.sha256(array.astype(array.dtype.newbyteorder("<")).tobytes()).hexdigest()


def plain(value: Any) -> Any:
    """Return a value as JSON: bytes and 64-bit numbers in hexadecimal, arrays as lists."""
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


def made_orthogonal_directions() -> list[dict[str, Any]]:
    return [
        {
            "distribution": "orthogonal",
            "seed": seed,
            "count": count,
            "sha256": sha256(z := directions(np.array([seed], np.uint64), count, "orthogonal")[0]),
            "head": z[:HEAD],
        }
        for count in (3, 128, 1541)
        for seed in SEEDS
    ]


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


def made_frames(frames: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {"frame": frame.encode(), "fields": fields_of(frame)}
        for name, frame in frames.items()
    }


def made_signatures() -> list[dict[str, Any]]:
    """Both forms of signatures on two curves, with short numbers and with first bytes above 7f."""
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
    """A replay with a repeated seed, a wide sum of coefficients, a shrink, and several blocks."""
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
    from samara.shared.model.frozen_a import frozen_a  # here, since the other files need no torch

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
    """A start in the form that earlier versions wrote."""
    return replace(made_start(), layout=None, layers="")


def as_json(made: Any) -> bytes:
    return (json.dumps(plain(made), indent=1, ensure_ascii=False) + "\n").encode()


def golden_basis() -> Basis:
    """A basis of LAYOUT's adapter, with all numbers from -127 to 127."""
    elements = LAYOUT.adapter_element_count
    vectors = (np.arange(13 * elements).reshape(13, elements) * 37 % 255 - 127).astype(np.int8)
    origin = BasisOrigin("5a" * 32, LAYOUT.adapter_hash.hex(), "sst2", "random-tokens", 2000, 0.96)
    return Basis.of(origin, vectors, np.array([1, 300, 4096, 77] * 3 + [2**14], np.int32))


def made_basis() -> dict[str, Any]:
    """Coordinates with bits that rounding removes, including ties, and the resulting elements."""
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
    "orthogonal.json": lambda: as_json(made_orthogonal_directions()),
    "seeds.json": lambda: as_json(made_seeds()),
    "frames.json": lambda: as_json(made_frames(frames())),
    "frames-2.json": lambda: as_json(made_frames(later_frames())),
    "frames-3.json": lambda: as_json(made_frames(frames_of_privacy())),
    "frames-4.json": lambda: as_json(made_frames(frames_of_local_privacy())),
    "frames-5.json": lambda: as_json(made_frames(frames_of_adaptive_clip())),
    "frames-6.json": lambda: as_json(made_frames(frames_of_secure_aggregation())),
    "frames-7.json": lambda: as_json(made_frames(frames_of_buckets())),
    "frames-8.json": lambda: as_json(made_frames(frames_of_intercepts())),
    "frames-9.json": lambda: as_json(made_frames(frames_of_profiled_losses())),
    "frames-10.json": lambda: as_json(made_frames(frames_of_common_priors())),
    "signatures.json": lambda: as_json(made_signatures()),
    "masks.json": lambda: as_json(made_masks()),
    **{f"ledger/{name}": partial(ledger_file, name) for name in LEDGER_FILES},
    "ledger.json": lambda: as_json(made_ledger()["ledger.json"]),
    **{f"ledger-3/{name}": partial(ledger_file, name, SEGMENT_VERSION) for name in LEDGER_FILES},
    "ledger-3.json": lambda: as_json(made_ledger(SEGMENT_VERSION)["ledger.json"]),
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
