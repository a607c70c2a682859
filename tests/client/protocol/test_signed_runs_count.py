"""The limit on the scalars that leave a client: the number that its owner was shown."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import evaluate_task, hello_task, train_task
from federations import config_of
from helpers import History, delta_of, history_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from learners import Modelless
from scenarios import operator_key, signed

from samara.client.limits.answer_limits import AnswerLimits
from samara.client.limits.answered_runs import ANSWERED_FILE
from samara.client.protocol.answer_guard import AnswerGuard, Records
from samara.client.protocol.client import Client, Participation
from samara.client.protocol.scenario_folder import ScenarioFolder
from samara.client.protocol.session import decode_instruction
from samara.client.protocol.session_store import SESSION_FILE, SessionFolder
from samara.client.protocol.signed_runs import SignedRuns
from samara.devices.phone.reference_client.phone import Phone
from samara.shared.errors import RefusalCode
from samara.shared.proto.trainer_pb2 import Task
from samara.shared.protocol.frames.evaluation import Evaluation
from samara.shared.protocol.frames.instructions import (
    INTERCEPT_TRACK,
    EvaluateInstruction,
    Split,
    TrainInstruction,
)
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.layout import ADAPTER_GROUP, LABEL_BIAS_GROUP, Layout, Tensor
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.replay import CoefficientBlock
from samara.shared.protocol.run_id import cluster_id
from samara.shared.protocol.wire import Kind, kind_of
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import identity_bytes, run_id_of
from samara.shared.terms.intercept_round import intercept_instruction
from samara.shared.terms.run_terms import MOST_RESTORES
from samara.shared.terms.signed_scenario import SignedScenario

LABELS, ROUNDS, LEDGERS = 2, 6, 3
LAYOUT = Layout(
    (Tensor("first", 2, 1, ADAPTER_GROUP), Tensor("bias", LABELS, 1, LABEL_BIAS_GROUP)),
    *(1, 4.0, 7, "gaussian"),
)
SMALL: dict[str, Any] = {"rounds": 3, "steps": 2, "queries": 2, "batch": 99, "learning-rate": 0.1}
METHODS: dict[str, dict[str, Any]] = {
    "global": {"method": "global", "personal__rounds": 1, "evaluate__every": 1},
    "finetune": {"method": "finetune", "personal__rounds": 1, "learning_rate": "auto"},
    "readout": {
        "method": "readout",
        "adapter__layers": "readout",
        "adapter__label_bias": True,
        "evaluate__best": True,
        "evaluate__every": 2,
        "personal__rounds": 0,
    },
    "pool": {"seed_policy": "pool", "pool_size": 3, "evaluate__test": False},
    "cluster": {
        "method": "cluster",
        "cohort__clusters": 16,
        "cohort__clustering_rounds": 1,
        "personal__rounds": 1,
        "evaluate__every": 1,
    },
}
Answer = Callable[[Task], bytes]


@cache
def config_named(method: str) -> RunConfig:
    return config_of(SMALL, **METHODS[method])


@cache
def scenario_named(method: str) -> SignedScenario:
    with tempfile.TemporaryDirectory() as folder:
        return signed(config_named(method), operator_key(Path(folder)))


@cache
def ledger_of(run_id: bytes, which: int) -> History:
    """One of several ledgers of a run, whose states differ from the first round on."""
    deltas = [delta_of(number) for number in range(1, ROUNDS + 1)]
    if 0 < which < LEDGERS:
        deltas = [replace(one, entries=one.entries[which - 1 : which]) for one in deltas]
    elif which:
        blocks = CoefficientBlock(0, np.array([which] * 4, np.int32))
        first = replace(deltas[0].groups[0], scalars=blocks)
        deltas = [replace(deltas[0], entries=(first,))]
    return history_of(deltas, LAYOUT, run_id)


class Left:
    """The distinct answers that have left a client, counted by kind."""

    def __init__(self) -> None:
        self.messages = 0
        self.frames = dict[bytes, int]()
        self.scalars = self.tables = self.intercepts = 0
        self.refused = dict[int, int]()
        self.times = dict[tuple[int, int, Split | None, bool], int]()

    def add(self, task: Task, frame: bytes) -> None:
        self.messages += 1
        asked = decode_instruction(task.instruction)
        if kind_of(frame) is Kind.REFUSAL:
            code = Refusal.decode(frame).code
            self.refused[code] = self.refused.get(code, 0) + 1
        elif frame not in self.frames:
            self._count(frame, asked.track == INTERCEPT_TRACK)
            split = asked.split if isinstance(asked, EvaluateInstruction) else None
            question = asked.track, 0 if task.personal else asked.round, split, task.personal
            self.times[question] = self.times.get(question, 0) + 1
        self.frames[frame] = self.frames.get(frame, 0) + 1

    def _count(self, frame: bytes, is_intercept: bool) -> None:
        if kind_of(frame) is Kind.EVALUATION:
            columns = Evaluation.decode(frame).columns
            assert all(np.float32(one.mean_loss) == one.mean_loss for one in columns)
            self.scalars += len(columns)
            self.tables += len(columns)
        elif kind_of(frame) in (Kind.REPORT, Kind.REPORT_OF_SUMS):
            report = Report.decode(frame)
            self.scalars += 1 + (report.curvature is not None)
            if is_intercept:
                self.intercepts += report.gradients.size
            else:
                self.scalars += report.gradients.size


class Device:
    """A client or a phone with a signed scenario, its files, and its sent answers."""

    def __init__(self, method: str, home: Path, is_phone: bool = False) -> None:
        self.config, self.home, self.is_phone = config_named(method), home, is_phone
        self.terms, self.scenario = self.config.terms, scenario_named(method)
        self.run_id = run_id_of(self.config, LAYOUT, Modelless(LAYOUT).model_id)
        self.ids = [self.run_id]
        if self.terms.clusters:
            self.ids = [cluster_id(self.run_id, each) for each in range(self.terms.clusters)]
        ScenarioFolder(home).add(self.scenario)
        self.left = Left()
        self.start()

    def start(self) -> None:
        """Start a process, which knows only the content of the files."""
        learner = Modelless(LAYOUT)
        if self.is_phone:
            limits = AnswerLimits(least_batch=2)
            self._answer: Answer = Phone(learner, self.home, limits).answer  # type: ignore[arg-type]
            return
        records, sessions = Records.in_folder(self.home), SessionFolder(self.home)
        hashes = LAYOUT.hash, learner.model_id
        runs = SignedRuns([self.scenario], *hashes, records.answered, lambda _: None)
        guard = AnswerGuard(AnswerLimits(least_batch=2), learner, records, None, runs)
        folder = sessions.folder_of(self.run_id)
        part = Participation(self.terms, self.run_id, folder, 0, is_live=True)
        self._answer = Client(learner, sessions, guard, part).answer

    def ask(self, task: Task) -> bytes:
        answer = self._answer(task)
        if task.instruction:
            self.left.add(task, answer)
        return answer

    def train(self, which: int, number: int, ledger: int, rate: float = 0.1) -> Task:
        run_id = self.ids[which % len(self.ids)]
        history = ledger_of(run_id, ledger)
        asked = self.terms.instruction(
            *(run_id, number, LAYOUT.hash, history.digests[number - 1]),
            learning_rate=rate,
            clip=0.0,
            curvature_every=int(self.terms.learning_rate is None),
        )
        return self._task(asked, history, number - 1)

    def evaluate(
        self, which: int, number: int, ledger: int, split: Split, personal: bool = False
    ) -> Task:
        run_id = self.ids[which % len(self.ids)]
        history = ledger_of(run_id, ledger)
        digest = history.digests[number]
        asked = EvaluateInstruction(run_id, number, 0, split, LAYOUT.hash, digest)
        missed = CatchUp(tail=history.tail(0, number))
        return evaluate_task(asked.encode(), missed, identity_bytes(self.config), personal)

    def intercepts(self, ledger: int, labels: int) -> Task:
        history, number = ledger_of(self.run_id, ledger), self.terms.intercept_round - 1
        start = history.digests[number]
        asked = intercept_instruction(self.terms, self.run_id, LAYOUT.hash, start, labels=labels)
        return self._task(asked, history, number)

    def clustering(self) -> Task:
        history = ledger_of(self.run_id, 0)
        start = history.digests[0]
        asked = self.terms.clustering_instruction(self.run_id, LAYOUT.hash, start)
        return self._task(asked, history, 0)

    def _task(self, asked: TrainInstruction, history: History, number: int) -> Task:
        missed = CatchUp(tail=history.tail(0, number))
        return train_task(asked.encode(), missed, identity_bytes(self.config))


NUMBERS, LEDGER = st.integers(0, ROUNDS - 1), st.integers(0, LEDGERS - 1)
LEDGERS_IN_TURN = st.lists(LEDGER, min_size=1, max_size=3)
CLUSTERS_IN_TURN = st.lists(st.integers(0, 15), min_size=1, max_size=4, unique=True)


class HostileServer(RuleBasedStateMachine):
    """A server with an operator's signed scenario, which sends arbitrary requests."""

    methods, is_phone = ("global", "finetune", "readout", "pool"), False

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(os, "fsync", lambda descriptor: None)
        self.home = Path(tempfile.mkdtemp())
        self.last: Task | None = None

    def teardown(self) -> None:
        shutil.rmtree(self.home)
        self.patch.undo()

    @initialize(data=st.data())
    def join(self, data: st.DataObject) -> None:
        method = data.draw(st.sampled_from(self.methods))
        self.device = Device(method, self.home, self.is_phone)

    def send(self, task: Task) -> None:
        self.last = task
        self.device.ask(task)

    @rule(
        clusters=CLUSTERS_IN_TURN,
        number=NUMBERS,
        ledgers=LEDGERS_IN_TURN,
        rate=st.sampled_from([0.1, 0.05, 0.0]),
    )
    def train(self, clusters: list[int], number: int, ledgers: list[int], rate: float) -> None:
        for which in clusters:
            for ledger in ledgers:
                self.send(self.device.train(which, 1 + number, ledger, rate))

    @rule(
        clusters=CLUSTERS_IN_TURN,
        number=NUMBERS,
        ledgers=LEDGERS_IN_TURN,
        split=st.sampled_from([Split.VALIDATION, Split.TEST, Split.TRAIN]),
        personal=st.booleans(),
    )
    def evaluate(
        self, clusters: list[int], number: int, ledgers: list[int], split: Split, personal: bool
    ) -> None:
        for which in clusters:
            for ledger in ledgers:
                self.send(self.device.evaluate(which, number, ledger, split, personal))

    @rule(ledger=LEDGER, labels=st.integers(2, 4))
    def ask_for_intercepts(self, ledger: int, labels: int) -> None:
        if self.device.terms.intercept_round:
            self.send(self.device.intercepts(ledger, labels))

    @rule()
    def divide_into_clusters(self) -> None:
        if self.device.terms.clusters:
            self.send(self.device.clustering())

    @rule(number=st.integers(0, 255))
    def ask_in_another_run(self, number: int) -> None:
        task = self.device.evaluate(0, 0, 0, Split.TEST)
        asked = EvaluateInstruction.decode(task.instruction)
        task.instruction = replace(asked, run_id=bytes([number]) * 8).encode()
        assert Refusal.decode(self.device.ask(task)).code == RefusalCode.SCENARIO

    @rule()
    def say_hello(self) -> None:
        self.device.ask(hello_task(identity_bytes(self.device.config)))

    @rule()
    def ask_again(self) -> None:
        """Repeat a request because its reply was lost."""
        if self.last:
            self.device.ask(self.last)

    @rule()
    def restart_the_client(self) -> None:
        self.device.start()

    @rule()
    def lose_the_sessions(self) -> None:
        for file in self.home.glob(f"runs/*/{SESSION_FILE}"):
            file.unlink()

    @invariant()
    def no_more_has_left_than_the_owner_was_shown(self) -> None:
        if hasattr(self, "device"):
            left, terms = self.device.left, self.device.terms
            assert left.scalars <= terms.scalars
            assert left.tables <= terms.evaluated_columns
            assert left.intercepts <= LABELS - 1
            for (_, _, split, personal), times in left.times.items():
                assert times <= (1 if split is None or personal else 1 + MOST_RESTORES)


