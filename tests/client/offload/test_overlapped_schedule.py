"""Overlapped training gives the bits of training without overlap, whatever the stages take."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from samara.client.offload.accelerator import Accelerator, EmulatedAccelerator, accelerator_for
from samara.client.offload.emulated_link import EmulatedTransfer
from samara.client.offload.layer_update import GradientHooks, ImmediateSchedule, LayerUpdate
from samara.client.offload.overlapped_schedule import OverlappedSchedule, ScheduledLayer
from samara.client.offload.projectors import ProjectorPair
from samara.client.offload.service_order import Order
from samara.client.offload.timeline import ACCELERATOR, HOST, LANES
from samara.client.streaming.block_transfer import CpuTransfer
from samara.shared.errors import DeviceError

LAYERS, FEATURES, STEPS = 4, 12, 3
ORDERS = st.sampled_from(["layer-wise", "zero"])


class Network(nn.Module):
    """Blocks of two matrices and a bias, with or without checkpointing."""

    def __init__(self, checkpointing: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.checkpointing = checkpointing
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh(), nn.Linear(FEATURES, FEATURES))
            for _ in range(LAYERS)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return x


def updates_of(network: Network, subspace: int | None) -> list[list[LayerUpdate]]:
    def projectors(index: int, weight: nn.Parameter) -> ProjectorPair:
        if subspace is None or weight.ndim != 2:
            return ProjectorPair()
        rows, columns = weight.shape
        return ProjectorPair.random((rows, columns), subspace, 2, (index,), weight.device)

    return [
        [
            LayerUpdate(f"{index}.{name}", weight, projectors(index, weight))
            for name, weight in block.named_parameters()
        ]
        for index, block in enumerate(network.blocks)
    ]


def train(network: Network, hooks: GradientHooks, accelerator: Accelerator, passes: int) -> None:
    """Take steps of several passes each, on data that depend only on the pass."""
    for step in range(STEPS):
        for number in range(passes):
            generator = torch.Generator().manual_seed(100 * step + number)
            x = torch.randn(5, FEATURES, generator=generator)
            hooks.learning_rate = 0.05 if number == passes - 1 else None
            with accelerator.computing("forward", 0):
                network(x).square().sum().backward()


def immediate(subspace: int | None, passes: int, checkpointing: bool = False) -> list[Tensor]:
    network, schedule = Network(checkpointing), ImmediateSchedule()
    updates = [each for layer in updates_of(network, subspace) for each in layer]
    train(network, GradientHooks(updates, schedule), Accelerator(CpuTransfer()), passes)
    return [weight.detach() for weight in network.parameters()]


@contextmanager
def overlapped(
    network: Network, accelerator: Accelerator, order: Order, subspace: int | None, most: int | None
) -> Iterator[tuple[OverlappedSchedule, GradientHooks]]:
    updates = updates_of(network, subspace)
    layers = [
        ScheduledLayer(block, layer) for block, layer in zip(network.blocks, updates, strict=True)
    ]
    with closing(OverlappedSchedule(layers, accelerator, order, most)) as schedule:
        yield schedule, GradientHooks([each for layer in updates for each in layer], schedule)


class UnevenAccelerator(Accelerator):
    """A CPU whose stages take a different time for every layer."""

    def __init__(self, delays: list[int]) -> None:
        super().__init__(CpuTransfer())
        self._delays, self._count, self._lock = delays, 0, threading.Lock()

    def _dawdle(self) -> None:
        with self._lock:
            self._count += 1
            delay = self._delays[self._count % len(self._delays)]
        if delay:
            time.sleep(delay * 1e-4)

    def to_host(self, tensors: object, event: object) -> list[Tensor]:
        self._dawdle()
        return super().to_host(tensors, event)  # type: ignore[arg-type]

    def to_device(self, tensors: object) -> list[Tensor]:
        self._dawdle()
        return super().to_device(tensors)  # type: ignore[arg-type]

    @contextmanager
    def updating(self, layer: int) -> Iterator[None]:
        self._dawdle()
        yield


@settings(max_examples=25, deadline=None)
@given(
    delays=st.lists(st.integers(0, 20), min_size=1, max_size=40),
    order=ORDERS,
    subspace=st.sampled_from([None, 6]),
    passes=st.integers(1, 2),
    most=st.sampled_from([None, 1, 2]),
    checkpointing=st.booleans(),
)
def test_the_bits_are_those_of_immediate_updates(
    delays: list[int],
    order: Order,
    subspace: int | None,
    passes: int,
    most: int | None,
    checkpointing: bool,
) -> None:
    network, accelerator = Network(checkpointing), UnevenAccelerator(delays)
    with overlapped(network, accelerator, order, subspace, most) as (schedule, hooks):
        train(network, hooks, accelerator, passes)
        schedule.finish()
    expected = immediate(subspace, passes, checkpointing)
    for weight, should in zip(network.parameters(), expected, strict=True):
        assert torch.equal(weight, should)


@pytest.mark.parametrize("order", ["layer-wise", "zero"])
def test_an_emulated_accelerator_gives_the_same_bits(order: Order) -> None:
    network = Network(checkpointing=True)
    accelerator = EmulatedAccelerator(2**20, EmulatedTransfer(1e6, 1e6), 2.0, 2.0)
    accelerator.hold(network.parameters())
    with overlapped(network, accelerator, order, None, 2) as (schedule, hooks):
        train(network, hooks, accelerator, 1)
        schedule.finish()
        assert schedule.seconds is not None
        assert min(schedule.seconds.offload, schedule.seconds.upload, schedule.seconds.update) > 0
    for weight, should in zip(network.parameters(), immediate(None, 1), strict=True):
        assert torch.equal(weight, should)
    assert {each.lane for each in accelerator.timeline.intervals} == set(LANES)
    works = {each.work for each in accelerator.timeline.intervals if each.lane == ACCELERATOR}
    assert works == {"forward", "backward", "apply"}
    updates = [each for each in accelerator.timeline.intervals if each.lane == HOST]
    assert len(updates) == STEPS * LAYERS


class HeldAccelerator(Accelerator):
    """A CPU whose transfers to the host end only when the backward pass waits for them."""

    def __init__(self) -> None:
        super().__init__(CpuTransfer())
        self.sent = 0
        self._waits = threading.Event()

    @contextmanager
    def pausing(self) -> Iterator[None]:
        self._waits.set()
        yield

    def to_host(self, tensors: object, event: object) -> list[Tensor]:
        self._waits.wait()
        self.sent += 1
        return super().to_host(tensors, event)  # type: ignore[arg-type]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_the_layer_that_is_computed_is_among_those_with_gradients(most: int) -> None:
    network, accelerator = Network(), HeldAccelerator()
    begun: set[int] = set()
    at_once = []

    def note(layer: int) -> Callable[[Tensor], None]:
        def hook(weight: Tensor) -> None:
            begun.add(layer)
            at_once.append(len(begun) - accelerator.sent)

        return hook

    for index, block in enumerate(network.blocks):
        for weight in block.parameters():
            weight.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                note(index)
            )
    with overlapped(network, accelerator, "zero", None, most) as (schedule, hooks):
        hooks.learning_rate = 0.05
        network(torch.ones(5, FEATURES)).sum().backward()
        schedule.finish()
    assert len(begun) == accelerator.sent == LAYERS
    assert max(at_once) == most


def test_weights_without_gradients_hold_nothing_up() -> None:
    network, accelerator = Network(), Accelerator(CpuTransfer())
    before = [weight.detach().clone() for weight in network.blocks[1].parameters()]
    with overlapped(network, accelerator, "zero", None, None) as (schedule, hooks):
        for weight in network.blocks[1].parameters():
            weight.requires_grad_(False)
        next(network.blocks[2].parameters()).requires_grad_(False)
        train(network, hooks, accelerator, 1)
        schedule.finish()
    after = list(network.blocks[1].parameters())
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert not torch.equal(network.blocks[0][0].weight, Network().blocks[0][0].weight)  # type: ignore[index]


@pytest.mark.parametrize("stage", ["to_host", "updating", "to_device"])
def test_an_error_of_a_stage_is_raised_where_the_training_runs(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, accelerator = Network(), Accelerator(CpuTransfer())

    def fail(*arguments: object) -> None:
        raise DeviceError("the link is broken")

    monkeypatch.setattr(accelerator, stage, fail)
    with overlapped(network, accelerator, "layer-wise", None, None) as (schedule, hooks):
        with pytest.raises(DeviceError, match="the link is broken"):
            train(network, hooks, accelerator, 1)
        with pytest.raises(DeviceError, match="the link is broken"):
            schedule.finish()


def test_too_little_memory_ends_the_training_with_a_clear_message() -> None:
    network = Network()
    accelerator = EmulatedAccelerator(6_000, EmulatedTransfer(1e6, 1e6))
    accelerator.hold(network.parameters())
    with (
        overlapped(network, accelerator, "zero", None, None) as (_, hooks),
        pytest.raises(DeviceError, match="emulated accelerator's memory"),
    ):
        train(network, hooks, accelerator, 1)


def test_a_layer_of_another_schedule_is_refused() -> None:
    network, accelerator = Network(), Accelerator(CpuTransfer())
    with overlapped(network, accelerator, "zero", None, None) as (schedule, _):
        other = updates_of(Network(), None)[0][0]
        with pytest.raises(ValueError, match="none of the schedule's layers"):
            schedule.gradient(other, torch.zeros_like(other.weight), 0.1)


def test_closing_ends_the_threads_and_frees_the_modules() -> None:
    network, accelerator = Network(), Accelerator(CpuTransfer())
    with overlapped(network, accelerator, "zero", None, None):
        assert any(thread.name == "offload-update" for thread in threading.enumerate())
    assert not any(thread.name.startswith("offload-") for thread in threading.enumerate())
    network(torch.zeros(1, FEATURES))


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["layer-wise", "zero"])
@pytest.mark.parametrize("subspace", [None, 4])
def test_a_gpu_gives_the_result_of_immediate_updates(order: Order, subspace: int | None) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    device = torch.device("cuda")
    results = []
    for scheduled in (False, True):
        network = Network().to(device)
        accelerator = accelerator_for(device)
        if scheduled:
            with overlapped(network, accelerator, order, subspace, 2) as (schedule, hooks):
                train_on(network, hooks, device)
                schedule.finish()
        else:
            updates = [each for layer in updates_of(network, subspace) for each in layer]
            train_on(network, GradientHooks(updates, ImmediateSchedule()), device)
        results.append([weight.detach().cpu() for weight in network.parameters()])
    for pair in zip(*results, strict=True):
        # Sparse products may add in another order; whole gradients give equal bits.
        if subspace is None:
            assert torch.equal(*pair)
        torch.testing.assert_close(*pair, rtol=1e-5, atol=1e-6)


def train_on(network: Network, hooks: GradientHooks, device: torch.device) -> None:
    hooks.learning_rate = 0.05
    for step in range(STEPS):
        x = torch.randn(5, FEATURES, generator=torch.Generator().manual_seed(step))
        network(x.to(device)).square().sum().backward()
