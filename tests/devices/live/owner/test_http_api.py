"""The HTTP API of `samara client serve`, with made-up models."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import httpx
import pytest

from samara.client.questions.question_limits import MODELS
from samara.client.training.own_examples import OwnExample
from samara.devices.live.owner.http_api import HttpApi
from samara.devices.live.owner.http_requests import MAX_BODY_BYTES, FeedbackBody
from samara.shared.errors import BusyError, DataError, QuestionError, SamaraError, TrainerError
from samara.shared.proto.trainer_pb2 import (
    Classification,
    ClassifyReply,
    DescribeReply,
    GenerateEnding,
    GenerateOpening,
    GeneratePart,
    GenerateRequest,
    RunState,
    Scores,
)

STATE = RunState(run="0123456789abcdef", round=7, has_private_part=True)
TOKEN = "a-token-of-some-length"
POSTS = ("/classify", "/v1/chat/completions", "/v1/completions")


class MadeUp:
    """Models that label every text as great, and repeat the prompt."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.error: SamaraError | None = None
        self.error_between: SamaraError | None = None
        self.closed = 0

    def learn(self, correction: FeedbackBody) -> OwnExample:
        self._fail()
        if correction.label not in ("great", "1"):
            raise DataError("label is unknown")
        self.requests.append(correction)
        return OwnExample("0123456789ab", 5.0, {"text": correction.text})

    async def describe(self, run: str = "") -> DescribeReply:
        self._fail()
        return DescribeReply(state=STATE)

    async def classify(
        self, questions: Sequence[str | Mapping[str, str]], models: Sequence[str], run: str = ""
    ) -> ClassifyReply:
        self._fail()
        self.requests.append((list(questions), list(models), run))
        one = Classification(
            labels=["terrible", "great"],
            values=["0", "1"],
            scores=[Scores(model=models[0], scores=[0, 1], probabilities=[0.25, 0.75], label=1)],
        )
        return ClassifyReply(state=STATE, classifications=[one] * len(questions))

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GeneratePart, None]:
        self._fail()
        self.requests.append(request)
        try:
            opening = GenerateOpening(state=STATE, prompt_tokens=3, note="")
            yield GeneratePart(opening=opening)
            yield GeneratePart(text="so ")
            if self.error_between:
                raise self.error_between
            yield GeneratePart(text="be it")
            yield GeneratePart(ending=GenerateEnding(reason="stop", tokens=2))
        finally:
            self.closed += 1

    def _fail(self) -> None:
        if self.error:
            raise self.error


@pytest.fixture
def models() -> MadeUp:
    return MadeUp()


class Client:
    """Sends requests to the application, without a network."""

    def __init__(self, app: Any, base: str) -> None:
        self._app, self._base = app, base

    def request(self, method: str, path: str, **content: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=self._base) as client:
                return await client.request(method, path, **content)

        return asyncio.run(send())

    def get(self, path: str, **content: Any) -> httpx.Response:
        return self.request("GET", path, **content)

    def post(self, path: str, **content: Any) -> httpx.Response:
        return self.request("POST", path, **content)


def client_of(models: MadeUp, base: str = "http://127.0.0.1:8420", **options: Any) -> Client:
    return Client(HttpApi(models, models.learn).app(**options), base)


@pytest.fixture
def client(models: MadeUp) -> Client:
    return client_of(models)


