"""The emulated accelerator: its memory, its link, and the order in which threads use it."""

import gc
import threading

import pytest
import torch

from samara.client.offload.accelerator import Accelerator, EmulatedAccelerator
from samara.client.offload.emulated_link import Clock, EmulatedTransfer
from samara.client.offload.timeline import ACCELERATOR, HOST
from samara.client.streaming.block_transfer import CpuTransfer
from samara.shared.errors import DeviceError

MIB = 2**20


class TestClock(Clock):
    """A clock that moves only when someone sleeps."""

    __test__ = False

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def sleep_until(self, moment: float) -> None:
        self.seconds = max(self.seconds, moment)


def emulated(memory: int | None = None, clock: Clock | None = None) -> EmulatedAccelerator:
    clock = clock or TestClock()
    accelerator = EmulatedAccelerator(memory, EmulatedTransfer(1e6, 5e5, clock), 3.0, 2.0)
    accelerator.clock = clock
    return accelerator


def test_a_transfer_takes_its_bytes_over_the_bandwidth_of_its_direction() -> None:
    clock = TestClock()
    accelerator = emulated(clock=clock)
    tensor = torch.arange(250_000, dtype=torch.float32)
    [there] = accelerator.to_device([tensor])
    assert clock.now() == pytest.approx(1.0)
    assert torch.equal(there, tensor)
    assert there.data_ptr() != tensor.data_ptr()
    [back] = accelerator.to_host([there.view(500, 500).t()], None)
    assert clock.now() == pytest.approx(3.0)
    assert torch.equal(back, tensor.view(500, 500).t())


def test_an_idle_link_saves_nothing_up_and_a_busy_one_queues() -> None:
    clock = TestClock()
    link = EmulatedTransfer(1e6, 1e6, clock)
    clock.seconds = 100.0
    block = torch.zeros(1_000_000, dtype=torch.uint8)
    link.upload(block, torch.empty_like(block), None)
    assert clock.now() == pytest.approx(101)
    link.upload(block, torch.empty_like(block), None)
    link.upload(block, torch.empty_like(block), None)
    assert clock.now() == pytest.approx(103)


def test_directions_do_not_wait_for_each_other() -> None:
    """Only the waiting thread moves the clock, so both directions count from the same moment."""
    moments: list[float] = []

    class StillClock(TestClock):
        def sleep_until(self, moment: float) -> None:
            moments.append(moment)

    link = EmulatedTransfer(1e6, 1e6, StillClock())
    block = torch.zeros(1_000_000, dtype=torch.uint8)
    link.upload(block, torch.empty_like(block), None)
    link.offload(block, torch.empty_like(block), None)
    link.upload(block, torch.empty_like(block), None)
    assert moments == [1.0, 1.0, 2.0]


def test_work_takes_its_processor_time_stretched() -> None:
    clock = TestClock()
    accelerator = emulated(clock=clock)
    with accelerator.computing("forward", 7):
        torch.randn(200, 200) @ torch.randn(200, 200)
    with accelerator.updating(7):
        torch.randn(200, 200) @ torch.randn(200, 200)
    first, second = accelerator.timeline.intervals
    assert (first.lane, first.work, first.layer) == (ACCELERATOR, "forward", 7)
    assert (second.lane, second.work, second.layer) == (HOST, "update", 7)
    assert first.end - first.start > 0
    assert second.end == pytest.approx(clock.now())
    busy = accelerator.timeline.busy_seconds(ACCELERATOR)
    assert busy == pytest.approx(first.end - first.start)


def test_work_makes_up_for_a_machine_that_was_busy() -> None:
    clock = TestClock()
    accelerator = emulated(clock=clock)
    with accelerator.computing("forward", 0):
        clock.seconds += 50
        accelerator.switch("forward", 1)
        with accelerator.pausing():
            clock.seconds = 100
    first, second, third = accelerator.timeline.intervals
    assert first.end == second.start < 50
    assert third.start == 100


