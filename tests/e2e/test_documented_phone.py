"""Phones: the guide's commands, pasted into a shell, and boards of both wires beside a phone.

The second run uses the program from the guide's commands, because an export takes long.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from documented import FENCED, ROOT, blocks, command_lines, samara_words
from foreign import write_foreign_names
from forked import LOADED, command_server
from live import QUIET, attempts
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address, free_port
from benchmarks.scale.mixed_run import (
    GATEWAY,
    MODEL,
    OPEN,
    SHAPE,
    TASK,
    samara,
    start_phone,
    write_messages,
)
from samara.devices.live.commands import app as client_commands
from samara.devices.live.settings import ClientSettings
from samara.devices.phone.manifest import manifest_file
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.live.status import read_status

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "guides" / "phone.md"
SECONDS = 1200.0
SECONDS_TO_END = 30.0
SAMARA = """#!/bin/sh
case "$1 $2" in
    "server up") set -- "$@" --port {server} --set rounds=1 --set steps=1 --set queries=2 \\
        --set model.path={model} ;;
    "gateway up") set -- "$@" --listen 127.0.0.1:{gateway} ;;
    "phone export") set -- "$@" --delegate portable --model {model} ;;
    "phone rows") set -- "$@" --model {model} ;;
esac
{python} -m samara "$@"
status=$?
echo "$1 $2: $status" >> statuses
exit $status
"""
"""Script in place of `samara` that makes some commands small, and records each exit status."""
STREAM, SUPERNODE, PHONE = "stream", "supernode", "phone"
ROUNDS = 5


def start_gateway(live: LiveRun, door: str) -> None:
    """Start `samara gateway up`, or start it again; it admits the clients of the server."""
    host = door.rsplit(":", 1)[0]
    of_server = ("--superlink", live.address, "--certs", str(live.run / "certificates" / "ca.pem"))
    own = ("--key", str(live.key(GATEWAY)), "--home", str(live.home(GATEWAY)))
    command = ["gateway", "up", *of_server, *own, "--listen", door, "--name", host]
    opened = live.said(GATEWAY).count(OPEN) if GATEWAY in live.clients else 0
    live.start(GATEWAY, command)
    live.wait(lambda: live.said(GATEWAY).count(OPEN) > opened, "the gateway")


def start_by_stream(live: LiveRun, name: str, door: str, *options: str) -> None:
    """Start `samara client up --wire stream`, or start it again."""
    command = ["client", "up", "--name", name, "--home", str(live.home(name)), "--wire", "stream"]
    command += ["--gateway", door]
    authority = live.home(GATEWAY) / "certificates" / "ca.pem"
    command += ["--key", str(live.key(name)), "--certs", str(authority)]
    live.start(name, [*command, *options])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first block of the embedded model, because an export takes seconds for every block."""
    network: Any = AutoModelForCausalLM.from_pretrained(MODEL)
    del network.model.layers[1:]
    network.config.num_hidden_layers = 1
    folder = tmp_path_factory.mktemp("model")
    network.save_pretrained(folder)
    AutoTokenizer.from_pretrained(MODEL).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def guide_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of the program from the guide's commands; the file exists once they have run."""
    return tmp_path_factory.mktemp("program") / "model.pte"


def copy_program(program: Path, to: Path) -> None:
    """Copy a program and its manifest."""
    shutil.copy(program, to)
    shutil.copy(manifest_file(program), manifest_file(to))


def _end(shell: subprocess.Popen[bytes]) -> None:
    """End a shell and its child processes; give `server up` time to end its SuperLink."""
    with suppress(ProcessLookupError):
        os.killpg(shell.pid, signal.SIGTERM)
        shell.wait()
        try:
            for _ in attempts("the end of what the shell has started", SECONDS_TO_END):
                os.killpg(shell.pid, 0)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)


