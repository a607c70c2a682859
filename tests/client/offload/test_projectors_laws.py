"""Laws of first-order training with the optimizer on the host."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from samara.client.offload.host_adam import HostAdam
from samara.client.offload.kernels import add_decompressed, compress, decompress
from samara.client.offload.layer_update import (
    GradientHooks,
    ImmediateSchedule,
    LayerUpdate,
    SubspaceSettings,
)
from samara.client.offload.projector_learning import (
    _bias_and_derivatives,
    learn_projectors,
    relative_bias,
)
from samara.client.offload.projectors import ProjectorPair, SparseProjector

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


def loss_by_autograd(projectors: ProjectorPair, gradient: Tensor) -> list[Tensor]:
    sides = [side for side in (projectors.left, projectors.right) if side is not None]
    for side in sides:
        side.values.requires_grad_()
    p, q = (
        dense(s, r)
        for s, r in zip((projectors.left, projectors.right), gradient.shape, strict=True)
    )
    (p @ p.T @ gradient @ q @ q.T - gradient).square().sum().backward()  # type: ignore[no-untyped-call]
    gradients = []
    for side in sides:
        assert side.values.grad is not None
        gradients.append(side.values.grad.clone())
        side.values.requires_grad_(False)
    return gradients


@given(st.integers(2, 30), st.integers(13, 30), st.integers(1, 12), st.integers(1, 4), seeds)
def test_derivatives_of_the_bias_are_those_of_autograd(
    m: int, n: int, size: int, nonzeros: int, seed: int
) -> None:
    projectors = ProjectorPair.random((m, n), size, nonzeros, (seed,), CPU)
    gradient = normal(seed, m, n)
    derived = list(_bias_and_derivatives(projectors, gradient)[1].values())
    for one, other in zip(derived, loss_by_autograd(projectors, gradient), strict=True):
        torch.testing.assert_close(
            one, other, rtol=1e-3, atol=1e-2 * (1 + other.abs().max()).item()
        )


def low_rank(seed: int, m: int, n: int, rank: int) -> Tensor:
    return normal(seed, m, rank) @ normal(seed + 1, rank, n) / m + normal(seed + 2, m, n) / (9 * m)


@pytest.mark.parametrize(("m", "n"), [(80, 96), (20, 96), (96, 20)])
def test_learned_projectors_have_less_bias_than_random_ones(m: int, n: int) -> None:
    gradient = low_rank(1, m, n, 3)
    random = ProjectorPair.random((m, n), 24, 6, (0,), CPU)
    learned = learn_projectors(random, gradient, 0.4, 1e-4, 300)
    assert learned.bias == pytest.approx(relative_bias(learned.projectors, gradient), rel=1e-3)
    assert learned.bias < 0.4 < 1 < relative_bias(random, gradient)
    assert 0 < learned.steps < 300
    unreachable = learn_projectors(random, gradient, 1e-9, 1e-4, 20)
    assert unreachable.steps == 20
    other = low_rank(1, m, n, 3) + normal(9, m, n) / (9 * m)  # of the same directions
    assert relative_bias(learned.projectors, other) < 0.8 < relative_bias(random, other)


def test_moments_move_by_the_formula_of_the_paper() -> None:
    layer = LayerUpdate(
        "w", nn.Parameter(normal(0, 40, 30)), ProjectorPair.random((40, 30), 8, 3, (5,), CPU)
    )
    layer.add(layer.compress(normal(1, 40, 30)))
    layer.update(0.01)
    old, (first, second) = layer.projectors, (each.clone() for each in layer.optimizer.moments)
    check = layer.check_projectors(low_rank(2, 40, 30, 2), SubspaceSettings(8, 3, 0.5, 1e-4, 50, 0))
    assert check.learned is not None
    assert check.learned < check.bias
    new = layer.projectors
    assert new.left is not None
    assert old.left is not None
    assert new.right is not None
    assert old.right is not None
    left, right = new.left.dense().T @ old.left.dense(), new.right.dense().T @ old.right.dense()
    near = {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(layer.optimizer.moments[0], left @ first @ right.T, **near)
    squares = (left**2) @ second @ (right**2).T
    torch.testing.assert_close(layer.optimizer.moments[1], squares, **near)
    kept = layer.check_projectors(low_rank(2, 40, 30, 2), SubspaceSettings(8, 3, 1.1, 1e-4, 50, 0))
    assert kept.learned is None
    assert layer.projectors is new


@given(st.floats(-1.0, 1.0), st.floats(-(2.0**-8), 2.0**-8), seeds)
def test_a_sum_in_bfloat16_is_rounded_to_a_neighbour_and_exact_on_average(
    start: float, change: float, seed: int
) -> None:
    before = torch.full((100, 100), start, dtype=torch.bfloat16)
    added = torch.full_like(before, change, dtype=torch.float32)
    exact = before[0, 0].item() + added[0, 0].item()
    weight, again = before.clone(), before.clone()
    for one in (weight, again):
        add_decompressed(ProjectorPair(), added, one, seed)
    assert torch.equal(weight, again)
    gap = abs(exact) * 2.0**-7
    assert weight.max().item() - weight.min().item() <= gap
    error = 6 * 0.5 * gap / weight.numel() ** 0.5
    assert abs(weight.double().mean().item() - exact) <= error + 2.0**-23 * abs(exact) + 1e-30


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(200, 300), (16, 300), (300, 16)])
def test_a_gpu_compresses_and_decompresses_as_the_cpu(shape: tuple[int, int]) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    cuda = torch.device("cuda")
    here = ProjectorPair.random(shape, 32, 4, (0,), CPU)
    there = ProjectorPair.random(shape, 32, 4, (0,), cuda)
    gradient = normal(1, *shape)
    near = {"rtol": 1e-4, "atol": 1e-4}
    compressed = compress(here, gradient)
    torch.testing.assert_close(compress(there, gradient.to(cuda)).cpu(), compressed, **near)
    change = normal(2, *compressed.shape)
    whole = decompress(here, change)
    torch.testing.assert_close(decompress(there, change.to(cuda)).cpu(), whole, **near)
    weight = nn.Parameter(gradient.to(cuda))
    add_decompressed(there, change.to(cuda), weight)
    torch.testing.assert_close(weight.detach().cpu(), gradient + whole, **near)


@pytest.mark.gpu
def test_a_gpu_learns_projectors_with_the_bias_of_the_cpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    gradient = low_rank(1, 80, 96, 3)
    biases = []
    for device in (CPU, torch.device("cuda")):
        drawn = ProjectorPair.random((80, 96), 24, 6, (0,), device)
        learned = learn_projectors(drawn, gradient.to(device), 0.0, 1e-4, 20)
        biases.append(learned.bias)
        assert relative_bias(learned.projectors, gradient.to(device)) == pytest.approx(
            learned.bias, rel=1e-3
        )
    assert biases[1] == pytest.approx(biases[0], rel=0.05)
