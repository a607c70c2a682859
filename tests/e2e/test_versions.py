"""Clients and phones of an earlier version join a server of this version, and vice versa."""

from pathlib import Path

import pytest
from earlier_code import earlier_code
from live import ONE_SMALL_STEP
from phones import BOARD, PHONES, make_phones

from benchmarks.faults.live_run import LiveRun, Place
from benchmarks.faults.ports import free_address
from benchmarks.scale.mixed_run import (
    GATEWAY,
    MODEL,
    OPEN,
    TASK,
    start_gateway,
    start_phone,
    write_messages,
)
from samara.server.live.keys import KEYS_FOLDER, ClientKeys

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

BEFORE = "41d8064a"
"""The last commit whose packages had names of their own: `shared`, `client` and so on."""
ROUNDS = 2
PHONE = PHONES[0]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the code of the earlier commit."""
    folder = earlier_code(BEFORE, tmp_path_factory.mktemp("before"))
    assert not (folder / "samara" / "shared").exists()
    return folder


@pytest.mark.parametrize(
    "earlier",
    [{BOARD, GATEWAY, PHONE}, {"server"}, {PHONE}],
    ids=["clients", "server", "phone"],
)
def test_clients_and_phones_take_part_in_a_run_of_another_version(
    earlier: set[str], before: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("executorch", reason="pip install 'samara-fl[phone]' to run programs")
    folder = tmp_path_factory.mktemp("v")  # short: sockets lie in it
    settings = {**ONE_SMALL_STEP, "rounds": ROUNDS, "cohort.available": 2, "cohort.minimum": 2}
    settings["adapter.layers"] = "readout"  # earlier versions have no depth
    data = write_messages(folder, 0)
    then = Place(environment={"PYTHONPATH": str(before)})
    places = {name: then if name in earlier else Place() for name in (BOARD, GATEWAY, PHONE)}
    ClientKeys(folder / "run" / KEYS_FOLDER).create(GATEWAY, gateway=True)
    server = then if "server" in earlier else None
    with LiveRun(folder, settings, [BOARD, GATEWAY], free_address(), server) as live:
        make_phones(live, data, [PHONE])
        door = free_address()
        live.serve()
        start_gateway(live, live.address, door, places[GATEWAY])
        live.wait(lambda: OPEN in live.said(GATEWAY), "the gateway")
        start_phone(live, PHONE, door, places[PHONE])
        what = ("--model", MODEL, "--data", str(data[BOARD]), "--task", TASK)
        live.start_client(BOARD, places[BOARD], *what, "--set", "threads=1")
        started = live.server
        assert started is not None
        live.wait(lambda: started.poll() is not None, "the end of the run")
        assert started.returncode == 0, live.said()[-2000:]
        live.names.append(PHONE)
        assert live.check() == ROUNDS
        assert set(live.positions()) == {BOARD, PHONE}
        assert [len(live.rounds[n]["clients"]) for n in range(1, ROUNDS + 1)] == [2] * ROUNDS
        says_so = "the server's version of Samara" in live.said(BOARD)
        assert says_so == (("server" in earlier) != (BOARD in earlier))