class HostileGateway(HostileServer):
    """The hostile server with a phone as its client."""

    is_phone = True


class HostileClusters(HostileServer):
    """The hostile server in a run with clusters."""

    methods = ("cluster",)


class HostileClustersOfPhones(HostileClusters):
    """The hostile server in a run with clusters, with a phone as its client."""

    is_phone = True


MACHINES = [HostileServer, HostileGateway, HostileClusters, HostileClustersOfPhones]


@pytest.mark.parametrize("machine", MACHINES)
def test_whatever_a_server_asks_no_more_leaves_than_the_owner_was_shown(
    machine: type[HostileServer],
) -> None:
    examples = 6 if machine.is_phone else 20
    budget = settings(max_examples=examples, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(machine, settings=budget)  # type: ignore[no-untyped-call]


MESSAGES = 1_000


def send_some(machine: HostileServer, rng: np.random.Generator) -> None:
    """Take a random step of a machine; hypothesis does not allow sequences of this length."""
    number, ledger = int(rng.integers(ROUNDS)), int(rng.integers(LEDGERS))
    clusters = rng.permutation(16)[: rng.integers(1, 5)].tolist()
    ledgers = rng.integers(LEDGERS, size=rng.integers(1, 4)).tolist()
    split = [Split.VALIDATION, Split.TEST, Split.TRAIN][rng.integers(3)]
    steps: list[tuple[float, Callable[[], None]]] = [
        (6, lambda: machine.train(clusters, number, ledgers, [0.1, 0.05, 0.0][rng.integers(3)])),
        (6, lambda: machine.evaluate(clusters, number, ledgers, split, bool(rng.integers(2)))),
        (1, lambda: machine.ask_for_intercepts(ledger, int(rng.integers(2, 5)))),
        (1, machine.divide_into_clusters),
        (1, lambda: machine.ask_in_another_run(int(rng.integers(256)))),
        (1, machine.say_hello),
        (2, machine.ask_again),
        (1, machine.restart_the_client),
        (1, machine.lose_the_sessions),
    ]
    weights = np.array([weight for weight, _ in steps])
    steps[rng.choice(len(steps), p=weights / weights.sum())][1]()


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("machine", MACHINES)
def test_of_a_thousand_messages_no_more_leaves_than_the_owner_was_shown(
    machine: type[HostileServer], seed: int
) -> None:
    for method in machine.methods:
        hostile, rng = machine(), np.random.default_rng([seed, len(method)])
        try:
            hostile.device = Device(method, hostile.home, hostile.is_phone)
            while (left := hostile.device.left).messages < MESSAGES:
                send_some(hostile, rng)
                hostile.no_more_has_left_than_the_owner_was_shown()
        finally:
            hostile.teardown()
        shown = hostile.device.terms.scalars
        print(
            f"{machine.__name__}, {method}: {left.messages} messages, {left.scalars} of {shown} "
            f"scalars, {sum(left.refused.values())} refused"
        )
        assert left.scalars
        assert left.refused


@pytest.fixture(params=[False, True], ids=["client", "phone"])
def device_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Device]:
    return lambda method: Device(method, tmp_path / "home", request.param)


