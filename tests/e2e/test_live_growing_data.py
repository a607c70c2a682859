"""A live client whose owner adds examples while a run goes on: real processes, real commands."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from live import QUIET, SuperLink, attempts, rounds_of, start_client, terminate

from samara.devices.live.keys import create_key, read_client_index
from samara.shared.settings.config import RunConfig

pytestmark = pytest.mark.slow


def rows(count: int, thing: str) -> str:
    texts = [f"the {thing} was {'very ' * (number // 2)}" for number in range(count)]
    lines = [
        {"text": text + ("good" if number % 2 else "bad"), "label": number % 2}
        for number, text in enumerate(texts)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


def owner(home: Path, *arguments: str, given: str = "") -> str:
    """Return the output of a command of the client's owner."""
    command = [sys.executable, "-m", "samara", "client", *arguments, "--home", str(home)]
    done = subprocess.run(
        command,
        check=False,
        input=given,
        capture_output=True,
        text=True,
        env={**os.environ, **QUIET},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_examples_that_are_added_are_trained_on_within_a_round(
    settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("e")  # short: sockets lie in it
    run, inbox, key, home = place / "run", place / "in.jsonl", place / "a.key", place / "a"
    inbox.write_text(rows(30, "film"))
    asked = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    more = {"out": str(run), "cohort.available": 1, "evaluate.every": 0, "rounds": 30}
    config = RunConfig.of(settings | asked | more, "test")
    options = [
        *("--model", settings["model.path"], "--data", str(inbox), "--task", settings["task"]),
        *("--set", "threads=1", "--set", "data.watch=true"),
    ]
    link = SuperLink(place / "link")
    client: subprocess.Popen[bytes] | None = None
    try:
        link.start_run(config)
        create_key(key)
        link.register(key)
        client = start_client(link, key, home, *options)
        index = str(read_client_index(key))

        def counts() -> list[int]:
            """Return the number of training examples in each round so far."""
            assert client is not None
            assert client.poll() is None, (place / "a.log").read_text()[-4000:]
            return [entry["clients"][index]["examples"] for entry in rounds_of(run)]

        def await_more(known: int) -> None:
            """Wait for a round that began after this call; it must have over `known` examples."""
            done = len(counts())
            for _ in attempts("two more rounds", 300):
                if len(counts()) >= done + 2:
                    break
            assert counts()[done + 1] > known

        for _ in attempts("the first round", 600):
            if counts():
                break
        first = counts()[0]
        with inbox.open("a") as file:
            file.write(rows(30, "meal"))
        await_more(first)
        second = counts()[-1]
        shown = owner(home, "learn", "-", given=rows(30, "walk"))
        learned = shown.count("for training")
        assert learned > 0
        await_more(second)
        assert counts()[-1] == second + learned
        assert "running" in (status := owner(home, "status", "--name", "a"))
        assert "learned" in status
        owner(home, "learn", "--delete", "--all")
        for _ in attempts("the deleted examples to be used no more", 300):
            if counts()[-1] == second:
                break
    finally:
        statuses = [terminate(client)] if client else []
        terminate(link.process)
    assert statuses == [0]
