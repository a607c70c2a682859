"""The phone page's client, in Node, answers tasks like the reference phone.

Python computes the model's results once, for both clients. The tests compare everything else.
"""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import evaluate_task, train_task
from helpers import delta_of, history_of
from page_runs import CLIENT, PageRun
from phones import as_client, assert_same_report
from typescript import RunCore

from samara.client.limits.answer_limits import LIVE_LEAST_BATCH
from samara.client.personal.private_rounds import personal_ledger
from samara.devices.live.keys import create_key
from samara.shared.errors import LayoutError, RefusalCode
from samara.shared.proto.trainer_pb2 import TaskKind
from samara.shared.protocol.frames.evaluation import Evaluation
from samara.shared.protocol.frames.hello import SPLIT_EXAMPLES, Hello
from samara.shared.protocol.frames.instructions import (
    PERSONAL_TRACK,
    SeedPolicy,
    Split,
    TrainInstruction,
)
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.ledger.records import CatchUp, LedgerHeader, read_records
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.protocol.replay import DenseValues, to_float32
from samara.shared.protocol.round_delta import RoundDelta
from samara.shared.protocol.signing import SigningKey
from samara.shared.protocol.step_size import Observation, StepSize
from samara.shared.protocol.wire import Kind, kind_of
from samara.shared.tasks.profiled_loss import PROFILED
from samara.shared.terms.intercept_round import intercept_instruction
from samara.shared.terms.run_terms import RunTerms
from samara.shared.terms.signed_scenario import SignedScenario


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"batch": 100, "curvature_every": 2},
        {"differences": "forward", "curvature_every": 2, "steps": 5},
        {"seed_policy": SeedPolicy.SHARED, "clip": 0.5},
        {"seed_policy": SeedPolicy.POOL, "steps": 4},
        {"is_profiled": True, "batch": 7, "curvature_every": 2},
        {"is_profiled": True, "batch": 100, "differences": "forward"},
    ],
    ids=str,
)
def test_a_report_is_the_reference_phones(
    page_run: Callable[..., PageRun], run_page: RunCore, tmp_path: Path, changes: dict[str, Any]
) -> None:
    run = page_run(adapter__label_bias=True)
    frame, tail = run.train(3, **changes), run.history.tail(0, 2)
    task = run.task(TaskKind.TRAIN, frame, tail)
    (result,) = run_page([run.case([task, "restart", run.task(TaskKind.TRAIN, frame)])])
    first, again = result["answers"]
    assert first == again  # the stored report, without catching up
    expected = run.reference(tmp_path / "home").answer(
        train_task(frame, CatchUp(tail=tail), run.settings)
    )
    assert_same_report(Report.decode(bytes.fromhex(first)), Report.decode(expected))
    np.testing.assert_array_equal(np.array(result["w"], np.int64), run.history.states[2])


@pytest.mark.parametrize(
    "changes", [{"method": "readout"}, {"method": "global", "objective": PROFILED}], ids=str
)
def test_an_intercept_is_the_reference_phones(
    page_run: Callable[..., PageRun], run_page: RunCore, tmp_path: Path, changes: dict[str, Any]
) -> None:
    run = page_run(adapter__label_bias=True, personal__rounds=0, **changes)
    terms, layout = RunTerms.decode(run.settings), run.history.layout
    start, tail = run.history.digests[4], run.history.tail(0, 4)
    asked = intercept_instruction(terms, run.run_id, layout.hash, start, labels=2).encode()
    (result,) = run_page([run.case([run.task(TaskKind.TRAIN, asked, tail)])])
    expected = run.reference(tmp_path / "home").answer(
        train_task(asked, CatchUp(tail=tail), run.settings)
    )
    mine, theirs = Report.decode(bytes.fromhex(result["answers"][0])), Report.decode(expected)
    assert mine.gradients.shape == (1, 1)
    assert np.abs(theirs.gradients).max() > 0.01
    assert_same_report(mine, theirs)


COMPONENTS = {"differences": "components", "steps": 0}


