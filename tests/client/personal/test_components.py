"""Components of a client's own update: the minimum in the span of a round's directions."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import instruction_with
from numpy.typing import NDArray

from samara.client.personal.components import train_for_a_round
from samara.client.personal.softmax_fit import Examples
from samara.shared.errors import DataError, LayoutError
from samara.shared.protocol.directions import directions
from samara.shared.protocol.frames.instructions import SeedPolicy, TrainInstruction
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.layout import (
    ADAPTER_GROUP,
    LABEL_BIAS_GROUP,
    READOUT_GROUP,
    DampingRecipe,
    Layout,
    Tensor,
)
from samara.shared.protocol.replay_numpy import NumpyBackend
from samara.shared.tasks.contrasts import contrasts

LABELS, FEATURES, COUNT = 3, 5, 40
SIZE = (LABELS - 1) * FEATURES
READOUT = Tensor("readout", LABELS - 1, FEATURES, READOUT_GROUP)
BIAS = Tensor("label bias", LABELS, 1, LABEL_BIAS_GROUP)
INNER = Tensor("layer", 4, 2, ADAPTER_GROUP)


def layout_with(*tensors: Tensor) -> Layout:
    return Layout(tensors, 2, 16.0, 0, "orthogonal", damping=DampingRecipe())


def examples_of(count: int = COUNT, labels: int = LABELS) -> Examples:
    random = np.random.default_rng(count)
    return Examples(
        random.normal(size=(count, LABELS)),
        random.integers(labels, size=count),
        random.normal(size=(count, FEATURES)),
    )


def learner_of(examples: Examples, layout: Layout) -> Any:
    return SimpleNamespace(
        client=1,
        layout=layout,
        backend=NumpyBackend(),
        training_examples=lambda state, with_features: examples,
    )


def asked(layout: Layout, **changes: Any) -> TrainInstruction:
    settings: dict[str, Any] = {
        "steps": 1,
        "queries": layout.size,
        "batch": 1000,
        "seed_policy": SeedPolicy.SHARED,
        "root": 9 << 24,
        "learning_rate": 0.5,
        "differences": "components",
        "layout_hash": layout.hash,
    }
    return instruction_with(**(settings | changes))


def report_on(
    instruction: TrainInstruction,
    layout: Layout,
    examples: Examples,
    mask: NDArray[np.bool_] | None = None,
) -> Report:
    state = np.zeros(layout.size, np.int64)
    return train_for_a_round(learner_of(examples, layout), instruction, state, mask)


def update_of(report: Report, instruction: TrainInstruction, layout: Layout) -> NDArray[Any]:
    z = directions(instruction.seeds(report.client)[0], layout.size, "orthogonal")
    update: NDArray[Any] = report.gradients[0].astype(float) @ z / 2048
    return update


def penalty_of(examples: Examples, rate: float) -> float:
    square = np.mean(np.sum(examples.features**2, axis=1))
    return float(square / (2 * len(examples.labels) * rate))


def test_along_all_directions_it_is_the_penalized_minimum() -> None:
    layout, examples = layout_with(READOUT), examples_of()
    instruction = asked(layout)
    report = report_on(instruction, layout, examples)
    assert (report.gradients.shape, report.steps, report.examples) == ((1, SIZE), 1, COUNT)
    found, penalty = update_of(report, instruction, layout), penalty_of(examples, 0.5)

    def loss(update: NDArray[Any]) -> float:
        return loss_at(update, examples) + penalty * float(update @ update)

    for near in found + 1e-3 * np.vstack([np.eye(SIZE), -np.eye(SIZE)]):
        assert loss(near) > loss(found)


def loss_at(update: NDArray[Any], examples: Examples) -> float:
    logits = examples.offsets + examples.features @ update[:SIZE].reshape(LABELS - 1, -1).T @ (
        contrasts(LABELS).astype(float)
    )
    if len(update) > SIZE:
        logits = logits + update[SIZE:]
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    own = chances[np.arange(len(logits)), examples.labels]
    return float(-np.log(own).mean())


@pytest.mark.parametrize("tensors", [(READOUT,), (READOUT, BIAS)])
def test_along_few_directions_nothing_near_is_lower(tensors: tuple[Tensor, ...]) -> None:
    layout, examples = layout_with(*tensors), examples_of()
    instruction = asked(layout, queries=3)
    report = report_on(instruction, layout, examples)
    assert report.mean_loss == pytest.approx(loss_at(np.zeros(layout.size), examples))
    found, penalty = report.gradients[0].astype(float), penalty_of(examples, 0.5)
    z = directions(instruction.seeds(1)[0], layout.size, "orthogonal") / 2048

    def loss(numbers: NDArray[Any]) -> float:
        update = numbers @ z
        return loss_at(update, examples) + penalty * float(update @ update)

    for near in found + 1e-3 * np.vstack([np.eye(3), -np.eye(3)]):
        assert loss(near) > loss(found)


def test_what_is_private_is_not_moved() -> None:
    layout, examples = layout_with(READOUT, BIAS), examples_of()
    mask = np.arange(layout.size) < SIZE
    wide, narrow = layout_with(READOUT, BIAS), layout_with(READOUT)
    z = directions(asked(wide).seeds(1)[0], wide.size, "orthogonal")
    assert np.any(z[:, ~mask])
    report = report_on(asked(layout), layout, examples, mask)
    update = update_of(report, asked(layout), layout)
    other = report_on(asked(narrow), narrow, examples)
    np.testing.assert_allclose(
        loss_at(update * mask, examples),
        loss_at(update_of(other, asked(narrow), narrow), examples),
        rtol=0.02,
    )


@pytest.mark.parametrize("rate", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("count", [1, 7])
def test_few_examples_of_one_label_bound_the_update(count: int, rate: float) -> None:
    layout, examples = layout_with(READOUT), examples_of(count, labels=1)
    instruction = asked(layout, learning_rate=rate)
    report = report_on(instruction, layout, examples)
    update = update_of(report, instruction, layout)
    assert update @ update <= 1.001 * report.mean_loss / penalty_of(examples, rate)


def test_a_small_rate_gives_the_projected_gradients_of_the_sum_of_losses() -> None:
    layout, examples = layout_with(READOUT), examples_of()
    instruction = asked(layout, queries=2, learning_rate=1e-6)
    report = report_on(instruction, layout, examples)
    z = directions(instruction.seeds(1)[0], layout.size, "orthogonal") / 2048
    step, square = 1e-4, np.mean(np.sum(examples.features**2, axis=1))
    for number, direction in zip(report.gradients[0], z, strict=True):
        plus, minus = (loss_at(sign * step * direction, examples) for sign in (1, -1))
        slope = (plus - minus) / (2 * step)
        expected = -COUNT * 1e-6 * slope / (square * direction @ direction)
        assert number == pytest.approx(expected, rel=1e-3)


def test_no_more_examples_than_the_batch_are_used() -> None:
    layout, examples = layout_with(READOUT), examples_of()
    some = report_on(asked(layout, batch=10), layout, examples)
    assert some.examples == COUNT
    assert some.mean_loss != report_on(asked(layout), layout, examples).mean_loss
    again = report_on(asked(layout, batch=10), layout, examples)
    np.testing.assert_array_equal(some.gradients, again.gradients)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (layout_with(READOUT, INNER), "not only a readout"),
        (layout_with(BIAS), "not only a readout"),
        (replace(layout_with(READOUT), distribution="gaussian"), "are gaussian"),
    ],
)
def test_other_layouts_are_refused(layout: Layout, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        report_on(asked(layout), layout, examples_of())


def test_another_layout_than_the_instructions_is_refused() -> None:
    layout = layout_with(READOUT)
    with pytest.raises(LayoutError, match="the instruction is for layout"):
        report_on(asked(layout, layout_hash=bytes(32)), layout, examples_of())


def test_a_client_without_examples_reports_nothing() -> None:
    layout = layout_with(READOUT)
    with pytest.raises(DataError, match="no training example"):
        report_on(asked(layout), layout, examples_of(0))
