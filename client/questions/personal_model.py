"""The models of a run that answer an owner's questions: base, global and personal model.

The personal model is the global model of the run's latest round with the client's private part
(`samara.client.personal.methods`). Without a private part it equals the global model. Without a run
it equals the base model. The models differ only in the adapter's weights, so a question loads no
model.
"""

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from samara.client.forward.setup import EVALUATION_MICRO_BATCH
from samara.client.personal.methods import composition
from samara.client.personal.own_words import OWN_WORDS_FILE, OwnWords
from samara.client.protocol.joined_runs import find_run_folder
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.questions.client_model import ClientModel
from samara.client.questions.model_in_use import find_run_in_use
from samara.client.questions.question_limits import BASE, GLOBAL, MAX_CONTEXT, MODELS, PERSONAL
from samara.client.training.model_runtime import ModelRuntime
from samara.client.training.text_generation import Ending, Sampling, generate
from samara.shared.errors import (
    DataError,
    ModelError,
    QuestionError,
    TaskError,
    TrainerError,
    UnknownModelError,
)
from samara.shared.model.perturbations import Perturbations
from samara.shared.tasks.kinds import ClassificationTask, GenerationTask
from samara.shared.tasks.rows import Example, read_prompt, read_question

_CUT = (
    "the prompt is longer than this run allows (model.max-length minus the answer's tokens); a "
    "part of the prompt, usually the beginning, was left out"
)


@dataclass(frozen=True, eq=False)
class RunModels:
    """A snapshot of the models of a run.

    Attributes:
        runtime: model runtime under the settings of the run.
        run: run id in hex; empty for a device that has not taken part in any run.
        round: last round of the global model.
        has_private_part: whether there is a private part.
        states: state of each model, int64 [d]; None is the base model alone.
        own_words: own words that are mixed into the personal model; None without any.
    """

    runtime: ModelRuntime
    run: str
    round: int
    has_private_part: bool
    states: Mapping[str, NDArray[np.int64] | None]
    own_words: OwnWords | None = None

    def adapter(self, model: str) -> Perturbations:
        """Return the adapter weights of one model.

        Args:
            model: ``base``, ``global`` or ``personal``.

        Raises:
            UnknownModelError: if there is no such model.
        """
        if model not in self.states:
            raise UnknownModelError(f"there is no model {model!r}; ask one of {', '.join(MODELS)}")
        return self.runtime.perturbation(self.states[model])


class Classified(NamedTuple):
    """The classification of one text by one or several models.

    Attributes:
        labels: labels that were compared.
        values: values of the labels in the data.
        scores: scores by model, float32 [labels].
        probabilities: softmax of the scores by model, float64 [labels].
    """

    labels: tuple[str, ...]
    values: tuple[str, ...]
    scores: dict[str, NDArray[np.float32]]
    probabilities: dict[str, NDArray[np.float64]]


class Prompted(NamedTuple):
    """A tokenized prompt, and a generator that continues it.

    Attributes:
        tokens: tokens of the prompt.
        note: remark for the owner about the answer; usually empty.
        text: generator of the answer, piece by piece.
    """

    tokens: int
    note: str
    text: Generator[str, None, Ending]


