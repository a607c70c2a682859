"""The limits on a client's run folders; no message deletes a personal model."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from asking import evaluate_task, hello_task
from federations import config_of
from helpers import layout_of, tree_of
from learners import Modelless

from samara.client.limits.answer_limits import AnswerLimits
from samara.client.limits.answered_runs import ANSWERED_FILE, AnsweredRun, AnsweredRuns
from samara.client.protocol.answer_guard import AnswerGuard, Records
from samara.client.protocol.client import Client, Participation
from samara.client.protocol.joined_runs import JoinedRuns
from samara.client.protocol.session import Session
from samara.client.protocol.session_store import (
    MOST_PERSONAL_RUNS,
    SESSION_FILE,
    SESSIONS_KEPT,
    VALIDATION_FILE,
    SessionFolder,
)
from samara.devices.phone.reference_client.phone import Phone
from samara.shared.errors import RefusalCode, TrainerError
from samara.shared.protocol.frames.evaluation import Evaluation
from samara.shared.protocol.frames.instructions import EvaluateInstruction, Split
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.ledger.records import LedgerHeader
from samara.shared.protocol.replay import digest, zero_state
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import identity_bytes, run_id_of

LAYOUT = layout_of()
RUNS = [bytes([number]) * 8 for number in range(3 * SESSIONS_KEPT)]


def session() -> Session:
    return Session.begin(LedgerHeader(0, bytes(8), LAYOUT.hash), LAYOUT)


def begin(home: Path, run_id: bytes, age: int, kind: str = "") -> None:
    """Store a run that has answers, a personal model, or neither."""
    folders = SessionFolder(home)
    folder = folders.folder_of(run_id)
    folders.write_session(run_id, session())
    if kind == "answered":
        AnsweredRuns(folders.folder_of).write(run_id, AnsweredRun(round=1))
    if kind == "personal":
        (folder / "clients/7").mkdir(parents=True)
        (folder / "clients/7/personal.ledger").touch()
    if kind == "evaluated":
        (folder / VALIDATION_FILE).touch()
    os.utime(folder / SESSION_FILE, (age, age))


def test_of_runs_without_answers_the_latest_folders_stay(tmp_path: Path) -> None:
    for age, run_id in enumerate(RUNS):
        begin(tmp_path, run_id, age)
    kept = sorted(folder.name for folder in tmp_path.glob("runs/*"))
    assert kept == [run_id.hex() for run_id in RUNS[-SESSIONS_KEPT:]]


def test_of_runs_with_answers_the_latest_sessions_stay_and_every_answer(tmp_path: Path) -> None:
    for age, run_id in enumerate(RUNS):
        begin(tmp_path, run_id, age, "answered")
    begin(tmp_path, b"the last", len(RUNS), "answered")
    sessions = SessionFolder(tmp_path)
    kept = [run_id for run_id in RUNS if sessions.read_session(run_id)]
    assert kept == RUNS[-SESSIONS_KEPT:]
    assert len(list(tmp_path.glob(f"runs/*/{ANSWERED_FILE}"))) == len(RUNS) + 1


@pytest.mark.parametrize("kind", ["personal", "evaluated"])
def test_no_message_deletes_a_personal_model(tmp_path: Path, kind: str) -> None:
    begin(tmp_path, b"personal", 0, kind)
    before = tree_of(tmp_path / "runs" / b"personal".hex())
    for age, run_id in enumerate(RUNS):
        begin(tmp_path, run_id, 1 + age, "answered" if age % 2 else "")
    assert tree_of(tmp_path / "runs" / b"personal".hex()) == before


def test_beside_many_personal_models_no_run_begins_and_the_owner_is_told(tmp_path: Path) -> None:
    for number in range(MOST_PERSONAL_RUNS):
        begin(tmp_path, number.to_bytes(8), number, "personal")
    for write in (
        lambda: SessionFolder(tmp_path).write_session(b"another.", session()),
        lambda: JoinedRuns(tmp_path).write(config_of({}), LAYOUT, bytes(32)),
    ):
        with pytest.raises(TrainerError, match="samara client forget --run RUN"):
            write()
    SessionFolder(tmp_path).write_session(bytes(8), session())  # one of them goes on


def test_large_sessions_are_deleted_before_there_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path, RUNS[0], 0)
    size = (SessionFolder(tmp_path).folder_of(RUNS[0]) / SESSION_FILE).stat().st_size
    monkeypatch.setattr("samara.client.protocol.session_store.MAX_SESSIONS_BYTES", 2 * size)
    for age, run_id in enumerate(RUNS):
        begin(tmp_path, run_id, age)
    assert len(list(tmp_path.glob("runs/*"))) <= 3


def client_of(home: Path, config: RunConfig) -> Client:
    """A client without a signed scenario, under the settings that a server sent."""
    learner, records = Modelless(LAYOUT), Records.in_folder(home)
    run_id = JoinedRuns(home).write(config, LAYOUT, learner.model_id)
    guard = AnswerGuard(AnswerLimits(), learner, records)
    folder = SessionFolder(home).folder_of(run_id)
    part = Participation(config.terms, run_id, folder, 0, is_live=True)
    return Client(learner, SessionFolder(home), guard, part)


def evaluation_in(run_id: bytes) -> EvaluateInstruction:
    start = digest(LAYOUT.hash, zero_state(LAYOUT.size))
    return EvaluateInstruction(run_id, 0, 0, Split.TEST, LAYOUT.hash, start)


def test_four_hundred_hellos_leave_eight_folders(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        for seed in range(400):
            client_of(tmp_path, config_of({}, seed=seed)).answer(hello_task())
    assert len(list(tmp_path.glob("runs/*"))) == SESSIONS_KEPT


@pytest.mark.parametrize("is_phone", [False, True], ids=["client", "phone"])
def test_made_up_run_ids_are_refused_and_leave_nothing(tmp_path: Path, is_phone: bool) -> None:
    config, learner = config_of({}), Modelless(LAYOUT)
    settings, honest = identity_bytes(config), run_id_of(config, LAYOUT, learner.model_id)
    answer: Callable[..., bytes] = (
        Phone(learner, tmp_path).answer  # type: ignore[arg-type]
        if is_phone
        else client_of(tmp_path, config).answer
    )
    asked = evaluation_in(honest)
    assert Evaluation.decode(answer(evaluate_task(asked.encode(), settings=settings)))
    before = sorted(tmp_path.glob("runs/*/*"))
    for run_id in RUNS[: SESSIONS_KEPT + 1]:
        frame = replace(asked, run_id=run_id).encode()
        refusal = Refusal.decode(answer(evaluate_task(frame, settings=settings)))
        assert refusal.code == RefusalCode.SETTINGS
    assert sorted(tmp_path.glob("runs/*/*")) == before


def test_an_evaluation_tells_of_no_single_example(tmp_path: Path) -> None:
    config = config_of({})
    run_id = run_id_of(config, LAYOUT, Modelless(LAYOUT).model_id)
    for examples, least, is_answered in ((1, 2, False), (1, 1, True), (2, 2, True), (0, 2, True)):
        learner, home = Modelless(LAYOUT, examples), tmp_path / f"{examples} {least}"
        guard = AnswerGuard(AnswerLimits(least_batch=least), learner, Records.in_folder(home))
        part = Participation(config.terms, run_id, home, 0, is_live=True)
        client = Client(learner, SessionFolder(home), guard, part)
        answer = client.answer(evaluate_task(evaluation_in(run_id).encode()))
        if is_answered:
            assert Evaluation.decode(answer)
        else:
            refusal = Refusal.decode(answer)
            assert (refusal.code, refusal.numbers) == (RefusalCode.BATCH, (1, 2))
