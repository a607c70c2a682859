"""The pretended GPUs of `accelerator`: their results, and the mistakes that they catch."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from accelerator import Machine, MissingWaitError, pretended_gpus
from torch import Tensor, nn

CPU = torch.device("cpu")
COUNT = 8


@pytest.fixture
def gpus() -> Iterator[Machine]:
    with pretended_gpus() as machine:
        yield machine


def pinned(value: float) -> Tensor:
    return torch.full((COUNT,), value).pin_memory()


def test_what_torch_says_of_devices_is_what_a_gpu_says(gpus: Machine) -> None:
    here = torch.arange(COUNT, dtype=torch.float32)
    there = here.to("cuda:1")
    assert there.device == torch.device("cuda:1")
    assert (there.is_cuda, there.is_cpu, there.get_device()) == (True, False, 1)
    assert there.data_ptr() != here.data_ptr()
    assert there[2:].view(2, 3).device == torch.ones_like(there).device == there.device
    assert torch.nn.functional.one_hot(there.long()).device == there.device
    assert (there + 1).sum().device == there.device
    assert torch.zeros(2, device="cuda").device == torch.device("cuda:0")
    with torch.cuda.device(1):
        assert torch.zeros(2, device="cuda").device == there.device
    assert there.new_zeros(2, device="cpu").numpy().tolist() == [0, 0]
    assert there.cpu().tolist() == here.tolist() == there.tolist()
    assert float(there[3]) == 3
    with pytest.raises(TypeError, match="can't convert cuda:1 device type tensor to numpy"):
        there.numpy()
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.empty(0, device="cuda:2")
    with torch.inference_mode():
        assert torch.zeros(2).to(torch.device("cuda")).is_cuda


def test_a_thread_begins_at_the_first_gpu_and_pretends_too(gpus: Machine) -> None:
    torch.cuda.set_device(1)
    found = list[torch.device]()
    thread = threading.Thread(target=lambda: found.append(torch.zeros(1, device="cuda").device))
    thread.start()
    thread.join()
    assert found == [torch.device("cuda:0")]
    assert torch.zeros(1, device="cuda").device == torch.device("cuda:1")


def test_gradients_are_on_the_gpu_and_hooks_pretend(gpus: Machine) -> None:
    layer = nn.Linear(COUNT, 3).to("cuda:1")
    seen = list[torch.device]()

    def look(weight: Tensor) -> None:
        assert weight.grad is not None
        seen.extend([weight.device, weight.grad.device, weight.grad.cpu().device])

    layer.weight.register_post_accumulate_grad_hook(look)
    layer(torch.ones(2, COUNT, device="cuda:1")).square().sum().backward()
    assert seen == [torch.device("cuda:1"), torch.device("cuda:1"), CPU]


def test_memory_is_counted_until_it_is_freed(gpus: Machine) -> None:
    before = torch.cuda.memory_allocated(0)
    held = torch.zeros(1000, device="cuda")
    assert torch.cuda.memory_allocated(0) - before == held.nbytes
    del held
    assert torch.cuda.memory_allocated(0) == before
    assert torch.cuda.max_memory_allocated(0) >= before + 4000


@pytest.mark.parametrize("other", ["cpu", "cuda:0"])
def test_two_devices_in_one_operation_raise(other: str, gpus: Machine) -> None:
    layer, x = nn.Linear(COUNT, 3).to("cuda:1"), torch.ones(2, COUNT, device=other)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        layer(x)
    with torch.inference_mode(), pytest.raises(RuntimeError, match=f"cuda:1 and {other}"):
        torch.cat([torch.ones(2, COUNT, device="cuda:1"), x])
    assert layer(x.to("cuda:1"))[torch.tensor([0, 1])].shape == (2, 3)  # indices may stay
    assert (layer.weight * torch.tensor(2.0)).is_cuda  # and so may numbers


def uploads_into_new_memory(side: torch.cuda.Stream) -> None:
    target = torch.empty(COUNT, device="cuda")
    with torch.cuda.stream(side):
        target.copy_(pinned(1), non_blocking=True)


def overwrites_what_is_read(side: torch.cuda.Stream) -> None:
    target = torch.ones(COUNT, device="cuda")
    torch.cuda.synchronize()
    target.sum()
    with torch.cuda.stream(side):
        target.copy_(pinned(1), non_blocking=True)


def waits_for_an_event_that_is_too_old(side: torch.cuda.Stream) -> None:
    event = torch.cuda.Event()
    event.record()
    target = torch.ones(COUNT, device="cuda")
    with torch.cuda.stream(side):
        side.wait_event(event)
        target.copy_(pinned(1), non_blocking=True)


def computes_before_the_copy_has_ended(side: torch.cuda.Stream) -> None:
    target = torch.empty(COUNT, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        target.copy_(pinned(1), non_blocking=True)
    target.sum()


def reads_on_the_host_too_early(side: torch.cuda.Stream) -> None:
    copy = pinned(0)
    copy.copy_(torch.ones(COUNT, device="cuda"), non_blocking=True)
    copy.numpy()


def overwrites_what_is_uploaded(side: torch.cuda.Stream) -> None:
    source, target = pinned(1), torch.empty(COUNT, device="cuda")
    target.copy_(source, non_blocking=True)
    source.zero_()


@pytest.mark.parametrize(
    "mistake",
    [
        uploads_into_new_memory,
        overwrites_what_is_read,
        waits_for_an_event_that_is_too_old,
        computes_before_the_copy_has_ended,
        reads_on_the_host_too_early,
        overwrites_what_is_uploaded,
    ],
)
def test_a_missing_wait_raises(mistake: Callable[[torch.cuda.Stream], None], gpus: Machine) -> None:
    with pytest.raises(MissingWaitError, match="may still use it"):
        mistake(torch.cuda.Stream())
    assert gpus.faults
    gpus.faults.clear()


def test_memory_that_is_freed_under_another_stream_is_a_fault(gpus: Machine) -> None:
    def use(waits: bool) -> None:
        side, tensor = torch.cuda.Stream(), torch.ones(COUNT, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            tensor.sum()
        if waits:
            torch.cuda.current_stream().wait_stream(side)

    use(waits=True)
    assert not gpus.faults
    use(waits=False)
    assert ["freed" in fault for fault in gpus.faults] == [True]
    gpus.faults.clear()


def test_who_waits_may_go_on(gpus: Machine) -> None:
    side, source, back = torch.cuda.Stream(), pinned(3), pinned(0)
    target = torch.empty(COUNT, device="cuda")
    ready = torch.cuda.Event()
    ready.record()
    with torch.cuda.stream(side):
        side.wait_event(ready)
        target.copy_(source, non_blocking=True)
        copied = side.record_event()
    copied.wait()
    back.copy_(target * 2, non_blocking=True)
    torch.cuda.current_stream().synchronize()
    assert back.numpy().tolist() == [6] * COUNT
    other = target.to("cuda:1")
    assert (other + 1).tolist() == [4] * COUNT


def test_a_fault_that_nobody_looked_at_ends_the_test() -> None:
    def swallow() -> None:
        with pytest.raises(MissingWaitError):
            uploads_into_new_memory(torch.cuda.Stream())

    with pytest.raises(AssertionError, match="may still use it"), pretended_gpus():
        swallow()


def test_memory_that_one_thread_got_in_inference_mode_is_closed_to_others(gpus: Machine) -> None:
    raised = list[str]()

    def write(memory: Tensor) -> None:
        try:
            memory.copy_(pinned(1))
        except RuntimeError as error:
            raised.append(str(error))

    with torch.inference_mode():
        memory = torch.empty(COUNT, device="cuda")
    thread = threading.Thread(target=write, args=[memory])
    thread.start()
    thread.join()
    assert ["Inplace update to inference tensor" in error for error in raised] == [True]


def test_afterwards_there_are_no_gpus() -> None:
    with pretended_gpus():
        assert torch.cuda.is_available()
    assert not torch.cuda.is_available()
    assert torch.zeros(1).device == CPU
