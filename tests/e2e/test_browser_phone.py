"""The page in a real browser is a phone of a gateway: steps, restarts, answers, and leaving."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from browsers import JOINED, chromium, firefox
from built_page import built_page
from driven_browser import Tab, driven
from driven_firefox import driven_firefox
from gateways import Served
from helpers import delta_of, history_of, instruction_with
from phones import assert_same_report

from benchmarks.scale.mixed_run import MODEL, TASK
from samara.client.personal.components import train_for_a_round
from samara.client.personal.runtime_learner import RuntimeLearner
from samara.client.training.model_runtime import load_run
from samara.devices.gateway.page_server.join_relay import JoinRelay
from samara.devices.gateway.page_server.listening import PageServer
from samara.devices.gateway.page_server.page_app import PageApp
from samara.devices.gateway.page_server.published_files import page_files, program_files
from samara.devices.phone.export import ProgramShapes, export_program, prepare_model
from samara.shared.proto.trainer_pb2 import TaskKind
from samara.shared.protocol.frames.evaluation import Evaluation
from samara.shared.protocol.frames.hello import Hello
from samara.shared.protocol.frames.instructions import (
    EvaluateInstruction,
    SeedPolicy,
    Split,
    TrainInstruction,
)
from samara.shared.protocol.frames.report import Report
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import identity_bytes, run_id_of
from samara.shared.tasks.label_scores import evaluation_column
from samara.shared.tasks.messages import messages, writers

pytestmark = pytest.mark.slow
pytest.importorskip("onnxruntime", reason="pip install 'samara-fl[onnx]'")
pytest.importorskip("onnxscript", reason="pip install 'samara-fl[onnx]'")

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }} {{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant {% endif %}"
)
COUNTS = {"train": 12, "validation": 4, "test": 8}
SECONDS = 120.0


class Joined(NamedTuple):
    """A gateway, the address of its page, settings and rows of a run, and a browser's profile."""

    served: Served
    page: str
    config: RunConfig
    rows: str
    profile: Path

    def ask(self, kind: int, frame: bytes, **more: Any) -> bytes:
        """Return the answer of the only phone."""
        settings = identity_bytes(self.config)
        answers = self.served.ask(kind, frame, SECONDS, settings=settings, **more)
        assert len(answers) == 1, f"no answer within {SECONDS} s"
        (answer,) = answers.values()
        return answer.frame

    def attached(self) -> None:
        """Wait until a phone is attached."""
        self.served.until(lambda gateway: len(gateway.attached_phones) == 1, SECONDS)


