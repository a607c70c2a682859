"""A board by the stream, a board by a SuperNode and a phone in one run; the gateway is killed."""

import json
from pathlib import Path

import pytest
from foreign import write_foreign_names
from typer.testing import CliRunner

from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address
from benchmarks.scale.mixed_run import (
    GATEWAY,
    MODEL,
    SHAPE,
    TASK,
    samara,
    start_phone,
    write_messages,
)
from benchmarks.scale.wires import start_by_stream, start_gateway
from samara.devices.live.commands import app as client_commands
from samara.devices.live.settings import ClientSettings
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.live.status import read_status

pytestmark = pytest.mark.slow

STREAM, SUPERNODE, PHONE = "stream", "supernode", "phone"
ROUNDS = 8


def make_phone(live: LiveRun, data: Path) -> None:
    """Make program, rows and key of the phone, by the commands that an operator gives."""
    folder, model = live.folder, ("--model", MODEL, "--task", TASK)
    made = ("--delegate", "portable", "--out", f"{PHONE}.pte")
    samara(folder, "phone", "export", *SHAPE, *model, *made)
    rows = ("--data", str(data), "--program", f"{PHONE}.pte", "--out", f"{PHONE}.jsonl")
    samara(folder, "phone", "rows", *model, *rows)
    public = folder / f"{PHONE}.pem"
    public.write_text(samara(folder, "phone", "key", f"{PHONE}.key"))
    samara(folder, "server", "keys", "create", PHONE, str(public), "--run", str(live.run))


def test_boards_of_both_wires_and_a_phone_reach_one_digest_though_the_gateway_is_killed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    pytest.importorskip("executorch", reason="pip install 'samara-fl[phone]' to run programs")
    folder = tmp_path_factory.mktemp("w")
    write_foreign_names(folder)  # every process starts there
    data = list(write_messages(folder, 0).values())
    settings = {
        "rounds": ROUNDS,
        "steps": 1,
        "queries": 4,
        "batch": 8,
        "personal.rounds": 0,
        "evaluate.every": 0,
        "cohort.available": 3,
        "cohort.minimum": 3,
        "cohort.timeout": 600.0,
    }
    ClientKeys(folder / "run" / KEYS_FOLDER).create(GATEWAY, gateway=True)
    with LiveRun(folder, settings, [STREAM, SUPERNODE], free_address()) as live:
        make_phone(live, data[2])
        door = free_address()
        live.start_server()
        live.wait(lambda: live.said().count("may join") >= 3, "the server")
        start_gateway(live, None, door)
        start_phone(live, PHONE, door)
        what = ("--model", MODEL, "--task", TASK, "--set", "threads=1", "--data")
        start_by_stream(live, STREAM, [door], None, *what, str(data[0]))
        live.start_client(SUPERNODE, None, *what, str(data[1]))
        live.wait_for_round(2, 600)
        live.clients[GATEWAY].kill()
        live.clients[GATEWAY].wait()
        start_gateway(live, None, door)
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
