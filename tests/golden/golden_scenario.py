"""The golden file of a signed scenario, and the requests that follow from it.

The signing key belongs to nobody.
"""

import json
from dataclasses import asdict
from typing import Any

from samara.shared.protocol.frames.instructions import Split
from samara.shared.terms.signed_scenario import SignedScenario

SETTINGS: dict[str, Any] = {
    "method": "cluster",
    "seed": 7,
    "rounds": 20,
    "personal.rounds": 5,
    "steps": 2,
    "queries": 16,
    "batch": 32,
    "epsilon": 0.01,
    "differences": "central",
    "learning-rate": "auto",
    "clip": 0.0,
    "seed-policy": "pool",
    "pool-size": 4096,
    "cohort.timeout": 3600.0,
    "cohort.clusters": 2,
    "cohort.clustering-rounds": 4,
    "evaluate.every": 10,
    "evaluate.test": True,
    "evaluate.best": False,
}
FILES_IN_IT = {
    "adapter.basis": "",
    "adapter.damping": "random-tokens",
    "adapter.start": "sha256:" + "0" * 64,
}
OPERATOR = b"""-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEVNR0ghzbojJe273qhjWl8Bj01Y5c
1BPc0nLFldhAx1Z794Mmx3keWW0/yzjWiPXAgyjkVKPgngu4hzyjBLAX4A==
-----END PUBLIC KEY-----
"""
SIGNATURE = bytes.fromhex(
    "3046022100a0bf9c2ef163e0bd1436767cc14c8702434ac182e4fb38a3a0a0f9df8220d4"
    "2b022100b71c5afbfb084235106d97f96dc8099b2f756078e6c00b1065c2342608bacbad"
)
"""The stored signature, because ECDSA signatures are random."""
MODEL_ID = bytes(range(32))


def fields_of(frame: Any) -> dict[str, Any]:
    """Return the fields of a frame that existed in the version that introduced the frame."""
    fields = asdict(frame)
    for column in fields.get("columns", ()):
        if column["ordered"] is None:
            del column["ordered"]
    later = ("joint_clip", "is_profiled")
    return {name: value for name, value in fields.items() if name not in later or value}


def golden_scenario() -> SignedScenario:
    identity = json.dumps(SETTINGS, sort_keys=True).encode()
    return SignedScenario(OPERATOR, identity, FILES_IN_IT, SIGNATURE)


def made_scenario(layout_hash: bytes) -> dict[str, Any]:
    """The ids and instructions that follow from the file, for a layout and MODEL_ID."""
    scenario = golden_scenario()
    terms, run_id = scenario.terms, scenario.run_id(layout_hash, MODEL_ID)
    clusters = sorted(terms.federations(run_id))
    asked = terms.instruction(
        clusters[0], 3, layout_hash, bytes(32), learning_rate=0.5, clip=2.0, curvature_every=1
    )
    return {
        "layout_hash": layout_hash,
        "model_id": MODEL_ID,
        "operator": scenario.operator.decode(),
        "run_id": run_id,
        "cluster_ids": clusters,
        "scalars": terms.projected_gradients,
        "round": {"frame": asked.encode(), "fields": fields_of(asked)},
        "clustering": terms.clustering_instruction(run_id, layout_hash, bytes(32)).encode(),
        "evaluated_rounds": {
            split.name.lower(): [n for n in range(40) if terms.is_evaluated(n, split)]
            for split in Split
        },
    }
