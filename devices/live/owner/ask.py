"""Questions from the command line, answered with label probabilities or generated text."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from samara.client.questions.question_limits import MAX_TEXTS, MODELS, PERSONAL
from samara.client.trainer.remote_model import RemoteModel
from samara.shared.errors import QuestionError
from samara.shared.proto.trainer_pb2 import (
    ChatMessage,
    Classification,
    DescribeReply,
    GenerateRequest,
    RunState,
    Scores,
)


@dataclass(frozen=True)
class Reply:
    """The models' replies to one text.

    Attributes:
        text: the question.
        by_model: content of the reply by model name: label, value, probability and labels for a
            classification, or text and reason for a generated text.
    """

    text: str
    by_model: Mapping[str, Mapping[str, Any]]

    def lines(self) -> dict[str, str]:
        """Return each model's reply as one line, by model name."""
        return {model: _line(content) for model, content in self.by_model.items()}


@dataclass(frozen=True)
class Choice:
    """Sampling options for generated text, as in `GenerateRequest`.

    Attributes:
        max_tokens: maximum number of tokens; 0 means as many as fit.
        temperature: sampling temperature; 0 means the likeliest token.
        top_p: share of the probability mass that tokens are drawn from.
        seed: seed of the draws; None draws differently each time.
        stop: texts that end the answer.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


def ask(
    socket: Path,
    texts: Iterable[str],
    show: Callable[[Reply], None],
    *,
    compare: bool = False,
    run: str = "",
    generate: bool = False,
    choice: Choice | None = None,
) -> str:
    """Ask this device's models about texts, and show each reply as soon as it arrives.

    Args:
        socket: path of the trainer's socket.
        texts: the texts; if the task reads several fields, each text is a JSON object.
        show: function that shows a reply.
        compare: whether to ask all models; otherwise only the personal model is asked.
        run: first digits of a run id; empty for the run whose model is in use.
        generate: whether to continue the texts as they are, even if the task classifies texts or
            answers them with its own prompt.
        choice: sampling options for generated text.

    Returns:
        A sentence about the models that this device has.

    Raises:
        SamaraError: if a question cannot be answered, or the trainer cannot be reached.
    """
    names = MODELS if compare else (PERSONAL,)

    async def ask_all() -> str:
        async with RemoteModel(socket) as model:
            what = await model.describe(run)
            if generate or what.kind == "generation":
                answers = what.kind == "generation" and bool(what.fields) and not generate
                replies = _generate(model, texts, names, run, choice or Choice(), answers)
            else:
                replies = _classify(model, texts, names, run, what)
            async for reply in replies:
                show(reply)
            return describe_state(what.state)

    return asyncio.run(ask_all())


def describe_state(state: RunState) -> str:
    """Return a sentence about the models that this device has."""
    if not state.run:
        return "this device has not taken part in a run yet; all its models are the base model"
    where = f"run {state.run}, round {state.round}"
    if state.has_private_part:
        return where
    return f"{where}; there is no private part yet, so the personal model is the global model"


async def _classify(
    model: RemoteModel, texts: Iterable[str], names: Sequence[str], run: str, what: DescribeReply
) -> AsyncIterator[Reply]:
    for some in _batches(texts):
        questions = [_question(text, what) for text in some]
        reply = await model.classify(questions, names, run)
        for text, one in zip(some, reply.classifications, strict=True):
            yield Reply(text, {scores.model: _labels(one, scores) for scores in one.scores})


async def _generate(
    model: RemoteModel,
    texts: Iterable[str],
    names: Sequence[str],
    run: str,
    choice: Choice,
    answers: bool,
) -> AsyncIterator[Reply]:
    for text in texts:
        asked: dict[str, Any] = {"prompt": text}
        if answers:  # the trainer builds the task's prompt
            asked = {"messages": [ChatMessage(role="user", content=text)]}
        by_model = {}
        for name in names:
            request = GenerateRequest(
                **asked,
                model=name,
                run=run,
                max_tokens=choice.max_tokens,
                temperature=choice.temperature,
                top_p=choice.top_p,
                seed=choice.seed,
                stop=choice.stop,
            )
            parts = [part async for part in model.generate(request)]
            written = "".join(part.text for part in parts)
            by_model[name] = {
                "text": written,
                "reason": parts[-1].ending.reason,
                "note": parts[0].opening.note,
            }
        yield Reply(text, by_model)


def _question(text: str, what: DescribeReply) -> str | dict[str, str]:
    """Return the text itself; if the task reads several fields, return the fields of a row.

    Raises:
        QuestionError: if the task reads several fields and the text is not a JSON object of
            strings.
    """
    if len(what.fields) == 1:
        return text
    fields = ", ".join(what.fields)
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict) or not all(isinstance(value, str) for value in row.values()):
        raise QuestionError(
            f"task {what.task} reads the fields {fields}; give a JSON object with a text for each "
            f"field"
        )
    return row


def _labels(one: Classification, scores: Scores) -> dict[str, Any]:
    chosen = scores.label
    return {
        "label": one.labels[chosen],
        "value": one.values[chosen],
        "probability": scores.probabilities[chosen],
        "labels": dict(zip(one.labels, scores.probabilities, strict=True)),
    }


def _line(content: Mapping[str, Any]) -> str:
    if "labels" not in content:
        return str(content["text"]).strip()
    others = [
        f"{label} {probability:.3f}"
        for label, probability in content["labels"].items()
        if label != content["label"]
    ]
    return f"{content['label']} {content['probability']:.3f}  ({', '.join(others)})"


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(texts)
    while some := list(islice(remaining, MAX_TEXTS)):
        yield some