def ask_honestly(device: Device) -> None:
    """Send all requests of a server that keeps to the scenario; every reply is lost once."""
    terms, last = device.terms, device.terms.rounds_of_federation
    evaluated = [number for number in range(ROUNDS) if terms.is_evaluated(number, Split.VALIDATION)]
    for number in range(ROUNDS):
        tasks = [
            device.evaluate(0, number, 0, split, personal)
            for split in (Split.VALIDATION, Split.TEST)
            for personal in (False, True)
            if terms.is_evaluated(number, split, personal)
            if not personal or number == evaluated[-1]
        ]
        if number < last:
            tasks.append(device.train(0, number + 1, 0))
        for task in tasks:
            assert device.ask(task) == device.ask(task)


@pytest.mark.parametrize(("method", "compared"), [("global", 0), ("pool", 1), ("cluster", 0)])
def test_an_honest_server_gets_all_but_what_is_for_a_restore(
    method: str, compared: int, device_of: Callable[[str], Device]
) -> None:
    device = device_of(method)
    if device.terms.clusters:
        assert device.ask(device.clustering()) == device.ask(device.clustering())
    ask_honestly(device)
    assert not device.left.refused
    left = device.terms.scalars - device.left.scalars
    assert left == device.terms.evaluated_columns - device.left.tables
    assert 2 * device.left.tables - compared == device.terms.evaluated_columns