def body_for(path: str, **more: Any) -> dict[str, Any]:
    bodies: dict[str, dict[str, Any]] = {
        "/classify": {"text": "a day"},
        "/feedback": {"text": "a day", "label": "great"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
        "/v1/completions": {"prompt": "once"},
    }
    return bodies[path] | more


def events_of(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return list(map(json.loads, lines[:-1]))


def test_a_correction_becomes_an_example(client: Client, models: MadeUp) -> None:
    reply = client.post("/feedback", json={"text": "a day", "label": "great"})
    assert (reply.status_code, reply.json()) == (201, {"id": "0123456789ab"})
    row = {"sentence1": "a", "sentence2": "b"}
    assert client.post("/feedback", json={"text": row, "label": "great"}).status_code == 201
    assert client.post("/feedback", json={"text": "a day", "label": 1}).status_code == 201
    assert models.requests == [
        FeedbackBody(text="a day", label="great"),
        FeedbackBody(text=row, label="great"),
        FeedbackBody(text="a day", label="1"),
    ]
    wrong: list[dict[str, Any]] = [
        {"text": "a day"},
        {"text": "a day", "label": ["great"]},
        {"text": "a day", "label": "dull"},
        {"text": ["a day"], "label": "great"},
        {"text": "a day", "label": "great", "id": "0123456789ab"},
    ]
    for body in wrong:
        reply = client.post("/feedback", json=body)
        assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")
    assert len(models.requests) == 3
    models.error = TrainerError("the disk is full")
    assert client.post("/feedback", json=body_for("/feedback")).status_code == 503


def test_a_text_is_classified(client: Client, models: MadeUp) -> None:
    reply = client.post("/classify", json={"text": "a day"})
    assert reply.status_code == 200
    assert reply.json() == {
        "model": "personal",
        "run": STATE.run,
        "round": 7,
        "has_private_part": True,
        "results": [
            {
                "label": "great",
                "value": "1",
                "probability": 0.75,
                "labels": [
                    {"label": "terrible", "value": "0", "probability": 0.25},
                    {"label": "great", "value": "1", "probability": 0.75},
                ],
            }
        ],
    }
    assert models.requests == [(["a day"], ["personal"], "")]


def test_several_texts_and_rows_of_fields_are_classified(client: Client, models: MadeUp) -> None:
    texts = ["one", {"premise": "a", "hypothesis": "b"}]
    reply = client.post("/classify", json={"texts": texts, "model": "base"})
    assert len(reply.json()["results"]) == 2
    assert models.requests == [(texts, ["base"], "")]


def test_a_chat_is_answered_as_openai_documents_it(client: Client, models: MadeUp) -> None:
    reply = client.post(
        "/v1/chat/completions",
        json={
            "model": "global",
            "messages": [
                {"role": "developer", "content": "be short"},
                {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            ],
            "max_completion_tokens": 5,
            "temperature": 0,
            "seed": -1,
            "stop": "\n",
            "n": 1,
            "logprobs": None,
            "presence_penalty": 0.0,
        },
    )
    answer = reply.json()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    [choice] = answer["choices"]
    assert choice["message"]["content"] == "so be it"
    assert choice["finish_reason"] == "stop"
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    [request] = models.requests
    assert [(m.role, m.content) for m in request.messages] == [
        ("system", "be short"),
        ("user", "hello"),
    ]
    assert (request.model, request.max_tokens, request.temperature) == ("global", 5, 0)
    assert (request.seed, list(request.stop), request.top_p) == (2**64 - 1, ["\n"], 1)
    assert models.closed == 1


def test_a_completion_has_openais_defaults(client: Client, models: MadeUp) -> None:
    answer = client.post("/v1/completions", json={"prompt": ["once"]}).json()
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"] == "so be it"
    [request] = models.requests
    assert (request.prompt, request.max_tokens, request.temperature) == ("once", 16, 1)
    assert not request.HasField("seed")


@pytest.mark.parametrize("path", POSTS[1:])
def test_an_answer_is_streamed(client: Client, path: str) -> None:
    body = body_for(path, stream=True, stream_options={"include_usage": True})
    reply = client.post(path, json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    *parts, last = events_of(reply.text)
    if "chat" in path:
        assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": "so "}
        texts = [part["choices"][0]["delta"].get("content", "") for part in parts]
    else:
        texts = [part["choices"][0]["text"] for part in parts]
    assert "".join(texts) == "so be it"
    assert [part["choices"][0]["finish_reason"] for part in parts] == [None, None, "stop"]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2
    assert len({part["id"] for part in parts}) == 1


def test_an_error_in_a_stream_is_its_last_event(client: Client, models: MadeUp) -> None:
    models.error_between = TrainerError("the trainer ended")
    reply = client.post("/v1/completions", json={"prompt": "x", "stream": True})
    assert reply.status_code == 200
    *_, last = [line for line in reply.text.split("\n\n") if line]
    assert json.loads(last.removeprefix("data: "))["error"]["message"] == "the trainer ended"
    assert models.closed == 1


def test_the_models_are_listed(client: Client) -> None:
    listed = client.get("/v1/models").json()
    assert [one["id"] for one in listed["data"]] == list(MODELS)
    assert client.get("/v1/models/base").json()["object"] == "model"
    assert client.get("/v1/models/gpt").status_code == 404
    assert client.get("/healthz").json()["status"] == "ok"


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (QuestionError("too long"), 400, "invalid_request_error"),
        (BusyError("busy"), 429, "rate_limit_error"),
        (TrainerError("gone"), 503, "server_error"),
    ],
)
def test_what_the_trainer_refuses_has_a_status(
    client: Client, models: MadeUp, path: str, error: SamaraError, status: int, kind: str
) -> None:
    models.error = error
    for more in ({}, {"stream": True} if path != "/classify" else {}):
        reply = client.post(path, json=body_for(path, **more))
        assert reply.status_code == status
        assert reply.json()["error"]["type"] == kind
        assert reply.json()["error"]["message"] == str(error)
        assert ("retry-after" in reply.headers) == (status in (429, 503))


@pytest.mark.parametrize("path", [*POSTS, "/feedback"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"{}",
        b'{"text": 1}',
        b'{"text": "a", "texts": ["b"]}',
        b'{"texts": []}',
        b'{"prompt": ["a", "b"]}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"messages": []}',
        b'{"messages": [{"role": "tool", "content": "x"}]}',
        b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}',
        b'{"text": "a", "prompt": "a", "messages": [], "surprise": 1}',
        b'{"text": "\\ud800", "prompt": "\\ud800"}',
        b"\xff\xfe",
        b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"n": ' + b"9" * 5_000 + b"}",
    ],
)
def test_wrong_bodies_are_refused_in_openais_form(
    client: Client, models: MadeUp, path: str, content: bytes
) -> None:
    reply = client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert reply.status_code == 400
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    assert not models.requests


@pytest.mark.parametrize(
    "more",
    [
        {"n": 2},
        {"logprobs": True},
        {"presence_penalty": 0.5},
        {"logit_bias": {"50256": -100}},
        {"tools": [{"type": "function"}]},
        {"response_format": {"type": "json_object"}},
        {"max_tokens": 0},
        {"max_tokens": 1.5},
        {"max_tokens": True},
        {"temperature": 2.5},
        {"temperature": "0"},
        {"top_p": 0},
        {"seed": 2**63},
        {"stop": ["x"] * 17},
        {"stream": "yes"},
        {"stream_options": {"surprise": True}},
        {"surprise": None},
    ],
)
def test_parameters_that_would_change_the_answer_and_are_not_offered_are_refused(
    client: Client, models: MadeUp, more: dict[str, Any]
) -> None:
    for path in POSTS[1:]:
        reply = client.post(path, json=body_for(path, **more))
        assert reply.status_code == 400, reply.text
        assert next(iter(more)) in reply.json()["error"]["message"]
    assert not models.requests


def test_an_unknown_model_is_not_found(client: Client) -> None:
    for path in POSTS:
        reply = client.post(path, json=body_for(path, model="gpt-4"))
        assert reply.status_code == 404
        assert reply.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded"])
def test_bodies_of_other_types_are_refused(client: Client, models: MadeUp, kind: str) -> None:
    reply = client.post("/classify", content=b'{"text": "a"}', headers={"Content-Type": kind})
    assert reply.status_code == 415
    assert not models.requests


def test_large_bodies_are_refused_with_and_without_a_length(client: Client) -> None:
    large = b'{"text": "' + b"x" * MAX_BODY_BYTES + b'"}'
    headers = {"Content-Type": "application/json"}
    assert client.post("/classify", content=large, headers=headers).status_code == 413

    async def parts() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(large), 65_536):
            yield large[start : start + 65_536]

    assert client.post("/classify", content=parts(), headers=headers).status_code == 413
    claimed = headers | {"Content-Length": "9" * 30}
    assert client.post("/classify", content=b"{}", headers=claimed).status_code == 413


