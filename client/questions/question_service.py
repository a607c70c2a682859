"""The gRPC service for questions to a device's models, described in trainer.proto."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import grpc

from samara.client.questions.personal_model import (
    Classified,
    PersonalModels,
    RunModels,
    classify,
    continue_prompt,
    label_names,
)
from samara.client.questions.question_limits import (
    MAX_STOP_BYTES,
    MAX_STOPS,
    MAX_TEMPERATURE,
    MAX_TEXT_BYTES,
    MAX_TEXTS,
    MODELS,
    PERSONAL,
)
from samara.client.questions.question_runner import QuestionRunner
from samara.client.training.text_generation import Sampling
from samara.shared.errors import (
    BusyError,
    DataError,
    QuestionError,
    SamaraError,
    TaskError,
    UnknownModelError,
)
from samara.shared.proto.trainer_pb2 import (
    Classification,
    ClassifyReply,
    ClassifyRequest,
    DescribeReply,
    DescribeRequest,
    GenerateEnding,
    GenerateOpening,
    GeneratePart,
    GenerateRequest,
    Question,
    RunState,
    Scores,
)
from samara.shared.proto.trainer_pb2_grpc import PersonalModelServicer

Part = TypeVar("Part")
_Text = str | Mapping[str, str]


class QuestionService(PersonalModelServicer):  # type: ignore[misc]
    """A gRPC service that answers questions with a resident trainer's models.

    Args:
        models: the models.
        runner: runner of the questions.
    """

    def __init__(self, models: PersonalModels, runner: QuestionRunner) -> None:
        self._models, self._runner = models, runner

    def Describe(self, request: DescribeRequest, context: Any) -> DescribeReply:  # noqa: N802
        """Return the models that can answer questions."""

        def steps() -> Iterator[DescribeReply]:
            yield _description(self._models.of(request.run))

        *_, description = self._answer(steps, context)
        return description

    def Classify(self, request: ClassifyRequest, context: Any) -> ClassifyReply:  # noqa: N802
        """Return the labels of texts with their probabilities under each requested model."""

        def steps() -> Iterator[ClassifyReply | None]:
            questions, names = _questions(request), _model_names(request.models)
            models = self._models.of(request.run)
            results = yield from classify(models, questions, names)
            yield ClassifyReply(
                state=_state(models), classifications=[_classification(r) for r in results]
            )

        *_, reply = self._answer(steps, context)
        assert reply is not None
        return reply

    def Generate(  # noqa: N802
        self, request: GenerateRequest, context: Any
    ) -> Iterator[GeneratePart]:
        """Yield the opening of an answer, its text piece by piece, and its ending."""

        def steps() -> Iterator[GeneratePart]:
            sampling, messages = _sampling(request), _messages(request)
            models = self._models.of(request.run)
            name = request.model or PERSONAL
            prompted = continue_prompt(models, name, request.prompt, messages, sampling)
            opening = GenerateOpening(
                state=_state(models), prompt_tokens=prompted.tokens, note=prompted.note
            )
            yield GeneratePart(opening=opening)
            while True:
                try:
                    yield GeneratePart(text=next(prompted.text))
                except StopIteration as end:
                    ending = GenerateEnding(reason=end.value.reason, tokens=end.value.tokens)
                    yield GeneratePart(ending=ending)
                    return

        for part in self._answer(steps, context):
            if part.WhichOneof("content") != "text" or part.text:
                yield part

    def _answer(self, steps: Callable[[], Iterator[Part]], context: Any) -> Iterator[Part]:
        """Yield the results of a question's steps. An error ends the call with its gRPC status."""
        try:
            yield from self._runner.run(steps(), context.is_active)
        except SamaraError as error:
            context.abort(_status(error), str(error))


def _status(error: SamaraError) -> grpc.StatusCode:
    if isinstance(error, BusyError):
        return grpc.StatusCode.RESOURCE_EXHAUSTED
    if isinstance(error, UnknownModelError):
        return grpc.StatusCode.NOT_FOUND
    if isinstance(error, QuestionError | DataError | TaskError):
        return grpc.StatusCode.INVALID_ARGUMENT
    return grpc.StatusCode.FAILED_PRECONDITION