@pytest.mark.parametrize("has_restore", [False, True])
def test_snapshots_of_a_servers_choice_get_one_evaluation_of_a_round(
    has_restore: bool, device_of: Callable[[str], Device]
) -> None:
    device = device_of("global")
    for which in range(160):
        device.ask(device.evaluate(0, 1, LEDGERS + which, Split.VALIDATION))
        if not has_restore:
            for file in device.home.glob(f"runs/*/{SESSION_FILE}"):
                file.unlink()
    evaluations = 1 + MOST_RESTORES if has_restore else 1
    assert device.left.tables == device.left.scalars == evaluations
    assert device.left.refused == {RefusalCode.SCENARIO: 160 - evaluations}


def test_after_a_restore_a_round_is_evaluated_once_more(
    device_of: Callable[[str], Device],
) -> None:
    device = device_of("global")
    first, *others = [device.evaluate(0, 2, ledger, Split.VALIDATION) for ledger in range(LEDGERS)]
    answer = device.ask(first)
    again = device.ask(others[0])  # the ledger is another one from its beginning: a restore
    assert Evaluation.decode(again).token != Evaluation.decode(answer).token
    device.start()
    assert device.ask(others[0]) == again
    for task in (others[1], first):
        assert Refusal.decode(device.ask(task)).code == RefusalCode.SCENARIO


