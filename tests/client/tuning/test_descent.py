"""Updates from scalars, against plain loops that keep their moments."""

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trajectories import FloatArray, ToySpace, steps_of

from samara.client.spaces import space as spaces
from samara.client.tuning.descent import (
    SGD,
    Adam,
    Descent,
    Momentum,
    UpdateRule,
    UpdateStep,
    _Windows,
    window_start,
)
from samara.shared.errors import TrainingError
from samara.shared.model.live_tensors import CountedTensors, MemoryAccount
from samara.shared.protocol.directions import WHOLE_BLOCKS, directions


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spaces, "CPU_CHUNK", WHOLE_BLOCKS)


def gradient_of(step: UpdateStep, size: int) -> FloatArray:
    """ĝ by its definition, with one rounding per operation."""
    z = directions(step.seeds, size, "gaussian").astype(np.float32) / np.float32(2048)
    total = np.zeros(size, np.float32)
    for share, own in zip(step.gradients / np.float32(len(step.seeds)), z, strict=True):
        total = total + share * own
    return total


def plain_sgd(theta: FloatArray, steps: list[UpdateStep]) -> FloatArray:
    for step in steps:
        theta = theta - np.float32(step.learning_rate) * gradient_of(step, len(theta))
    return theta


def plain_momentum(theta: FloatArray, steps: list[UpdateStep], beta: float = 0.9) -> FloatArray:
    m = np.zeros_like(theta)
    for step in steps:
        m = np.float32(beta) * m + gradient_of(step, len(theta))
        theta = theta - np.float32(step.learning_rate) * m
    return theta


def plain_adam(theta: FloatArray, steps: list[UpdateStep]) -> FloatArray:
    """Adam in float64, as in torch.optim.Adam; the result differs only by rounding."""
    exact, m, v = theta.astype(np.float64), 0.0, 0.0
    for t, step in enumerate(steps, 1):
        g = gradient_of(step, len(theta)).astype(np.float64)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        m_hat, v_hat = m / (1 - 0.9**t), v / (1 - 0.999**t)
        exact = exact - step.learning_rate * m_hat / (np.sqrt(v_hat) + 1e-8)
    return exact.astype(np.float32)


Plain = Callable[[FloatArray, list[UpdateStep]], FloatArray]
EXACT: list[tuple[UpdateRule, Plain]] = [(SGD(), plain_sgd), (Momentum(), plain_momentum)]
UPDATES: list[UpdateRule] = [SGD(), Momentum(0.5), Momentum(0.0), Adam(0.3, 0.6), Adam()]
UPDATES += [SGD(0.25), Adam(0.3, 0.6, weight_decay=0.5)]


def taken(update: UpdateRule, steps: list[UpdateStep], hold: bool) -> tuple[ToySpace, Descent]:
    space = ToySpace()
    descent = Descent(space, update, hold)
    for step in steps:
        descent.step(step)
    return space, descent


@pytest.mark.parametrize(("update", "plain"), EXACT)
def test_steps_are_those_of_a_loop_that_keeps_its_moments(update: UpdateRule, plain: Plain) -> None:
    steps = steps_of(12)
    space, _ = taken(update, steps, hold=False)
    np.testing.assert_array_equal(space.theta, plain(ToySpace().theta, steps))


