"""Questions to a device's models: base, global and personal, while its trainer trains."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asking import sent, train_task
from federations import Live, Settings, config_of
from helpers import instruction_with

from samara.client.forward.turns import Turns, take_turns
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.protocol.session import Session
from samara.client.questions.client_model import ClientModel
from samara.client.questions.personal_model import PersonalModels, classify
from samara.client.questions.question_limits import (
    MAX_TEXT_BYTES,
    MAX_TEXTS,
    MODELS,
    MOST_QUESTIONS,
)
from samara.client.questions.question_runner import QuestionRunner
from samara.client.trainer.remote_model import RemoteModel
from samara.client.trainer.trainer_service import serve_trainer
from samara.devices.live.settings import resolve_device_settings
from samara.server.app import serve
from samara.shared.errors import (
    BusyError,
    QuestionError,
    SamaraError,
    TrainerError,
    UnknownModelError,
)
from samara.shared.proto.trainer_pb2 import ChatMessage, GeneratePart, GenerateRequest
from samara.shared.protocol.ledger.records import LedgerHeader
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import run_id_of
from samara.shared.tasks.rows import read_prompt, read_question

TEXTS = ["the film was good .", "the meal was cold !", "a rude day"]


@pytest.fixture
def server_config(settings: Settings) -> RunConfig:
    theirs = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    return config_of(settings | theirs, cohort__available=1, evaluate__every=0, personal__rounds=2)


def load_resident(settings: Settings, folder: Path, *more: str, **passes: Any) -> ResidentTrainer:
    own = resolve_device_settings(
        settings["model.path"], settings["data.path"], settings["task"], "cpu", ["threads=1", *more]
    )
    return ResidentTrainer.load(RunConfig.of(own | passes, "test"), 7, folder)


@contextmanager
def trained(server_config: RunConfig, resident: ResidentTrainer, socket: Path) -> Iterator[None]:
    """A trainer on its socket, after it has taken part in a run."""
    with serve_trainer(lambda: resident, socket):
        serve(server_config, Live([socket], server_config))
        yield


def ask(socket: Path, question: Callable[[RemoteModel], Any]) -> Any:
    """Return the answers to one question."""

    async def run() -> Any:
        async with RemoteModel(socket) as model:
            return await question(model)

    return asyncio.run(run())


def written(socket: Path, **request: Any) -> tuple[str, list[GeneratePart]]:
    """Return the text of an answer, and the parts in which it arrived."""

    async def run() -> list[GeneratePart]:
        async with RemoteModel(socket) as model:
            return [part async for part in model.generate(GenerateRequest(**request))]

    parts = asyncio.run(run())
    return "".join(part.text for part in parts), parts


def test_the_models_of_a_run_answer_with_the_states_of_its_session_and_private_rounds(
    settings: Settings, server_config: RunConfig, short: Path
) -> None:
    resident, socket = load_resident(settings, short), short / "t.sock"
    with trained(server_config, resident, socket):
        reply = ask(socket, lambda model: model.classify(TEXTS, MODELS))
        what = ask(socket, lambda model: model.describe())
    model, runtime = ClientModel.read(short, resident.config, 7), resident.runtime
    assert model.private is not None
    assert (reply.state.run, reply.state.round) == (model.run.run_id.hex(), 3)
    assert reply.state.has_private_part
    examples = [read_question({"text": text}, runtime.task)[0] for text in TEXTS]
    prompts = [runtime.tokenize(example) for example in examples]
    expected = {
        "base": runtime.base_scores(prompts),
        "global": runtime.scores(model.session.state, prompts),
        "personal": runtime.scores(model.session.state + model.private, prompts),
    }
    assert not np.array_equal(expected["global"], expected["personal"])
    for index, one in enumerate(reply.classifications):
        assert list(one.labels) == ["terrible", "great"]
        assert list(one.values) == ["0", "1"]
        for scores in one.scores:
            np.testing.assert_allclose(scores.scores, expected[scores.model][index], rtol=1e-5)
            assert sum(scores.probabilities) == pytest.approx(1)
            assert scores.label == int(np.argmax(scores.scores))
    assert (what.task, what.kind, what.generates) == ("sst2", "classification", True)
    assert list(what.labels) == ["terrible", "great"]


def test_a_restarted_trainer_answers_for_the_run_before_any_message(
    settings: Settings, server_config: RunConfig, short: Path
) -> None:
    resident, socket = load_resident(settings, short), short / "t.sock"
    with trained(server_config, resident, socket):
        before = ask(socket, lambda model: model.classify(TEXTS, MODELS))
    again = load_resident(settings, short)
    with serve_trainer(lambda: again, socket):
        after = ask(socket, lambda model: model.classify(TEXTS, MODELS, before.state.run[:6]))
    assert after == before
    assert again.model_loads == 1


def test_without_a_run_all_models_are_the_base_model(settings: Settings, short: Path) -> None:
    resident, socket = load_resident(settings, short), short / "t.sock"
    with serve_trainer(lambda: resident, socket):
        reply = ask(socket, lambda model: model.classify(TEXTS[:1], MODELS))
        with pytest.raises(UnknownModelError, match="taken part in no run"):
            ask(socket, lambda model: model.describe("ab"))
    assert (reply.state.run, reply.state.has_private_part) == ("", False)
    [one] = reply.classifications
    assert one.scores[0].scores == one.scores[1].scores == one.scores[2].scores


@pytest.mark.parametrize("layers", ["top:2", "readout", "readout,top:1"])
@pytest.mark.parametrize("family", ["causal", "encoder"])
def test_questions_between_all_passes_change_no_bit_of_a_report(
    settings: Settings,
    model_folder: Callable[[str], Path],
    tmp_path: Path,
    layers: str,
    family: str,
) -> None:
    settings |= {"model.path": str(model_folder(family)), "adapter.layers": layers}

    def report(folder: Path, disturbed: bool) -> tuple[bytes, list[Any]]:
        """Return a report, and the answers to questions between the forward passes of its steps."""
        resident = load_resident(settings, folder, **{"micro-batch": 2})
        config = config_of(settings, method="global")
        client = resident.client_for(sent(config))
        assert resident.runtime.execution  # decided in one turn, in which no question is answered
        models, answers = PersonalModels(resident), list[Any]()
        turns = Turns()

        @contextmanager
        def asked_first() -> Iterator[None]:
            def question() -> None:
                with turns.question():
                    asked = models.of()
                    *_, last = drive(classify(asked, TEXTS, MODELS))
                    answers.append(last)

            if disturbed:
                thread = threading.Thread(target=question)
                thread.start()
                thread.join()
            with turns.training_pass():
                yield

        layout = resident.runtime.layout
        run_id = run_id_of(config, layout, resident.runtime.model_id)
        start = Session.begin(LedgerHeader(0, run_id, layout.hash), layout)
        instruction = instruction_with(
            run_id=run_id, layout_hash=layout.hash, start_digest=start.digest
        ).encode()
        with ThreadPoolExecutor(1, initializer=take_turns, initargs=(asked_first,)) as worker:
            return worker.submit(client.answer, train_task(instruction)).result(), answers

    plain, _ = report(tmp_path / "plain", False)
    disturbed, answers = report(tmp_path / "disturbed", True)
    assert len(answers) > 4
    assert plain == disturbed


def drive(steps: Any) -> Iterator[Any]:
    """Yield the values of a generator, and then its result."""
    yield (yield from steps)


def test_training_waits_for_questions_and_a_question_for_one_pass() -> None:
    turns, events, inside = Turns(), list[str](), threading.Event()
    proceed = threading.Event()

    def train() -> None:
        for number in range(2):
            with turns.training_pass(), turns.training_pass():
                events.append(f"pass {number}")
                inside.set()
                assert proceed.wait(60)

    training = threading.Thread(target=train)
    training.start()
    assert inside.wait(60)

    def question() -> None:
        with turns.question():
            events.append("question")

    asking = threading.Thread(target=question)
    asking.start()
    while not turns._questions:
        pass
    proceed.set()
    training.join()
    asking.join()
    assert events == ["pass 0", "question", "pass 1"]


def test_open_questions_take_steps_in_turn_and_too_many_are_refused() -> None:
    steps: list[tuple[str, int]] = []
    opened = threading.Barrier(MOST_QUESTIONS + 1)

    def question(name: str) -> Iterator[int]:
        for number in range(3):
            steps.append((name, number))
            yield number

    with ThreadPoolExecutor(1) as worker, ThreadPoolExecutor(MOST_QUESTIONS) as askers:
        runner = QuestionRunner(Turns(), worker)
        first = threading.Event()
        worker.submit(first.wait)

        def run(name: str) -> list[int]:
            parts = runner.run(question(name), lambda: True)
            opened.wait()
            return list(parts)

        # a generator begins at its first part, so that all begin behind the barrier
        answers = [askers.submit(run, str(index)) for index in range(MOST_QUESTIONS)]
        opened.wait()
        while runner._free._value:  # type: ignore[attr-defined]
            pass
        with pytest.raises(BusyError, match="ask again"):
            list(runner.run(question("late"), lambda: True))
        first.set()
        assert all(answer.result() == [0, 1, 2] for answer in answers)
        assert list(runner.run(question("after"), lambda: True)) == [0, 1, 2]
        assert list(runner.run(question("gone"), lambda: False)) == []
    assert [number for _, number in steps[: 2 * MOST_QUESTIONS]] == [0] * MOST_QUESTIONS + [
        1
    ] * MOST_QUESTIONS


def test_a_failing_step_is_raised_and_gives_the_turn_back() -> None:
    def question() -> Iterator[int]:
        yield 1
        raise QuestionError("no")

    turns = Turns()
    with ThreadPoolExecutor(1) as worker:
        parts = QuestionRunner(turns, worker).run(question(), lambda: True)
        assert next(parts) == 1
        with pytest.raises(QuestionError, match="no"):
            next(parts)
    with turns.training_pass():
        pass


def test_generated_text_is_that_of_the_library_and_the_adapter_changes_it(
    settings: Settings, server_config: RunConfig, short: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = settings["model.path"]
    network = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer("the film was")["input_ids"]]])
    expected = network.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)
    resident, socket = load_resident(settings, short), short / "t.sock"
    with trained(server_config, resident, socket):
        texts = {
            name: written(socket, prompt="the film was", model=name, max_tokens=12)
            for name in MODELS
        }
    runtime = resident.runtime
    text, parts = texts["base"]
    assert text.split() == tokenizer.decode(expected[0, ids.shape[1] :]).split()
    assert (parts[0].opening.prompt_tokens, parts[-1].ending.tokens) == (ids.shape[1], 12)
    assert parts[-1].ending.reason == "length"
    # the adapter of the personal model is active: its logits give the scores of the label words
    models = PersonalModels(resident).of()
    adapter = models.adapter("personal")
    prompt = runtime.tokenize(read_question({"text": TEXTS[0]}, runtime.task)[0])
    (logits,), _ = runtime.forward.next_logits(adapter, prompt.sequences)
    scores = runtime.forward.score_question(adapter, [prompt])[0]
    words = [tokens[0] for tokens in runtime.scorer.label_tokens]  # type: ignore[attr-defined]
    log_softmax = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    np.testing.assert_allclose(log_softmax[words], scores, rtol=1e-4, atol=1e-4)
    (base_logits,), _ = runtime.forward.next_logits(models.adapter("base"), prompt.sequences)
    assert not np.allclose(logits, base_logits)


def test_draws_repeat_with_their_seed_and_a_stop_text_ends_the_answer(
    settings: Settings, short: Path
) -> None:
    resident, socket = load_resident(settings, short), short / "t.sock"
    with serve_trainer(lambda: resident, socket):
        drawn = [
            written(socket, prompt="a day", temperature=1.0, seed=seed, max_tokens=20)[0]
            for seed in (1, 1, 2)
        ]
        stop = drawn[0].split()[3]
        stopped, parts = written(
            socket, prompt="a day", temperature=1.0, seed=1, max_tokens=20, stop=[stop]
        )
        whole, _ = written(
            socket, messages=[ChatMessage(role="user", content="a day")], max_tokens=4
        )
        completed, _ = written(socket, prompt="a day", max_tokens=4)
    assert drawn[0] == drawn[1] != drawn[2]
    assert stopped == drawn[0][: drawn[0].index(stop)]
    assert parts[-1].ending.reason == "stop"
    assert whole == completed  # without a chat template the contents are the prompt


def test_wrong_questions_are_refused(settings: Settings, short: Path) -> None:
    resident, socket = load_resident(settings, short), short / "t.sock"

    def classified(*texts: Any, models: Any = ("base",)) -> Any:
        return ask(socket, lambda model: model.classify(texts, models))

    with serve_trainer(lambda: resident, socket):
        for wrong, message in [
            (classified, "0 texts"),
            (lambda: classified(*["a"] * (MAX_TEXTS + 1)), "257 texts"),
            (lambda: classified("x" * (MAX_TEXT_BYTES + 1)), "at most 262144"),
            (lambda: classified(""), "the text is empty"),
            (lambda: classified({"colour": "red"}), "is missing"),
            (lambda: classified("a", models=("base", "base")), "named twice"),
            (
                lambda: written(socket, prompt="the " * 100),
                "does not fit the model's context of 64",
            ),
            (lambda: written(socket, prompt="a", max_tokens=64), "with an answer of 64"),
            (lambda: written(socket, prompt="a", temperature=3), "temperature is 3"),
            (lambda: written(socket, prompt="a", temperature=float("nan")), "temperature is nan"),
            (lambda: written(socket, prompt="a", top_p=-1), "top_p is -1"),
            (lambda: written(socket, prompt="a", stop=[""]), "stop texts"),
        ]:
            with pytest.raises(QuestionError, match=message):
                wrong()
        with pytest.raises(UnknownModelError, match="there is no model 'gpt'"):
            classified("a", models=("gpt",))
        assert classified("a").classifications


def test_a_readout_labels_texts_and_leaves_generated_ones_as_they_are(
    settings: Settings, server_config: RunConfig, short: Path
) -> None:
    resident, socket = load_resident(settings, short), short / "t.sock"
    config = config_of(
        server_config.flat(), adapter__layers="readout", method="readout", adapter__label_bias=True
    )
    with trained(config, resident, socket):
        reply = ask(socket, lambda model: model.classify(TEXTS, MODELS))
        base, _ = written(socket, prompt="the film", model="base", max_tokens=6)
        text, parts = written(socket, prompt="the film", model="personal", max_tokens=6)
    assert text == base
    assert "only the scores of labels" in parts[0].opening.note
    runtime = resident.runtime
    model = ClientModel.read(short, resident.config, 7)
    examples = [read_question({"text": text}, runtime.task)[0] for text in TEXTS]
    prompts = [runtime.tokenize(example) for example in examples]
    assert model.private is not None
    expected = runtime.scores(model.session.state + model.private, prompts)
    given = [one.scores[2].scores for one in reply.classifications]
    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)
    passes = runtime.passes
    ask_again = list(drive(classify(PersonalModels(resident).of(), TEXTS, MODELS)))
    assert ask_again
    assert runtime.passes == passes


def test_a_streamed_model_answers_and_an_encoder_writes_nothing(
    settings: Settings, model_folder: Callable[[str], Path], short: Path
) -> None:
    plain = load_resident(settings, short / "p")
    streamed = load_resident(settings, short / "s", "model.stream=host")
    answers = []
    for index, resident in enumerate((plain, streamed)):
        socket = short / f"{index}.sock"
        with serve_trainer(lambda resident=resident: resident, socket):  # type: ignore[misc]
            reply = ask(socket, lambda model: model.classify(TEXTS, ["base"]))
            text, _ = written(socket, prompt="the film", max_tokens=4)
            answers.append(([list(c.scores[0].scores) for c in reply.classifications], text))
    np.testing.assert_allclose(answers[0][0], answers[1][0], rtol=1e-5)
    assert answers[0][1] == answers[1][1]
    encoder = load_resident(settings | {"model.path": str(model_folder("encoder"))}, short / "e")
    with (
        serve_trainer(lambda: encoder, short / "e.sock"),
        pytest.raises(QuestionError, match="is a sentence encoder, which cannot continue a text"),
    ):
        written(short / "e.sock", prompt="a")


def test_a_missing_trainer_is_named(short: Path) -> None:
    with pytest.raises(TrainerError, match="no trainer answers"):
        ask(short / "none.sock", lambda model: model.describe())
    assert issubclass(TrainerError, SamaraError)


def test_a_prompt_is_read_and_ended_as_the_task_of_the_run_has_it(
    settings: Settings, short: Path
) -> None:
    """Messages are answered as prompts of the task; a bare prompt is continued as it is."""
    rows = [{"prompt": f"the {w}", "response": "was good", "user": "a"} for w in "abcdefghij"]
    file = short / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = short / "replies.toml"
    task.write_text(
        'kind = "generation"\nname = "replies"\ntext = "{prompt}\\n{answer}\\n"\n'
        'label = "response"\ntokens = 8\n'
    )
    own = settings | {"data.path": str(file), "task": str(task)}
    resident, socket = load_resident(own, short), short / "t.sock"
    runtime = resident.runtime
    with serve_trainer(lambda: resident, socket):
        asked = [ChatMessage(role="user", content="the film was")]
        text, parts = written(socket, messages=asked, model="base", max_tokens=4)
        raw, raw_parts = written(socket, prompt="the film was\n", model="base", max_tokens=4)
    example = read_prompt({"prompt": "the film was"}, runtime.task)  # type: ignore[arg-type]
    tokens = runtime.tokenize(example).sequences[0]
    assert parts[0].opening.prompt_tokens == len(tokens) == raw_parts[0].opening.prompt_tokens
    assert text == raw  # no answer of a random model ends before its fourth token
    assert example.text == "the film was\n"
