"""A hostile server's requests to a client, with real frames, a real model and real files."""

import logging
from pathlib import Path

import numpy as np
import pytest
from asked_clients import (
    ask,
    evaluate_frame,
    load,
    made_up_run,
    refusal_of,
    server_config_for,
    train_frame,
)
from asking import evaluate_task, train_task
from federations import Settings, wrap_local_steps
from helpers import History, instruction_with

from samara.client.limits.answered_runs import ANSWERED_FILE
from samara.client.limits.scalar_counts import ScalarCounts
from samara.client.protocol import client as client_module
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.training.local_step_plan import smallest_batch
from samara.shared.errors import RefusalCode, TrainerError
from samara.shared.protocol.frames.evaluation import Evaluation
from samara.shared.protocol.frames.instructions import (
    CLUSTERING_TRACK,
    Split,
    TrainInstruction,
)
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.settings.config import RunConfig

ROUNDS = 50


@pytest.fixture
def server_config(settings: Settings) -> RunConfig:
    return server_config_for(settings)


def test_nobody_is_told_the_loss_of_training_examples(
    settings: Settings, server_config: RunConfig, tmp_path: Path
) -> None:
    trainer = load(settings, tmp_path)
    client, history = trainer.client_under(server_config), made_up_run(trainer, 1)
    for personal in (False, True):
        frame = evaluate_frame(trainer, history, 1, Split.TRAIN)
        assert refusal_of(ask(client, frame, history, 1, personal)) == (
            RefusalCode.EVALUATION,
            (0, 0),
        )
    assert not ScalarCounts(tmp_path).read()


