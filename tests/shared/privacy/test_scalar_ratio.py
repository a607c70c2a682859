"""The number of scalars that a client has sent about its examples: counts, limit and file."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
from helpers import instruction_with
from hypothesis import given
from hypothesis import strategies as st

from samara.client.limits.answer_limits import count_report_scalars
from samara.client.limits.scalar_counts import SCALAR_COUNTS_FILE, ScalarBudget, ScalarCounts
from samara.server.rounds.event_log import count_scalars
from samara.shared.errors import RefusalCode, ScalarLimitError, TrainerError
from samara.shared.privacy.scalar_ratio import (
    ScalarCount,
    remaining_scalars,
    summarize_scalar_ratios,
)
from samara.shared.protocol.frames.instructions import SeedPolicy, Split, TrainInstruction, token_of
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.tasks.rows import Example, hash_examples

COUNTS = st.builds(ScalarCount, st.integers(1, 10**6), st.integers(0, 10**7))
LIMITS = st.floats(0.0, 100.0)


def asking(scalars: int, round_number: int = 1, layout: int = 0) -> TrainInstruction:
    """An instruction whose report has a given number of scalars, including its mean loss."""
    return instruction_with(
        steps=1, queries=scalars - 1, round=round_number, layout_hash=bytes([layout]) * 32
    )


def budget(folder: Path, limit: float, size: int = 100, examples: str = "aa") -> ScalarBudget:
    return ScalarBudget(ScalarCounts(folder), lambda split: (examples,), size, limit)


def send(budget: ScalarBudget, instruction: TrainInstruction) -> None:
    """Count the projected gradients and the mean loss of a report as sent."""
    answer = token_of(instruction.encode()), instruction.layout_hash
    scalars = {Split.TRAIN: count_report_scalars(instruction)}
    budget.check(*answer, scalars)
    budget.add(*answer, scalars)


@given(st.lists(COUNTS, max_size=4), st.integers(1, 10**6), LIMITS)
def test_the_remaining_scalars_fill_the_limit_and_no_more(
    counts: list[ScalarCount], size: int, limit: float
) -> None:
    left = remaining_scalars(counts, size, limit)
    spent = sum((Fraction(count.sent, count.size) for count in counts), Fraction(0))
    assert left >= 0
    assert left == 0 or spent + Fraction(left, size) <= Fraction(limit)
    assert spent + Fraction(left + 1, size) > Fraction(limit)


@given(COUNTS, st.integers(1, 1000), st.integers(1, 1000))
def test_an_answer_counts_once(count: ScalarCount, one: int, two: int) -> None:
    first = count.after_answer(b"1", one)
    assert first.after_answer(b"1", one) == first
    assert first.after_answer(b"2", two).sent == count.sent + one + two


@pytest.mark.parametrize("policy", list(SeedPolicy))
@pytest.mark.parametrize("queries", [2, 5])
def test_an_instruction_knows_how_many_scalars_its_report_holds(
    policy: SeedPolicy, queries: int
) -> None:
    instruction = instruction_with(seed_policy=policy, queries=queries)
    in_report = instruction.steps * queries
    if policy is SeedPolicy.POOL:
        in_report = len(instruction.uses(instruction.steps))
    assert instruction.report_scalars == in_report


def test_what_was_sent_stays_sent_whatever_the_process(tmp_path: Path) -> None:
    send(budget(tmp_path, 1.0), asking(60))
    send(budget(tmp_path, 1.0), asking(60))  # the same instruction: nothing new leaves
    refused = asking(41, round_number=2)
    with pytest.raises(
        ScalarLimitError, match=r"60 scalars .* allows only 40 more, but this answer has 41"
    ):
        send(budget(tmp_path, 1.0), refused)
    send(budget(tmp_path, 1.0), asking(40, round_number=2))
    assert ScalarCounts(tmp_path).read()["aa"][bytes(32).hex()].sent == 100
    send(budget(tmp_path, 0.0), asking(41, round_number=3))  # no limit, and still counted
    assert ScalarCounts(tmp_path).read()["aa"][bytes(32).hex()].ratio == 1.41


def test_another_layout_is_no_way_around_the_limit(tmp_path: Path) -> None:
    send(budget(tmp_path, 1.0), asking(50))
    with pytest.raises(ScalarLimitError) as error:
        send(budget(tmp_path, 1.0, size=1000), asking(501, layout=1))
    refusal = Refusal.of_error(bytes(8), 3, 7, error.value)
    assert (refusal.code, refusal.numbers) == (RefusalCode.SCALARS, (501, 500))
    assert "its owner's limit leaves 500 scalars, and the instruction asks for 501" in (
        Refusal.decode(refusal.encode()).description
    )
    send(budget(tmp_path, 1.0, size=1000), asking(500, layout=1))


def test_other_examples_have_a_count_of_their_own(tmp_path: Path) -> None:
    send(budget(tmp_path, 1.0), asking(100))
    send(budget(tmp_path, 1.0, examples="bb"), asking(100))
    with pytest.raises(ScalarLimitError, match="allows only 0 more"):
        send(budget(tmp_path, 1.0), asking(2, round_number=2))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"aa": 3}', '{"aa": {"00": {"size": 0, "sent": 1, "token": ""}}}'],
)
def test_a_damaged_file_does_not_lift_the_limit(text: str, tmp_path: Path) -> None:
    (tmp_path / SCALAR_COUNTS_FILE).write_text(text)
    with pytest.raises(TrainerError, match="cannot be read"):
        send(budget(tmp_path, 1.0), asking(2))
    assert (tmp_path / SCALAR_COUNTS_FILE).read_text() == text


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("in the way")
    with pytest.raises(TrainerError, match=r"cannot be (read|written)"):
        send(budget(tmp_path / "folder", 0.0), asking(2))


def test_the_hash_of_examples_changes_with_any_of_them_and_not_with_their_order() -> None:
    one, two = Example("a", 0, "", "train"), Example("b", 1, "", "train")
    assert hash_examples([one, two]) == hash_examples([two, one])
    hashes = {hash_examples(examples) for examples in ([one], [two], [one, two], [one, one])}
    assert len(hashes) == 4


def test_a_result_has_the_ratio_of_every_client_that_reported() -> None:
    rounds = [{"clients": {"3": {"scalars": 32}, "1": {"scalars": 16}}}, {"clients": {"3": {}}}]
    summary = summarize_scalar_ratios(count_scalars(rounds), 64)
    assert summary == {"mean": 0.375, "max": 0.5, "clients": {"1": 0.25, "3": 0.5}}
    assert summarize_scalar_ratios({}, 64) == {"mean": 0.0, "max": 0.0, "clients": {}}
    assert json.dumps(summary)
