"""SPSA modified by variance and expectation: expectations, D = 1, and D in the trajectory."""

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from trajectories import MODEL, ToySpace, header_of

from samara.client.estimators.mezo import mezo_estimator
from samara.client.estimators.prge import run_estimator
from samara.client.spaces.scaling import (
    Modification,
    ParameterGroups,
    Scaling,
    ScalingPlan,
    group_name,
)
from samara.client.spaces.space import FlatSpace, SequentialSpace, SpaceTensor
from samara.client.tuning.descent import SGD, Descent, UpdateStep
from samara.client.tuning.group_norms import (
    d_of,
    estimate_gradient_norms,
    gradient_norms,
    parameter_norms,
)
from samara.client.tuning.trajectory import TrajectoryWriter, read_trajectory
from samara.shared.errors import TrainingError, TrajectoryError
from samara.shared.model.lora_fa import empty_adapter
from samara.shared.model.perturbations import PerturbedAdapters
from samara.shared.protocol.directions import query_seeds
from samara.shared.protocol.replay_numba import NumbaBackend

SHAPES = {"embed.weight": (3, 2), "layers.0.a": (5,), "layers.1.a": (2, 2), "head.weight": (3,)}
D = np.array([0.5, 2.0, 0.25, 4.0], np.float32)
COUNT, EPSILON = 3_000, 0.5


class QuadraticSpace(FlatSpace, SequentialSpace):
    """θ with the loss θᵀ·H·θ/2 + b·θ, whose central differences are exact."""

    kind = "lora"

    def __init__(self) -> None:
        adapter, self._no_adapters = empty_adapter()
        tensors = [SpaceTensor(name, shape) for name, shape in SHAPES.items()]
        size = sum(tensor.size for tensor in tensors)
        rng = np.random.default_rng(3)
        root = rng.normal(size=(size, size)) / np.sqrt(size)
        self.hessian, self.linear = root @ root.T, rng.normal(size=size)
        theta = torch.from_numpy(rng.normal(size=size).astype(np.float32))
        super().__init__(tensors, adapter, theta, NumbaBackend(1), "gaussian")
        self.point = theta

    @property
    def gradient(self) -> NDArray[np.float64]:
        return self.hessian @ self._theta.numpy().astype(np.float64) + self.linear

    def losses(self, seeds: NDArray[np.uint64], epsilon: float = EPSILON) -> NDArray[np.float64]:
        def loss(_: PerturbedAdapters) -> NDArray[Any]:
            at = self.point.numpy().astype(np.float64)
            return np.array([at @ self.hessian @ at / 2 + self.linear @ at])

        return self.evaluate(loss, seeds, epsilon)

    def _perturbed(
        self, seed: int, epsilon: float, signs: tuple[int, ...]
    ) -> Generator[PerturbedAdapters]:
        for point in self._sides(seed, epsilon, signs):
            self.point = point
            yield self._no_adapters

    @contextmanager
    def _unperturbed(self) -> Iterator[PerturbedAdapters]:
        yield self._no_adapters

    @contextmanager
    def computing_with(self, theta: torch.Tensor) -> Iterator[PerturbedAdapters]:
        self.point = theta
        yield self._no_adapters


@cache
def estimates(modify: Modification) -> NDArray[np.float64]:
    """ĝ of COUNT directions, each from the code of a step with one direction, [COUNT, d]."""
    space, scaling = QuadraticSpace(), Scaling.by(D, modify)
    space.scaling = scaling
    batch = np.zeros((1, 1), np.int64)
    found = []
    for seed in query_seeds(7, 0, 1, COUNT)[0]:
        seeds = np.array([seed])
        estimate = run_estimator(
            mezo_estimator(seeds, batch, EPSILON), lambda r: space.losses(r.seeds, r.epsilon)
        )
        step = UpdateStep(seeds, estimate.gradients, 0.1, EPSILON, scaling)
        found.append(step.gradient(space, 0, space.size).numpy())
    return np.stack(found).astype(np.float64)


@pytest.mark.parametrize("modify", ["variance", "expectation"])
def test_variance_modified_is_unbiased_and_expectation_modified_is_divided_by_d(
    modify: Modification,
) -> None:
    space = QuadraticSpace()
    found = estimates(modify)
    expected = space.gradient
    if modify == "expectation":
        expected = expected / space.groups.spread(D, 0, space.size).numpy()
    error = found.std(axis=0) / np.sqrt(COUNT)
    assert (np.abs(found.mean(axis=0) - expected) < 5 * error).all()
    # The test would notice: neither is the other's, nor what it would be without D.
    other = space.gradient / D[[0] * 6 + [1] * 5 + [2] * 4 + [3] * 3]
    wrong = space.gradient if modify == "expectation" else other
    assert (np.abs(found.mean(axis=0) - wrong) > 5 * error).any()


def test_d_changes_the_variance() -> None:
    """E ĝ_i² = (|v|² + 2·v_i²)·d_i², where v = D⁻¹·∇L, of definition 6 on a quadratic."""
    space = QuadraticSpace()
    d = space.groups.spread(D, 0, space.size).numpy().astype(np.float64)
    squares = estimates("variance") ** 2
    scaled = space.gradient / d
    expected = (scaled @ scaled + 2 * scaled**2) * d**2
    error = squares.std(axis=0) / np.sqrt(COUNT)
    assert (np.abs(squares.mean(axis=0) - expected) < 5 * error).all()


