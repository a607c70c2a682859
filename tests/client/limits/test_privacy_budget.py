"""A client's own privacy budget: charges, stored reports and refusals."""

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers import instruction_with

from samara.client.limits.privacy_budget import (
    CHARGES_FILE,
    OWN_DELTA,
    REPORTS_KEPT,
    Charge,
    ChargeLog,
    PrivacyBudget,
    describe_charges,
    epsilon_spent,
)
from samara.shared.errors import BudgetError, TrainerError
from samara.shared.privacy.accountant import epsilon_of, rho_of
from samara.shared.privacy.mechanism import Mechanism
from samara.shared.storage import kept_file
from samara.shared.terms.privacy import PrivacyTerms

LOCAL = Mechanism("local", noise_multiplier=20.0, honest=1, numbers=9)
ROUNDS = 50
LOCAL_TERMS = PrivacyTerms(LOCAL, 1.0, False, ROUNDS, 1e-5)
ROUND = instruction_with()


EVENT = json.loads(Charge("", 1, bytes(8), "local", 1.0).to_line())


def token(number: int) -> bytes:
    return number.to_bytes(8, "little")


def budget(
    folder: Path, limit: float = 0.0, terms: PrivacyTerms | None = LOCAL_TERMS
) -> PrivacyBudget:
    return PrivacyBudget(ChargeLog(folder), terms, limit)


def test_a_report_is_charged_and_found_again_by_another_process(tmp_path: Path) -> None:
    budget(tmp_path).add(ROUND, token(1), b"report")
    again = budget(tmp_path)
    assert again.find_report(token(1)) == b"report"
    assert again.find_report(token(2)) == b""
    (charge,) = ChargeLog(tmp_path).read()
    assert (charge.run, charge.round, charge.mode) == (ROUND.run_id.hex(), 1, "local")
    # any two reports of the client are compared, which differ by two vectors
    assert charge.rho == pytest.approx(rho_of(20.0 / 2))


def test_the_budget_is_that_of_all_runs(tmp_path: Path) -> None:
    limit = epsilon_of(3 * LOCAL.rho, OWN_DELTA)
    for number in range(3):
        own, asked = budget(tmp_path, limit), instruction_with(run_id=token(number))
        own.check(asked)
        own.add(asked, token(number), b"report")
    with pytest.raises(
        BudgetError, match="round 1 would raise the privacy cost of this client's reports"
    ):
        budget(tmp_path, limit).check(ROUND)
    assert budget(tmp_path, limit).find_report(token(0)) == b"report"
    budget(tmp_path, 1.2 * limit).check(ROUND)
    assert epsilon_spent(ChargeLog(tmp_path).read()) == pytest.approx(limit)


def test_a_run_gets_no_more_rounds_than_its_epsilon_is_for(tmp_path: Path) -> None:
    """The limit holds without a limit of the owner, whatever round number the server sends."""
    for number in range(ROUNDS):
        own, asked = budget(tmp_path), instruction_with(round=1 + number % 3)
        own.check(asked)
        own.add(asked, token(number), b"report")
    with pytest.raises(
        BudgetError, match="has already reported on all 50 rounds for which ε is computed"
    ):
        budget(tmp_path).check(ROUND)
    assert budget(tmp_path).find_report(token(ROUNDS - 1)) == b"report"
    budget(tmp_path).check(instruction_with(run_id=b"another!"))


def test_reports_without_noise_are_refused_where_there_is_a_limit(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="the reports of this run have no noise"):
        budget(tmp_path, 8.0, None).check(ROUND)
    plain = budget(tmp_path, 0.0, None)
    plain.check(ROUND)
    plain.add(ROUND, token(1), b"report")
    assert not (tmp_path / CHARGES_FILE).exists()


def test_old_reports_are_dropped_and_their_charges_never(tmp_path: Path) -> None:
    own, many = budget(tmp_path), 5 * REPORTS_KEPT
    for number in range(many):
        own.add(ROUND, token(number), bytes([number]))
    charges = ChargeLog(tmp_path).read()
    assert [charge.token for charge in charges] == [token(number) for number in range(many)]
    kept = [charge for charge in charges if charge.report]
    assert REPORTS_KEPT <= len(kept) <= 2 * REPORTS_KEPT
    assert own.find_report(token(many - 1)) == bytes([many - 1])
    with pytest.raises(BudgetError, match="another report would have fresh noise"):
        own.find_report(token(0))