def test_adam_is_the_textbooks() -> None:
    steps = steps_of(12)
    space, _ = taken(Adam(), steps, hold=False)
    expected = plain_adam(ToySpace().theta, steps)
    np.testing.assert_allclose(space.theta, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_updates_are_those_of_torch(name: str, decay: float) -> None:
    steps = [UpdateStep(s.seeds, s.gradients, 0.03125, 0.01) for s in steps_of(10)]
    parameter = torch.from_numpy(ToySpace().theta).requires_grad_()
    update: UpdateRule = SGD(decay)
    optimizer: torch.optim.Optimizer = torch.optim.SGD([parameter], 0.03125, weight_decay=decay)
    if name == "adam":
        update = Adam(0.8, 0.95, 1e-3, decay)
        rest = {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": decay}
        optimizer = torch.optim.AdamW([parameter], lr=0.03125, **rest)
    space, _ = taken(update, steps, hold=True)
    for step in steps:
        parameter.grad = torch.from_numpy(gradient_of(step, len(parameter)))
        optimizer.step()
    np.testing.assert_allclose(space.theta, parameter.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("update", UPDATES, ids=repr)
def test_recomputed_held_and_replayed_moments_give_the_same_bits(update: UpdateRule) -> None:
    """The number of steps is so large that the windows of the faster decays restart."""
    steps = steps_of(60, most=1)
    recomputed, descent = taken(update, steps, hold=False)
    held, _ = taken(update, steps, hold=True)
    np.testing.assert_array_equal(recomputed.theta, held.theta)
    assert descent.history == steps
    for hold in (False, True):
        space = ToySpace()
        rebuilt = Descent(space, update, hold)
        rebuilt.replay(steps[:25])
        rebuilt.replay(steps[25:57])
        for step in steps[57:]:
            rebuilt.step(step)
        np.testing.assert_array_equal(space.theta, recomputed.theta)


def test_sgd_keeps_no_tensor_of_a_step() -> None:
    account = MemoryAccount()
    descent = Descent(ToySpace(), SGD(), hold_moments=True)
    with CountedTensors(account):
        descent.step(steps_of(1, most=1)[0])
    gc.collect()
    assert account.peak > 0 == account.bytes


@given(st.integers(0, 10**6), st.integers(1, 10**5))
def test_a_window_holds_all_steps_or_those_that_count(step: int, window: int) -> None:
    start = window_start(step, window)
    assert start % window == 0
    assert start == 0 or window <= step - start < 2 * window
    assert window_start(step + 1, window) in (start, start + window)
    assert window_start(step, 0) == step


@pytest.mark.parametrize("beta", [0.0, 1e-9, 0.5, 0.9, 0.99, 0.999])
def test_what_is_dropped_weighs_less_than_rounding(beta: float) -> None:
    window = Momentum(beta).window
    assert Adam(0.0, beta).window == Adam(beta, 0.0).window == window
    assert beta**window <= 2.0**-24
    assert window == 1 or beta ** (window - 1) > 2.0**-24


def test_a_moment_of_equal_gradients_is_right_at_every_age() -> None:
    one, update = torch.ones(1), Momentum(0.5)
    windows = _Windows(update, 0)
    for step in range(5 * update.window):
        windows.add(one)
        full = (1 - 0.5 ** (step + 1)) / (1 - 0.5)
        assert float(windows.update()) == pytest.approx(full, rel=2.0**-23)


def test_a_space_is_named_and_digested() -> None:
    space = ToySpace()
    names = dict(space.named_tensors())
    assert {name: tuple(t.shape) for name, t in names.items()} == {
        "first": (2, 3),
        "second": (19_994,),
    }
    np.testing.assert_array_equal(np.concatenate([t.ravel() for t in names.values()]), space.theta)
    before = space.digest()
    assert ToySpace().digest() == before != ToySpace(20_001).digest()
    space.add(8192, torch.full((1,), 1e-3))
    assert space.digest() != before


@pytest.mark.parametrize("changes", [{"gradients": [np.nan]}, {"learning_rate": np.inf}])
def test_a_step_of_something_not_finite_is_refused(changes: dict[str, Any]) -> None:
    fields = {"gradients": [1.0], "learning_rate": 0.1} | changes
    gradients = np.array(fields["gradients"], np.float32)
    with pytest.raises(TrainingError, match="not finite; lower learning-rate"):
        UpdateStep(np.zeros(1, np.uint64), gradients, fields["learning_rate"], 0.1)


@pytest.mark.parametrize("update", [lambda: Momentum(1.0), lambda: Adam(0.9, -0.1)])
def test_a_decay_has_its_range(update: Callable[[], UpdateRule]) -> None:
    with pytest.raises(TrainingError, match="at least 0 and less than 1"):
        update()
