"""The log of a client's answers: its content, its state after a crash, and its length."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from helpers import RUN_ID, instruction_with, report_to
from hypothesis import given, settings
from hypothesis import strategies as st

from samara.client.limits.answer_log import ANSWERS_FILE, AnswerLog, read_answers
from samara.client.limits.logged_answers import (
    EARLIER,
    MOST_RUNS,
    SUMS,
    AnswerTotals,
    LoggedAnswer,
    add_answers,
)
from samara.shared.errors import FrameError, SamaraError, TrainerError
from samara.shared.protocol.frames.evaluation import Evaluation, EvaluationColumn
from samara.shared.protocol.frames.instructions import EvaluateInstruction, Split, token_of
from samara.shared.protocol.frames.refusal import Refusal

SIZE = 100
NOW = 1_800_000_000


def train_and_report(run_id: bytes = RUN_ID, **changes: object) -> tuple[bytes, bytes]:
    instruction = instruction_with(run_id=run_id, **changes)
    return instruction.encode(), report_to(instruction).encode()


def evaluation(split: Split = Split.TEST, columns: int = 2) -> tuple[bytes, bytes]:
    frame = EvaluateInstruction(RUN_ID, 3, 0, split, bytes(32), bytes(32)).encode()
    counts = np.ones((2, 2), np.int64)
    named = tuple(EvaluationColumn(f"column {n}", 0.5, counts) for n in range(columns))
    return frame, Evaluation(token_of(frame), 7, named).encode()


def log_in(folder: Path, most_bytes: int = 2**20) -> AnswerLog:
    return AnswerLog(folder, lambda: NOW, most_bytes)


def test_a_line_says_what_was_asked_and_what_left(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    train, report = train_and_report()
    log.add(train, report, False, SIZE)
    asked, answer = evaluation()
    log.add(asked, answer, True, SIZE)
    error = SamaraError("a reason\nof two lines " + 1000 * "x")
    refusal = Refusal.of_error(token_of(asked), 7, 2, error).encode()
    log.add_refusal(asked, refusal, False, error)
    log.add_refusal(b"no frame", refusal, False, error)
    first, second, third, fourth = read_answers(tmp_path).answers
    assert first == LoggedAnswer(
        time=NOW,
        asked="train",
        sent_bytes=len(report),
        run=RUN_ID.hex(),
        round=1,
        token=token_of(train).hex(),
        steps=2,
        queries=4,
        batch=8,
        epsilon=0.01,
        trained=SIZE,
        scalars=8,
        losses=1,
        counts=1,
    )
    assert (second.asked, second.split, second.round) == ("compare", "test", 3)
    assert (second.scalars, second.losses, second.counts) == (0, 2, 8)
    assert (third.asked, third.losses, third.refused[:23]) == (
        "evaluate",
        0,
        "a reason of two lines x",
    )
    assert len(third.refused) == 500
    assert (fourth.asked, fourth.run, fourth.token) == ("other", "", "")
    [totals, other] = read_answers(tmp_path).all_totals.values()
    assert totals.ratio == pytest.approx(11 / SIZE)
    assert (totals.answers, totals.refused, totals.scalars, totals.losses) == (2, 1, 8, 3)
    assert other.refused == 1


def test_an_answer_that_is_sent_again_adds_its_bytes_only(tmp_path: Path) -> None:
    log, (train, report) = log_in(tmp_path), train_and_report()
    for _ in range(3):
        log.add(train, report, False, SIZE)
    [totals] = read_answers(tmp_path).all_totals.values()
    assert (totals.answers, totals.repeated, totals.scalars) == (1, 2, 8)
    assert totals.sent_bytes == 3 * len(report)


def test_half_a_last_line_is_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log, (train, report) = log_in(tmp_path), train_and_report()
    log.add(train, report, False, SIZE)
    file = tmp_path / ANSWERS_FILE
    whole = file.read_bytes()
    for cut in (1, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole + whole[:cut])
        assert len(read_answers(tmp_path).answers) == 1  # while it is being written, perhaps
        with caplog.at_level(logging.WARNING):
            log_in(tmp_path).add(*evaluation(), False, SIZE)
        assert f"{cut} bytes are cut off" in caplog.text
        assert [one.asked for one in read_answers(tmp_path).answers] == ["train", "evaluate"]


def test_a_damaged_line_is_counted_and_the_others_are_read(tmp_path: Path) -> None:
    log, (train, report) = log_in(tmp_path), train_and_report()
    log.add(train, report, False, SIZE)
    file = tmp_path / ANSWERS_FILE
    good = file.read_text()
    bad = ["{", "[]", "3", '{"time": "now"}', '{"time": 1}', '{"unknown": 1}', "\x00", "[" * 9999]
    file.write_text(good + "".join(f"{line}\n" for line in bad) + good)
    history = read_answers(tmp_path)
    assert (len(history.answers), history.damaged) == (2, len(bad))
    file.write_text('{"totals": 3, "damaged": 0}\n' + good)
    assert read_answers(tmp_path).damaged == 1


def test_the_file_stays_short_and_the_totals_stay_right(tmp_path: Path) -> None:
    log = log_in(tmp_path, most_bytes=6000)
    for number in range(1, 201):
        log.add(*train_and_report(round=number), False, SIZE)
        assert (tmp_path / ANSWERS_FILE).stat().st_size <= 6000
    history = read_answers(tmp_path)
    assert 0 < len(history.answers) < 100
    assert history.answers[-1].round == 200
    [totals] = history.all_totals.values()
    assert (totals.answers, totals.scalars, totals.losses) == (200, 1600, 200)
    assert totals.ratio == pytest.approx(18)
    assert json.loads((tmp_path / ANSWERS_FILE).read_text().splitlines()[0])["damaged"] == 0


def test_made_up_runs_are_bounded(tmp_path: Path) -> None:
    log = log_in(tmp_path, most_bytes=60_000)
    count = 3 * MOST_RUNS
    for number in range(count):
        log.add(*train_and_report(number.to_bytes(8, "little")), False, SIZE)
    totals = read_answers(tmp_path).all_totals
    assert len(totals) == MOST_RUNS
    assert totals[EARLIER].answers == count - MOST_RUNS + 1
    assert sum(one.scalars for one in totals.values()) == 8 * count
    assert (tmp_path / ANSWERS_FILE).stat().st_size <= 60_000


def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("in the way")
    with pytest.raises(TrainerError, match="cannot be written"):
        log_in(tmp_path / "folder").add(*train_and_report(), False, SIZE)
    with pytest.raises(TrainerError, match="cannot be read"):
        read_answers(tmp_path / "folder")
    with pytest.raises(FrameError):
        log_in(tmp_path).add(b"", b"", False, SIZE)
    assert not read_answers(tmp_path / "nowhere").answers


ANSWERS = st.builds(
    LoggedAnswer,
    time=st.integers(0, 2**40),
    asked=st.sampled_from(["train", "evaluate", "compare"]),
    sent_bytes=st.integers(0, 1000),
    run=st.sampled_from(["aa", "bb"]),
    token=st.sampled_from(["00", "01"]),
    epsilon=st.sampled_from([0.0, 0.5, 1e-3]),
    trained=st.just(64),
    scalars=st.integers(0, 1000),
    losses=st.integers(0, 8),
    refused=st.sampled_from(["", "a reason"]),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(ANSWERS, max_size=30), st.integers(0, 30))
def test_totals_do_not_depend_on_where_a_log_was_cut(answers: list[LoggedAnswer], cut: int) -> None:
    """A log that is written, read, shortened and continued has the totals of all answers."""
    assert [LoggedAnswer.parse(json.loads(one.to_json())) for one in answers] == answers
    whole = add_answers({}, answers)
    pieces = add_answers(add_answers({}, answers[:cut]), answers[cut:])
    assert pieces == whole
    for name in SUMS:
        by_hand = sum(getattr(totals, name) for totals in whole.values())
        assert by_hand == getattr(_all(whole), name)
    different = {(one.run, one.key): one for one in reversed(answers) if not one.refused}
    assert sum(one.scalars for one in different.values()) == _all(whole).scalars


def _all(totals: dict[str, AnswerTotals]) -> AnswerTotals:
    total = AnswerTotals("", 0, 0)
    for one in totals.values():
        total = total.merged(one)
    return total
