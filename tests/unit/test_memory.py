import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from client.forward import peak_memory
from client.forward.peak_memory import maps_huge_pages, measure_peak_memory
from devices.live.processes import child_environment

CPU = torch.device("cpu")


def test_the_peak_is_what_lives_at_once() -> None:
    with torch.inference_mode(), measure_peak_memory(CPU) as peak:
        first = torch.ones(1000)
        second = first + 1
        del first
        gc.collect()
        third = second[10:] * 2
        del second, third
    assert 8_000 <= peak.bytes <= 8_100


def test_views_and_what_was_there_before_cost_nothing() -> None:
    before = torch.ones(1000)
    with torch.inference_mode(), measure_peak_memory(CPU) as peak:
        before.view(10, 100).t()[3:]
        before.add_(1)
    assert peak.bytes == 0


@pytest.mark.parametrize(
    ("permitted", "maps"),
    [("always madvise [never]", False), ("always [madvise] never", True), (None, False)],
)
def test_huge_pages_are_used_where_the_system_permits_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, permitted: str | None, maps: bool
) -> None:
    file = tmp_path / "enabled"
    if permitted:
        file.write_text(permitted)
    monkeypatch.setattr(peak_memory, "_HUGE_PAGES_FILE", file)
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    assert not maps_huge_pages()
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "1")
    assert maps_huge_pages() == maps


_TENSORS = """
import re, torch
from client.forward.peak_memory import keep_freed_memory, maps_huge_pages
def resident():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10
keep_freed_memory()
before = resident()
for rows in range(1, 30):  # each longer than the ones before, so that it fits into no hole
    kept = [torch.ones(rows, 2**17) for _ in range(3)]
    del kept
print(maps_huge_pages(), resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="its memory is read from /proc")
def test_a_trainer_gives_large_tensors_back_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _TENSORS],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    maps, left = done.stdout.split()
    if maps == "False":
        pytest.skip("this system has no huge pages")
    assert int(left) < 15  # the last three alone take 43 MiB
