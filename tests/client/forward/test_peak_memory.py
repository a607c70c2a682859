import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from samara.client.forward.peak_memory import measure_peak_memory
from samara.devices.live.processes import child_environment
from samara.shared.machine.process import HUGE_PAGES
from samara.simulations import commands, simulate

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


def test_a_trainer_asks_for_huge_pages() -> None:
    assert child_environment()["THP_MEM_ALLOC_ENABLE"] == "1"


def test_a_simulation_asks_for_huge_pages_before_it_loads_libraries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in HUGE_PAGES:
        monkeypatch.setenv(name, "0")

    def look(*_: object) -> Path:
        assert HUGE_PAGES.items() <= os.environ.items()
        raise SystemExit

    monkeypatch.setattr(simulate, "simulate", look)
    with pytest.raises(SystemExit):
        commands.demo(out=None, seed=0)


@pytest.mark.skipif(sys.platform != "linux", reason="the heaps of glibc are counted")
@pytest.mark.parametrize("shared", [True, False])
def test_threads_share_a_heap(shared: bool) -> None:
    code = (
        "import ctypes, threading\n"
        "from samara.client.forward.peak_memory import share_heap\n"
        f"share_heap() if {shared} else None\n"
        "c = ctypes.CDLL(None)\n"
        "for _ in range(2):\n"
        "    thread = threading.Thread(target=c.malloc, args=[100_000])\n"
        "    thread.start()\n"
        "    thread.join()\n"
        "c.malloc_stats()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stderr.count("Arena") == 1) is shared


_LOADING = """
import numpy as np, psutil, sys
from contextlib import nullcontext
from samara.client.forward.peak_memory import return_freed_memory

def load():
    kept = []
    for index in range(40):
        read = np.ones(1_500_000 + 20_000 * index, np.uint8)  # does not fit where one was freed
        kept.append(np.ones(2_500_000, np.uint8))
        del read
    return kept

np.ones(30_000_000, np.uint8)  # glibc then keeps smaller arrays in its heap
before = psutil.Process().memory_info().rss
with return_freed_memory() if sys.argv[1] == "returned" else nullcontext():
    kept = load()
print(psutil.Process().memory_info().rss - before - sum(array.nbytes for array in kept))
"""


def test_freed_tensors_of_a_load_leave_no_memory_behind() -> None:
    def growth(kind: str) -> int:
        command = [sys.executable, "-c", _LOADING, kind]
        return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)

    assert growth("usual") > 40_000_000
    assert growth("returned") < 10_000_000
