"""Two servers of one run, two clients of one name, and two clients with one key."""

from pathlib import Path

import pytest

from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address
from samara.shared.settings.setting import Scalar

pytestmark = pytest.mark.slow

NAME, COPY = "kitchen", "copy"
THREADS = ("--set", "threads=1")
CONNECTED = "the server turns this client away: this client's key is already connected"


def refusal(live: LiveRun, who: str) -> str:
    """The last line of a process that ends with an error."""
    process = live.clients[who]
    live.wait(lambda: process.poll() is not None, f"the end of {who}")
    assert process.returncode == 1, live.said(who)
    assert "Traceback" not in live.said(who)
    return live.said(who).splitlines()[-1]


def test_the_second_is_refused_by_name_and_nothing_is_lost(short: Path) -> None:
    settings: dict[str, Scalar] = {"rounds": 100_000, "steps": 2, "queries": 4, "batch": 16}
    settings |= {"learning-rate": 0.01, "personal.rounds": 0, "evaluate.every": 0}
    settings |= {"cohort.available": 1, "cohort.timeout": 30.0, "cohort.minimum": 1}
    settings |= {"ledger.snapshot-every": 0}
    with LiveRun(short, settings, [NAME], free_address()) as live:
        live.serve()
        live.start_client(NAME, None, *THREADS)
        live.wait_for_round(1)
        live.start("server 2", ["server", "up", "--run", str(live.run)])
        own = ["--key", str(live.key(NAME)), "--certs", str(live.run / "certificates" / "ca.pem")]
        up = ["client", "up", "--name", NAME, "--home", str(live.home(NAME))]
        live.start("client 2", [*up, "--superlink", live.address, *own])
        live.start_client(COPY, None, *THREADS, "--key", str(live.key(NAME)))
        said = refusal(live, "server 2")
        assert f"{live.run}: another `samara server up` is serving this run" in said
        said = refusal(live, "client 2")
        assert (
            f"{live.home(NAME)}: another `samara client up`, `ask` or `serve` is using this client"
            in said
        )
        live.wait(lambda: CONNECTED in live.said(COPY), "what the holder of a copied key is told")
        rejected = f"{NAME} was rejected by Flower: its key is already connected"
        live.wait(lambda: rejected in live.said(), "the server's line about it")
        live.wait_for_report(NAME)
        rounds = live.end_server()
        assert sorted(live.rounds) == list(range(1, rounds + 1))
        assert all(len(event["clients"]) == 1 for event in live.rounds.values())
        assert live.clients[NAME].poll() is None
        assert not list(live.home(COPY).glob("runs/*/session"))
