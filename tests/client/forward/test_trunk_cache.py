import os
from pathlib import Path

import pytest
import torch

from samara.client.forward.trunk_cache import DiskCache, MemoryCache
from samara.shared.errors import ConfigError, ModelError

HIDDEN = 8
FILE = 4 + 2 * 3 * HIDDEN


def output(seed: int, tokens: int = 3) -> torch.Tensor:
    return torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(seed))


def disk(folder: Path, limit: int = 10**6, identity: bytes = b"model") -> DiskCache:
    return DiskCache(folder, limit, identity, HIDDEN)


def test_memory_keeps_what_it_was_given_within_its_bytes() -> None:
    cache = MemoryCache(2 * output(0).nbytes)
    for seed in range(2):
        cache.put((seed,) * 3, output(seed))
    assert cache.get((0, 0, 0)) is not None
    cache.put((2, 2, 2), output(2))
    assert cache.get((1, 1, 1)) is None
    for seed in (0, 2):
        torch.testing.assert_close(cache.get((seed,) * 3), output(seed), rtol=0, atol=0)


def test_the_disk_gives_back_what_it_said_it_would(tmp_path: Path) -> None:
    said = disk(tmp_path).put((1, 2, 3), output(0))
    assert said.dtype == torch.float16
    found = disk(tmp_path).get((1, 2, 3))
    assert found is not None
    torch.testing.assert_close(found, said, rtol=0, atol=0)
    torch.testing.assert_close(said.float(), output(0), rtol=1e-3, atol=1e-3)
    assert disk(tmp_path).get((1, 2)) is None


def test_another_model_finds_nothing(tmp_path: Path) -> None:
    disk(tmp_path).put((1, 2, 3), output(0))
    assert disk(tmp_path, identity=b"other").get((1, 2, 3)) is None


def test_the_disk_stays_within_its_bytes_and_drops_the_oldest(tmp_path: Path) -> None:
    cache = disk(tmp_path, 2 * FILE)
    for seed in range(2):
        cache.put((seed,) * 3, output(seed))
    assert cache.get((0, 0, 0)) is not None
    cache.put((2, 2, 2), output(2))
    assert cache.get((1, 1, 1)) is None
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) == 2 * FILE


def test_an_older_process_files_count(tmp_path: Path) -> None:
    first = disk(tmp_path, identity=b"old model")
    for seed in range(4):
        first.put((seed,) * 3, output(seed))
    for age, file in enumerate(sorted(tmp_path.iterdir())):
        os.utime(file, ns=(age, age))
    newest = max(tmp_path.iterdir(), key=lambda file: file.stat().st_mtime_ns)
    disk(tmp_path, FILE)
    assert list(tmp_path.iterdir()) == [newest]


def test_what_is_larger_than_the_limit_is_rounded_all_the_same(tmp_path: Path) -> None:
    said = disk(tmp_path, FILE - 1).put((1, 2, 3), output(0))
    assert said.dtype == torch.float16
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_file_counts_as_none(damage: str, tmp_path: Path) -> None:
    cache = disk(tmp_path)
    said = cache.put((1, 2, 3), output(0))
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes({"flip": data, "cut": data[:-1], "empty": b""}[damage])
    assert cache.get((1, 2, 3)) is None
    cache.put((1, 2, 3), output(0))
    found = cache.get((1, 2, 3))
    assert found is not None
    torch.testing.assert_close(found, said, rtol=0, atol=0)


def test_what_half_precision_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="leave trunk-cache-folder empty"):
        disk(tmp_path).put((1, 2, 3), 1e6 * output(0))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="trunk-cache-folder"):
        disk(tmp_path / "file" / "cache")