@pytest.mark.parametrize("label_bias", [False, True])
@pytest.mark.parametrize("batch", [100, 5])
def test_components_are_the_reference_phones(
    page_run: Callable[..., PageRun],
    run_page: RunCore,
    tmp_path: Path,
    label_bias: bool,
    batch: int,
) -> None:
    run = page_run(adapter__label_bias=label_bias, **COMPONENTS)
    policy, root = SeedPolicy.SHARED, 2**62 + 40
    asked = {"steps": 1, "seed_policy": policy, "root": root, "differences": "components"}
    frame = run.train(3, batch=batch, learning_rate=2.0, **asked)
    tail = run.history.tail(0, 2)
    (result,) = run_page([run.case([run.task(TaskKind.TRAIN, frame, tail)])])
    answer = run.reference(tmp_path / "home").answer(
        train_task(frame, CatchUp(tail=tail), run.settings)
    )
    mine, theirs = Report.decode(bytes.fromhex(result["answers"][0])), Report.decode(answer)
    assert (mine.token, mine.client, mine.examples) == (theirs.token, 0, theirs.examples)
    assert mine.mean_loss == pytest.approx(theirs.mean_loss, rel=1e-6)
    np.testing.assert_allclose(mine.gradients, theirs.gradients, rtol=1e-4, atol=1e-7)
    assert np.abs(mine.gradients).max() > 1e-3
    np.testing.assert_array_equal(np.array(result["w"], np.int64), run.history.states[2])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        COMPONENTS | {"personal__learning_rate": "auto"},
        COMPONENTS | {"personal__learning_rate": 0.3, "adapter__label_bias": True},
        COMPONENTS | {"method": "readout", "adapter__label_bias": True},
        {"personal__learning_rate": 0.3, "adapter__label_bias": True},
        {"method": "ditto"},
        {"objective": PROFILED, "adapter__label_bias": False},
        {"objective": PROFILED, "adapter__label_bias": True},
        {"method": "mixture", "personal__learning_rate": 0.3},
        {"method": "readout", "adapter__label_bias": True},
        {"method": "local", "personal__rounds": 0},
        {"personal__when": "every 2 rounds", "personal__retrain": True},
    ],
    ids=str,
)
def test_personal_models_are_the_reference_phones(
    page_run: Callable[..., PageRun], run_page: RunCore, tmp_path: Path, changes: dict[str, Any]
) -> None:
    run = page_run(**changes)
    last = 0 if changes.get("method") == "local" else 4
    last += 3 if changes.get("method") == "readout" else 0
    last += RunTerms.decode(run.settings).reports_shifts
    if last > 4:  # its private rounds are the federation's, or its last round is that of shifts
        deltas = [delta_of(number) for number in range(1, last + 1)]
        run = run._replace(history=history_of(deltas, run.history.layout, run.run_id))
    home, settings = tmp_path / "home", run.settings
    reference, asked, expected = run.reference(home), [], []
    for number, split, personal in (
        (min(2, last), Split.VALIDATION, False),
        (last, Split.VALIDATION, False),
        (last, Split.TEST, True),
    ):
        frame, tail = run.evaluate(number, split), run.history.tail(0, number)
        asked += [run.task(TaskKind.EVALUATE, frame, tail, personal=personal), "private rounds"]
        answer = reference.answer(evaluate_task(frame, CatchUp(tail=tail), settings, personal))
        expected.append(Evaluation.decode(answer))
        reference.take_private_rounds()
    hello = run.task(TaskKind.HELLO, bytes(32))
    (result,) = run_page([run.case([hello, *asked])])
    for one, other in zip(result["answers"][1:], expected, strict=True):
        found = Evaluation.decode(bytes.fromhex(one))
        assert [column.name for column in found.columns] == [each.name for each in other.columns]
        for mine, theirs in zip(found.columns, other.columns, strict=True):
            assert mine.mean_loss == pytest.approx(theirs.mean_loss, abs=2e-3)
            assert np.abs(mine.counts - theirs.counts).sum() <= 2
    ledger = personal_ledger(home / "runs" / run.run_id.hex() / "clients" / str(CLIENT))
    theirs = list(read_ledger(ledger))
    whole = io.BytesIO(bytes.fromhex("".join(result["records"])))
    start = LedgerHeader(PERSONAL_TRACK, run.run_id, run.history.layout.hash).start
    mine = list(read_records(whole, start, PERSONAL_TRACK))
    assert [record.delta.round for record in mine] == [record.delta.round for record in theirs]
    for record, other in zip(mine, theirs, strict=True):
        assert record.delta.contributors == other.delta.contributors
        assert [type(entry) for entry in record.delta.entries] == [
            type(entry) for entry in other.delta.entries
        ]
    private = np.array(result["p"], np.int64)
    *_, verified = verify_ledger(ledger, run.history.layout)
    expected_state = to_float32(verified.state)
    difference = np.linalg.norm(to_float32(private) - expected_state)
    assert difference < 2e-3 * np.linalg.norm(expected_state)


