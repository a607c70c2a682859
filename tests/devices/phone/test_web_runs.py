"""The runs that the phone page keeps: as many as a client's sessions, and all private models."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from helpers import ROOT, delta_of, history_of
from page_runs import PageRun
from typescript import RunCore

from samara.client.protocol.session_store import MOST_PERSONAL_RUNS, SESSIONS_KEPT
from samara.shared.errors import RefusalCode
from samara.shared.proto.trainer_pb2 import TaskKind
from samara.shared.protocol.frames.evaluation import Evaluation
from samara.shared.protocol.frames.instructions import EvaluateInstruction, Split
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.run_id import hash_identity

ROUNDS = 4
RECORDS = ROOT / "devices/phone/web/src/run-records.ts"


def others(run: PageRun, count: int) -> list[PageRun]:
    """Return a number of runs that differ in their seed."""
    found = []
    for seed in range(100, 100 + count):
        settings = json.dumps(json.loads(run.settings) | {"seed": seed}, sort_keys=True).encode()
        layout = run.history.layout
        run_id = hash_identity(settings, layout.hash, run.trainer.model_id)
        deltas = [delta_of(number) for number in range(1, ROUNDS + 1)]
        history = history_of(deltas, layout, run_id)
        found.append(run._replace(settings=settings, run_id=run_id, history=history))
    return found


def evaluation_task(run: PageRun, number: int, **more: Any) -> Any:
    frame = run.evaluate(number, Split.VALIDATION)
    return run.task(TaskKind.EVALUATE, frame, run.history.tail(0, number), **more)


def refused_task(run: PageRun) -> Any:
    """Request an evaluation of a state to which its records do not lead."""
    layout = run.history.layout.hash
    asked = EvaluateInstruction(run.run_id, 1, 0, Split.VALIDATION, layout, bytes(32))
    return run.task(TaskKind.EVALUATE, asked.encode(), run.history.tail(0, 1))


def parts_of(result: Any) -> dict[str, set[str]]:
    """The stored parts of each run, by run id."""
    kept: dict[str, set[str]] = {}
    for key in result["kept"]:
        _, run_id, part, *_ = key.split("/")
        kept.setdefault(run_id, set()).add(part)
    return kept


def names_of(runs: Sequence[PageRun]) -> set[str]:
    return {run.run_id.hex() for run in runs}


def test_the_bounds_of_the_page_are_those_of_a_client() -> None:
    bounds = dict(re.findall(r"export const (\w+) = (\d+);", RECORDS.read_text(encoding="utf-8")))
    assert int(bounds["SESSIONS_KEPT"]) == SESSIONS_KEPT
    assert int(bounds["MOST_PERSONAL_RUNS"]) == MOST_PERSONAL_RUNS


def test_of_runs_without_answers_the_latest_stay(
    page_run: Callable[..., PageRun], run_page: RunCore
) -> None:
    run = page_run(method="global", personal__rounds=0)
    answered, *runs = others(run, 3 * SESSIONS_KEPT)
    tasks = [evaluation_task(answered, 0), *map(refused_task, runs)]
    (result,) = run_page([run.case(tasks)])
    assert set(parts_of(result)) == names_of([answered, *runs[-SESSIONS_KEPT:]])


def test_of_runs_with_answers_the_latest_sessions_stay_and_every_answer(
    page_run: Callable[..., PageRun], run_page: RunCore
) -> None:
    run = page_run(method="global", personal__rounds=0)
    *runs, last = others(run, 3 * SESSIONS_KEPT)
    tasks = [*(evaluation_task(one, 1) for one in runs), refused_task(last)]
    tasks += [evaluation_task(runs[0], 1), evaluation_task(runs[0], 2)]
    (result,) = run_page([run.case(tasks)])
    kept = parts_of(result)
    with_session = {name for name, parts in kept.items() if "session" in parts}
    assert with_session == names_of([runs[0], *runs[-SESSIONS_KEPT:]])
    assert names_of(runs) == {name for name, parts in kept.items() if "answered" in parts}
    answers = [bytes.fromhex(frame) for frame in result["answers"]]
    assert answers[-2] == answers[0]  # asked again
    assert Evaluation.decode(answers[-1])  # its state was rebuilt from the records


def test_no_message_deletes_a_private_model_and_the_owner_is_told(
    page_run: Callable[..., PageRun], run_page: RunCore
) -> None:
    run = page_run(personal__when="every 2 rounds")
    *runs, last = others(run, MOST_PERSONAL_RUNS + 1)
    tasks = [evaluation_task(one, 2) for one in runs]
    before, after = run_page(
        [run.case(tasks), run.case([*tasks, evaluation_task(last, 2), evaluation_task(runs[0], 3)])]
    )
    assert all("personal" in parts for parts in parts_of(before).values())
    assert set(parts_of(after)) == names_of(runs)
    assert before["kept"] == after["kept"]
    *_, refused, goes_on = (bytes.fromhex(frame) for frame in after["answers"])
    assert Refusal.decode(refused).code == RefusalCode.DEVICE
    assert Evaluation.decode(goes_on)


def test_a_run_that_is_one_too_many_is_said(
    page_run: Callable[..., PageRun], run_page: RunCore
) -> None:
    run = page_run(personal__when="every 2 rounds")
    tasks = [evaluation_task(one, 2) for one in others(run, MOST_PERSONAL_RUNS + 1)]
    (said, cleared) = run_page([run.case(tasks), run.case([*tasks, tasks[0]])])
    assert said["problem"].startswith("This page keeps the private models of at most 32 runs")
    assert not cleared["problem"]
