"""Laws of first-order training with the optimizer on the host."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from client.offload.host_adam import HostAdam
from client.offload.kernels import add_decompressed, compress, decompress
from client.offload.layer_update import GradientHooks, ImmediateSchedule, LayerUpdate
from client.offload.projectors import ProjectorPair, SparseProjector

CPU = torch.device("cpu")
sides = st.integers(1, 40)
seeds = st.integers(0, 2**32)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def dense(projector: SparseProjector | None, rows: int) -> Tensor:
    return torch.eye(rows) if projector is None else projector.dense()


@given(sides, sides, st.integers(1, 30), st.integers(1, 5), seeds)
def test_compression_and_decompression_are_dense_products(
    m: int, n: int, size: int, nonzeros: int, seed: int
) -> None:
    projectors = ProjectorPair.random((m, n), size, nonzeros, (seed,), CPU)
    p, q = dense(projectors.left, m), dense(projectors.right, n)
    gradient, change = normal(seed, m, n), normal(seed + 1, min(m, size), min(n, size))
    assert projectors.subspace((m, n)) == tuple(change.shape)
    near = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(compress(projectors, gradient), p.T @ gradient @ q, **near)
    whole = p @ change @ q.T
    torch.testing.assert_close(decompress(projectors, change), whole, **near)
    weight = gradient.clone()
    add_decompressed(projectors, change, weight)
    torch.testing.assert_close(weight, gradient + whole, **near)


@given(st.integers(1, 60), st.integers(1, 30), st.integers(1, 8), seeds)
def test_every_row_of_a_projector_has_its_nonzeros(
    rows: int, size: int, nonzeros: int, seed: int
) -> None:
    projector = SparseProjector.random(rows, size, nonzeros, (seed,), CPU)
    assert ((projector.dense() != 0).sum(1) == min(nonzeros, size)).all()
    again = SparseProjector.random(rows, size, nonzeros, (seed,), CPU)
    assert torch.equal(projector.dense(), again.dense())
    torch.testing.assert_close(projector.csr.to_dense(), projector.dense())
    torch.testing.assert_close(projector.transposed_csr.to_dense(), projector.dense().T)


def test_random_values_have_the_standard_deviation_of_the_paper() -> None:
    values = SparseProjector.random(4000, 64, 16, (3,), CPU).values
    assert values.std().item() == pytest.approx(1 / 4, rel=0.02)
    assert values.mean().item() == pytest.approx(0, abs=0.005)


@pytest.mark.parametrize("shape", [(1000,), (37, 29), (64, 64)])
def test_the_update_of_the_host_is_that_of_torchs_adam(shape: tuple[int, ...]) -> None:
    weight = nn.Parameter(normal(0, *shape))
    moved = weight.detach().clone()
    adam, host = torch.optim.Adam([weight], 0.01, fused=True), HostAdam(shape)
    for step in range(5):
        weight.grad = normal(step + 1, *shape)
        change = host.update(weight.grad, 0.01)
        adam.step()
        moved += change
    assert torch.equal(moved, weight.detach())


def identity(rows: int) -> SparseProjector:
    return SparseProjector(torch.arange(rows)[:, None], torch.ones(rows, 1), rows)


def network() -> nn.Sequential:
    layers = nn.Sequential(nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 8))
    for seed, parameter in enumerate(layers.parameters()):
        parameter.data = normal(seed, *parameter.shape) / 5
    return layers


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("passes", [1, 3])
def test_identity_projectors_give_the_bits_of_plain_adam(explicit: bool, passes: int) -> None:
    offloaded, plain = network(), network()
    adam = torch.optim.Adam(plain.parameters(), 0.01, fused=True)
    layers = []
    for name, weight in offloaded.named_parameters():
        pair = ProjectorPair.random((40, 40), 40, 3, (0,), CPU)
        if explicit and weight.ndim == 2:
            pair = ProjectorPair(*(identity(side) for side in weight.shape))
        layers.append(LayerUpdate(name, weight, pair))
    hooks = GradientHooks(layers, ImmediateSchedule())
    for step in range(6):
        for part in range(passes):
            x, y = normal(100 + step * 9 + part, 5, 24), normal(step, 5, 8)
            hooks.learning_rate = 0.01 if part == passes - 1 else None
            for model in (offloaded, plain):
                loss = (model(x) - y).square().mean()
                loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        adam.zero_grad()
    for one, other in zip(offloaded.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
        assert one.grad is None
    hooks.remove()
