"""A client's counts of its answers, under any requests, repetitions and crashes."""

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from helpers import instruction_with
from hypothesis import given, settings
from hypothesis import strategies as st
from learners import ExamplesOnly

from samara.client.limits.answer_limits import AnswerLimits
from samara.client.limits.answered_runs import AnsweredRuns
from samara.client.limits.scalar_counts import ScalarCounts
from samara.client.protocol.answer_guard import AnswerGuard, Records
from samara.shared.errors import SamaraError
from samara.shared.protocol.frames.evaluation import Evaluation, EvaluationColumn
from samara.shared.protocol.frames.instructions import (
    EvaluateInstruction,
    Split,
    TrainInstruction,
    token_of,
)

RUNS, SIZE, EXAMPLES = 2, 40, 6
COLUMNS = {False: ("global",), True: ("base rate", "zero-shot", "global", "personalized")}


class Question(NamedTuple):
    """A message of a server: run, round and kind of request, and whether a crash follows."""

    run: int
    round: int
    queries: int
    curvature: bool
    split: Split | None
    personal: bool
    crash: bool


QUESTIONS = st.builds(
    Question,
    st.integers(0, RUNS - 1),
    st.integers(1, 3),
    st.integers(1, 8),
    st.booleans(),
    st.none() | st.sampled_from(Split),
    st.booleans(),
    st.booleans(),
)


class Client:
    """A client's guard and files. It answers without a model, and records the sent answers."""

    def __init__(self, folder: Path, limits: AnswerLimits) -> None:
        answered = AnsweredRuns(lambda run_id: folder / run_id.hex())
        records = Records(counts=ScalarCounts(folder), answered=answered)
        self.guard = AnswerGuard(limits, ExamplesOnly(SIZE, EXAMPLES), records)
        self.folder, self.reports = folder, dict[bytes, bytes]()
        self.left: dict[tuple[bytes, bool], dict[Split, int]] = {}
        self.gradients: dict[tuple[int, int], dict[bytes, int]] = {}
        self.compared: dict[int, set[bytes]] = {}
        self.rounds = [0] * RUNS

    def answer(self, question: Question) -> None:
        if question.round < self.rounds[question.run]:
            return  # a session goes forward only
        self.rounds[question.run] = question.round
        if question.split is None:
            self._report(question)
        else:
            self._evaluate(question, question.split)

    def _report(self, question: Question) -> None:
        instruction = train_of(question)
        token = token_of(instruction.encode())
        if self.reports.get(instruction.run_id) != token:
            self.guard.check_report(instruction, token)
            self.guard.add_report(instruction, token, b"")
            if question.crash:
                return  # counted, and not sent
            self.reports[instruction.run_id] = token
        queries = question.queries
        self.left[token, False] = {Split.TRAIN: queries + 1 + question.curvature}
        self.gradients.setdefault((question.run, question.round), {})[token] = queries

    def _evaluate(self, question: Question, split: Split) -> None:
        instruction, personal = evaluate_of(question, split), question.personal
        token = token_of(instruction.encode())
        if not self.guard.find_evaluation(instruction, token, personal):
            counts = np.ones((2, 2), np.int64)
            columns = tuple(EvaluationColumn(name, 0.5, counts) for name in COLUMNS[personal])
            self.guard.add_evaluation(instruction, Evaluation(token, 7, columns), personal)
        assert split is not Split.TRAIN
        if personal:
            self.compared.setdefault(question.run, set()).add(instruction.digest)
        self.left[token, personal] = {split: len(COLUMNS[personal])} | (
            {Split.TRAIN: 2} if personal else {}
        )


def train_of(question: Question) -> TrainInstruction:
    return instruction_with(
        run_id=bytes([question.run]) * 8,
        round=question.round,
        steps=1,
        queries=question.queries,
        curvature_every=int(question.curvature),
    )


def evaluate_of(question: Question, split: Split) -> EvaluateInstruction:
    run_id, state = bytes([question.run]) * 8, bytes([question.round]) * 32
    return EvaluateInstruction(run_id, question.round, 0, split, bytes(32), state)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(QUESTIONS, max_size=25),
    st.sampled_from([0.0, 0.5, 2.0]),
    st.sampled_from([0.0, 0.5, 2.0]),
)
def test_what_leaves_is_counted_and_within_the_limits(
    questions: list[Question], scalar_limit: float, per_example: float
) -> None:
    limits = AnswerLimits(scalar_limit, 2, per_example)
    with tempfile.TemporaryDirectory() as folder:
        client = Client(Path(folder), limits)
        for question in questions:
            with suppress(SamaraError):
                client.answer(question)
        counts = ScalarCounts(Path(folder)).read()
    for split in Split:
        left = sum(scalars.get(split, 0) for scalars in client.left.values())
        counted = sum(count.sent for count in counts.get(split.name, {}).values())
        assert left <= counted
        if not any(question.crash for question in questions) and _is_each_asked_once(questions):
            assert left == counted
        assert not scalar_limit or counted <= scalar_limit * SIZE
    if per_example:
        for reports in client.gradients.values():
            assert sum(reports.values()) <= per_example * EXAMPLES
    assert all(len(states) == 1 for states in client.compared.values())


def _is_each_asked_once(questions: list[Question]) -> bool:
    """Return whether no question is repeated; a late repetition is answered and counted again."""
    asked = {
        (evaluate_of(one, one.split), one.personal)
        if one.split is not None
        else (train_of(one), False)
        for one in questions
    }
    return len(asked) == len(questions)