def test_the_commands_of_the_guide_make_a_run_with_a_phone(
    model: Path, guide_program: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("executorch", reason="pip install 'samara-fl[phone]' to run programs")
    folder = tmp_path_factory.mktemp("d")  # short: sockets lie in it
    server, gateway = free_port(), free_port()
    (folder / "bin").mkdir()
    shim = folder / "bin" / "samara"
    text = PAGE.read_text(encoding="utf-8")
    block = next(block for block in blocks(text) if "samara phone up" in block)
    script = block
    for written, port in ((":8000", server), (":9100", gateway)):
        assert written in script
        script = script.replace(written, f":{port}")
    environment = {**os.environ, **QUIET, "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    environment["PATH"] = f"{folder / 'bin'}:{environment['PATH']}"
    with (folder / "said").open("wb") as said, command_server(folder) as python:
        words = {"server": server, "gateway": gateway, "model": model, "python": shlex.join(python)}
        shim.write_text(SAMARA.format(**words))
        shim.chmod(0o755)
        shell = subprocess.Popen(
            ["bash", "-e", "-c", script],
            cwd=folder,
            env=environment,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = shell.wait(SECONDS)
        finally:
            _end(shell)
    text = (folder / "said").read_text(errors="replace")
    assert status == 0, text[-3000:]
    assert "Traceback" not in text, text
    phone = folder / ".samara" / "phone"
    assert f"the global and the private part, in {phone}/runs. `samara client audit" in text
    assert "1 phones know that the run is finished" in text
    assert "every digest reproduced" in text
    ran = sorted((folder / "statuses").read_text().splitlines())
    written = filter(None, map(samara_words, command_lines(block)))
    expected = [" ".join(words[:2]) for words in written] + ["phone join"]
    assert ran == sorted(f"{words}: 0" for words in expected)
    assert not list(Path(folder).rglob("*.new"))
    page = (ROOT / "docs/reference/phones.md").read_text(encoding="utf-8")
    (arithmetic,) = [match[3] for match in FENCED.finditer(page) if match[2] == "python"]
    command = [sys.executable, "-c", LOADED + arithmetic]
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=SECONDS)
    copy_program(folder / "model.pte", guide_program)


def make_phone(live: LiveRun, data: Path, program: Path, model: tuple[str, ...]) -> None:
    """Make rows, key and program of the phone, by an operator's commands."""
    folder = live.folder
    if program.exists():
        copy_program(program, folder / f"{PHONE}.pte")
    else:
        made = ("--delegate", "portable", "--out", f"{PHONE}.pte")
        samara(folder, "phone", "export", *SHAPE, *model, *made)
    rows = ("--data", str(data), "--program", f"{PHONE}.pte", "--out", f"{PHONE}.jsonl")
    samara(folder, "phone", "rows", *model, *rows)
    public = folder / f"{PHONE}.pem"
    public.write_text(samara(folder, "phone", "key", f"{PHONE}.key"))
    samara(folder, "server", "keys", "create", PHONE, str(public), "--run", str(live.run))


def test_boards_of_both_wires_and_a_phone_reach_one_digest_though_the_gateway_is_killed(
    model: Path, guide_program: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("executorch", reason="pip install 'samara-fl[phone]' to run programs")
    folder = tmp_path_factory.mktemp("w")
    write_foreign_names(folder)  # every process starts there
    data = list(write_messages(folder, 0).values())
    settings = {
        "model.path": str(model),
        "rounds": ROUNDS,
        "queries": 4,
        "personal.rounds": 0,
        "evaluate.every": 0,
        "cohort.available": 3,
        "cohort.minimum": 3,
        "cohort.timeout": 600.0,
    }
    ClientKeys(folder / "run" / KEYS_FOLDER).create(GATEWAY, gateway=True)
    with LiveRun(folder, settings, [STREAM, SUPERNODE], free_address()) as live:
        named = ("--model", str(model), "--task", TASK)
        make_phone(live, data[2], guide_program, named)
        door = free_address()
        live.serve()
        start_gateway(live, door)
        start_phone(live, PHONE, door)
        what = (*named, "--set", "threads=1", "--data")
        start_by_stream(live, STREAM, door, *what, str(data[0]))
        live.start_client(SUPERNODE, None, *what, str(data[1]))
        live.wait_for_round(2, 600)
        live.clients[GATEWAY].kill()
        live.clients[GATEWAY].wait()
        start_gateway(live, door)
        assert live.server is not None
        live.wait(lambda: live.server and live.server.poll() is not None, "the end of the run")
        assert live.server.returncode == 0, live.said()[-2000:]
        assert live.check() == ROUNDS
        live.names.append(PHONE)
        positions = live.positions()
        assert positions.keys() == {STREAM, SUPERNODE, PHONE}
        assert len(set(positions.values())) == 1
        # a gateway that starts again loses nobody's report
        assert all(len(event["clients"]) == 3 for event in live.rounds.values())
        assert "every digest reproduced" in samara(
            folder, "server", "check", "--replay", str(live.run)
        )
        wires = {one.name: one.wire for one in read_status(live.run).clients.values()}
        by_stream = {STREAM: "stream", PHONE: "stream", SUPERNODE: "SuperNode"}
        assert {name: wires[name] for name in by_stream} == by_stream
        live.wait(lambda: live.clients[STREAM].poll() is not None, "the client to hear the end")
        assert live.clients[STREAM].returncode == 0
        assert "the run is finished, and this client keeps its model" in live.said(STREAM)
        kept = ClientSettings.read(live.home(STREAM))
        assert (kept.wire, kept.gateways, kept.superlink) == ("stream", (door,), "")
        options = ["status", "--home", str(live.home(STREAM))]
        shown = CliRunner().invoke(client_commands, options).output
        assert f"by the stream to a gateway: {door}" in " ".join(shown.split())
        assert json.loads((live.run / "result.json").read_text())["final_round"] == ROUNDS
