"""Informed bases for tests, with random vectors."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from federations import Settings, config_of

from samara.client.training.model_runtime import load_run
from samara.shared.protocol.basis import Basis, BasisOrigin

ORIGIN = BasisOrigin("11" * 32, "22" * 32, "sst2", "random-tokens", 2000, 0.9375)


def random_basis(elements: int, size: int, origin: BasisOrigin = ORIGIN) -> Basis:
    vectors = np.random.default_rng(0).normal(size=(size, elements)) / np.sqrt(size)
    return Basis.quantize(origin, vectors)


def basis_for(settings: Settings, folder: Path, size: int = 12) -> str:
    """Write a random basis for the model and the adapter of some settings."""
    runtime = load_run(config_of(settings)).runtime
    model, adapter = runtime.model_id.hex(), runtime.layout.adapter_hash.hex()
    origin = replace(ORIGIN, model_id=model, adapter_hash=adapter)
    file = folder / "basis.safetensors"
    file.write_bytes(random_basis(runtime.layout.adapter_element_count, size, origin).encoded)
    return str(file)
