"""The next `samara server up` tells a client that was away of the end of its run."""

import pytest
from live import ONE_SMALL_STEP

from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address
from benchmarks.scale.mixed_run import samara

pytestmark = pytest.mark.slow

SETTINGS = {
    "adapter.layers": "top:1",
    "rounds": 5,
    **ONE_SMALL_STEP,
    "cohort.available": 2,
    "cohort.timeout": 60,  # after which a server that is started again goes on with one client
}


def test_a_client_that_was_away_hears_that_its_run_has_ended(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("a")  # short: sockets lie in it
    address = free_address()

    def status() -> str:
        home = str(folder / "garden")
        shown = samara(folder, "client", "status", "--name", "garden", "--home", home)
        return " ".join(shown.split())

    with LiveRun(folder, SETTINGS, ["kitchen", "garden"], address) as live:

        def has_ended(name: str = "") -> bool:
            process = live.clients[name] if name else live.server
            return process is not None and process.poll() is not None

        live.serve()
        for name in live.names:
            live.start_client(name, None, "--set", "threads=1")
        live.wait_for_round(1)
        live.clients["garden"].terminate()
        live.wait(lambda: has_ended("garden"), "the departure")
        live.wait(has_ended, "the end of the run")
        live.wait(lambda: has_ended("kitchen"), "the end of kitchen")
        assert "not informed of the run's end: garden; run the same command to wait" in live.said()
        assert "has not answered" not in status()

        live.start_client("garden", None, "--set", "threads=1")
        live.wait(lambda: has_ended("garden"), "the preflight")
        assert live.clients["garden"].returncode == 1
        assert f"the server {address} has not answered since 2" in status()

        live.start_server()
        live.wait(lambda: "waiting to inform garden of the run's end" in live.said(), "the server")
        assert "kitchen" not in live.said().split("waiting to inform")[1]
        live.start_client("garden", None, "--set", "threads=1")
        live.wait(lambda: has_ended("garden"), "the end of garden")
        assert live.clients["garden"].returncode == 0
        assert "garden: the run is finished, and this client keeps its model" in live.said("garden")
        live.wait(has_ended, "the end of the server")
        assert live.server is not None
        assert live.server.returncode == 0
        assert "informed of the run's end: garden" in live.said()
        assert f"the run is finished, as the server {address} reported on 2" in status()
