"""Steps of a federation with other objectives: metrics of labels and answers, summed losses."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from federations import Settings, config_of, loaded, state_of
from helpers import instruction_with
from numpy.typing import NDArray

from samara.client.forward.resident import ResidentForward
from samara.client.training.local_steps import take_local_steps
from samara.client.training.model_runtime import LoadedRun, load_run
from samara.server.store import replay_run
from samara.shared.errors import ConfigError, TaskError
from samara.shared.model.perturbations import Perturbations
from samara.shared.protocol.frames.instructions import Split, TrainInstruction
from samara.shared.protocol.replay import digest
from samara.shared.results.result import RunResult
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.kinds import GenerationTask
from samara.shared.tasks.label_scores import Confusion, exact_cross_entropy
from samara.shared.tasks.metrics import answer_metric, label_metric
from samara.shared.tasks.objectives import training_objective
from samara.shared.tasks.profiled_loss import PROFILED, profiled_cross_entropy
from samara.simulations.simulate import simulate

EPSILON, QUERIES = 0.5, 3
FLEET = '[{"device": "laptop", "share": 1}]'


@pytest.fixture
def answers(settings: Settings, tmp_path: Path) -> Settings:
    """The settings of three users who answer prompts, each with their own words."""
    words = ("good", "bad", "warm", "awful")
    rows = [
        {
            "user": f"u{i % 3}",
            "prompt": f"the {('film', 'day', 'meal', 'walk')[i % 4]} was",
            "response": f"{words[i % 3]} {words[i // 3 % 4]} not very {words[i % 4]}"[: 4 + i % 20],
        }
        for i in range(48)
    ]
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = tmp_path / "answers.toml"
    task.write_text(
        'kind = "generation"\nname = "answers"\ntext = "{prompt} {answer}"\n'
        'label = "response"\ntokens = 3\nmetric = "token-f1"\n'
    )
    own = {"data.path": str(file), "data.partition": "user", "task": str(task)}
    return settings | own


def instruction_for(run: LoadedRun, state: NDArray[np.int64], batch: int) -> TrainInstruction:
    layout = run.runtime.layout.hash
    return instruction_with(
        layout_hash=layout,
        start_digest=digest(layout, state),
        steps=1,
        queries=QUERIES,
        batch=batch,
        epsilon=EPSILON,
        is_profiled=run.runtime.config.objective == PROFILED,
    )


def assert_differences_are_of(
    run: LoadedRun, loss: Callable[[Perturbations], float], batch: int = 1000
) -> None:
    """Check that reported projected gradients are central differences of a loss."""
    runtime, data = run.runtime, run.data.share_of(0, 3)
    state = state_of(runtime)
    instruction = instruction_for(run, state, batch)
    report = take_local_steps(runtime, data, instruction, state)
    center = runtime.weight_map.weights(state)
    z = runtime.backend.directions(
        instruction.seeds(0)[0], runtime.layout.size, runtime.layout.distribution
    ).astype(np.float32)
    expected = []
    for one in z:
        plus, minus = (
            loss(Perturbations.from_arrays(runtime.layout, center + np.float32(move) * one))
            for move in (EPSILON / 2048, -EPSILON / 2048)
        )
        expected.append((plus - minus) / (2 * EPSILON))
    np.testing.assert_allclose(report.gradients[0], expected, atol=1e-4)
    assert np.abs(report.gradients).max() > 0
    assert data.take_passes() > 0


@pytest.mark.parametrize("metric", ["accuracy", "macro-f1"])
def test_steps_follow_the_metric_of_labels(settings: Settings, tmp_path: Path, metric: str) -> None:
    shipped = load_task("sst2").model_dump()
    lines = [f"{key} = {json.dumps(shipped[key])}" for key in ("text", "question", "words")]
    file = tmp_path / "task.toml"
    file.write_text(f'name = "x"\nlabels = [0, 1]\nmetric = "{metric}"\n' + "\n".join(lines))
    run = loaded(settings, task=str(file), objective="metric")
    examples = run.data.share_of(0, 3).tokenized(Split.TRAIN)
    task = run.runtime.task
    assert not isinstance(task, GenerationTask)

    def loss(adapter: Perturbations) -> float:
        (scores,) = run.runtime.forward.scores(adapter, examples.prompts)
        found = Confusion.from_predictions(examples.labels, scores.argmax(1), 2)
        return -label_metric(task, found)

    assert_differences_are_of(run, loss)


def test_steps_follow_the_metric_of_decoded_answers(answers: Settings) -> None:
    run = loaded(answers, objective="metric", micro_batch=4)
    runtime, examples = run.runtime, run.data.share_of(0, 3).in_split(Split.TRAIN)
    kind, forward = runtime.task, runtime.forward
    assert isinstance(kind, GenerationTask)
    assert isinstance(forward, ResidentForward)
    accepted = [one.answers for one in examples]
    open_prompts = [runtime.scorer.prompt(one.text, (), one.cut) for one in examples]

    def loss(adapter: Perturbations) -> float:
        return -answer_metric(kind, forward.decode_answers(adapter, open_prompts), accepted)

    assert_differences_are_of(run, loss)


def test_summed_losses_count_long_answers_more(answers: Settings) -> None:
    run = loaded(answers, objective="summed-cross-entropy")
    examples = run.data.share_of(0, 3).tokenized(Split.TRAIN)
    assert len(set(examples.token_counts)) > 1

    def loss(adapter: Perturbations) -> float:
        (scores,) = run.runtime.forward.scores(adapter, examples.prompts)
        return -float(np.mean(scores[:, 0] * examples.token_counts))

    assert_differences_are_of(run, loss)


@pytest.mark.parametrize("layers", ["top:2", "readout"])
def test_steps_follow_the_profiled_loss(settings: Settings, layers: str) -> None:
    run = loaded(settings, objective=PROFILED, adapter__layers=layers, micro_batch=4)
    examples = run.data.share_of(0, 3).tokenized(Split.TRAIN)
    run.runtime.prepare(examples.prompts)

    def loss(adapter: Perturbations) -> float:
        scores = run.runtime.forward.scores(adapter, examples.prompts)
        return float(profiled_cross_entropy(scores, examples.labels)[0])

    assert_differences_are_of(run, loss)


@pytest.mark.parametrize("layers", ["top:2", "readout"])
def test_exact_derivatives_are_the_limit_of_differences_of_the_profiled_loss(
    settings: Settings, layers: str
) -> None:
    own = {"adapter__layers": layers, "micro_batch": 4, "objective": PROFILED}
    reports = []
    for gradients in ("differences", "exact"):
        run = loaded(settings, gradients=gradients, **own)
        state = state_of(run.runtime)
        instruction = replace(instruction_for(run, state, 1000), epsilon=EPSILON / 128)
        reports.append(take_local_steps(run.runtime, run.data.share_of(0, 3), instruction, state))
    differences, exact = reports
    assert np.abs(exact.gradients).max() > 1e-3
    np.testing.assert_allclose(differences.gradients, exact.gradients, rtol=0.02, atol=1e-4)
    assert exact.mean_loss == pytest.approx(differences.mean_loss, abs=1e-3)


def test_the_common_intercept_is_the_shift_that_a_profiled_loss_leaves_out(
    settings: Settings,
) -> None:
    own = {"method": "readout", "adapter.label-bias": True}
    config = config_of(settings | own, objective=PROFILED)
    run = load_run(config)
    data = run.data.share_of(0, 1).tokenized(Split.TRAIN)
    (*_, trained, corrected) = replay_run(simulate(config))
    before, after = (
        exact_cross_entropy(run.runtime.scores(each.state, data.prompts)[None], data.labels)
        for each in (trained, corrected)
    )
    assert after < before - 0.01


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"adapter.label-bias": True, "method": "cluster"}, "one common round after the last"),
        ({"differences": "components", "adapter.layers": "readout"}, "own update minimizes"),
    ],
)
def test_what_a_profiled_loss_does_not_go_with_is_refused(
    settings: Settings, changes: Settings, named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        config_of(settings | changes, objective=PROFILED)


def test_texts_have_no_profiled_loss(answers: Settings) -> None:
    with pytest.raises(ConfigError, match="the rows have no common labels"):
        simulate(config_of(answers, objective=PROFILED))
    with pytest.raises(TaskError, match="which has no label scores to shift"):
        training_objective(PROFILED, load_task(answers["task"]))


def test_a_federation_trains_the_metric_of_its_answers(answers: Settings) -> None:
    result = RunResult.read(simulate(config_of(answers, objective="metric", queries=4)))
    assert all(event.loss is not None and -1 <= event.loss <= 0 for event in result.rounds)
    assert not any(event.refused for event in result.rounds)
    final = [one for one in result.evaluations if one.split == "test"][-1]
    assert final.columns["global"].loss > 0  # evaluated by tokens all the same


def test_plain_texts_have_no_metric(answers: Settings, tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    rows = [{"user": f"u{i % 3}", "text": f"a day {i}"} for i in range(30)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = {"task": "texts", "data__path": str(file), "objective": "metric"}
    with pytest.raises(TaskError, match="plain texts without prompts and answers"):
        simulate(config_of(answers, **own))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"objective": "metric", "fleet__devices": FLEET}, "decodes no answers"),
        ({"objective": "metric", "gradients": "exact"}, "set gradients to differences"),
    ],
)
def test_objectives_that_texts_do_not_have_are_refused(
    answers: Settings, changes: Settings, named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        simulate(config_of(answers, **changes))
    assert not Path(answers["out"]).exists()


def test_labels_have_no_summed_losses(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="compared by their mean losses per token"):
        simulate(config_of(settings, objective="summed-cross-entropy"))