def test_another_state_of_a_round_without_a_restore_is_refused(
    device_of: Callable[[str], Device],
) -> None:
    device = device_of("global")
    first, other = (device.evaluate(0, 2, ledger, Split.VALIDATION) for ledger in range(2))
    assert Evaluation.decode(device.ask(first))
    for file in device.home.glob(f"runs/*/{SESSION_FILE}"):
        file.unlink()
    assert Refusal.decode(device.ask(other)).code == RefusalCode.SCENARIO
    book = next(device.home.glob(f"runs/*/{ANSWERED_FILE}")).read_text()
    assert '"validation 2": 1' in book


def test_sixteen_clusters_are_one_run(device_of: Callable[[str], Device]) -> None:
    device = device_of("cluster")
    for which in range(16):
        device.ask(device.train(which, 1, 0))
        device.ask(device.evaluate(which, 0, 0, Split.VALIDATION))
    assert device.left.refused == {RefusalCode.SCENARIO: 30}
    assert device.left.scalars == 2 * 2 + 1 + 1
    assert Report.decode(device.ask(device.train(9, 2, 0)))  # it is in another cluster now
    assert Refusal.decode(device.ask(device.train(0, 2, 0))).code == RefusalCode.SCENARIO


def test_a_book_of_the_version_before_is_read(device_of: Callable[[str], Device]) -> None:
    device = device_of("global")
    question, evaluated = device.train(0, 2, 0), device.evaluate(0, 2, 0, Split.VALIDATION)
    answer = device.ask(question)
    [file] = device.home.glob(f"runs/*/{ANSWERED_FILE}")
    book = json.loads(file.read_text())
    assert set(book) == {"round", "scalars", "token", "compared", "evaluations", "introduced"}
    device.start()
    assert device.ask(question) == answer
    other = device.train(0, 2, 0, rate=0.05)
    assert Refusal.decode(device.ask(other)).code == RefusalCode.SCENARIO
    assert Evaluation.decode(device.ask(evaluated))
