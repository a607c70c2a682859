"""The phone page's messages about examples in private runs, and its owner's limit of ε."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from asking import train_task
from page_runs import PageRun
from typescript import RunCore

from samara.client.limits.privacy_budget import OWN_DELTA
from samara.shared.errors import RefusalCode
from samara.shared.privacy.accountant import epsilon_of
from samara.shared.privacy.vector import SENSITIVITY
from samara.shared.proto.trainer_pb2 import TaskKind
from samara.shared.protocol.frames.hello import SPLIT_EXAMPLES, Hello
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.frames.vector_report import NoisedVectorReport, VectorReport
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.wire import Kind, kind_of
from samara.shared.terms.privacy import PrivacyTerms

PRIVATE = {
    "method": "global",
    "personal__rounds": 0,
    "seed_policy": "shared",
    "aggregation__rule": "mean",
    "privacy__clip": 2.0,
    "privacy__noise_multiplier": 0.5,
}


@pytest.mark.parametrize("mode", ["central", "local"])
def test_private_reports_are_clipped_and_noised_and_made_once(
    page_run: Callable[..., PageRun], run_page: RunCore, tmp_path: Path, mode: str
) -> None:
    run = page_run(**PRIVATE, privacy__mode=mode)
    frame, tail = run.train(3, curvature_every=2), run.history.tail(0, 2)
    task = run.task(TaskKind.TRAIN, frame, tail)
    hello = run.task(TaskKind.HELLO, bytes(32))
    (result,) = run_page([run.case([hello, task, "restart", task])])
    said, first, again = map(bytes.fromhex, result["answers"])
    assert first == again
    expected = run.reference(tmp_path / "home").answer(
        train_task(frame, CatchUp(tail=tail), run.settings)
    )
    scale = 2e-3 * SENSITIVITY
    if mode == "central":
        own, theirs = VectorReport.decode(first), VectorReport.decode(expected)
        assert own.token == theirs.token
    else:
        own, theirs = NoisedVectorReport.decode(first), NoisedVectorReport.decode(expected)
        scale = 20 * 0.5 * SENSITIVITY
    np.testing.assert_allclose(own.vector, theirs.vector, rtol=0, atol=scale)
    hidden = Hello.decode(said)
    assert (hidden.examples, SPLIT_EXAMPLES in json.loads(hidden.facts)) == (0, False)


def test_with_privacy_no_refusal_tells_of_examples_and_no_round_is_reported_twice(
    page_run: Callable[..., PageRun], run_page: RunCore
) -> None:
    run = page_run(**PRIVATE, privacy__mode="local", rounds=3)
    tail, train = run.history.tail(0, 2), run.train(3)
    others = [run.train(3, root=root) for root in (1, 2, 3)]
    tasks = [
        (run.task(TaskKind.TRAIN, run.train(3, batch=1), tail), RefusalCode.HIDDEN),
        (run.task(TaskKind.EVALUATE, run.evaluate(2, Split.TEST), tail), RefusalCode.HIDDEN),
        (run.task(TaskKind.TRAIN, run.train(3, joint_clip=1.5), tail), RefusalCode.FRAME),
        (run.task(TaskKind.MASK, b"frame"), RefusalCode.MASKING),
        (run.task(TaskKind.TRAIN, train, tail), None),
        (run.task(TaskKind.TRAIN, others[0], tail), None),
        (run.task(TaskKind.TRAIN, train, tail), RefusalCode.BUDGET),  # no longer kept
        (run.task(TaskKind.TRAIN, others[1], tail), None),
        (run.task(TaskKind.TRAIN, others[2], tail), RefusalCode.BUDGET),  # one more than rounds
    ]
    (result,) = run_page([run.case([task for task, _ in tasks])])
    for answer, (_, code) in zip(map(bytes.fromhex, result["answers"]), tasks, strict=True):
        if code is None:
            NoisedVectorReport.decode(answer)
        else:
            refusal = Refusal.decode(answer)
            assert (refusal.code, refusal.numbers) == (code, (0, 0))


def test_an_owners_limit_ends_the_rounds_and_lasts(
    page_run: Callable[..., PageRun], run_page: RunCore
) -> None:
    run = page_run(**PRIVATE, privacy__mode="local", rounds=3)
    terms = PrivacyTerms.of(json.loads(run.settings), 3, 8)
    assert terms is not None
    rho = terms.mechanism.rho
    limit = 1.0001 * epsilon_of(2 * rho, OWN_DELTA)
    tail, frames = run.history.tail(0, 2), [run.train(3, root=root) for root in (1, 2, 3)]
    first, second, third = (run.task(TaskKind.TRAIN, frame, tail) for frame in frames)
    case = run.case([{"limit": limit}, first, second, third, "restart", third])
    lifted = run.case([{"limit": limit / 3}, first, {"limit": 0}, first])
    noiseless = page_run(personal__rounds=0)
    task = noiseless.task(TaskKind.TRAIN, noiseless.train(3), noiseless.history.tail(0, 2))
    bare = noiseless.case([{"limit": 1e9}, task, {"limit": 0}, task])
    found = run_page([case, lifted, bare])
    kinds = [
        [
            Refusal.decode(frame).code if kind_of(frame) == Kind.REFUSAL else None
            for frame in map(bytes.fromhex, result["answers"])
        ]
        for result in found
    ]
    budget = RefusalCode.BUDGET
    assert kinds == [[None, None, budget, budget], [budget, None], [budget, None]]
    assert [result["stoppedBy"] for result in found] == ["reached", None, None]
    (stopped,) = run_page([noiseless.case([{"limit": 1}, task])])
    assert stopped["stoppedBy"] == "no noise"
