"""The HTTP API of `samara client serve`: the device's models for other programs of its owner."""

import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from samara.client.questions.question_limits import MODELS
from samara.client.training.own_examples import OwnExample
from samara.devices.live.owner.http_body import read_body
from samara.devices.live.owner.http_requests import (
    ChatBody,
    ClassifyBody,
    CompletionBody,
    FeedbackBody,
    parse_body,
)
from samara.shared.errors import DataError, QuestionError, SamaraError, UnknownModelError
from samara.shared.network.http.guard import Guard, RequestError, error_body, error_response
from samara.shared.proto.trainer_pb2 import (
    Classification,
    ClassifyReply,
    DescribeReply,
    GenerateEnding,
    GenerateOpening,
    GeneratePart,
    GenerateRequest,
    RunState,
)

_STOPPED = "the connection of the asking program has ended"


class Models(Protocol):
    """Models that answer questions, such as a `RemoteModel`."""

    async def describe(self, run: str = "") -> DescribeReply: ...  # noqa: D102

    async def classify(  # noqa: D102
        self, questions: Sequence[str | Mapping[str, str]], models: Sequence[str], run: str = ""
    ) -> ClassifyReply: ...

    def generate(  # noqa: D102
        self, request: GenerateRequest
    ) -> AsyncGenerator[GeneratePart, None]: ...


@dataclass(frozen=True)
class _Form:
    """The response format: chat completion or text completion.

    Attributes:
        answer: object name of a complete response.
        part: object name of a streamed chunk.
        prefix: prefix of response ids.
        is_chat: whether a choice holds a message rather than a text.
    """

    answer: str
    part: str
    prefix: str
    is_chat: bool

    def whole(self, text: str, reason: str) -> dict[str, Any]:
        """Return the single choice of a complete response."""
        content: dict[str, Any] = {"text": text}
        if self.is_chat:
            content = {"message": {"role": "assistant", "content": text, "refusal": None}}
        return {"index": 0, **content, "logprobs": None, "finish_reason": reason}

    def piece(self, text: str, reason: str | None, is_first: bool) -> dict[str, Any]:
        """Return the single choice of a streamed chunk."""
        content: dict[str, Any] = {"text": text}
        if self.is_chat:
            delta = {"role": "assistant"} if is_first else {}
            content = {"delta": delta | ({"content": text} if text or is_first else {})}
        return {"index": 0, **content, "logprobs": None, "finish_reason": reason}


_CHAT = _Form("chat.completion", "chat.completion.chunk", "chatcmpl-", True)
_COMPLETION = _Form("text_completion", "text_completion", "cmpl-", False)


@dataclass(eq=False)
class _Answer:
    """An answer that is being generated.

    Attributes:
        parts: the generated parts.
        form: response format.
        model: name of the model.
        opening: facts about the answer that are known before its first text.
        head: fields that all chunks of the answer have.
    """

    parts: AsyncGenerator[GeneratePart, None]
    form: _Form
    model: str
    opening: GenerateOpening = field(default_factory=GenerateOpening)
    head: dict[str, Any] = field(default_factory=dict)

    async def begin(self) -> None:
        """Wait for the first generated part, so that an early error gets its own HTTP status."""
        self.opening = (await anext(self.parts)).opening
        self.head = {
            "id": self.form.prefix + uuid.uuid4().hex,
            "created": int(time.time()),
            "model": self.model,
            "samara": _state(self.opening.state) | {"note": self.opening.note},
        }

    def usage(self, ending: GenerateEnding) -> dict[str, int]:
        """Return the token counts."""
        prompt = self.opening.prompt_tokens
        answer = ending.tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
        }

    async def whole(self, request: Request) -> dict[str, Any]:
        """Return the answer as one object.

        Raises:
            RequestError: if the program that sent the request has disconnected.
        """
        texts = list[str]()
        ending = GenerateEnding()
        async with aclosing(self.parts):
            async for part in self.parts:
                texts.append(part.text)
                ending = part.ending
                if await request.is_disconnected():
                    raise RequestError(400, _STOPPED)
        choice = self.form.whole("".join(texts), ending.reason)
        return self.head | {
            "object": self.form.answer,
            "choices": [choice],
            "usage": self.usage(ending),
        }

    async def events(self, includes_usage: bool) -> AsyncIterator[str]:
        """Yield the answer as server-sent events."""
        head = self.head | {"object": self.form.part}
        is_first = True
        try:
            async with aclosing(self.parts):
                async for part in self.parts:
                    reason = part.ending.reason or None
                    choice = self.form.piece(part.text, reason, is_first)
                    usage = {"usage": None} if includes_usage else {}
                    yield _event(head | {"choices": [choice]} | usage)
                    is_first = False
                    if reason and includes_usage:
                        yield _event(head | {"choices": [], "usage": self.usage(part.ending)})
        except SamaraError as error:
            yield _event(json.loads(bytes(error_response(error).body)))
            return
        yield "data: [DONE]\n\n"


