"""`samara client move` and `forget` with real processes, in the middle of a run."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import tree_of
from live import QUIET, SuperLink, attempts, rounds_of, start_client, terminate

from samara.client.limits.answer_log import read_answers
from samara.client.protocol.session_store import decode_session
from samara.client.questions.client_model import ClientModel
from samara.devices.live.keys import create_key, read_client_index
from samara.devices.live.settings import ClientSettings
from samara.shared.protocol.replay import digest
from samara.shared.settings.config import RunConfig

pytestmark = pytest.mark.slow


def samara(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "samara", "client", *map(str, arguments)],
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def private_digest(home: Path) -> bytes:
    settings = ClientSettings.read(home)
    model = ClientModel.read(home, settings.config, settings.client_index)
    assert model.private is not None
    return digest(model.run.layout.hash, model.private)


def test_a_client_goes_on_in_the_same_run_on_another_device(
    settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("v")  # short: sockets lie in it
    run, old, new = place / "run", place / "old", place / "new"
    asked = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    more = {"out": str(run), "cohort.available": 1, "rounds": 6, "personal.rounds": 2}
    more |= {"personal.when": "every 1 rounds"}
    config = RunConfig.of(settings | asked | more | {"evaluate.every": 0}, "test")
    options = [
        *("--model", settings["model.path"], "--data", settings["data.path"]),
        *("--task", settings["task"], "--set", "threads=1"),
    ]
    key, passphrase, file = place / "own.key", place / "passphrase", place / "file"
    passphrase.write_text("correct horse\n")
    secret = "--passphrase-file", passphrase
    link = SuperLink(place / "link")
    clients: list[subprocess.Popen[bytes]] = []
    try:
        number = link.start_run(config)
        create_key(key)
        link.register(key)
        clients.append(start_client(link, key, old, *options))
        for _ in attempts("a private round of the first device", 300):
            assert clients[0].poll() is None, (place / "old.log").read_text()[-4000:]
            if rounds_of(run) and list(old.glob("runs/*/validation.json")):
                break
        running = samara("move", file, "--home", old, *secret)
        assert running.returncode == 1
        assert "this client is running; end its" in running.stderr
        assert terminate(clients[0]) == 0
        answered = len(read_answers(old).answers)
        moved = samara("move", file, "--home", old, *secret)
        assert moved.returncode == 0, moved.stderr
        assert start_client(link, key, old, *options).wait(120) == 1
        assert "has moved on" in (place / "old.log").read_text()
        key.unlink()  # the old device is gone
        imported = samara("move", "--here", file, "--home", new, "--name", "new", *secret)
        assert imported.returncode == 0, imported.stderr
        assert private_digest(new) == private_digest(old)
        clients.append(start_client(link, new / "client.key", new, *options))
        for _ in attempts("the run to finish", 600):
            assert clients[1].poll() is None, (place / "new.log").read_text()[-4000:]
            if (run / "result.json").exists() and link.is_finished(number):
                break
    finally:
        statuses = [terminate(client) for client in clients]
        terminate(link.process)
    assert statuses == [0, 0]
    rounds = rounds_of(run)
    assert len(rounds) == 6, link.log_tail()
    client = read_client_index(new / "client.key")
    assert all(set(one["clients"]) <= {str(client)} for one in rounds)
    [session] = new.glob("runs/*/session")
    assert decode_session(session.read_bytes()).digest.hex() == rounds[-1]["digest"]
    log = read_answers(new).answers
    assert log[:answered] == read_answers(old).answers[:answered]
    reports = [one.round for one in log if one.asked == "train" and not one.refused]
    assert len(set(reports)) == len({one.token for one in log if one.asked == "train"})

    third = place / "third"
    before = private_digest(new)
    assert samara("move", place / "again", "--home", new, *secret).returncode == 0
    assert samara("move", "--here", place / "again", "--home", third, *secret).returncode == 0
    assert private_digest(third) == before
    assert samara("forget", "--home", third, "--private", "--yes").returncode == 0
    settings_of_third = ClientSettings.read(third)
    model = ClientModel.read(third, settings_of_third.config, client)
    assert model.private is None
    assert model.session.digest.hex() == rounds[-1]["digest"]
    shown = samara("forget", "--home", third, "--all", "--yes")
    assert "have left this device" in shown.stdout.replace("\n", " ")
    left = tree_of(third)
    assert not any(path.endswith((".seg", "session", "run.json")) for path in left)
    assert left["answers.jsonl"] == tree_of(new)["answers.jsonl"]
