"""Memory of the methods and of ablations of streaming, measured on a tiny model."""

from pathlib import Path

from benchmarks.speed.method_memory import METHODS, Rig, measure
from benchmarks.speed.streamed_ablations import VARIANTS
from benchmarks.speed.streamed_ablations import measure as measure_ablations


def test_methods_take_more_memory_than_inference_by_what_they_keep() -> None:
    bytes_of = {method: measure(method, "llama-deep", 1, 8)["tensors"] for method in METHODS}
    inference, weights = bytes_of["inference"], Rig("llama-deep", 1, 8).weights
    assert bytes_of["MeZO, in place"] < inference + 9 * 2**20  # a few parts of a direction
    assert bytes_of["MeZO, copy"] > bytes_of["MeZO, in place"] + 0.9 * weights
    assert bytes_of["Adam"] > bytes_of["SGD"] + 1.9 * weights > inference + 2.8 * weights
    assert bytes_of["forward mode"] > inference + 0.9 * weights


def test_every_ablation_takes_its_steps(tmp_path: Path) -> None:
    seconds = measure_ablations("llama-tiny", 8, 1, tmp_path)
    assert set(seconds) == {"MeZO", *VARIANTS}
    assert all(len(own) == 1 and own[0] > 0 for own in seconds.values())