def _event(content: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


class HttpApi:
    """Answers the HTTP requests of `samara client serve`.

    Args:
        models: models that answer.
        learn: function that stores a correction on disk as an example of the client.
        run: first digits of the id of the run to ask; empty for the run in use.
    """

    def __init__(
        self, models: Models, learn: Callable[[FeedbackBody], OwnExample], run: str = ""
    ) -> None:
        self._models = models
        self._learn = learn
        self._run = run

    def app(self, token: str = "", checks_host: bool = True) -> ASGIApp:
        """Return the ASGI application.

        Args:
            token: token that requests must carry; empty requires none.
            checks_host: whether the Host header must name this machine.
        """
        routes = [
            Route("/healthz", self.health),
            Route("/classify", self.classify, methods=["POST"]),
            Route("/feedback", self.feedback, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.complete, methods=["POST"]),
            Route("/v1/models", self.list_models),
            Route("/v1/models/{name}", self.show_model),
        ]
        handlers: Any = {
            SamaraError: _refuse,
            RequestError: _refuse,
            HTTPException: _refuse_path,
            Exception: _fail,
        }
        app = Starlette(routes=routes, exception_handlers=handlers)
        return Guard(app, token, checks_host)

    async def health(self, request: Request) -> Response:
        """Answer ``GET /healthz``."""
        state = (await self._models.describe(self._run)).state
        return JSONResponse({"status": "ok"} | _state(state))

    async def list_models(self, request: Request) -> Response:
        """Answer ``GET /v1/models``."""
        return JSONResponse({"object": "list", "data": [_model(name) for name in MODELS]})

    async def show_model(self, request: Request) -> Response:
        """Answer ``GET /v1/models/NAME``."""
        name = request.path_params["name"]
        if name not in MODELS:
            raise UnknownModelError(
                f"there is no model of this name; use one of {', '.join(MODELS)}"
            )
        return JSONResponse(_model(name))

    async def classify(self, request: Request) -> Response:
        """Answer ``POST /classify``."""
        body = parse_body(ClassifyBody, await read_body(request))
        reply = await self._models.classify(body.questions(), [body.model], self._run)
        results = [_classification(one) for one in reply.classifications]
        return JSONResponse({"model": body.model} | _state(reply.state) | {"results": results})

    async def feedback(self, request: Request) -> Response:
        """Answer ``POST /feedback``; the correction is on disk before the reply is sent."""
        body = parse_body(FeedbackBody, await read_body(request))
        try:
            example = await run_in_threadpool(self._learn, body)
        except DataError as error:
            raise QuestionError(str(error)) from error
        return JSONResponse({"id": example.id}, 201)

    async def chat(self, request: Request) -> Response:
        """Answer ``POST /v1/chat/completions``."""
        body = parse_body(ChatBody, await read_body(request))
        return await self._generate(request, body, _CHAT)

    async def complete(self, request: Request) -> Response:
        """Answer ``POST /v1/completions``."""
        body = parse_body(CompletionBody, await read_body(request))
        return await self._generate(request, body, _COMPLETION)

    async def _generate(
        self, request: Request, body: ChatBody | CompletionBody, form: _Form
    ) -> Response:
        parts = self._models.generate(body.request(self._run))
        answer = _Answer(parts, form, body.model)
        await answer.begin()
        if not body.stream:
            return JSONResponse(await answer.whole(request))
        return StreamingResponse(answer.events(body.includes_usage), media_type="text/event-stream")


def _classification(one: Classification) -> dict[str, Any]:
    scores = one.scores[0]
    rows = [
        {"label": label, "value": value, "probability": probability}
        for label, value, probability in zip(
            one.labels, one.values, scores.probabilities, strict=True
        )
    ]
    chosen: dict[str, Any] = rows[scores.label]
    return chosen | {"labels": rows}


def _state(state: RunState) -> dict[str, Any]:
    return {
        "run": state.run or None,
        "round": state.round,
        "has_private_part": state.has_private_part,
    }


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "samara"}


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, SamaraError | RequestError)
    return error_response(error)


async def _refuse_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = ", ".join(route.path for route in request.app.routes)
    reasons = {404: f"there is no such path; use one of {known}"}
    reason = reasons.get(error.status_code, error.detail)
    return JSONResponse(error_body(error.status_code, reason), error.status_code, error.headers)


async def _fail(request: Request, error: Exception) -> Response:
    return JSONResponse(error_body(500, "the server failed; its log contains the reason"), 500)
