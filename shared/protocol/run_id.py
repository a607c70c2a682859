"""The ids of a run and of its clusters, 8 bytes each."""

import hashlib


def hash_identity(identity: bytes, layout_hash: bytes, model_id: bytes) -> bytes:
    """Return the 8-byte id of a run.

    Args:
        identity: settings that are part of the run id, sorted JSON.
        layout_hash: hash of the layout, 32 bytes.
        model_id: hash of the base model, 32 bytes.
    """
    return hashlib.sha256(identity + layout_hash + model_id).digest()[:8]


def cluster_id(run_id: bytes, cluster: int) -> bytes:
    """Return the 8-byte id of a run's cluster."""
    return hashlib.sha256(run_id + cluster.to_bytes(4, "little")).digest()[:8]
