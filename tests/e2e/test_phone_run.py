"""A run that nothing is set for, with a board and a phone: real processes over TLS on loopback."""

import json
import os
from pathlib import Path

import pytest
from live import terminate

from benchmarks.faults.live_run import LiveRun
from benchmarks.scale.mixed_run import (
    GATEWAY,
    MODEL,
    OPEN,
    TASK,
    samara,
    start_gateway,
    start_phone,
    write_messages,
)
from server.live.keys import KEYS_FOLDER, ClientKeys
from server.store import read_layout
from shared.layout import READOUT_GROUP

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

BOARD, PHONE = "jetson", "phone-fp32"
ROUNDS = 3


def make_phone(live: LiveRun, data: Path) -> None:
    """Make program, rows and key of the phone, by the commands that an operator gives."""
    folder, program = live.folder, f"{PHONE}.pte"
    (folder / "phones").mkdir()
    model = ("--model", MODEL, "--task", TASK)
    shapes = ("--batch", "16", "--seq", "32", "--delegate", "portable")
    samara(folder, "phone", "export", *model, *shapes, "--out", program)
    rows = ("--data", str(data), "--program", program, "--out", f"{PHONE}.jsonl")
    samara(folder, "phone", "rows", *model, *rows)
    public = folder / "phones" / f"{PHONE}.pem"
    public.write_text(samara(folder, "phone", "key", f"{PHONE}.key"))
    samara(folder, "server", "keys", "add", PHONE, str(public), "--run", str(live.run))


def test_a_board_and_a_phone_train_the_readout_that_a_run_chooses(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    pytest.importorskip("executorch", reason="pip install 'samara-fl[phone]' to run programs")
    folder = tmp_path_factory.mktemp("p")
    data, port = write_messages(folder, 0), 20_000 + os.getpid() % 20_000
    settings = {"rounds": ROUNDS, "cohort.available": 2, "cohort.timeout": 600.0}
    ClientKeys(folder / "run" / KEYS_FOLDER).create(GATEWAY, gateway=True)
    with LiveRun(folder, settings, [BOARD, GATEWAY], f"127.0.0.1:{port}") as live:
        make_phone(live, data[PHONE])
        door = f"127.0.0.1:{port + 1}"
        live.start_server()
        live.wait(lambda: live.said().count("may join") >= 2, "the server")
        start_gateway(live, live.address, door)
        live.wait(lambda: OPEN in live.said(GATEWAY), "the gateway")
        start_phone(live, PHONE, door)
        what = ("--model", MODEL, "--data", str(data[BOARD]), "--task", TASK)
        live.start_client(BOARD, None, *what, "--set", "threads=1")
        assert live.server is not None
        live.wait(lambda: live.server and live.server.poll() is not None, "the end of the run")
        assert live.server.returncode == 0, live.said()[-2000:]
        layout = read_layout(live.run)
        assert [tensor.group for tensor in layout.tensors] == [READOUT_GROUP]
        live.check()
        live.names.append(PHONE)
        positions = live.positions()
        assert set(positions) == {BOARD, PHONE}
        assert positions[BOARD] == positions[PHONE]
        assert all(len(event["clients"]) == 2 for event in live.rounds.values())
        assert len(live.rounds) == ROUNDS
        result = json.loads((live.run / "result.json").read_text(encoding="utf-8"))
        assert result["config"]["adapter.layers"] == "readout"
        assert "every digest reproduced" in samara(folder, "server", "verify", str(live.run))
        assert [terminate(process) for process in live.clients.values()] == [0, 0, 0]
