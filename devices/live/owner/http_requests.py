"""Validation of the request bodies of `samara client serve`.

Requests for generated text have the form of OpenAI's chat completions and completions. An
unsupported parameter is refused, unless its value leaves the answer unchanged. Unknown fields are
refused too.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Never, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from samara.client.questions.question_limits import (
    MAX_STOPS,
    MAX_TEMPERATURE,
    MAX_TEXTS,
    MODELS,
    PERSONAL,
)
from samara.shared.errors import QuestionError, UnknownModelError
from samara.shared.proto.trainer_pb2 import ChatMessage, GenerateRequest
from samara.shared.tasks.label_values import value_text

MAX_BODY_BYTES = 2**20
"""Size limit of a request body in bytes."""
_MAX_MISTAKES = 5
"""Maximum number of validation errors that a message lists."""
_MAX_MESSAGES = 256
_COMPLETION_TOKENS = 16
"""Default token limit of a completion, as documented by OpenAI."""
_UNCHANGING: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "suffix": ("",),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "response_format": ({"type": "text"},),
    "store": (False,),
}
"""Unsupported OpenAI parameters, with the values that leave the answer unchanged.

The value null also leaves the answer unchanged.
"""

Body = TypeVar("Body", bound="_Body")


def _one_text(value: object) -> object:
    """Unwrap a list that holds one text."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _joined_parts(value: object) -> object:
    """Join the parts of a message, if all of them are texts."""
    parts = value if isinstance(value, list) else []
    texts = [
        part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        for part in parts
    ]
    if not texts or not all(isinstance(text, str) for text in texts):
        return value
    return "\n".join(map(str, texts))


def _label_text(value: object) -> object:
    """Return a number or truth value as the text that it has as a label in the data."""
    return value_text(value) if isinstance(value, bool | int | float) else value


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class _Question(_Body):
    model: str = PERSONAL


class ClassifyBody(_Question):
    """The body of ``POST /classify``: one text, or several.

    Attributes:
        text: one text; if the task reads several fields, a row as a mapping.
        texts: several texts or rows.
        model: name of the model that classifies.
    """

    text: str | dict[str, str] | None = None
    texts: Annotated[list[str | dict[str, str]], Field(max_length=MAX_TEXTS)] | None = None

    def questions(self) -> list[str | Mapping[str, str]]:
        """Return the texts to classify.

        Raises:
            QuestionError: unless exactly one of `text` and `texts` is given.
        """
        if (self.text is None) == (self.texts is None):
            raise QuestionError("give exactly one of text and texts")
        if self.texts is None:
            assert self.text is not None
            return [self.text]
        if not self.texts:
            raise QuestionError("texts is empty")
        return list(self.texts)


class FeedbackBody(_Body):
    """The body of ``POST /feedback``: a correction, which becomes an example.

    Attributes:
        text: one text; if the task reads several fields, a row as a mapping.
        label: the correct label: a value in the data, as text or as a number, or a label word.
    """

    text: str | dict[str, str]
    label: Annotated[str, BeforeValidator(_label_text)]


class _StreamOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    include_usage: bool = False
    include_obfuscation: bool = False


class _GenerateBody(_Question):
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    user: str | None = None

    @property
    def includes_usage(self) -> bool:
        """Return whether a stream ends with the token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    def _request(self, run: str, max_tokens: int | None, **prompt: Any) -> GenerateRequest:
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return GenerateRequest(
            model=self.model,
            run=run,
            max_tokens=max_tokens or 0,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=None if self.seed is None else self.seed % 2**64,
            stop=[text for text in stop if text],
            **prompt,
        )


class CompletionBody(_GenerateBody):
    """The body of ``POST /v1/completions``."""

    prompt: Annotated[str, BeforeValidator(_one_text)]

    def request(self, run: str) -> GenerateRequest:
        """Return the request to a run's model."""
        return self._request(run, self.max_tokens or _COMPLETION_TOKENS, prompt=self.prompt)


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_joined_parts)]
    name: str | None = None


class ChatBody(_GenerateBody):
    """The body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[_Message], Field(min_length=1, max_length=_MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None

    def request(self, run: str) -> GenerateRequest:
        """Return the request to a run's model; a developer message becomes a system message."""
        messages = [
            ChatMessage(role="system" if m.role == "developer" else m.role, content=m.content)
            for m in self.messages
        ]
        return self._request(run, self.max_completion_tokens or self.max_tokens, messages=messages)


def parse_body(kind: type[Body], body: bytes) -> Body:
    """Parse and validate the body of a request.

    Args:
        kind: type of the body.
        body: JSON in UTF-8.

    Raises:
        QuestionError: if the body is invalid. The message names the mistakes and quotes no value.
        UnknownModelError: if the body names an unknown model.
    """
    content = _read_object(body)
    if issubclass(kind, _GenerateBody):
        content = _without_unchanging(content)
    try:
        parsed = kind.model_validate(content)
    except ValidationError as error:
        raise QuestionError(_describe(error)) from None
    if isinstance(parsed, _Question) and parsed.model not in MODELS:
        raise UnknownModelError(f"there is no model of this name; use one of {', '.join(MODELS)}")
    return parsed


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        text = body.decode()
        content = json.loads(text, parse_constant=_refuse_constant)
        json.dumps(content, ensure_ascii=False).encode()  # rejects an unpaired surrogate
    except (ValueError, RecursionError):
        raise QuestionError("the body is not readable JSON in UTF-8") from None
    if not isinstance(content, dict):
        raise QuestionError("the body is not a JSON object")
    return content


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"{name} is not JSON")


def _without_unchanging(content: dict[str, Any]) -> dict[str, Any]:
    """Remove unsupported parameters whose value leaves the answer unchanged.

    Raises:
        QuestionError: if an unsupported parameter has any other value.
    """
    kept = {}
    for name, value in content.items():
        if name not in _UNCHANGING:
            kept[name] = value
        elif value is not None and not any(
            (type(value) is type(plain) and value == plain)
            or (isinstance(value, int | float) and not isinstance(value, bool) and value == plain)
            for plain in _UNCHANGING[name]
        ):
            raise QuestionError(f"{name}: these models do not offer this parameter; leave it out")
    return kept


def _describe(error: ValidationError) -> str:
    mistakes = error.errors(include_url=False, include_input=False, include_context=False)
    lines = dict.fromkeys(
        f"{'.'.join(str(part) for part in mistake['loc'])[:80]}: {mistake['msg']}"
        for mistake in mistakes
    )
    more = f"; and {len(lines) - _MAX_MISTAKES} more mistakes" if len(lines) > _MAX_MISTAKES else ""
    return "; ".join(list(lines)[:_MAX_MISTAKES]) + more
