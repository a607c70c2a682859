"""`samara client up` against a real SuperLink, in processes of their own on loopback."""

import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from live import SuperLink, client_up, end, patience

from client.remote import RemoteTrainer
from client.resident import decode_session
from devices.live.keys import device_of_key, make_key
from shared.config import RunConfig
from shared.events import read_events

pytestmark = pytest.mark.slow
NAMES = ("kitchen", "garden")


def processes_of(folder: Path) -> list[psutil.Process]:
    """Whatever still runs with the folder in its command."""
    return [p for p in psutil.process_iter(["cmdline"]) if str(folder) in str(p.info["cmdline"])]


def test_two_clients_take_part_and_leave_nothing_behind(
    settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("e")  # short: sockets lie in it
    run = place / "run"
    asked = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    more = {"out": str(run), "cohort.available": 2, "evaluate.every": 0, "personal.rounds": 1}
    config = RunConfig.of(settings | asked | more, "test")
    options = [
        *("--model", settings["model.path"], "--data", settings["data.path"]),
        *("--task", settings["task"], "--set", "threads=1"),
    ]
    link = SuperLink(place / "link")
    clients: list[subprocess.Popen[bytes]] = []
    try:
        number = link.begin(config)
        keys = [place / f"{name}.key" for name in NAMES]
        for key in keys:
            make_key(key)
            link.admit(key)
        clients = [client_up(link, key, place / key.stem, *options) for key in keys]
        for _ in patience("the run to finish", 600):
            for client, name in zip(clients, NAMES, strict=True):
                assert client.poll() is None, (place / f"{name}.log").read_text()[-4000:]
            if link.finished(number):
                break
        rounds = [e for e in read_events(run / "metrics.jsonl") if e["event"] == "round"]
        assert [event["reports"] for event in rounds] == [2, 2, 2], link.said()
        assert set(rounds[0]["clients"]) == {str(device_of_key(key)) for key in keys}
        for name in NAMES:
            with RemoteTrainer(str(place / name / "trainer.sock"), {}) as trainer:
                assert trainer.status().model_loads == 1
            [session] = (place / name).glob("runs/*/session")
            assert decode_session(session.read_bytes()).digest.hex() == rounds[-1]["digest"]
            assert list((place / name).glob("runs/*/clients/*/personal.ledger/*.seg"))
        clients[1].kill()
    finally:
        statuses = [end(client) for client in clients]
        end(link.process)
    assert statuses == [0, -9]
    for _ in patience("what the killed client started to end with it"):
        if not processes_of(place):
            break
    assert not list(place.glob("*/trainer.sock"))