def test_memory_is_counted_while_it_is_held() -> None:
    accelerator = emulated()
    weight = torch.zeros(MIB // 4, requires_grad=True)
    accelerator.hold([weight])
    accelerator.hold([weight, weight.detach()])
    assert accelerator.memory.bytes == MIB
    with accelerator.computing("forward", 0):
        activation = weight * 2
        loss = (activation * activation).sum()
        loss.backward()  # type: ignore[no-untyped-call]
    assert accelerator.memory.bytes >= 3 * MIB
    peak = accelerator.memory.peak
    del activation, loss
    weight.grad = None
    gc.collect()
    assert accelerator.memory.bytes == MIB
    assert accelerator.memory.peak == peak


def test_what_the_host_allocates_is_not_the_accelerators() -> None:
    accelerator = emulated()
    with accelerator.updating(0):
        torch.zeros(MIB)
    held = accelerator.to_device([torch.zeros(MIB // 4)])
    assert accelerator.memory.bytes == MIB
    copies = accelerator.to_host(held, None)
    assert accelerator.memory.bytes == MIB
    del held, copies


def test_allocation_above_the_limit_fails_and_names_the_remedy() -> None:
    accelerator = emulated(2 * MIB)
    accelerator.hold([torch.zeros(MIB // 4)])
    kept = torch.zeros(MIB // 4)
    accelerator.hold([kept])
    with (
        pytest.raises(DeviceError, match=r"2.0 MiB.* 1.0 MiB are in use and 1.5 MiB"),
        accelerator.computing("forward", 0),
    ):
        torch.zeros(3 * MIB // 8)
    with pytest.raises(DeviceError, match="smaller batch, offload"):
        accelerator.to_device([torch.zeros(MIB)])
    with accelerator.computing("forward", 0):
        torch.zeros(MIB // 8)


def test_the_limit_holds_in_a_backward_pass_too() -> None:
    accelerator = emulated(5 * MIB)
    weight = torch.zeros(MIB // 4, requires_grad=True)
    accelerator.hold([weight])
    with pytest.raises(DeviceError), accelerator.computing("backward", 0):
        (weight.exp() * weight.sin()).cos().sum().backward()  # type: ignore[no-untyped-call]


def test_turns_are_taken_in_the_order_of_asking() -> None:
    accelerator = emulated()
    order: list[int] = []
    with accelerator.computing("forward", 0):
        threads = []
        for number in range(3):
            waiting = len(accelerator._processor._turn._waiting)

            def work(number: int = number) -> None:
                with accelerator.computing("apply", number):
                    order.append(number)

            threads.append(threading.Thread(target=work))
            threads[-1].start()
            while len(accelerator._processor._turn._waiting) == waiting:
                pass
        accelerator.switch("backward", 0)
        assert order == [0, 1, 2]
    for thread in threads:
        thread.join()
    works = [(each.work, each.layer) for each in accelerator.timeline.intervals]
    assert works == [("forward", 0), ("apply", 0), ("apply", 1), ("apply", 2), ("backward", 0)]


def test_who_does_not_compute_cannot_leave_the_accelerator() -> None:
    accelerator = emulated()
    with accelerator.pausing():
        pass
    accelerator.switch("forward", 0)
    assert accelerator.timeline.intervals == []


def test_a_core_plays_the_accelerator_for_the_time_of_the_work() -> None:
    import os

    allowed = os.sched_getaffinity(0)
    core = min(allowed)
    accelerator = EmulatedAccelerator(
        None, EmulatedTransfer(1e6, 1e6, TestClock()), 1, 1, (core,) * 2
    )
    with accelerator.computing("forward", 0):
        assert os.sched_getaffinity(0) == {core}
    assert os.sched_getaffinity(0) == allowed


def test_on_a_cpu_tensors_stay_where_they_are() -> None:
    accelerator = Accelerator(CpuTransfer())
    tensor = torch.zeros(4)
    assert accelerator.to_host([tensor], None)[0] is tensor
    assert accelerator.to_device([tensor])[0] is tensor


@pytest.mark.gpu
def test_on_a_gpu_tensors_travel_through_pinned_memory() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    from samara.client.offload.accelerator import accelerator_for

    accelerator = accelerator_for(torch.device("cuda"))
    tensor = torch.randn(1_000, 1_000, device="cuda")
    product = tensor @ tensor
    [host] = accelerator.to_host([product], accelerator.transfer.record_event())
    assert host.is_pinned()
    assert torch.equal(host, product.cpu())
    [back] = accelerator.to_device([host])
    assert torch.equal(back, product)
