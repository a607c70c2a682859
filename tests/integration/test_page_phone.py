"""The phone page's client, in Node, beside the reference phone: the same tasks and examples.

What goes through the model is computed once, in Python; the rest is compared.
"""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from federations import Settings, config_of
from helpers import History, delta_of, history_of, instruction_with
from phones import assert_same_report, exported, splits_of, use_torch_as_runtime
from typescript import PHONE, RunCore, node_runner

from client.personal.private_rounds import personal_ledger
from client.protocol.answer_limits import LIVE_LEAST_BATCH, AnswerLimits
from client.protocol.privacy_budget import OWN_DELTA
from client.training.model_runtime import load_run
from devices.live.keys import create_key
from devices.phone.manifest import manifest_file
from devices.phone.reference_client.examples import read_examples
from devices.phone.reference_client.phone import Phone
from devices.phone.reference_client.phone_trainer import PhoneTrainer
from devices.phone.reference_client.readout_program import load_program
from devices.phone.tokenization import examples_as_jsonl
from shared.client_index import client_index_of_key
from shared.errors import FrameError, RefusalCode
from shared.frames.evaluation import Evaluation
from shared.frames.hello import SPLIT_EXAMPLES, Hello
from shared.frames.instructions import (
    PERSONAL_TRACK,
    EvaluateInstruction,
    SeedPolicy,
    Split,
    TrainInstruction,
)
from shared.frames.refusal import Refusal
from shared.frames.report import Report
from shared.frames.vector_report import NoisedVectorReport, VectorReport
from shared.invitation import InvitationCode
from shared.ledger.catch_up import CatchUp
from shared.ledger.reading import read_ledger
from shared.ledger.records import LedgerHeader, read_records
from shared.ledger.verification import verify_ledger
from shared.privacy.accountant import epsilon_of
from shared.privacy.terms import PrivacyTerms
from shared.privacy.vector import SENSITIVITY
from shared.proto.trainer_pb2 import (
    Challenge,
    FromPhone,
    Proof,
    Task,
    TaskKind,
    TaskResult,
    ToPhone,
)
from shared.replay import to_float32
from shared.runs import identity_bytes, run_id_of
from shared.signed_scenario import SignedScenario
from shared.signing import (
    SigningKey,
    answer_bytes,
    is_signed_by,
    proof_bytes,
    public_pem,
    sign,
)
from shared.step_size import Observation, StepSize
from shared.wire import Kind, kind_of

CLIENT = 0
PRIVATE = {
    "method": "global",
    "personal__rounds": 0,
    "seed_policy": "shared",
    "aggregation__rule": "mean",
    "privacy__clip": 2.0,
    "privacy__noise_multiplier": 0.5,
}


class Made(NamedTuple):
    """A run, a history of it, and a phone's program and examples."""

    settings: bytes
    run_id: bytes
    history: History
    trainer: PhoneTrainer
    manifest: str

    def train(self, number: int, **changes: Any) -> bytes:
        """The train instruction of a round."""
        layout, start = self.history.layout, self.history.digests[number - 1]
        own = {"run_id": self.run_id, "round": number, "steps": 2, "queries": 4, "batch": 4}
        named = {"layout_hash": layout.hash, "start_digest": start}
        return instruction_with(**(own | named | changes)).encode()

    def evaluate(self, number: int, split: Split) -> bytes:
        """The evaluate instruction after a round."""
        layout, end = self.history.layout, self.history.digests[number]
        return EvaluateInstruction(self.run_id, number, 0, split, layout.hash, end).encode()

    def task(self, kind: int, frame: bytes, tail: bytes = b"", **more: Any) -> dict[str, Any]:
        """A task of the gateway as the page's phone is given it."""
        given = {"kind": kind, "instruction": frame.hex(), "tail": tail.hex()}
        return given | {"settings": self.settings.decode()} | more

    def case(self, tasks: list[Any], **more: Any) -> list[Any]:
        """A case of the page's phone."""
        splits = splits_of(self.trainer)
        given = {"manifest": self.manifest, "client": CLIENT, "splits": splits, "tasks": tasks}
        return ["phone", given | more]

    def reference(self, home: Path) -> Phone:
        """The reference phone."""
        return Phone(self.trainer, CLIENT, home, AnswerLimits(least_batch=LIVE_LEAST_BATCH))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of programs, each made once."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def run_page(tmp_path_factory: pytest.TempPathFactory) -> RunCore:
    return node_runner(tmp_path_factory.mktemp("page"), PHONE)


