"""Starts of federations for tests, with random weights."""

from pathlib import Path

import numpy as np
from federations import Settings, config_of

from samara.client.training.model_runtime import load_run
from samara.shared.protocol.start import START_FILE, Start


def start_for(settings: Settings, folder: Path) -> str:
    """Write a random start for the model and the adapter of some settings."""
    config = config_of(settings)
    runtime = load_run(config).runtime
    count = runtime.layout.element_count
    weights = np.random.default_rng(3).normal(0, 0.1, count).astype(np.float32)
    layers = config.adapter.layers
    start = Start.from_weights(weights, runtime.layout, runtime.model_id, layers)
    (folder / START_FILE).write_bytes(start.encode())
    return str(folder / START_FILE)
