"""Chats: the last message is the answer, in the format of the model's chat template."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from samara.client.forward.body import PerturbedBody
from samara.shared.errors import DataError, ModelError
from samara.shared.model.loading import BaseModel, load_base_model
from samara.shared.model.scorers import GenerationScorer, scorer_for
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.chats import read_chat
from samara.shared.tasks.data import load_examples
from samara.shared.tasks.kinds import GenerationTask

CHAT = load_task("chat").model_copy(update={"tokens": 8})
TEMPLATE = (
    "<s>{% for m in messages %}the {{ m['role'] }} was {{ m['content'] }} .\n{% endfor %}"
    "{% if add_generation_prompt %}the assistant was {% endif %}"
)
MESSAGES = [
    {"role": "user", "content": "good film"},
    {"role": "assistant", "content": "warm day"},
    {"role": "user", "content": "bad meal"},
    {"role": "assistant", "content": "very good"},
]


def scorer_of(base: BaseModel) -> GenerationScorer:
    with torch.inference_mode():
        made = scorer_for(base, CHAT, 64, PerturbedBody(base, 0))
    assert isinstance(made, GenerationScorer)
    return made


@pytest.fixture
def base(model_folder: Callable[[str], Path]) -> BaseModel:
    loaded = load_base_model(str(model_folder("causal")))
    loaded.tokenizer.chat_template = TEMPLATE
    return loaded


def test_a_chat_becomes_the_tokens_of_the_models_template(tmp_path: Path, base: BaseModel) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps({"messages": MESSAGES, "user": "ann"}) + "\n")
    (example,) = load_examples(str(file), CHAT, 0)
    assert (example.user, example.answers) == ("ann", ("very good",))
    assert json.loads(example.text) == MESSAGES[:-1]
    prompt = scorer_of(base).prompt(example.text, example.answers)
    whole = base.tokenizer.apply_chat_template(MESSAGES, tokenize=False)
    ids = base.tokenizer(whole.rstrip("\n"), add_special_tokens=False)["input_ids"]
    assert (*prompt.sequences[0], prompt.targets[0][-1]) == tuple(ids)
    assert base.tokenizer.decode(prompt.targets[0]) == "very good ."


def test_a_model_without_a_template_is_refused(model_folder: Callable[[str], Path]) -> None:
    base = load_base_model(str(model_folder("causal")))
    with pytest.raises(ModelError, match="has no chat template; choose a model for chats"):
        scorer_of(base)


def test_a_template_that_puts_the_answer_elsewhere_is_refused(base: BaseModel) -> None:
    base.tokenizer.chat_template = "{{ messages[-1]['content'] }} a"
    with pytest.raises(ModelError, match="directly after the generation prompt"):
        scorer_of(base)


def test_messages_that_a_template_refuses_are_named(base: BaseModel) -> None:
    base.tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        + TEMPLATE
    )
    refused = json.dumps([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}])
    with pytest.raises(
        ModelError, match=r"refuses messages with the roles system, user \(no system\)"
    ):
        scorer_of(base).prompt(refused, ("good",))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "not a list of two"),
        (MESSAGES[:1], "not a list of two"),
        (MESSAGES[:3], "the last message of 'messages' has the role user"),
        ([MESSAGES[0], {"role": "bot", "content": "a"}], "message 2 of 'messages' needs a role"),
        ([{"role": "user"}, MESSAGES[1]], "message 1"),
        ([{"role": "user", "content": " "}, MESSAGES[1]], "message 1"),
        (["hello", MESSAGES[1]], "message 1"),
        ([MESSAGES[0], {"role": ["x"], "content": "a"}], "message 2"),
    ],
)
def test_a_row_that_is_no_chat_is_named_by_its_line(
    tmp_path: Path, value: object, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_chat(value, "messages")
    file = tmp_path / "chats.jsonl"
    rows = [{"messages": MESSAGES}, {"messages": value}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"chats.jsonl:2: "):
        load_examples(str(file), CHAT, 0)


def test_tasks_without_chats_keep_their_digests() -> None:
    content = {"kind": "generation", "name": "x", "text": "{q} {answer}", "label": "a"}
    plain = GenerationTask.model_validate(content)
    assert plain.digest == GenerationTask.model_validate(content | {"chat": False}).digest
    assert plain.digest != GenerationTask.model_validate(content | {"chat": True}).digest