def test_other_paths_and_methods_are_refused(client: Client) -> None:
    unknown = client.get("/")
    assert unknown.status_code == 404
    assert "use one of /healthz, /classify, /feedback" in unknown.json()["error"]["message"]
    assert client.get("/classify").status_code == 405
    assert client.request("DELETE", "/v1/models").status_code == 405
    assert "error" in client.get("/etc/passwd").json()


def test_pages_in_a_browser_may_not_ask(models: MadeUp) -> None:
    assert client_of(models, "http://evil.example").get("/healthz").status_code == 403
    assert client_of(models, "http://127.0.0.1.evil.example").get("/healthz").status_code == 403
    client = client_of(models, "http://localhost:8420")
    assert client.get("/healthz").status_code == 200
    assert client_of(models, "http://[::1]:8420").get("/healthz").status_code == 200
    for origin in ("https://evil.example", "null", "http://["):
        assert client.get("/healthz", headers={"Origin": origin}).status_code == 403
    assert client.get("/healthz", headers={"Origin": "http://localhost:3000"}).status_code == 200
    reply = client.request(
        "OPTIONS", "/classify", headers={"Access-Control-Request-Method": "POST"}
    )
    assert reply.status_code == 405
    assert "access-control-allow-origin" not in reply.headers
    assert client_of(models, "http://kitchen.lan", checks_host=False).get("/healthz").is_success


def test_a_token_is_asked_for(models: MadeUp) -> None:
    client = client_of(models, token=TOKEN)
    wrong = ["", "Bearer", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer käse"]
    for header in wrong:
        given = {"Authorization": header.encode()} if header else {}
        reply = client.post("/classify", json={"text": "a"}, headers=given)
        assert reply.status_code == 401
        assert reply.headers["www-authenticate"] == "Bearer"
    assert client.get("/v1/models").status_code == 401
    assert client.get("/healthz").status_code == 200
    right = {"Authorization": f"Bearer {TOKEN}"}
    assert client.post("/classify", json={"text": "a"}, headers=right).status_code == 200


def test_a_defect_is_no_traceback(models: MadeUp) -> None:
    models.error = RuntimeError("secret")  # type: ignore[assignment]
    reply = client_of(models).post("/classify", json={"text": "a"})
    assert reply.status_code == 500
    assert "secret" not in reply.text
    assert reply.json()["error"]["type"] == "server_error"
