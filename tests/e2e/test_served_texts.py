"""`samara client serve` and `ask` in separate processes, for a client that trains on texts."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import httpx
import pytest
from live import QUIET
from transformers import AutoTokenizer

from benchmarks.serving import serving, write_client
from samara.devices.live.settings import resolve_device_settings

pytestmark = pytest.mark.slow
TEMPLATE = (
    "<s>{% for m in messages %}the {{ m['role'] }} was {{ m['content'] }} .\n{% endfor %}"
    "{% if add_generation_prompt %}the assistant was {% endif %}"
)
ASKED: dict[str, Any] = {"max_tokens": 4, "temperature": 0, "model": "base"}
QUESTION = [{"role": "user", "content": "good film"}]


@contextmanager
def served(
    place: Path, model: Path, task: str, rows: list[dict[str, Any]]
) -> Iterator[tuple[Path, httpx.Client]]:
    """Serve a client with a task and its rows; yield its folder and an HTTP client."""
    data, log = place / "rows.jsonl", place / "log"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = resolve_device_settings(str(model), str(data), task, "cpu", ["threads=1"])
    home = write_client(place / "a", own).folder
    with (
        serving(home, "--port", "0", log=log) as (_, address),
        httpx.Client(base_url=address, timeout=120) as client,
    ):
        yield home, client
    assert "Traceback" not in log.read_text()


def ask(home: Path, *arguments: str) -> dict[str, Any]:
    """Return each model's answer, by the model's name."""
    command = [sys.executable, "-m", "samara", "client", "ask", "--home", str(home), "--json"]
    told = subprocess.run(
        [*command, "--max-tokens", "4", *arguments],
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    answers: dict[str, Any] = json.loads(told.stdout)["models"]
    return answers


def streamed(client: httpx.Client, path: str, **body: Any) -> list[dict[str, Any]]:
    """Return the events of a stream, which must end like OpenAI's streams."""
    answer = client.post(path, json=body | {"stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def refusal(client: httpx.Client, path: str, **body: Any) -> tuple[int, str]:
    """Return the status and the message of a refusal."""
    answer = client.post(path, **body)
    return answer.status_code, answer.json()["error"]["message"]


def test_a_client_that_trains_on_chats_answers_them(
    model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """HTTP, streams and `ask` give the same answer, by the model's chat template."""
    place = tmp_path_factory.mktemp("c")  # short: sockets lie in it
    model = shutil.copytree(model_folder("causal"), place / "model")
    (model / "chat_template.jinja").write_text(TEMPLATE)
    words = ("good", "bad", "warm", "awful")
    rows = [
        {"messages": [*QUESTION, {"role": "assistant", "content": f"very {words[i % 4]} {i}"}]}
        for i in range(12)
    ]
    chat = "/v1/chat/completions"
    shipped = resources.files("samara.shared.tasks") / "prompts" / "chat.toml"
    task = place / "short.toml"
    task.write_text(shipped.read_text().replace("tokens = 64", "tokens = 8"))
    with served(place, model, str(task), rows) as (home, client):
        answer = client.post(chat, json=ASKED | {"messages": QUESTION}).json()
        text = answer["choices"][0]["message"]["content"]
        prompt = "the user was good film .\nthe assistant was "
        tokens = AutoTokenizer.from_pretrained(model)(prompt, add_special_tokens=False).input_ids
        assert answer["usage"]["prompt_tokens"] == len(tokens) + 1  # behind the beginning's
        plain = client.post("/v1/completions", json=ASKED | {"prompt": prompt}).json()
        assert plain["choices"][0]["text"] == text
        events = streamed(client, chat, **ASKED, messages=QUESTION)
        pieces = [event["choices"][0]["delta"].get("content", "") for event in events]
        assert "".join(pieces) == text
        asked = ask(home, "good film", "--compare")
        assert [one["text"] for one in asked.values()] == [text] * 3  # nothing is trained yet
        earlier = [*QUESTION, {"role": "assistant", "content": "warm"}, *QUESTION]
        longer = client.post(chat, json=ASKED | {"messages": earlier}).json()
        assert longer["usage"]["prompt_tokens"] > answer["usage"]["prompt_tokens"]
        assert not longer["samara"]["note"]
        cut = client.post(chat, json=ASKED | {"messages": QUESTION * 40}).json()
        assert "was left out" in cut["samara"]["note"]

        def refused(**body: Any) -> tuple[int, str]:
            return refusal(client, chat, json=ASKED | {"messages": QUESTION} | body)

        for body, status, reason in (
            ({"messages": [{"role": "tool", "content": "a"}]}, 400, "messages.0.role"),
            ({"messages": [{"role": "user", "content": 5}]}, 400, "messages.0.content"),
            ({"messages": [{"role": "user"}]}, 400, "messages.0.content"),
            ({"messages": []}, 400, "messages"),
            ({"messages": QUESTION * 257}, 400, "messages"),
            (
                {"messages": QUESTION, "max_tokens": 60},
                400,
                "does not fit the model's context of 64",
            ),
            ({"messages": [{"role": "user", "content": "x" * 2**18}]}, 400, "at most 262144"),
            ({"messages": [{"role": "user", "content": "x" * 2**20}]}, 413, "1,048,576 bytes"),
            ({"prompt": "a"}, 400, "prompt"),
            ({"tools": [{"type": "function"}]}, 400, "these models do not offer this parameter"),
            ({"max_tokens": 0}, 400, "max_tokens"),
            ({"model": "gpt"}, 404, "there is no model of this name"),
        ):
            answered = refused(**body)
            assert answered[0] == status, answered
            assert reason in answered[1], answered
        for content in (b"{", b"[]", b"\xff", b'{"messages": NaN}', b""):
            sent = {"content": content, "headers": {"Content-Type": "application/json"}}
            assert refusal(client, chat, **sent)[0] == 400
        assert (
            client.post(chat, json=ASKED | {"messages": QUESTION}).json()["choices"]
            == (answer["choices"])
        )


def test_a_client_that_trains_on_plain_texts_continues_them(
    model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The task has no labels to compare or to correct."""
    place = tmp_path_factory.mktemp("p")
    rows = [{"text": f"the film was very {word} {i}"} for i in range(6) for word in ("good", "bad")]
    with served(place, model_folder("causal"), "texts", rows) as (home, client):
        asked = ASKED | {"prompt": "the film was"}
        text = client.post("/v1/completions", json=asked).json()["choices"][0]["text"]
        events = streamed(client, "/v1/completions", **asked)
        assert "".join(event["choices"][0]["text"] for event in events) == text
        assert ask(home, "the film was")["personal"]["text"] == text
        status, reason = refusal(client, "/classify", json={"text": "the film was"})
        assert status == 400
        assert "without listed labels" in reason
        correction = {"text": "the film was", "label": "good"}
        status, reason = refusal(client, "/feedback", json=correction)
        assert status == 400
        assert "which are more than a text and a label" in reason