class PersonalModels:
    """The models of a resident trainer's runs, which answer questions between passes of training.

    Args:
        resident: the resident trainer.
    """

    def __init__(self, resident: ResidentTrainer) -> None:
        self._resident = resident
        self._key: object = None
        self._models: RunModels | None = None

    def of(self, run: str = "") -> RunModels:
        """Return the models of a run, and read the run's files again if they have changed.

        Args:
            run: first digits of a run id, in hexadecimal; empty for the run in use among the runs
                with the loaded base model.

        Raises:
            UnknownModelError: if no run or several runs match.
            SamaraError: if the files of the run cannot be used.
        """
        folder = self._find_run(run)
        if folder is None:
            return RunModels(self._resident.runtime, "", 0, False, dict.fromkeys(MODELS))
        key = folder, id(self._resident.runtime), _versions(folder)
        if self._models is None or key != self._key:
            self._models, self._key = self._read(folder.name), key
        return self._models

    def _find_run(self, run: str) -> Path | None:
        """Return the folder of the named run, or of the run in use.

        Without a name, the result is None if no run has a state yet.
        """
        try:
            if run:
                folder = find_run_folder(self._resident.folder, run.lower())
            else:
                folder = find_run_in_use(self._resident.folder, self._resident.runtime.model_id)
        except TrainerError as error:
            if run:
                raise UnknownModelError(str(error)) from error
            return None
        return folder if run or (folder / "session").exists() else None

    def _read(self, run: str) -> RunModels:
        resident = self._resident
        model = ClientModel.read(resident.folder, resident.config, resident.client, run)
        runtime = resident.runtime_of(model.run)
        parts, session = composition(model.config.terms, runtime.layout), model.session
        w = parts.model(session.state)
        personal = parts.model(session.state, model.private)
        states = {BASE: None, GLOBAL: w, PERSONAL: personal}
        has_private_part = model.private is not None
        return RunModels(
            runtime, run, session.position.round, has_private_part, states, model.own_words
        )


def classify(
    models: RunModels, questions: Sequence[str | Mapping[str, str]], names: Sequence[str]
) -> Generator[None, None, list[Classified]]:
    """Classify texts with several models, one forward pass after another.

    Args:
        models: models of a run.
        questions: texts, or rows by field if the task reads several fields.
        names: names of the models.

    Yields:
        None, between forward passes.

    Returns:
        The classification of each question.

    Raises:
        SamaraError: if a question lacks a field that the task reads, or there is no such model.
    """
    runtime, task = models.runtime, models.runtime.task
    rows = [
        read_question(_row(models, question, number), task)
        for number, question in enumerate(questions, 1)
    ]
    prompts = [runtime.tokenize(example) for example, _ in rows]
    values = tuple(entry[0] for entry in task.labels)  # type: ignore[union-attr]
    results = [Classified(labels, values, {}, {}) for _, labels in rows]
    size = 1 if runtime.config.memory_budget else EVALUATION_MICRO_BATCH
    for name in names:
        adapter = models.adapter(name)
        for start in range(0, len(prompts), size):
            scores = runtime.forward.score_question(adapter, prompts[start : start + size])
            for result, row in zip(results[start : start + size], scores, strict=True):
                result.scores[name] = row
                result.probabilities[name] = softmax(row.astype(np.float64))
            yield
    return results


def continue_prompt(
    models: RunModels,
    name: str,
    prompt: str,
    messages: Sequence[Mapping[str, str]],
    sampling: Sampling,
) -> Prompted:
    """Prepare the continuation of a prompt or a conversation.

    Args:
        models: models of a run.
        name: name of the model.
        prompt: text to continue; ignored if there are messages.
        messages: messages of a conversation, each with ``role`` and ``content``. If the run's task
            generates answers, they are put into the task's format.
        sampling: sampling options and end of the text. If `max_tokens` is 0, the model's context is
            the limit.

    Raises:
        UnknownModelError: if there is no such model.
        QuestionError: if the model cannot continue texts, or prompt and answer are too long for it.
    """
    runtime, base = models.runtime, models.runtime.base
    if base.family != "causal":
        kind = {"masked": "masked LM", "encoder": "sentence encoder"}[base.family]
        raise QuestionError(
            f"{base.folder.name} is a {kind}, which cannot continue a text; ask for a "
            "classification, or load a causal LM"
        )
    adapter, task, note = models.adapter(name), runtime.task, ""
    if messages and isinstance(task, GenerationTask) and not task.is_plain_text:
        tokens, is_cut = _tokens_of_task(models, task, messages)
        note = _CUT if is_cut else ""
        ends = runtime.tokenize.stop.strip(" ")
        sampling = replace(sampling, stop=(*sampling.stop, *filter(None, [ends])))
    else:
        with runtime.tokenize.lock:
            tokens = _prompt_tokens(base.tokenizer, prompt, messages)
    limit = min(base.context, MAX_CONTEXT)
    room = limit - len(tokens)
    if room < max(1, sampling.max_tokens):
        wanted = f" with an answer of {sampling.max_tokens}" if sampling.max_tokens else ""
        raise QuestionError(
            f"a prompt of {len(tokens)} tokens{wanted} does not fit the model's context of {limit} "
            "tokens; shorten the prompt"
        )
    chosen = replace(sampling, max_tokens=sampling.max_tokens or room)
    if name != BASE and not runtime.layout.adapter_element_count:
        note = (
            "this run trains a readout, which changes only the scores of labels; the base model "
            "wrote this text"
        )
    own = models.own_words if name == PERSONAL else None
    mix = None if own is None else own.mix_logits
    return Prompted(len(tokens), note, generate(runtime, adapter, tokens, chosen, mix))


