"""A client's own examples in context, beside training, and the tasks after LaMP."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Settings, config_of, loaded

from samara.client.personal.own_demonstrations import OwnDemonstrations, own_demonstrations
from samara.client.training.client_data import ClientData
from samara.client.training.model_runtime import LoadedRun
from samara.shared.protocol.frames.instructions import Split
from samara.shared.results.result import RunResult
from samara.shared.tasks.chats import read_chat
from samara.shared.tasks.kinds import GenerationTask
from samara.shared.tasks.rows import Example
from samara.simulations.comparison.columns import client_columns
from samara.simulations.comparison.comparison import compare_runs
from samara.simulations.comparison.tables import csv_of
from samara.simulations.experiments.passage_writer import write_missing_passages
from samara.simulations.report.html import page_of
from samara.simulations.simulate import simulate
from samara.simulations.writing.passages import read_passages

THINGS, WORDS = ("film", "day", "meal", "walk"), ("good", "bad", "warm", "awful", "kind")


def rows_of(task: str) -> list[dict[str, Any]]:
    made = []
    for i in range(60):
        thing, word = THINGS[i % 4], WORDS[i // 4 % 5]
        said, own = f"the {thing} was {word}", f"very {word} {'!' if i % 3 else '.'}"
        made.append(
            {
                "rating": {"text": said, "label": 1 + i % 5},
                "title": {"text": said, "title": own},
                "paraphrase": {"plain": said, "own": own},
                "responses": {"prompt": said, "response": own},
            }[task]
            | {"user": f"u{i % 3}"}
        )
    return made


@pytest.fixture
def own(settings: Settings, tmp_path: Path) -> Callable[[str], Settings]:
    """The settings of three users of a task, with short answers in the model's vocabulary."""

    def made(task: str) -> Settings:
        file = tmp_path / f"{task}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows_of(task)))
        shipped = resources.files("samara.shared.tasks") / "prompts" / f"{task}.toml"
        text = re.sub(r"\ntokens = .*", "\ntokens = 6", shipped.read_text())
        text = re.sub(r"\nwords = .*", f"\nwords = {json.dumps(WORDS)}", text)
        (tmp_path / f"{task}.toml").write_text(text)
        return settings | {
            "task": str(tmp_path / f"{task}.toml"),
            "data.path": str(file),
            "data.partition": "user",
            "rounds": 1,
            "personal.rounds": 1,
            "adapter.layers": "top:2",
            "evaluate.retrieved": 2,
        }

    return made


def demonstrations_of(run: LoadedRun, examples: list[Example], count: int) -> OwnDemonstrations:
    data = ClientData(0, examples, run.runtime.tokenize)
    made = own_demonstrations(run.runtime.task, data, run.runtime.tokenize, count)
    assert made is not None
    return made


def examples_with(texts: list[str]) -> list[Example]:
    return [Example(f"{text} ", 0, "", "train", (f"a {text.split()[-1]}",)) for text in texts]


def test_the_most_similar_examples_precede_a_prompt_the_nearest_last(
    own: Callable[[str], Settings],
) -> None:
    run = loaded(own("responses"))
    examples = examples_with(["the film was good", "the meal was cold", "a walk", "film good day"])
    asked = Example("film good ", 0, "", "test", ("kind",))
    found = demonstrations_of(run, examples, 2).before(asked)
    # each ends as answers do
    assert found.text == "the film was good a good\n\n\nfilm good day a day\n\n\nfilm good "
    assert found.answers == asked.answers
    prompt, plain = run.runtime.tokenize(found), run.runtime.tokenize(asked)
    assert prompt.targets == plain.targets
    assert len(prompt.sequences[0]) > len(plain.sequences[0])


def test_only_whole_examples_that_fit_are_read(own: Callable[[str], Settings]) -> None:
    settings = own("responses") | {"model.max-length": 32}
    task = load_short(settings)
    run = loaded(settings, task=task)
    examples = examples_with(["film " * 12 + "good", "film " * 10 + "bad"])
    asked = Example("film ", 0, "", "test", ("kind",))
    found = demonstrations_of(run, examples, 2).before(asked)
    assert "bad" in found.text or "good" in found.text
    assert found.text.count("\n\n") == 1
    long = replace(asked, text="film " * 40)
    assert demonstrations_of(run, examples, 2).before(long) == long
    assert demonstrations_of(run, [], 2).before(asked) == asked


def load_short(settings: Settings) -> str:
    file = Path(settings["data.path"]).parent / "short.toml"
    file.write_text(
        'kind = "generation"\nname = "short"\ntext = "{prompt} {answer}"\nlabel = "response"\n'
        "tokens = 4\n"
    )
    return str(file)


def test_in_a_chat_examples_are_earlier_turns(own: Callable[[str], Settings]) -> None:
    run = loaded(own("responses"))
    chat = GenerationTask(kind="generation", name="c", text="{m}{answer}", label="m", chat=True)

    def example(asked: str, answer: str) -> Example:
        turns = [("system", "be kind"), ("user", asked), ("assistant", answer)]
        text, right = read_chat([{"role": r, "content": c} for r, c in turns], "m")
        return Example(text, 0, "", "train", (right,))

    data = ClientData(0, [example("the film", "good")], run.runtime.tokenize)
    made = OwnDemonstrations(chat, data, run.runtime.tokenize, 1)
    turns = json.loads(made._joined([example("the film", "good")], example("a day", "x").text))
    assert [(turn["role"], turn["content"]) for turn in turns] == [
        ("system", "be kind"),
        ("user", "the film"),
        ("assistant", "good"),
        ("user", "a day"),
    ]


def test_a_run_compares_training_with_own_examples_in_context(
    own: Callable[[str], Settings],
) -> None:
    settings = own("title")
    folder = simulate(config_of(settings, evaluate__passages=1))
    columns = client_columns(RunResult.read(folder))
    assert list(columns) == ["zero-shot", "icl-personal", "local-only", "global", "personalized"]
    runtime, source = loaded(settings)
    data = source.share_of(0, 3)
    made = own_demonstrations(runtime.task, data, runtime.tokenize, 2)
    assert made is not None
    prompts = [runtime.tokenize(made.before(one)) for one in data.in_split(Split.TEST)]
    tokens = data.tokenized(Split.TEST).token_counts
    means = runtime.base_scores(prompts)[:, 0]
    assert columns["icl-personal"][0].loss == pytest.approx(
        -float(np.sum(means * tokens) / tokens.sum()), abs=1e-5
    )
    assert columns["icl-personal"][0].loss != columns["zero-shot"][0].loss
    write_missing_passages(folder)
    for one in read_passages(folder):
        assert ("icl-personal" in one.greedy) is (one.split == "test")
    comparison = compare_runs([folder])
    assert "icl-personal" in csv_of(comparison)
    assert "icl-personal" in page_of(comparison)


@pytest.mark.parametrize("task", ["rating", "paraphrase"])
def test_the_tasks_after_lamp_are_trained(own: Callable[[str], Settings], task: str) -> None:
    result = RunResult.read(simulate(config_of(own(task))))
    columns = client_columns(result)
    assert ("icl-personal" in columns) is (task != "rating")
    assert len(columns["personalized"]) == 3