@pytest.mark.parametrize("method", ["finetune", "mixture"])
@pytest.mark.parametrize("between", ["private rounds", "one private round"])
def test_private_parts_from_before_the_shift_are_that_much_less(
    page_run: Callable[..., PageRun], run_page: RunCore, tmp_path: Path, method: str, between: str
) -> None:
    own = {"method": method, "personal__when": "always", "personal__learning_rate": 0.3}
    run = page_run(objective=PROFILED, adapter__label_bias=True, **own)
    layout, settings = run.history.layout, run.settings
    assert layout.label_bias is not None
    first, shift = layout.label_bias.start, np.array([2**40, -(2**40)])
    last = RoundDelta(5, 0, bytes(8), (), (DenseValues.of(first, shift),))
    deltas = [*map(delta_of, range(1, 5)), last]
    run = run._replace(history=history_of(deltas, layout, run.run_id))
    home, asked = tmp_path / "home", []
    reference = run.reference(home)
    for number, then in ((2, between), (5, "private rounds")):
        frame, tail = run.evaluate(number, Split.VALIDATION), run.history.tail(0, number)
        asked += [run.task(TaskKind.EVALUATE, frame, tail), then]
        reference.answer(evaluate_task(frame, CatchUp(tail=tail), settings, False))
        reference.take_private_rounds()
    (result,) = run_page([run.case([run.task(TaskKind.HELLO, bytes(32)), *asked])])
    ledger = personal_ledger(home / "runs" / run.run_id.hex() / "clients" / str(CLIENT))
    whole = io.BytesIO(bytes.fromhex("".join(result["records"])))
    start = LedgerHeader(PERSONAL_TRACK, run.run_id, layout.hash).start
    for records in (read_ledger(ledger), read_records(whole, start, PERSONAL_TRACK)):
        entries = [record.delta.entries for record in records]
        dense = {n: one for n, (one, *_) in enumerate(entries, 1) if isinstance(one, DenseValues)}
        ((number, values),) = dense.items()
        assert number == 4 + (method == "mixture")
        assert len(entries) == 2 * number - 1
        assert (values.first, values.values.tolist()) == (first, (-shift).tolist())
    *_, verified = verify_ledger(ledger, layout)
    expected = to_float32(verified.state)
    difference = np.linalg.norm(to_float32(np.array(result["p"], np.int64)) - expected)
    assert difference < 2e-3 * np.linalg.norm(expected)


@pytest.mark.parametrize("given", [None, 0.3])
def test_step_sizes_are_pythons(run_page: RunCore, given: float | None) -> None:
    random = np.random.default_rng(7)
    observed, expected = [], []
    for _ in range(40):
        size, own, found = StepSize(12, given, 0.01), [], []
        for step in range(12):
            loss = float(random.normal(1 - step / 20, 0.1)) + 30 * (random.random() < 0.05)
            loss = np.inf if step and random.random() < 0.02 else loss
            square = float(random.exponential())
            curvature = float(random.normal(20, 10)) if random.random() < 0.8 else None
            observation = Observation(
                loss, square, square / 4, square / 4, size.learning_rate, curvature, 8
            )
            own.append(
                {
                    "loss": loss if np.isfinite(loss) else None,
                    "meanSquare": square,
                    "squaredNorm": square / 4,
                    "learningRate": size.learning_rate,
                    "curvature": curvature,
                    "directions": 8,
                }
            )
            size = size.after(observation)
            found.append([size.learning_rate, size.clip, size.curvature_every(4), size.back_to])
        observed.append(own)
        expected.append(found)
    results = run_page([["stepSize", 12, given, 0.01, own] for own in observed])
    for result, found in zip(results, expected, strict=True):
        for mine, theirs in zip(result, found, strict=True):
            assert mine[2:] == theirs[2:]
            assert mine[:2] == pytest.approx(theirs[:2], rel=1e-9)
    assert any(back is not None for found in expected for *_, back in found)


def test_a_hello_says_what_the_reference_phones_says(
    page_run: Callable[..., PageRun], run_page: RunCore
) -> None:
    run = page_run()
    (result,) = run_page([run.case([run.task(TaskKind.HELLO, bytes(32))])])
    hello = Hello.decode(bytes.fromhex(result["answers"][0]))
    expected = as_client(run.trainer, CLIENT).introduce(0, hides_examples=False)
    assert (hello.client, hello.examples, hello.round) == (CLIENT, expected.examples, 0)
    assert (hello.model_id, hello.layout) == (expected.model_id, expected.layout)
    said, counts = json.loads(hello.facts), json.loads(expected.facts)[SPLIT_EXAMPLES]
    assert said[SPLIT_EXAMPLES] == counts