@pytest.fixture(
    params=[
        {"adapter.layers": "readout"},
        pytest.param({"adapter.layers": "top:1"}, marks=pytest.mark.exhaustive),
        pytest.param(
            {"adapter.layers": "readout", "differences": "components"}, marks=pytest.mark.exhaustive
        ),
        pytest.param({"adapter.layers": "readout", "form": "chat"}, marks=pytest.mark.exhaustive),
    ],
    ids=["readout", "top:1", "components", "chat"],
)
def joined(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Joined]:
    folder, data = built_page(), tmp_path / "data"
    data.mkdir()
    (writer,) = writers(1, 0)
    rows = ""
    for split, count in COUNTS.items():
        made = list(messages(writer, count, split, 0))
        (data / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
        rows += "".join(json.dumps({**row, "split": split}) + "\n" for row in made)
    model = shutil.copytree(MODEL, tmp_path / "model")
    (model / "chat_template.jinja").write_text(TEMPLATE)
    own = {"model.path": str(model), "task": TASK, "data.path": str(data), "threads": 1}
    own |= {"rounds": 2, "personal.rounds": 2, "evaluate.best": False}
    own |= {"objective": "cross-entropy"}
    config = RunConfig.of(own | request.param, "test")
    program = tmp_path / "model.onnx"
    ready = prepare_model(config, "none")
    export_program(ready, ProgramShapes(2, 4, 32), "none", "none", program, runtime="onnx")
    with ExitStack() as stack:
        served = Served(lambda key: True)
        stack.callback(served.close)
        files = page_files(folder) | program_files(program)
        page = PageServer(PageApp(served.gateway, files, JoinRelay(None), ""))
        port = served.run(page.start("127.0.0.1:0"))
        stack.callback(lambda: served.run(page.stop()))
        yield Joined(served, f"http://127.0.0.1:{port}", config, rows, tmp_path / "profile")


@pytest.mark.parametrize(
    ("find", "driven"),
    [
        pytest.param(chromium, driven, id="chromium"),
        pytest.param(firefox, driven_firefox, id="firefox", marks=pytest.mark.exhaustive),
    ],
)
def test_a_browser_trains_restarts_and_answers_as_an_ordinary_client_does(
    joined: Joined, find: Callable[[], str], driven: Callable[..., AbstractContextManager[Tab]]
) -> None:
    run, browser = joined, find()
    runtime, source = load_run(run.config)
    run_id = run_id_of(run.config, runtime.layout, runtime.model_id)
    history = history_of([delta_of(1), delta_of(2)], runtime.layout, run_id)
    layout, digests = runtime.layout, history.digests

    def train(number: int) -> TrainInstruction:
        own = {"run_id": run_id, "round": number, "steps": 2, "queries": 4, "batch": 5}
        named = {"layout_hash": layout.hash, "start_digest": digests[number - 1]}
        if run.config.differences == "components":
            own |= {"steps": 1, "seed_policy": SeedPolicy.SHARED, "differences": "components"}
            own |= {"root": 2**62 + 40, "learning_rate": 2.0}
        return instruction_with(**(own | named))

    with driven(browser, run.profile) as tab:
        tab.open(run.page)
        tab.until("!document.getElementById('joining').hidden")
        assert tab.until("document.getElementById('download').textContent").endswith(" MB.")
        tab.run(JOINED)
        tab.until("samara.status().then(({ task, problem }) => problem || task !== null)")
        tab.give_file("file", "rows.jsonl", run.rows)
        tab.until("document.getElementById('add-said').textContent")
        run.attached()
        tab.until("samara.status().then((now) => now.accuracies)")  # of the base model, too
        hello = Hello.decode(run.ask(TaskKind.HELLO, bytes(32)))
        assert hello.examples == COUNTS["train"]
        data = source.undivided(hello.client)
        first = run.ask(TaskKind.TRAIN, train(1).encode())
        learner = RuntimeLearner(runtime, data)
        expected = train_for_a_round(learner, train(1), history.states[0], None)
        assert_same_report(Report.decode(first), expected)
        said = tab.said
    assert said == []
    with driven(browser, run.profile) as tab:  # the browser was killed
        tab.open(run.page)
        run.attached()
        assert run.ask(TaskKind.TRAIN, train(1).encode()) == first
        second = run.ask(TaskKind.TRAIN, train(2).encode(), tail=history.tail(0, 1))
        expected = train_for_a_round(learner, train(2), history.states[1], None)
        assert_same_report(Report.decode(second), expected)
        frame = EvaluateInstruction(run_id, 2, 0, Split.TEST, layout.hash, digests[2]).encode()
        compared = run.ask(TaskKind.EVALUATE, frame, tail=history.tail(0, 2), personal=True)
        columns = {column.name: column for column in Evaluation.decode(compared).columns}
        assert set(columns) >= {"base rate", "zero-shot", "global", "local-only", "personalized"}
        test = data.tokenized(Split.TEST)
        scores = runtime.scores(history.states[2], test.prompts)
        own = evaluation_column("global", scores, test.labels)
        np.testing.assert_array_equal(columns["global"].counts, own.counts)
        run.served.run(run.served.gateway.finish())
        status = tab.until(
            "samara.status().then((now) => now.connection === 'finished' && now.accuracies && now)"
        )
        assert (status["round"], status["digest"]) == (2, digests[2].hex())
        assert status["accuracies"]["examples"] == COUNTS["validation"] + COUNTS["test"]
        text = json.loads(run.rows.splitlines()[0])["text"]
        answer = tab.run(f"samara.predict({{ text: {json.dumps(text)} }})")
        refused = tab.run("samara.predict({}).catch(({ message }) => message)")
        assert refused.endswith("in each of these fields: text.")
        logits = runtime.scores(history.states[2], data.tokenized(Split.TRAIN).prompts[:1])[0]
        shares = np.exp(logits - logits.max())
        np.testing.assert_allclose(answer["global"], shares / shares.sum(), atol=1e-4)
        _leave(tab)


def _leave(tab: Tab) -> None:
    """Leave the run on the page, and check that the page has kept nothing."""
    tab.run("document.getElementById('leave').click()")
    tab.run("document.querySelector('#sure [value=yes]').click()")
    tab.until("!document.getElementById('joining').hidden")
    kept = "import('/store.js').then(({ openStore }) => openStore('samara'))"
    assert tab.run(f"{kept}.then((store) => store.list('')).then((all) => all.length)") == 0
    assert tab.run("caches.has('samara-program')") is False