def test_norms_of_gradients_are_estimated_up_to_one_factor() -> None:
    """Proposition 1: E⟨v, z⟩² = |v|²; the mean of |⟨v, z⟩| is √(2/π)·|v| in every group."""
    space = QuadraticSpace()
    groups = len(space.groups.names)
    exact = gradient_norms(space, torch.from_numpy(space.gradient.astype(np.float32)))
    parts = np.split(space.gradient, [6, 11, 15])
    np.testing.assert_allclose(exact, [np.linalg.norm(part) for part in parts], rtol=1e-6)
    seeds = query_seeds(1, 1, 1, groups * 4000)[0].reshape(groups, 4000)
    found = estimate_gradient_norms(space, seeds, EPSILON, space.losses)
    np.testing.assert_allclose(found, exact * np.sqrt(2 / np.pi), rtol=0.05)
    assert space.scaling is None
    one = estimate_gradient_norms(space, seeds[:, :1], EPSILON, space.losses)
    for group in range(groups):
        space.scaling = Scaling.of_one(group, groups)
        plus, minus = space.losses(seeds[group, :1])
        assert one[group] == np.float32(abs(plus - minus) / (2 * EPSILON))


def test_norms_of_parameters_are_those_of_their_groups() -> None:
    space = QuadraticSpace()
    parts = np.split(space.values(0, space.size).numpy(), [6, 11, 15])
    np.testing.assert_allclose(
        parameter_norms(space), [np.linalg.norm(part) for part in parts], rtol=1e-6
    )


def test_a_group_without_a_norm_is_not_scaled_and_one_that_is_not_finite_is_refused() -> None:
    np.testing.assert_array_equal(d_of(np.array([0, 2], np.float32)), [1, 2])
    with pytest.raises(TrainingError, match="norm of a group of parameters is not finite"):
        d_of(np.array([np.inf, 1], np.float32))


def test_groups_are_layers_embeddings_and_the_head() -> None:
    names = {
        "model.embed_tokens.weight": "embeddings",
        "transformer.wpe.weight": "embeddings",
        "embeddings.LayerNorm.bias": "embeddings",
        "model.layers.11.self_attn.q_proj.weight": "layer 11",
        "layers.0.k": "layer 0",
        "model.norm.weight": "head",
        "lm_head.weight": "head",
        "label bias": "head",
    }
    assert {name: group_name(name) for name in names} == names
    groups = ParameterGroups([("embed", 5), ("layers.0.a", 2), ("layers.0.b", 4), ("norm", 3)])
    assert groups.names == ("embeddings", "layer 0", "head")
    factors = np.array([2, 3, 5], np.float32)
    whole = [2.0] * 5 + [3.0] * 6 + [5.0] * 3
    for first in range(14):
        for count in range(1, 15 - first):
            assert groups.spread(factors, first, count).tolist() == whole[first : first + count]


@pytest.mark.parametrize("modify", ["variance", "expectation"])
def test_d_of_ones_changes_no_bit(modify: Modification) -> None:
    ones = Scaling.by(np.ones(4, np.float32), modify)
    plain, scaled = QuadraticSpace(), QuadraticSpace()
    scaled.scaling = ones
    seeds = query_seeds(0, 0, 1, 3)[0]
    np.testing.assert_array_equal(plain.losses(seeds), scaled.losses(seeds))
    gradients = np.array([0.5, -1.5, 1e-3], np.float32)
    for space, scaling in ((plain, None), (scaled, ones)):
        Descent(space, SGD()).step(UpdateStep(seeds, gradients, 0.1, EPSILON, scaling))
    np.testing.assert_array_equal(plain.values(0, 18), scaled.values(0, 18))


@pytest.mark.parametrize("interval", [0, 2])
def test_a_trajectory_holds_d_where_it_is_found(interval: int, tmp_path: Path) -> None:
    """A trajectory of steps with two different D is read back and replayed to the same bits."""
    plan = ScalingPlan("variance", 1, interval)

    def new_space() -> ToySpace:
        space = ToySpace(40)
        space.scaling_plan = plan
        return space

    path, trained = tmp_path / "trajectory", new_space()
    descent = Descent(trained, SGD())
    found = [np.array([d], np.float32) for d in (0.5, 0.5, 8.0)]
    with closing(TrajectoryWriter(path, header_of(new_space()), new_space())) as writer:
        for step in range(3):
            d = found[step if interval else 0]
            descent.step(writer.append(np.array([1, step], np.float32), 0.1, d))
    trajectory = read_trajectory(path)
    assert trajectory.header.scaling_plan == plan
    assert trajectory.d == found[2 if interval else 0]
    for step, d in zip(trajectory.steps, found if interval else found[:1] * 3, strict=True):
        assert step.scaling is not None
        assert step.scaling.update == d
        assert step.scaling.perturbation == 1 / d
        assert len(step.gradients) == len(step.seeds) == 2
    again = new_space()
    trajectory.rebuild(again, SGD(), MODEL)
    np.testing.assert_array_equal(again.theta, trained.theta)
    with pytest.raises(TrajectoryError, match="made with another model or other settings: update"):
        trajectory.rebuild(ToySpace(40), SGD(), MODEL)


def test_a_step_that_lacks_its_d_is_refused(tmp_path: Path) -> None:
    space = ToySpace(40)
    space.scaling_plan = ScalingPlan("variance", 3)
    path = tmp_path / "trajectory"
    with closing(TrajectoryWriter(path, header_of(space), space)) as writer:
        writer.append(np.ones(2, np.float32), 0.1)
    with pytest.raises(TrajectoryError, match="step 1 lacks the d of 3 groups of parameters"):
        read_trajectory(path)