def test_no_step_is_taken_on_one_example_unless_the_owner_says_so(
    settings: Settings, server_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = load(settings, tmp_path / "usual")
    frame = train_frame(trainer, batch=1)
    with monkeypatch.context() as patch:

        def never(*arguments: object) -> Report:
            raise AssertionError("it trained")

        wrap_local_steps(patch, never)
        refused = trainer.client_under(server_config).answer(train_task(frame))
    assert refusal_of(refused) == (RefusalCode.BATCH, (1, 2))
    assert "an answer would use 1 of its examples, and its owner allows no fewer than 2" in (
        Refusal.decode(refused).description
    )
    careful = load(settings, tmp_path / "careful", least_batch=16)
    asked = train_frame(careful, batch=15)
    assert refusal_of(careful.client_under(server_config).answer(train_task(asked))) == (
        RefusalCode.BATCH,
        (15, 16),
    )
    asked = train_frame(careful, batch=16)
    assert Report.decode(careful.client_under(server_config).answer(train_task(asked))).client == 7
    free = load(settings, tmp_path / "free", least_batch=1)
    report = Report.decode(
        free.client_under(server_config).answer(train_task(train_frame(free, batch=1)))
    )
    assert report.gradients.size == 4


def test_a_batch_of_one_label_is_as_small_as_the_label_is_rare() -> None:
    clustering = instruction_with(track=CLUSTERING_TRACK, steps=4, batch=8)
    labels = np.array([0] * 20 + [1] * 3 + [3], np.int64)
    assert smallest_batch(clustering, labels, 5) == 1
    assert smallest_batch(instruction_with(track=CLUSTERING_TRACK, steps=3), labels, 5) == 3
    assert smallest_batch(clustering, np.zeros(20, np.int64), 2) == 8
    assert smallest_batch(clustering, labels, 0) == 8  # labels differ in meaning from row to row
    assert smallest_batch(instruction_with(batch=100), labels, 5) == 24


def test_a_hundred_thousand_directions_on_one_example(
    settings: Settings, server_config: RunConfig, tmp_path: Path
) -> None:
    trainer = load(settings, tmp_path, least_batch=1, scalars_per_example=2.0)
    client = trainer.client_under(server_config)
    many = train_frame(trainer, steps=2, queries=50_000, batch=1)
    assert refusal_of(client.answer(train_task(many))) == (RefusalCode.SCALARS, (100_000, 2))
    assert (
        Report.decode(client.answer(train_task(train_frame(trainer, queries=16, batch=8)))).client
        == 7
    )


def test_the_instructions_of_one_round_are_limited_together(
    settings: Settings, server_config: RunConfig, tmp_path: Path
) -> None:
    trainer = load(settings, tmp_path, scalars_per_example=1.0)
    client = trainer.client_under(server_config)
    first = train_frame(trainer, root=1, queries=5)
    report = client.answer(train_task(first))
    assert refusal_of(client.answer(train_task(train_frame(trainer, root=2)))) == (
        RefusalCode.SCALARS,
        (4, 3),
    )
    again = load(settings, tmp_path, scalars_per_example=1.0).client_under(server_config)
    assert again.answer(train_task(first)) == report  # a repeated one is answered
    assert (
        Report.decode(again.answer(train_task(train_frame(trainer, root=2, queries=3)))).client == 7
    )
    assert refusal_of(again.answer(train_task(train_frame(trainer, root=3, queries=1)))) == (
        RefusalCode.SCALARS,
        (1, 0),
    )
    history = made_up_run(trainer, 1)
    frame = train_frame(trainer, round=2, start_digest=history.digests[1], queries=8)
    caught_up = train_task(frame, CatchUp(tail=history.tail(0)))
    assert Report.decode(again.answer(caught_up)).gradients.size == 8


def test_fifty_personal_comparisons_are_one(
    settings: Settings, server_config: RunConfig, tmp_path: Path
) -> None:
    trainer = load(settings, tmp_path)
    client, history = trainer.client_under(server_config), made_up_run(trainer, ROUNDS)
    answers = []
    for number in range(1, ROUNDS + 1):
        if number == 3:  # a restart does not help
            client = load(settings, tmp_path).client_under(server_config)
        frame = evaluate_frame(trainer, history, number, Split.TEST)
        answers.append(ask(client, frame, history, number, personal=True))
    names = [column.name for column in Evaluation.decode(answers[0]).columns]
    assert names[-1] == "personalized"
    assert {refusal_of(answer) for answer in answers[1:]} == {(RefusalCode.EVALUATION, (0, 0))}


def test_what_a_sound_server_asks_at_the_end_is_answered_and_may_be_repeated(
    settings: Settings,
    server_config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = load(settings, tmp_path)
    client, history = trainer.client_under(server_config), made_up_run(trainer, 1)
    splits = [Split.VALIDATION, Split.TEST]
    frames = [evaluate_frame(trainer, history, 1, split) for split in splits]
    asked = [(frame, personal) for personal in (False, True) for frame in frames]
    answers = [ask(client, frame, history, 1, personal) for frame, personal in asked]
    assert all(Evaluation.decode(answer).client == 7 for answer in answers)
    counted = ScalarCounts(tmp_path).read()
    sent = {
        split: next(iter(counted[trainer.data.hash_of(split)].values())).sent for split in Split
    }
    test_columns = len(Evaluation.decode(answers[3]).columns)
    # validation: global, personalized; test: global, and every column of the comparison
    assert sent == {
        Split.VALIDATION: 2,
        Split.TEST: 1 + test_columns,
        Split.TRAIN: 1 + test_columns - 2,  # not those of the global model and of zero-shot
    }

    def never(*arguments: object) -> None:
        raise AssertionError("it evaluated")

    for name in ("evaluate_global_model", "evaluate_personal_model"):
        monkeypatch.setattr(client_module, name, never)
    again = load(settings, tmp_path).client_under(server_config)
    assert [ask(again, frame, history, 1, personal) for frame, personal in asked] == answers
    assert ScalarCounts(tmp_path).read() == counted


def test_losses_at_chosen_states_are_counted_as_the_scalars_that_they_are(
    settings: Settings, server_config: RunConfig, tmp_path: Path
) -> None:
    size = load(settings, tmp_path).runtime.layout.size
    trainer = load(settings, tmp_path, scalar_limit=10 / size)
    client, history = trainer.client_under(server_config), made_up_run(trainer, ROUNDS)
    answers = [
        ask(client, evaluate_frame(trainer, history, number, Split.VALIDATION), history, number)
        for number in range(1, ROUNDS + 1)
    ]
    assert all(Evaluation.decode(answer).client == 7 for answer in answers[:10])
    assert {refusal_of(answer) for answer in answers[10:]} == {(RefusalCode.SCALARS, (1, 0))}
    counts = ScalarCounts(tmp_path).read()
    assert set(counts) == {trainer.data.hash_of(Split.VALIDATION)}
    report = client.answer(train_task(train_of_round(trainer, history, ROUNDS + 1)))
    assert Report.decode(report).client == 7  # other examples have a count of their own
    losses = evaluate_frame(trainer, history, ROUNDS, Split.TEST)
    assert Evaluation.decode(client.answer(evaluate_task(losses))).client == 7


def train_of_round(trainer: ResidentTrainer, history: History, round_: int) -> bytes:
    return train_frame(trainer, round=round_, start_digest=history.digests[round_ - 1])


def test_a_crash_between_count_and_answer_counts_once(
    settings: Settings, server_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = load(settings, tmp_path, scalars_per_example=1.0)
    client, frame = trainer.client_under(server_config), train_frame(trainer, queries=8)

    def full(*arguments: object) -> None:
        raise TrainerError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("samara.client.protocol.session_store.SessionFolder.write_session", full)
        assert refusal_of(client.answer(train_task(frame)))[0] == RefusalCode.TRAINER
    report = Report.decode(client.answer(train_task(frame)))
    assert report.gradients.size == TrainInstruction.decode(frame).queries


def test_a_damaged_file_of_answers_lifts_no_limit(
    settings: Settings, server_config: RunConfig, tmp_path: Path
) -> None:
    trainer = load(settings, tmp_path)
    client, history = trainer.client_under(server_config), made_up_run(trainer, 2)
    first = evaluate_frame(trainer, history, 1, Split.TEST)
    assert Evaluation.decode(ask(client, first, history, 1, personal=True)).client == 7
    (file,) = tmp_path.glob(f"runs/*/{ANSWERED_FILE}")
    file.write_text(file.read_text()[:-9])
    second = evaluate_frame(trainer, history, 2, Split.TEST)
    assert refusal_of(ask(client, second, history, 2, personal=True))[0] == RefusalCode.TRAINER


def test_a_client_with_few_examples_says_at_its_start_that_it_will_not_train(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        trainer = load(settings, tmp_path, least_batch=10_000)
    examples = len(trainer.data.in_split(Split.TRAIN))
    assert f"this client has {examples} training examples" in caplog.text
    assert "data.least-batch = 10000: the client refuses to train" in caplog.text
    caplog.clear()
    load(settings, tmp_path)
    assert not caplog.text