@pytest.fixture
def made(
    settings: Settings, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Made]:
    def make(**changes: Any) -> Made:
        own = {"adapter.layers": "readout", "personal.rounds": 3, "rounds": 4, "queries": 4}
        config = config_of(settings | own | {"evaluate.best": False}, **changes)
        use_torch_as_runtime(monkeypatch)
        file = programs / f"{config.adapter.label_bias}.pte"
        if not file.exists():
            exported(config.flat(), file)
        rows = tmp_path / "rows.jsonl"
        rows.write_text(examples_as_jsonl(load_run(config).data.share_of(CLIENT, 3)))
        program = load_program(file)
        trainer = PhoneTrainer(program, read_examples(rows, program.manifest))
        # what a browser needs of it is the same for ONNX Runtime
        manifest = json.loads(manifest_file(file).read_text())
        manifest |= {"version": 3, "runtime": "onnx", "delegate": "none"}
        run_id = run_id_of(config, trainer.layout, trainer.model_id)
        deltas = [delta_of(number) for number in range(1, 5)]
        history = history_of(deltas, trainer.layout, run_id)
        return Made(identity_bytes(config), run_id, history, trainer, json.dumps(manifest))

    return make


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"batch": 100, "curvature_every": 2},
        {"differences": "forward", "curvature_every": 2, "steps": 5},
        {"seed_policy": SeedPolicy.SHARED, "clip": 0.5},
        {"seed_policy": SeedPolicy.POOL, "steps": 4},
    ],
    ids=str,
)
def test_a_report_is_the_reference_phones(
    made: Callable[..., Made], run_page: RunCore, tmp_path: Path, changes: dict[str, Any]
) -> None:
    run = made(adapter__label_bias=True)
    frame, tail = run.train(3, **changes), run.history.tail(0, 2)
    task = run.task(TaskKind.TRAIN, frame, tail)
    (result,) = run_page([run.case([task, "restart", run.task(TaskKind.TRAIN, frame)])])
    first, again = result["answers"]
    assert first == again  # the stored report, without catching up
    expected = run.reference(tmp_path / "home").train(frame, CatchUp(tail=tail), run.settings)
    assert_same_report(Report.decode(bytes.fromhex(first)), Report.decode(expected))
    np.testing.assert_array_equal(np.array(result["w"], np.int64), run.history.states[2])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"personal__learning_rate": 0.3, "adapter__label_bias": True},
        {"method": "ditto"},
        {"method": "mixture", "personal__learning_rate": 0.3},
        {"method": "readout", "adapter__label_bias": True},
        {"method": "local", "personal__rounds": 0},
        {"personal__when": "every 2 rounds", "personal__retrain": True},
    ],
    ids=str,
)
def test_personal_models_are_the_reference_phones(
    made: Callable[..., Made], run_page: RunCore, tmp_path: Path, changes: dict[str, Any]
) -> None:
    run = made(**changes)
    last = 0 if changes.get("method") == "local" else 4
    last += 3 if changes.get("method") == "readout" else 0
    if last > 4:  # its private rounds are the federation's
        deltas = [delta_of(number) for number in range(1, 8)]
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
        answer = reference.evaluate(frame, CatchUp(tail=tail), settings, personal)
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


def test_a_hello_says_what_the_reference_phones_says(
    made: Callable[..., Made], run_page: RunCore
) -> None:
    run = made()
    (result,) = run_page([run.case([run.task(TaskKind.HELLO, bytes(32))])])
    hello = Hello.decode(bytes.fromhex(result["answers"][0]))
    expected = run.trainer.hello(CLIENT, 0)
    assert (hello.client, hello.examples, hello.round) == (CLIENT, expected.examples, 0)
    assert (hello.model_id, hello.layout) == (expected.model_id, expected.layout)
    said, counts = json.loads(hello.facts), json.loads(expected.facts)[SPLIT_EXAMPLES]
    assert said[SPLIT_EXAMPLES] == counts


def test_what_cannot_be_done_is_refused_with_its_code(
    made: Callable[..., Made], run_page: RunCore
) -> None:
    run = made()
    other = made(seed=1).settings.decode()
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


@pytest.mark.parametrize("mode", ["central", "local"])
def test_private_reports_are_clipped_and_noised_and_made_once(
    made: Callable[..., Made], run_page: RunCore, tmp_path: Path, mode: str
) -> None:
    run = made(**PRIVATE, privacy__mode=mode)
    frame, tail = run.train(3, curvature_every=2), run.history.tail(0, 2)
    task = run.task(TaskKind.TRAIN, frame, tail)
    hello = run.task(TaskKind.HELLO, bytes(32))
    (result,) = run_page([run.case([hello, task, "restart", task])])
    said, first, again = map(bytes.fromhex, result["answers"])
    assert first == again
    expected = run.reference(tmp_path / "home").train(frame, CatchUp(tail=tail), run.settings)
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
    made: Callable[..., Made], run_page: RunCore
) -> None:
    run = made(**PRIVATE, privacy__mode="local", rounds=3)
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
    made: Callable[..., Made], run_page: RunCore
) -> None:
    run = made(**PRIVATE, privacy__mode="local", rounds=3)
    terms = PrivacyTerms.of(json.loads(run.settings), 3, 8)
    assert terms is not None
    rho = terms.mechanism.rho
    limit = 1.0001 * epsilon_of(2 * rho, OWN_DELTA)
    tail, frames = run.history.tail(0, 2), [run.train(3, root=root) for root in (1, 2, 3)]
    first, second, third = (run.task(TaskKind.TRAIN, frame, tail) for frame in frames)
    case = run.case([{"limit": limit}, first, second, third, "restart", third])
    lifted = run.case([{"limit": limit / 3}, first, {"limit": 0}, first])
    noiseless = made(personal__rounds=0)
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


