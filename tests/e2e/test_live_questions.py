"""`samara client ask` and `serve` in separate processes, during a run and without one."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from live import QUIET, SuperLink, attempts, rounds_of, start_client, terminate

from benchmarks.serving import serving, write_client
from samara.devices.live.keys import create_key
from samara.devices.live.settings import resolve_device_settings
from samara.shared.settings.config import RunConfig

pytestmark = pytest.mark.slow
ENVIRONMENT = {**os.environ, **QUIET}
COMMAND = [sys.executable, "-m", "samara", "client"]
SECONDS = 300


def ask(home: Path, *arguments: str, text: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, "ask", "--home", str(home), *arguments],
        env=ENVIRONMENT,
        input=text,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.fixture
def home(settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a client that is not running."""
    own = resolve_device_settings(
        settings["model.path"], settings["data.path"], settings["task"], "cpu", ["threads=1"]
    )
    return write_client(tmp_path_factory.mktemp("h") / "a", own).folder


def test_without_a_running_client_the_commands_load_the_model_themselves(
    home: Path, request: pytest.FixtureRequest
) -> None:
    told = ask(home, "-", "--json", text="the film was good\n\na rude day\n")
    assert told.returncode == 0, told.stderr
    replies = [json.loads(line) for line in told.stdout.splitlines()]
    assert [reply["text"] for reply in replies] == ["the film was good", "a rude day"]
    assert all(0 < reply["models"]["personal"]["probability"] < 1 for reply in replies)
    assert "has not taken part in a run yet" in told.stderr
    assert not (home / "trainer.sock").exists()
    path = home.parent / "http.sock"
    request.getfixturevalue("cold_start")  # a fork would have the libraries
    with serving(home, "--socket", str(path)) as (process, _):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        libraries = {Path(mapped.path).name for mapped in psutil.Process(process.pid).memory_maps()}
        assert not any("torch" in name for name in libraries)
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost", timeout=60
        ) as client:
            assert client.get("/healthz").json()["status"] == "ok"
            assert client.post("/classify", json={"text": "a day"}).is_success
        assert ask(home, "a day", "--compare").returncode == 0  # from the trainer of `serve`
    assert not path.exists()


def test_another_address_needs_a_token(home: Path) -> None:
    refused = subprocess.run(
        [*COMMAND, "serve", "--home", str(home), "--host", "0.0.0.0"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert refused.returncode == 1
    assert "add --token FILE" in refused.stderr
    assert "Traceback" not in refused.stderr
    token = home.parent / "token"
    with serving(home, "--port", "0", "--token", str(token)) as (_, address):
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert httpx.get(f"{address}/v1/models").status_code == 401
        headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
        assert httpx.get(f"{address}/v1/models", headers=headers).is_success


def test_openais_client_works_unmodified(home: Path) -> None:
    openai = pytest.importorskip("openai", reason="the package openai is not installed")
    with serving(home, "--port", "0") as (_, address):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        assert [model.id for model in client.models.list()] == ["base", "global", "personal"]
        message = {"role": "user", "content": "the film was"}
        chat = client.chat.completions.create(
            model="personal", messages=[message], max_tokens=5, temperature=0
        )
        streamed = client.chat.completions.create(
            model="personal", messages=[message], max_tokens=5, temperature=0, stream=True
        )
        pieces = [chunk.choices[0].delta.content or "" for chunk in streamed]
        assert "".join(pieces) == chat.choices[0].message.content
        completed = client.completions.create(model="base", prompt="the film", max_tokens=3, seed=1)
        assert completed.usage.completion_tokens == 3
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="gpt", prompt="a")
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model="base", prompt="a", n=2)


def test_a_client_answers_while_rounds_go_on(
    settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("e")
    run, home = place / "run", place / "kitchen"
    asked = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    more = {"out": str(run), "cohort.available": 1, "evaluate.every": 0, "personal.rounds": 1}
    more["personal.learning-rate"] = 0.1  # an estimated one trains nothing in a first round
    config = RunConfig.of(settings | asked | more | {"rounds": 4}, "test")
    options = [
        *("--model", settings["model.path"], "--data", settings["data.path"]),
        *("--task", settings["task"], "--set", "threads=1"),
    ]
    link = SuperLink(place / "link")
    client = None
    try:
        number = link.start_run(config)
        key = place / "kitchen.key"
        create_key(key)
        link.register(key)
        client = start_client(link, key, home, *options)
        answers, asked_after = [], -1
        for _ in attempts("the run to finish", 600):
            assert client.poll() is None, home.with_suffix(".log").read_text()[-4000:]
            is_finished = (run / "result.json").exists() and link.is_finished(number)
            rounds = len(rounds_of(run))
            is_news = is_finished or rounds > asked_after
            if is_news and list(home.glob("runs/*/session")):
                asked_after = rounds
                told = ask(home, "the film was good", "--compare", "--json")
                assert told.returncode == 0, told.stderr
                answers.append((json.loads(told.stdout)["models"], told.stderr))
            if is_finished:
                break
        assert len(answers) > 1
        first, last = answers[0], answers[-1]
        assert "there is no private part yet" in first[1]
        assert "round 4" in last[1]
        assert "no private part" not in last[1]
        assert last[0]["personal"] != last[0]["global"] != last[0]["base"]
    finally:
        if client is not None:
            terminate(client)
        terminate(link.process)
    offline = ask(home, "the film was good", "--compare", "--json")
    assert json.loads(offline.stdout)["models"] == last[0]
