"""What names a run, and where its folder is."""

import hashlib
import json
from pathlib import Path

from shared.config import RunConfig
from shared.layout import Layout


def run_id_of(config: RunConfig, layout: Layout, model_id: bytes) -> bytes:
    """8 bytes that name a run: what it is made of, not when or where it is run."""
    apart = {"out", "threads", "model.stream", "model.stream-direct", "model.stream-folder"}
    settings = {key: value for key, value in config.flat().items() if key not in apart}
    content = json.dumps(settings, sort_keys=True).encode() + layout.hash + model_id
    return hashlib.sha256(content).digest()[:8]


def run_folder(config: RunConfig, run_id: bytes) -> Path:
    """The folder of a run on this machine: ``out``, or ``runs/<run id>``."""
    return Path(config.out) if config.out else Path("runs") / run_id.hex()