@pytest.mark.parametrize(
    ("adapter", "engines"),
    [
        ("missing", ["wasm"]),
        (None, ["wasm"]),
        ("throws", ["wasm"]),
        ({"isFallbackAdapter": True}, ["wasm"]),
        ({"isFallbackAdapter": False}, ["webgpu", "wasm"]),
        ({}, ["webgpu", "wasm"]),
    ],
)
def test_a_graphics_processor_is_used_where_there_is_one(
    run_page: RunCore, adapter: Any, engines: list[str]
) -> None:
    assert run_page([["engines", adapter]]) == [engines]


@pytest.mark.parametrize(
    ("failing", "done"),
    [
        ("", "make webgpu, use webgpu 1, use webgpu 2, use webgpu 3"),
        ("make webgpu", "make webgpu, make wasm, use wasm 1, use wasm 2, use wasm 3"),
        ("fetch", "fetch, failed: fetch, make webgpu, use webgpu 2, use webgpu 3"),
        (
            "use webgpu 2",
            "make webgpu, use webgpu 1, use webgpu 2, make wasm, use wasm 2, use wasm 3",
        ),
        (
            "make webgpu, use wasm 1",
            "make webgpu, make wasm, use wasm 1, failed: use wasm 1, make wasm, use wasm 2, "
            "use wasm 3",
        ),
    ],
)
def test_where_a_graphics_processor_fails_webassembly_goes_on(
    run_page: RunCore, failing: str, done: str
) -> None:
    assert run_page([["onEngines", failing.split(", ")]]) == [done.split(", ")]


def test_signatures_of_every_curve_are_checked(run_page: RunCore) -> None:
    asked = []
    for curve in (ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1(), ec.SECP256K1()):
        key = ec.generate_private_key(curve)
        pem, data = public_pem(key), b"frame"
        signatures = [sign(key, data), sign(key, b"other"), b"", sign(key, data)[:-1]]
        hexadecimal = [signature.hex() for signature in signatures]
        asked.append(["signatures", pem.decode(), hexadecimal, data.hex()])
    asked.append(["signatures", "  " + asked[0][1].replace("\n", "\n\n"), [], ""])
    asked.append(["signatures", "-----BEGIN PUBLIC KEY-----\nAAAA\n", [""], ""])
    *known, unknown, spaced, none = run_page(asked)
    assert [found["are"] for found in known] == [[True, False, False, False]] * 3
    assert spaced["spki"] == known[0]["spki"]
    assert unknown["spki"] == none["spki"] == ""


def test_with_a_signed_scenario_nothing_else_is_answered(
    made: Callable[..., Made], run_page: RunCore, tmp_path: Path
) -> None:
    run = made(steps=2, batch=4, epsilon=0.01, learning_rate=0.1)
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


def test_messages_of_the_stream_are_protobufs(run_page: RunCore) -> None:
    task = Task(
        number=2**31,
        kind=TaskKind.EVALUATE,
        instruction=b"i" * 300,
        tail=b"t",
        seconds=5.0,
        settings=b"{}",
        personal=True,
    )
    messages = [
        ToPhone(challenge=Challenge(version=1, nonce=bytes(32), takes_boards=True)),
        ToPhone(task=task),
    ]
    bad = [b"", b"\x12\x05\x08", b"\x13", messages[1].SerializeToString()[:-1]]
    encoded = [message.SerializeToString() for message in messages] + bad
    asked = [["toPhone", message.hex()] for message in encoded]
    asked += [["proof", b"pem".hex(), b"der".hex()], ["result", 300, b"f".hex(), b"s".hex()]]
    challenge, read, *refused, proof, result = run_page(asked)
    assert challenge == {"challenge": {"version": 1, "nonce": bytes(32).hex()}}
    expected = {"number": 2**31, "kind": TaskKind.EVALUATE, "personal": True, "snapshot": ""}
    expected |= {"instruction": (b"i" * 300).hex(), "tail": b"t".hex(), "shares": ""}
    assert read == {"task": expected | {"settings": b"{}".hex()}}
    assert refused == [FrameError.__name__] * len(bad)
    for found, said in (
        (proof, FromPhone(proof=Proof(public_key=b"pem", signature=b"der"))),
        (result, FromPhone(result=TaskResult(number=300, frame=b"f", signature=b"s"))),
    ):
        assert FromPhone.FromString(bytes.fromhex(found)) == said