def _tokens_of_task(
    models: RunModels, task: GenerationTask, messages: Sequence[Mapping[str, str]]
) -> tuple[list[int], bool]:
    """Return a prompt's tokens in the format of the run's task, and whether the prompt was cut.

    A prompt that is too long is cut in the same way as in training.

    Raises:
        QuestionError: if the task reads other fields, or the chat template refuses the messages.
    """
    try:
        if task.chat:
            example = Example(json.dumps([dict(message) for message in messages]), 0, "", "")
        else:
            text = "\n".join(message["content"] for message in messages)
            example = read_prompt(_row(models, _fields_of(task, text), 1), task)
        tokenize = models.runtime.tokenize
        return list(tokenize(example).sequences[0]), not tokenize.fits(example)
    except (DataError, ModelError, TaskError) as error:
        raise QuestionError(str(error)) from error


def _fields_of(task: GenerationTask, text: str) -> str | dict[str, str]:
    """Return the fields in a text that is a JSON object, if the task reads several fields.

    For other texts and tasks, return the text.
    """
    if len(task.fields) == 1:
        return text
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return row if isinstance(row, dict) else text


def _prompt_tokens(tokenizer: Any, prompt: str, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Return the tokens of a prompt or of messages, at least one token.

    The tokenizer's chat template formats messages. Without a template, their contents are joined by
    line breaks.

    Raises:
        QuestionError: if the template refuses the messages, or the prompt has no tokens.
    """
    begin = [token for token in (tokenizer.bos_token_id,) if token is not None]
    if messages and tokenizer.chat_template:
        try:
            prompt = tokenizer.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template may raise any error
            raise QuestionError(f"the model's chat template refuses these messages: {error}") from (
                error
            )
        return list(tokenizer(prompt, add_special_tokens=False)["input_ids"])
    if messages:
        prompt = "\n".join(message["content"] for message in messages)
    tokens = begin + list(tokenizer(prompt, add_special_tokens=False)["input_ids"])
    if not tokens:
        raise QuestionError(
            "the prompt is empty, and the model has no token that begins a text; write a prompt"
        )
    return tokens


def _row(models: RunModels, question: str | Mapping[str, str], number: int) -> Mapping[str, str]:
    """Return a question as a row of fields; for a task of plain texts the row is empty.

    Raises:
        QuestionError: if the question is a text and the task reads several fields.
    """
    if not isinstance(question, str):
        return question
    fields = models.runtime.task.fields
    if not fields:
        return {}
    if len(fields) > 1:
        raise QuestionError(
            f"text {number}: the task reads the fields {', '.join(fields)}; give them as a JSON "
            "object"
        )
    return {fields[0]: question}


def label_names(models: RunModels) -> tuple[str, ...]:
    """Return the labels that a classification compares, or () for other tasks."""
    task = models.runtime.task
    return tuple(w.strip() for w in task.words) if isinstance(task, ClassificationTask) else ()


def _versions(folder: Path) -> list[object]:
    """Return the versions of a run's files (session, personal ledger and own words)."""
    found: list[object] = []
    own = *folder.glob("clients/*/personal.ledger/*"), *folder.glob(f"clients/*/{OWN_WORDS_FILE}")
    for file in [folder / "session", *sorted(own)]:
        try:
            stat = file.stat()
        except OSError:
            continue
        found.append((str(file), stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return found
