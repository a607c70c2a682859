"""The solver of private parts finds the minimum, and penalizes features if examples are few."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import helmert
from scipy.special import log_softmax

from samara.client.personal import lbfgs, newton
from samara.client.personal.softmax_fit import (
    Examples,
    Floats,
    SoftmaxFit,
    Solver,
    fit_intercept,
    fit_private_part,
    strongest_within_one_error,
)
from samara.shared.errors import TrainingError


def examples_of(
    count: int, labels: int, features: int, seed: int = 0, strength: float = 0.0
) -> Examples:
    """Examples whose labels depend on an intercept, and on features with some strength."""
    random = np.random.default_rng(seed)
    offsets = random.normal(size=(count, labels))
    phi = random.normal(size=(count, features)) / max(1, features) ** 0.5
    truth = random.normal(size=(labels - 1, features)) * strength
    logits = offsets + random.normal(size=labels) + phi @ truth.T @ helmert(labels)
    drawn = (logits + random.gumbel(size=logits.shape)).argmax(1)
    return Examples(offsets, drawn.astype(np.int64), phi)


def loss(examples: Examples, fit: SoftmaxFit, penalties: tuple[float, float]) -> float:
    """The penalized mean cross-entropy, as defined in the docstring of the solver."""
    contrasts = helmert(examples.offsets.shape[1])
    logits = examples.offsets + fit.intercept + examples.features @ fit.readout.T @ contrasts
    own = log_softmax(logits, axis=1)[np.arange(len(logits)), examples.labels]
    squares = np.sum(fit.intercept**2), np.sum(fit.readout**2)
    return float(-own.mean() + penalties[0] * squares[0] + penalties[1] * squares[1])


both_solvers = pytest.mark.parametrize("solve", [lbfgs.fit_softmax, newton.fit_softmax])


@both_solvers
def test_the_fit_is_the_best_point_of_a_grid(solve: Solver) -> None:
    """With two labels and one feature, the intercept and V have one degree of freedom each."""
    examples, penalties = examples_of(12, 2, 1, 3, 2.0), (0.05, 0.02)
    fit = solve(examples, helmert(2), *penalties)
    assert fit.intercept.sum() == pytest.approx(0, abs=1e-6)
    grid = np.arange(-3, 3.001, 0.05)
    least = min(
        loss(examples, SoftmaxFit(np.array([b, -b]), np.array([[v]])), penalties)
        for b, v in product(grid, grid)
    )
    found = loss(examples, fit, penalties)
    assert found <= least + 1e-9
    assert found == pytest.approx(least, abs=1e-3)


@both_solvers
@settings(max_examples=25)
@given(st.integers(1, 12), st.integers(2, 5), st.integers(0, 6), st.integers(0, 2**32 - 1))
def test_every_direction_from_the_fit_leads_up(
    solve: Solver, count: int, labels: int, features: int, seed: int
) -> None:
    examples, penalties = examples_of(count, labels, features, seed, 1.0), (0.03, 0.1)
    fit = solve(examples, helmert(labels), *penalties)
    random, here = np.random.default_rng(seed), loss(examples, fit, penalties)
    for _ in range(8):
        other = SoftmaxFit(
            fit.intercept + 0.01 * random.normal(size=labels),
            fit.readout + 0.01 * random.normal(size=fit.readout.shape),
        )
        assert loss(examples, other, penalties) >= here


@pytest.mark.parametrize("count", [1, 2, 3, 10, 40])
@pytest.mark.parametrize("label", [0, 2])
def test_a_client_with_one_label_gets_a_finite_and_sensible_part(count: int, label: int) -> None:
    examples = examples_of(count, 3, 8)._replace(labels=np.full(count, label))
    fit = fit_private_part(examples, helmert(3), lbfgs.fit_softmax)
    assert np.all(np.isfinite(fit.intercept))
    assert np.abs(fit.intercept).max() < 10
    assert fit.intercept.argmax() == label
    assert np.abs(fit.readout).max(initial=0) < 20


def test_without_features_there_is_no_readout() -> None:
    fit = fit_private_part(examples_of(30, 3, 0), helmert(3), lbfgs.fit_softmax)
    assert fit.readout.shape == (2, 0)


@pytest.mark.parametrize(("count", "features"), [(40, 6), (12, 60)])
def test_features_that_say_nothing_get_no_readout(count: int, features: int) -> None:
    given_one = [
        fit_private_part(
            examples_of(count, 2, features, seed), helmert(2), lbfgs.fit_softmax
        ).readout.any()
        for seed in range(10)
    ]
    assert sum(given_one) <= 2


def test_features_that_decide_get_a_readout_that_predicts() -> None:
    whole = examples_of(400, 3, 6, 5, 8.0)
    train, test = whole.at(np.arange(200)), whole.at(np.arange(200, 400))
    fits: list[SoftmaxFit] = [
        fit(train, helmert(3), lbfgs.fit_softmax) for fit in (fit_private_part, fit_intercept)
    ]
    assert fits[0].readout.any()
    assert not fits[1].readout.any()

    def accuracy(fit: SoftmaxFit) -> float:
        scores = test.offsets + fit.added_scores(test.features, helmert(3))
        return float((scores.argmax(1) == test.labels).mean())

    assert accuracy(fits[0]) > accuracy(fits[1]) + 0.2


@settings(max_examples=10)
@given(st.floats(0.01, 100), st.integers(0, 100))
def test_the_unit_of_the_features_does_not_matter(factor: float, seed: int) -> None:
    examples = examples_of(30, 2, 40, seed, 6.0)
    scaled = examples._replace(features=factor * examples.features)
    one, other = (
        fit_private_part(these, helmert(2), lbfgs.fit_softmax) for these in (examples, scaled)
    )
    added = [
        fit.added_scores(these.features, helmert(2))
        for fit, these in ((one, examples), (other, scaled))
    ]
    np.testing.assert_allclose(added[0], added[1], atol=1e-3)


def test_a_fit_with_more_features_than_examples_is_that_of_all_features() -> None:
    """Reducing features to the span of the examples loses nothing."""
    few = examples_of(30, 2, 2, 1, 12.0)
    wide = np.linalg.qr(np.random.default_rng(1).normal(size=(40, 2)))[0].T
    examples = few._replace(features=few.features @ wide)
    fit = fit_private_part(examples, helmert(2), lbfgs.fit_softmax)
    assert fit.readout.any()
    narrow = fit_private_part(few, helmert(2), lbfgs.fit_softmax)
    np.testing.assert_allclose(fit.readout, narrow.readout @ wide, atol=1e-4)


def test_among_choices_of_equal_worth_the_strongest_penalty_is_taken() -> None:
    random = np.random.default_rng(0)
    noise = random.normal(size=(3, 50))
    equal: list[Floats] = [1.0 + 0.1 * noise[0], 1.0 + 0.1 * noise[1] - 0.01, 1.0 + 0.1 * noise[2]]
    assert strongest_within_one_error(equal) == 0
    clearly_better = [equal[0], equal[1] - 0.5, equal[2] - 0.5]
    assert strongest_within_one_error(clearly_better) == 1
    assert strongest_within_one_error([equal[0], equal[0]]) == 0


def test_numbers_that_are_not_finite_are_refused() -> None:
    examples = examples_of(5, 2, 3)
    for broken in (
        examples._replace(offsets=np.full((5, 2), np.inf)),
        examples._replace(features=np.full((5, 3), np.nan)),
    ):
        with pytest.raises(TrainingError, match="not finite"):
            fit_private_part(broken, helmert(2), lbfgs.fit_softmax)


@pytest.mark.parametrize(("count", "labels", "features"), [(40, 2, 60), (200, 6, 30), (3, 4, 0)])
def test_phones_fit_what_boards_do(count: int, labels: int, features: int) -> None:
    examples = examples_of(count, labels, features, 4, 8.0)
    for fit in (fit_private_part, fit_intercept):
        board, phone = (
            fit(examples, helmert(labels), solve)
            for solve in (lbfgs.fit_softmax, newton.fit_softmax)
        )
        np.testing.assert_allclose(phone.intercept, board.intercept, atol=2e-5)
        np.testing.assert_allclose(phone.readout, board.readout, atol=2e-5)


def test_newtons_method_that_does_not_converge_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(newton, "_MAX_STEPS", 1)
    with pytest.raises(TrainingError, match="Newton's method did not converge in 1 steps"):
        newton.fit_softmax(examples_of(30, 3, 4, 0, 8.0), helmert(3), 1e-3, 1e-3)
    with pytest.raises(TrainingError, match="not finite"):
        newton.fit_softmax(
            examples_of(5, 2, 0)._replace(offsets=np.full((5, 2), np.nan)), helmert(2), 1, 1
        )