def _questions(request: ClassifyRequest) -> list[_Text]:
    """Return the texts of a request.

    Raises:
        QuestionError: if there are no texts or too many, or a text is too long.
    """
    questions = request.questions
    if not 0 < len(questions) <= MAX_TEXTS:
        raise QuestionError(f"the request has {len(questions)} texts; give 1 to {MAX_TEXTS} texts")
    return [_question(question) for question in questions]


def _question(question: Question) -> _Text:
    fields = dict(question.fields)
    size = len(question.text.encode()) + sum(
        len(name.encode()) + len(value.encode()) for name, value in fields.items()
    )
    if size > MAX_TEXT_BYTES:
        raise QuestionError(f"a text has {size} bytes; give at most {MAX_TEXT_BYTES} bytes")
    if fields and question.text:
        raise QuestionError("a question has both a text and fields; give only one of the two")
    return fields or question.text


def _model_names(names: Sequence[str]) -> list[str]:
    """Return the names of the models to ask.

    Raises:
        UnknownModelError: if a name is unknown.
        QuestionError: if a model is named twice.
    """
    for name in names:
        if name not in MODELS:
            raise UnknownModelError(f"there is no model {name!r}; ask one of {', '.join(MODELS)}")
    if len(set(names)) < len(names):
        raise QuestionError("a model is named twice; name each model once")
    return list(names) or [PERSONAL]


def _messages(request: GenerateRequest) -> list[dict[str, str]]:
    """Return the messages of a request.

    Raises:
        QuestionError: if the request has both a prompt and messages, or the text is too long.
    """
    messages = [{"role": m.role, "content": m.content} for m in request.messages]
    if messages and request.prompt:
        raise QuestionError("a question has a prompt and messages; give only one of the two")
    texts = [request.prompt, *(text for message in messages for text in message.values())]
    size = sum(len(text.encode()) for text in texts)
    if size > MAX_TEXT_BYTES:
        raise QuestionError(f"the prompt has {size} bytes; give at most {MAX_TEXT_BYTES} bytes")
    return messages


def _sampling(request: GenerateRequest) -> Sampling:
    """Return the sampling options that a request asks for.

    Raises:
        QuestionError: if a value is out of range.
    """
    temperature, top_p, stop = request.temperature, request.top_p or 1.0, tuple(request.stop)
    if not 0 <= temperature <= MAX_TEMPERATURE:  # also refuses NaN
        raise QuestionError(
            f"temperature is {temperature:g}; give a value from 0 to {MAX_TEMPERATURE:g}"
        )
    if not (math.isfinite(top_p) and 0 < top_p <= 1):
        raise QuestionError(f"top_p is {top_p:g}; give a value above 0 and up to 1")
    too_long = any(not text or len(text.encode()) > MAX_STOP_BYTES for text in stop)
    if len(stop) > MAX_STOPS or too_long:
        raise QuestionError(
            f"give at most {MAX_STOPS} stop texts, each of 1 to {MAX_STOP_BYTES} bytes"
        )
    seed = request.seed if request.HasField("seed") else None
    return Sampling(request.max_tokens, temperature, top_p, seed, stop)


def _state(models: RunModels) -> RunState:
    return RunState(run=models.run, round=models.round, has_private_part=models.has_private_part)


def _description(models: RunModels) -> DescribeReply:
    base, task = models.runtime.base, models.runtime.task
    return DescribeReply(
        state=_state(models),
        task=task.name,
        kind=task.kind,
        fields=task.fields,
        labels=label_names(models),
        generates=base.family == "causal",
        base_model=base.folder.name,
        context=min(base.context, 2**32 - 1),
    )


def _classification(result: Classified) -> Classification:
    return Classification(
        labels=result.labels,
        values=result.values,
        scores=[
            Scores(
                model=name,
                scores=scores.tolist(),
                probabilities=result.probabilities[name].tolist(),
                label=int(scores.argmax()),
            )
            for name, scores in result.scores.items()
        ],
    )
