"""The output of `samara server status` before the first round."""

import json
import sys
from pathlib import Path

import pytest

import samara.command
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.live.server_log import LOG_FILE, REFUSED_EVENT
from samara.server.live.status import read_status
from samara.shared.errors import SamaraError


def write_log(run: Path, *messages: str) -> None:
    lines = [{"message": message, "time": "2026-01-01T00:00:00"} for message in messages]
    refusal = {"message": "refused: another model", "event": REFUSED_EVENT, "client": 1}
    content = [refusal | {"time": "2026-01-01T00:00:00"}, *lines]
    (run / LOG_FILE).write_text("".join(json.dumps(line) + "\n" for line in content))


def test_a_run_that_waits_shows_its_clients_and_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ClientKeys(tmp_path / KEYS_FOLDER)
    for name in ("kitchen", "garden"):
        keys.create(name)
    write_log(tmp_path, "waiting for 3 clients; 0 are connected", "waiting for 3 clients; 2 are")
    status = read_status(tmp_path)
    assert (status.round, status.digest, status.bytes_up) == (0, "", 0)
    assert {client.name for client in status.clients.values()} >= {"kitchen", "garden"}
    assert status.clients[1].state == "refused"
    assert status.waits_for.endswith("last line of the server's log: waiting for 3 clients; 2 are")
    monkeypatch.setattr(sys, "argv", ["samara", "server", "status", "--run", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        samara.command.main()
    assert not ended.value.code
    shown = capsys.readouterr().out
    for words in ("round 0", "kitchen", "garden", "refused: another model", status.waits_for):
        assert words in shown


def test_keys_without_a_log_are_a_run_that_waits(tmp_path: Path) -> None:
    ClientKeys(tmp_path / KEYS_FOLDER).create("kitchen")
    assert read_status(tmp_path).waits_for.endswith("the server has logged nothing yet")


def test_a_gateway_is_told_from_clients(tmp_path: Path) -> None:
    keys = ClientKeys(tmp_path / KEYS_FOLDER)
    keys.create("door", gateway=True)
    keys.create("kitchen")
    states = {client.name: client.state for client in read_status(tmp_path).clients.values()}
    assert states == {"door": "gateway", "kitchen": ""}


def test_a_folder_of_something_else_holds_no_run(tmp_path: Path) -> None:
    with pytest.raises(SamaraError, match=r"holds no run: .*name the folder of"):
        read_status(tmp_path)
