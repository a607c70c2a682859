"""Under a signed scenario, the phone page sends at most the number of scalars that it shows."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from helpers import delta_of, history_of
from page_runs import PageRun
from typescript import RunCore

from samara.devices.live.keys import create_key
from samara.shared.errors import RefusalCode
from samara.shared.proto.trainer_pb2 import TaskKind
from samara.shared.protocol.frames.evaluation import Evaluation
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.run_id import cluster_id
from samara.shared.protocol.signing import SigningKey
from samara.shared.protocol.wire import Kind, kind_of
from samara.shared.terms.signed_scenario import SignedScenario


def scenario_of(run: PageRun, folder: Path) -> SignedScenario:
    create_key(folder / "operator")
    return SignedScenario.sign(run.settings, {}, SigningKey(folder / "operator"))


def codes_of(result: Any) -> list[int | None]:
    """The code of each refusal; None for every other answer."""
    frames = map(bytes.fromhex, result["answers"])
    return [Refusal.decode(one).code if kind_of(one) is Kind.REFUSAL else None for one in frames]


def other_ledger(run: PageRun, which: int, run_id: bytes = b"") -> PageRun:
    """The same run with another ledger."""
    deltas = [delta_of(number) for number in range(1, 5)]
    deltas = [replace(one, entries=one.entries[which : which + 1]) for one in deltas]
    history = history_of(deltas, run.history.layout, run_id or run.run_id)
    return run._replace(history=history, run_id=run_id or run.run_id)


def evaluation_task(run: PageRun, number: int, split: Split = Split.VALIDATION) -> Any:
    frame = run.evaluate(number, split)
    return run.task(TaskKind.EVALUATE, frame, run.history.tail(0, number))


def test_a_page_evaluates_a_round_once_and_once_more_after_a_restore(
    page_run: Callable[..., PageRun], run_page: RunCore, tmp_path: Path
) -> None:
    run = page_run(method="global", personal__rounds=0, evaluate__every=1)
    text = scenario_of(run, tmp_path).encode().decode()
    hello = run.task(TaskKind.HELLO, bytes(32))
    states = [run, other_ledger(run, 0), other_ledger(run, 1)]
    first, second, third = (evaluation_task(one, 2) for one in states)
    tasks = [hello, first, first, second, "restart", second, third, first]
    (result,) = run_page([run.case(tasks, scenario=text)])
    refused = RefusalCode.SCENARIO
    assert codes_of(result) == [None, None, None, None, None, refused, refused]
    answers = [bytes.fromhex(frame) for frame in result["answers"]]
    assert answers[1] == answers[2]
    assert answers[3] == answers[4]
    [column] = Evaluation.decode(answers[1]).columns
    assert np.float32(column.mean_loss) == column.mean_loss


def test_a_page_answers_a_round_in_one_cluster(
    page_run: Callable[..., PageRun], run_page: RunCore, tmp_path: Path
) -> None:
    run = page_run(
        method="cluster", cohort__clusters=16, cohort__clustering_rounds=1, personal__rounds=0
    )
    scenario = scenario_of(run, tmp_path)
    hello, tasks = run.task(TaskKind.HELLO, bytes(32)), []
    for which in range(16):
        one = other_ledger(run, 0, cluster_id(run.run_id, which))
        start = one.history.digests[0], one.history.layout.hash
        asked = scenario.terms.instruction(
            *(one.run_id, 1, start[1], start[0]), learning_rate=0.1, clip=0.0, curvature_every=0
        )
        tasks += [one.task(TaskKind.TRAIN, asked.encode()), evaluation_task(one, 0)]
    case = run.case([hello, *tasks], scenario=scenario.encode().decode())
    (result,) = run_page([case])
    assert codes_of(result) == [None, None, None] + [RefusalCode.SCENARIO] * 30
