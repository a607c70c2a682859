import gc

import torch

from client.forward.peak_memory import measure_peak_memory
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


def test_a_trainer_asks_for_huge_pages() -> None:
    assert child_environment()["THP_MEM_ALLOC_ENABLE"] == "1"