@pytest.mark.parametrize(
    "content",
    [
        "[]\n",
        "{}\n",
        '{"token": "00", "rho": 1, "run": "", "round": 1, "mode": "local"}\n',
        json.dumps(EVENT | {"rho": -1}) + "\n",
        json.dumps(EVENT | {"rho": float("nan")}) + "\n",
        json.dumps(EVENT | {"report": "?"}) + "\n",
    ],
)
def test_a_damaged_file_is_no_empty_one(content: str, tmp_path: Path) -> None:
    (tmp_path / CHARGES_FILE).write_text(content)
    for use in (
        lambda own: own.check(ROUND),
        lambda own: own.find_report(token(1)),
        lambda own: own.add(ROUND, token(2), b"r"),
    ):
        with pytest.raises(TrainerError, match="restore the file from a backup"):
            use(budget(tmp_path, 8.0))
    assert (tmp_path / CHARGES_FILE).read_text() == content


def test_half_a_line_is_a_report_that_never_left(tmp_path: Path) -> None:
    own, file = budget(tmp_path), tmp_path / CHARGES_FILE
    own.add(ROUND, token(1), b"first")
    whole = file.read_bytes()
    own.add(ROUND, token(2), b"second")
    for end in range(len(whole), file.stat().st_size - 2, 7):
        half = tmp_path / str(end)
        half.mkdir()
        (half / CHARGES_FILE).write_bytes(file.read_bytes()[:end])
        again = budget(half)
        assert again.find_report(token(2)) == b""
        assert (half / CHARGES_FILE).stat().st_size == end  # reading changes nothing
        again.add(ROUND, token(2), b"anew")
        assert [one.report for one in ChargeLog(half).read()] == [b"first", b"anew"]


SYSTEM_CALLS = ("make_folder", "_append_line", "sync_folder", "write_durably")


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, at: int) -> Iterator[list[str]]:
    """End the process before or after a given step of a write."""
    steps: list[str] = []

    def step(name: str) -> None:
        steps.append(name)
        if len(steps) == at:
            raise KeyboardInterrupt

    def wrapped(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            step(f"before {name}")
            result = plain(*arguments)
            step(f"after {name}")
            return result

        return call

    with monkeypatch.context() as patched:
        for name in SYSTEM_CALLS:
            patched.setattr(kept_file, name, wrapped(name, getattr(kept_file, name)))
        yield steps


def test_whatever_step_a_crash_comes_after_there_is_one_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Try a crash at every step of every answer, including an answer that drops old reports."""
    fresh, seen = itertools.count(), set[str]()
    for answers in (1, 2, 2 * REPORTS_KEPT + 1):
        for at in itertools.count(1):
            folder = tmp_path / f"{answers} {at}"
            for number in range(answers - 1):
                budget(folder).add(ROUND, token(number), b"earlier")
            left = b""
            with dying(monkeypatch, at) as steps:
                try:
                    left = f"noise {next(fresh)}".encode()
                    budget(folder).add(ROUND, token(99), left)
                    died = False
                except KeyboardInterrupt:
                    died = True
            seen |= set(steps)
            stored = budget(folder).find_report(token(99))
            assert stored in ((b"", left) if died else (left,))
            if not stored:  # nothing left the device, and nothing was charged
                budget(folder).add(ROUND, token(99), b"again")
            charges = ChargeLog(folder).read()
            assert [charge.token for charge in charges].count(token(99)) == 1
            assert len(charges) == answers
            if not died:
                break
    assert {name.split()[1] for name in seen} == set(SYSTEM_CALLS)


def test_what_was_spent_is_told_with_who_is_trusted() -> None:
    charges = [Charge("", 1, token(1), "local", 0.5), Charge("", 1, token(2), "central", 0.5)]
    told = describe_charges(charges, 0.0)
    assert f"ε = {epsilon_of(1.0, OWN_DELTA):.3g} at δ = 1e-05 spent" in told
    assert (
        "2 reports with noise (1 central, 1 local; for reports that are not local the server must "
        "be trusted)" in told
    )
    assert told.endswith("data.epsilon-limit = 0: no limit")
    assert "(1 local)" in describe_charges(charges[:1], 4.0)
    assert describe_charges([], 4.0).endswith("by 0 reports with noise; data.epsilon-limit = 4")