def test_signatures_of_a_browsers_key_are_those_of_every_phone(run_page: RunCore) -> None:
    nonce, instruction, frame = bytes(range(32)), b"instruction", b"frame"
    given = ["key", nonce.hex(), instruction.hex(), frame.hex()]
    numbers = [(1, 2**255), (2**256 - 1, 2**127), (0x80, 0)]
    raw = [["der", b"".join(n.to_bytes(32, "big") for n in pair).hex()] for pair in numbers]
    *keys, first, second, third = run_page([given] * 20 + raw)
    for key in keys:
        pem = bytes.fromhex(key["pem"])
        assert key["client"] == client_index_of_key(pem)
        assert is_signed_by(pem, bytes.fromhex(key["proof"]), proof_bytes(nonce))
        assert is_signed_by(pem, bytes.fromhex(key["answer"]), answer_bytes(instruction, frame))
        assert not key["extractable"]
    assert first == f"3026020101022100{2**255:064x}"
    assert second == f"3036022100{2**256 - 1:064x}0211" + f"00{2**127:032x}"
    assert third == "3007020200800201" + "00"


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


def test_rows_of_a_file_are_read_and_its_other_lines_named(run_page: RunCore) -> None:
    task = {"name": "t", "text": "{text|sentence} {{x}}", "words": [" bad", " good"]}
    task |= {"labels": [["0", "no"], ["1"]], "fields": ["text"], "label": "label|answer"}
    lines = [
        '{"sentence": "a, b", "label": 1, "split": "test"}',
        '{"text": "c", "answer": "no"}',
        '{"text": "d", "label": 2}',
        "not JSON",
        '{"text": " ", "label": 1}',
        "",
        '{"text": "e", "label": "good"}',
    ]
    csv = 'text,label\r\n"a ""b"",\nc",0\nd,7\ne\n"f",bad\n'
    asked: list[list[Any]] = [["rows", "\n".join(lines), task], ["rows", csv, task]]
    asked += [["pasted", "one\n\n two \n"], ["textOf", task, {"text": "{y}"}]]
    of_lines, of_csv, pasted, filled = run_page(asked)
    assert of_lines == {
        "examples": [
            {"row": {"text": "a, b"}, "label": 1, "split": Split.TEST},
            {"row": {"text": "c"}, "label": 0},
            {"row": {"text": "e"}, "label": 1},
        ],
        "wrongLines": [3, 4, 5],
    }
    examples = [{"row": {"text": text}, "label": 0} for text in ('a "b",\nc', "f")]
    assert of_csv == {"examples": examples, "wrongLines": [4, 5]}
    assert pasted == [{"row": {"text": text}, "label": 1} for text in ("one", "two")]
    assert filled == "{y} {x}"


def test_an_example_goes_through_the_model_once_and_its_label_may_change(
    run_page: RunCore,
) -> None:
    def one(text: str, label: int, split: int = 0) -> dict[str, Any]:
        return {"row": {"text": text}, "label": label, "split": split}

    additions = [[one("a", 0), one("bb", 1), one("t", 1, 2)], [one("a", 1), one("ccc", 0)]]
    spread = [{"row": {"text": str(n)}, "label": 0} for n in range(600)]
    result, many = run_page([["book", additions, "bb"], ["book", [spread], "7"]])
    assert result["all"] == [one("a", 1), one("t", 1, 2), one("ccc", 0)]
    assert result["passes"] == {"a": 1, "bb": 1, "t": 1, "ccc": 1}
    assert (result["scores"], result["labels"]) == ([1, 0, 3, 0], [1, 0])
    assert result["tokens"] == [1, 3]
    assert result["isChanged"]
    counts = np.bincount([each["split"] for each in many["all"]])
    np.testing.assert_allclose(counts / 599, [0.7, 0.1, 0.2], atol=0.05)


def test_a_code_is_read_from_its_link(run_page: RunCore) -> None:
    code = InvitationCode(bytes(range(16)), bytes(range(16, 32)))
    other = "b" + str(code)[1:]
    links = [str(code), f" https://phones.example/#join={code}\n", str(code)[:-1], other, ""]
    *read, short, damaged, empty = run_page([["code", link] for link in links])
    assert read == [{"trusted": code.trusted.hex(), "secret": code.secret.hex()}] * 2
    assert (short, damaged, empty) == ("InvitationError",) * 3
