"""The default adapter, a board and three phones in one run: real processes over TLS on loopback."""

import json

import pytest
from phones import BOARD, PHONES, make_phones

from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address
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
from samara.client.personal.personalizations import read_personalizations
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.store import read_layout
from samara.shared.protocol.layout import READOUT_GROUP

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

ROUNDS, PRIVATE_ROUNDS = 3, 2


def test_a_board_and_phones_train_the_readout_that_a_run_chooses_and_personalize(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    pytest.importorskip("executorch", reason="pip install 'samara-fl[phone]' to run programs")
    folder = tmp_path_factory.mktemp("p")
    data = write_messages(folder, 0)
    settings = {
        "rounds": ROUNDS,
        "personal.rounds": PRIVATE_ROUNDS,
        "personal.learning-rate": 1.0,
        "cohort.available": 1 + len(PHONES),
        "cohort.timeout": 600.0,
    }
    ClientKeys(folder / "run" / KEYS_FOLDER).create(GATEWAY, gateway=True)
    with LiveRun(folder, settings, [BOARD, GATEWAY], free_address()) as live:
        make_phones(live, data)
        door = free_address()
        live.serve()
        start_gateway(live, live.address, door)
        live.wait(lambda: OPEN in live.said(GATEWAY), "the gateway")
        for name in PHONES:
            start_phone(live, name, door)
        what = ("--model", MODEL, "--data", str(data[BOARD]), "--task", TASK)
        live.start_client(BOARD, None, *what, "--set", "threads=1")
        assert live.server is not None
        live.wait(lambda: live.server and live.server.poll() is not None, "the end of the run")
        assert live.server.returncode == 0, live.said()[-2000:]
        layout = read_layout(live.run)
        assert [tensor.group for tensor in layout.tensors] == [READOUT_GROUP]
        live.check()
        live.names.extend(PHONES)
        positions = live.positions()
        assert set(positions) == {BOARD, *PHONES}
        assert len(set(positions.values())) == 1
        assert all(len(event["clients"]) == 1 + len(PHONES) for event in live.rounds.values())
        assert len(live.rounds) >= ROUNDS
        result = json.loads((live.run / "result.json").read_text(encoding="utf-8"))
        assert result["config"]["adapter.layers"] == "readout:auto"
        compared = [
            one["columns"] for one in result["evaluations"] if "local-only" in one["columns"]
        ]
        for columns in compared:
            for column in ("base rate", "global", "personalized"):
                assert len(columns[column]["clients"]) == 1 + len(PHONES)
        assert len(compared) == 1
        for name in (BOARD, *PHONES):
            (own,) = live.home(name).glob("runs/*/clients/*")
            (done,) = read_personalizations(own)
            assert (done.first, done.last) == (1, PRIVATE_ROUNDS)
            assert done.before is not None
            assert done.after is not None
            assert done.after.loss != done.before.loss
        assert "every digest reproduced" in samara(
            folder, "server", "check", "--replay", str(live.run)
        )
        everybody = live.clients.values()
        live.wait(lambda: all(one.poll() is not None for one in everybody), "all to hear the end")
        assert [process.returncode for process in everybody] == [0] * (2 + len(PHONES))
        assert live.said(BOARD).count("the run is finished, and this client keeps its model") == 1
        for name in PHONES:
            said = live.said(name)
            assert said.count("the run is finished. This phone keeps its model") == 1
