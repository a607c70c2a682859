"""A causal LM gets labels and candidates in a plain prompt, or in its own chat template."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import WORDS
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from samara.client.forward.body import PerturbedBody
from samara.shared.errors import ModelError, TaskError
from samara.shared.model.loading import BaseModel, load_base_model
from samara.shared.model.prompt_frame import (
    PromptFrame,
    first_tokens,
    frame_of,
    split_question,
)
from samara.shared.model.scorers import Scorer, scorer_for
from samara.shared.settings.sections import EMBEDDED_MODEL
from samara.shared.tasks.kinds import ChoiceTask, ClassificationTask, Form, Task

TEMPLATE = (
    "<s>{% for m in messages %}the {{ m['role'] }} was {{ m['content'] | trim }} .\n{% endfor %}"
    "{% if add_generation_prompt %}the assistant was {% endif %}"
)
FILMS = ClassificationTask(
    name="films",
    text="{text}",
    question=" it was {word} .",
    words=("bad", "very good"),
    labels=(("0",), ("1",)),
)
THINGS = ChoiceTask(
    kind="choice",
    name="things",
    text="the {text} was {candidate}",
    candidates=("{one}", "{other}"),
)


@pytest.fixture
def base(model_folder: Callable[[str], Path]) -> BaseModel:
    loaded = load_base_model(str(model_folder("causal")))
    loaded.tokenizer.chat_template = TEMPLATE
    return loaded


def asked(base: BaseModel, task: ClassificationTask | ChoiceTask, form: Form) -> Scorer:
    own: Task = task.model_copy(update={"form": form})
    with torch.no_grad():
        return scorer_for(base, own, 40, PerturbedBody(base, 0))


def chat_ids(base: BaseModel, message: str, answer: str) -> list[int]:
    """The tokens of a chat from the tokenizer itself."""
    chat = [{"role": "user", "content": message}]
    text = base.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    ids: list[int] = base.tokenizer(text + answer, add_special_tokens=False)["input_ids"]
    return ids


def mean_log_likelihood(base: BaseModel, ids: list[int], count: int) -> float:
    """The mean log-likelihood of the last tokens, by the simplest use of transformers."""
    with torch.no_grad():
        likely = base.network(torch.tensor([ids])).logits[0].log_softmax(-1)
    places = range(len(ids) - count, len(ids))
    return float(np.mean([likely[place - 1, ids[place]].item() for place in places]))


def scores_of(base: BaseModel, scorer: Scorer, text: str, answers: tuple[str, ...]) -> list[float]:
    prompt = scorer.prompt(text, answers)
    lengths = torch.tensor([len(ids) for ids in prompt.sequences])
    with torch.no_grad():
        hidden = PerturbedBody(base, 0)(prompt.sequences)
        found: list[float] = scorer.scores(hidden, lengths, [prompt])[0, 0].tolist()
    return found


def test_a_label_ends_the_answer_to_a_text_in_the_models_template(base: BaseModel) -> None:
    scorer = asked(base, FILMS, "chat")
    wanted = [
        mean_log_likelihood(base, chat_ids(base, "a warm film", f"it was {word}"), count)
        for word, count in (("bad", 1), ("very good", 2))
    ]
    assert scores_of(base, scorer, " a warm film ", ()) == pytest.approx(wanted, abs=1e-5)


def test_a_question_of_whole_sentences_is_in_the_message(base: BaseModel) -> None:
    task = FILMS.model_copy(update={"question": " was it good or bad ?\n{word}"})
    scorer = asked(base, task, "chat")
    wanted = [
        mean_log_likelihood(base, chat_ids(base, "a film was it good or bad ?", word), count)
        for word, count in (("bad", 1), ("very good", 2))
    ]
    assert scores_of(base, scorer, "a film", ()) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("question", "asked", "begun"),
    [
        (" It was ", "", "It was "),
        (" Yes or No?\n", " Yes or No?", ""),
        ("\nWas it good? Yes. The answer is: ", "\nWas it good? Yes.", "The answer is: "),
        ("\nLabel: ", "", "Label: "),
        ("好吗？答案是", "好吗？", "答案是"),
        (" 3.5 of 10 is ", "", "3.5 of 10 is "),
        ("", "", ""),
    ],
)
def test_the_sentence_that_a_word_completes_begins_the_answer(
    question: str, asked: str, begun: str
) -> None:
    assert split_question(question) == (asked, begun)


def test_a_candidate_is_the_answer_to_the_text_before_it(base: BaseModel) -> None:
    scorer = asked(base, THINGS, "chat")
    wanted = [
        mean_log_likelihood(base, chat_ids(base, "the film was", answer), count)
        for answer, count in (("very good", 2), ("bad", 1))
    ]
    found = scores_of(base, scorer, "the film was ", ("very good", "bad"))
    assert found == pytest.approx(wanted, abs=1e-5)


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=60))
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_of_a_long_chat_the_text_alone_is_cut(base: BaseModel, words: list[str]) -> None:
    scorer = asked(base, FILMS, "chat")
    (sequence, *_) = scorer.prompt(" ".join(words)).sequences
    whole = chat_ids(base, " ".join(words), "it was")
    before, behind = chat_ids(base, "", "")[:4], base.token_ids(".\nthe assistant was it was")
    assert len(sequence) <= 40
    assert list(sequence[:4]) == before
    assert sequence[-len(behind) :] == behind
    assert list(sequence) == whole or len(whole) > 38  # with the longer word's two tokens


@pytest.mark.parametrize("task", [FILMS, THINGS])
def test_a_plain_text_begins_as_the_tokenizer_begins_one(
    base: BaseModel, task: ClassificationTask | ChoiceTask
) -> None:
    bos = base.tokenizer.bos_token_id
    answers = ("bad", "very good") if task is THINGS else ()
    earlier = asked(base, task, "auto").prompt("a film ", answers).sequences
    plain = asked(base, task, "plain").prompt("a film ", answers).sequences
    assert [ids[0] for ids in earlier] == [bos] * len(earlier)
    assert [(bos, *ids) for ids in plain] == list(earlier)


def test_a_tokenizer_that_adds_a_token_keeps_it() -> None:
    embedded = load_base_model(EMBEDDED_MODEL)
    assert first_tokens(embedded, "plain") == (embedded.tokenizer.bos_token_id,)
    assert first_tokens(embedded, "plain") == first_tokens(embedded, "auto")


def test_the_form_is_part_of_a_tasks_digest_once_it_is_given() -> None:
    before_there_were_forms = "4c561f3a75033f5b"
    forms: tuple[Form, ...] = ("auto", "plain", "chat")
    digests = [FILMS.model_copy(update={"form": form}).digest for form in forms]
    assert len(set(digests)) == 3
    assert digests[0].startswith(before_there_were_forms)


def test_a_model_without_a_template_and_one_that_does_not_answer_are_refused(
    base: BaseModel, model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    base.tokenizer.chat_template = None
    with pytest.raises(ModelError, match="has no chat template"):
        asked(base, FILMS, "chat")
    base.tokenizer.chat_template = "the assistant was "
    with pytest.raises(ModelError):
        frame_of(base, FILMS.model_copy(update={"form": "chat"}))
    folder = shutil.copytree(model_folder("masked"), tmp_path / "masked")
    with pytest.raises(
        TaskError, match=r"has the form of a chat, but .* is not a causal LM; set `form`"
    ):
        asked(load_base_model(str(folder)), FILMS, "chat")


ODD_TEXTS = ("", " ", "\n", "  a", "a", "!", ".\n", "1", "'s", "r b", "é", "好", "\u200b", "\x1f")


@given(st.sampled_from(ODD_TEXTS) | st.text(max_size=8))
@settings(max_examples=60, deadline=None)
def test_every_prompt_of_a_chat_begins_with_the_prefix(text: str) -> None:
    scorer = asked(embedded_chat(), FILMS, "chat")
    assert scorer.prefix == scorer.base.token_ids("<s>")
    assert scorer.prompt(text).sequences[0][: len(scorer.prefix)] == scorer.prefix


@cache
def embedded_chat() -> BaseModel:
    embedded = load_base_model(EMBEDDED_MODEL)
    embedded.tokenizer.chat_template = TEMPLATE
    return embedded


def test_tokens_that_a_text_can_merge_with_are_not_in_the_prefix(base: BaseModel) -> None:
    vocabulary = {token: i for i, token in enumerate(["[UNK]", "<u>", "u", ":", "a", ":a"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [(":", "a")], unk_token="[UNK]"))
    tokenizer.add_special_tokens(["[UNK]", "<u>"])
    merging = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
    frame = PromptFrame((), "u<u>xu:", "u", is_chat=True)
    joined = replace(base, tokenizer=merging)
    (u, special, unknown, _, colon), prefix = joined.token_ids(frame.before), frame.prefix(joined)
    assert prefix == (u, special)
    assert frame.ids(joined, "a", 9, None)[:5] == (u, special, unknown, u, vocabulary[":a"])
    assert frame.ids(joined, "", 9, None)[:5] == (u, special, unknown, u, colon)
    assert replace(frame, is_chat=False).prefix(joined) == ()