def test_what_cannot_be_done_is_refused_with_its_code(
    page_run: Callable[..., PageRun], run_page: RunCore
) -> None:
    run = page_run()
    other = page_run(seed=1).settings.decode()
    train, tail = run.train(3), run.history.tail(0, 2)
    damaged = train[:-1] + bytes([train[-1] ^ 1])
    tasks = [
        (run.task(TaskKind.TRAIN, train), RefusalCode.CATCH_UP),
        (run.task(TaskKind.TRAIN, damaged, tail), RefusalCode.FRAME),
        (run.task(TaskKind.TRAIN, train, tail, settings=other), RefusalCode.SETTINGS),
        (run.task(TaskKind.TRAIN, run.train(3, batch=1), tail), RefusalCode.BATCH),
        (run.task(TaskKind.TRAIN, run.train(3, layout_hash=bytes(32)), tail), RefusalCode.LAYOUT),
        (run.task(TaskKind.EVALUATE, run.evaluate(2, Split.TRAIN), tail), RefusalCode.EVALUATION),
        (run.task(TaskKind.BLOB, b"part"), RefusalCode.FRAME),
        (run.task(TaskKind.MASK, b"frame"), RefusalCode.MASKING),
    ]
    (result,) = run_page([run.case([task for task, _ in tasks])])
    found = [Refusal.decode(bytes.fromhex(answer)) for answer in result["answers"]]
    assert [refusal.code for refusal in found] == [code for _, code in tasks]
    assert found[0].numbers == (2, 0)
    assert (found[3].numbers, found[3].round) == ((1, LIVE_LEAST_BATCH), 2)


def test_a_refusal_by_the_server_is_shown_until_a_request_is_answered(
    page_run: Callable[..., PageRun], run_page: RunCore
) -> None:
    run = page_run()
    notice = Refusal.of_error(bytes(8), CLIENT, 0, LayoutError("it differs")).encode()
    refused = [run.task(TaskKind.REFUSED, notice), run.task(TaskKind.HELLO, bytes(32))]
    train = run.task(TaskKind.TRAIN, run.train(3), run.history.tail(0, 2))
    shown, answered = run_page([run.case(refused), run.case([*refused, train])])
    assert shown["answers"][0] == notice.hex()
    assert "does not accept this page, for reason 9." in shown["problem"]
    assert answered["problem"] == ""


def test_a_page_refuses_a_common_prior(page_run: Callable[..., PageRun], run_page: RunCore) -> None:
    for prior, refused in (("own", False), ("common", True)):
        run = page_run(method="readout", adapter__label_bias=True, personal__prior=prior)
        task = run.task(TaskKind.TRAIN, run.train(3), run.history.tail(0, 2))
        (result,) = run_page([run.case([task])])
        answer = bytes.fromhex(result["answers"][0])
        assert (kind_of(answer) is Kind.REFUSAL) == refused
        if refused:
            assert Refusal.decode(answer).code == RefusalCode.SETTINGS


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 2, "learning_rate": 0.1},
        {"learning_rate": 0.1, "objective": PROFILED},
        COMPONENTS,
    ],
    ids=str,
)
def test_with_a_signed_scenario_nothing_else_is_answered(
    page_run: Callable[..., PageRun], run_page: RunCore, tmp_path: Path, changes: dict[str, Any]
) -> None:
    run = page_run(batch=4, epsilon=0.01, **({"learning_rate": "auto"} | changes))
    create_key(tmp_path / "operator")
    scenario = SignedScenario.sign(run.settings, {}, SigningKey(tmp_path / "operator"))
    signed = scenario.terms.instruction(
        run.run_id,
        1,
        run.history.layout.hash,
        run.history.digests[0],
        learning_rate=0.1,
        clip=0.0,
        curvature_every=0,
    ).encode()
    text = scenario.encode().decode()
    more = TrainInstruction.decode(signed)
    tasks = [run.task(TaskKind.TRAIN, frame) for frame in (run.train(1), signed)]
    tasks.append(run.task(TaskKind.EVALUATE, run.evaluate(0, Split.VALIDATION)))
    cases = [
        run.case(tasks, scenario=text),
        run.case([], scenario=text.replace("rounds", "sounds")),
    ]
    result, changed = run_page(cases)
    refused, report, _ = map(bytes.fromhex, result["answers"])
    assert Refusal.decode(refused).code == RefusalCode.SCENARIO
    assert Report.decode(report).gradients.shape == (more.steps, more.queries)
    assert changed == "ScenarioError"
