"""A run that an earlier version began continues with this version; either side may update first."""

import re
from typing import Any

import pytest
from earlier_code import earlier_code
from live import ONE_SMALL_STEP

from benchmarks.faults.live_run import LiveRun, Place
from benchmarks.faults.ports import free_address
from benchmarks.scale.mixed_run import samara
from samara.shared.results.result import RunResult

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

BEFORE = "3a818154"
"""A commit from the day before the settings of runs and of `tune` shared their declarations."""
CLIENTS = ("anna", "ben")
ROUNDS = 9
SETTINGS: dict[str, Any] = {
    **ONE_SMALL_STEP,
    "rounds": ROUNDS,
    "cohort.available": 2,
    "cohort.minimum": 2,
}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The place where the code of the earlier commit runs."""
    folder = earlier_code(BEFORE, tmp_path_factory.mktemp("before"))
    return Place(environment={"PYTHONPATH": str(folder)})


def restart_clients(live: LiveRun, place: Place) -> None:
    for name in CLIENTS:
        if name in live.clients:
            live.clients[name].terminate()
            live.clients[name].wait()
        live.start_client(name, place, "--set", "threads=1")


@pytest.mark.parametrize("first", ["server", "clients"])
def test_a_running_federation_is_updated(
    first: str, before: Place, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("u")  # short: sockets lie in it
    server = Place(environment=before.environment)
    with LiveRun(folder, SETTINGS, CLIENTS, free_address(), server) as live:
        live.start_server()
        live.wait(lambda: "listening" in live.said(), "the server")
        restart_clients(live, before)
        for step, side in enumerate([first, *({"server", "clients"} - {first})]):
            live.wait_for_round(2 + 3 * step)
            if side == "server":
                live.end_server()
                server.environment = {}
                live.start_server()
            else:
                restart_clients(live, Place())
        process = live.server
        assert process is not None
        live.wait(lambda: process.poll() is not None, "the end of the run")
        assert process.returncode == 0, live.said()[-2000:]
        assert live.check() == ROUNDS
        assert set(live.positions()) == set(CLIENTS)
        samara(folder, "server", "check", "--replay", str(live.run))
        result = RunResult.read(live.run)
        assert [event.reports for event in result.rounds].count(2) >= ROUNDS - 3  # two restarts
        assert result.rounds[-1].reports == 2
        assert sorted(result.names.values()) == sorted(CLIENTS)
        assert all(not event.refused for event in result.rounds)


def test_a_client_refuses_a_later_setting_by_name_and_takes_part_when_it_is_updated(
    before: Place, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("r")
    later = {"adapter.layers": "readout:auto", "differences": "components", "cohort.available": 1}
    later |= {"cohort.minimum": 1}
    with LiveRun(folder, SETTINGS | later, CLIENTS[:1], free_address()) as live:
        live.start_server()
        live.wait(lambda: "listening" in live.said(), "the server")
        live.start_client("anna", before, "--set", "threads=1")
        live.wait(lambda: "refuses: run config" in live.said("anna"), "the refusal")
        told = re.compile(r"differences: .*got 'components'|does not know differences")
        live.wait(lambda: told.search(live.said("anna")), "its reason")
        live.wait(lambda: "refused" in live.said(), "the server's line")
        live.clients["anna"].terminate()
        live.clients["anna"].wait()
        live.start_client("anna", Place(), "--set", "threads=1")
        live.wait_for_round(1, seconds=200)
        assert live.reporters(1) == {"anna"}
