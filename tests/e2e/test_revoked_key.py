"""A client whose key is revoked while it runs, and a client with an unknown key, learn why."""

import re
import subprocess
from pathlib import Path

import pytest

from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address
from samara.devices.live.keys import create_key
from samara.server.live.status import read_status
from samara.shared.errors import RejectedError
from samara.shared.network.rejection import RejectionCode, describe_rejection

pytestmark = pytest.mark.slow

KEPT, GONE = "garden", "kitchen"
FOREIGN = re.compile(r"INFO|ERROR|Traceback|flwr|HTTP")


def ends(process: "subprocess.Popen[bytes]") -> bool:
    return process.poll() is not None


def test_a_revoked_client_says_why_and_stops(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("k")
    settings = {"rounds": 100_000, "steps": 1, "queries": 2, "batch": 4, "personal.rounds": 0}
    live_settings = {"evaluate.every": 0, "cohort.available": 1, "cohort.minimum": 1}
    address = free_address()
    why = describe_rejection(RejectionCode.REVOKED)
    with LiveRun(folder, settings | live_settings, [KEPT, GONE], address) as live:
        live.serve()
        unknown = Path(folder) / "unknown.key"
        create_key(unknown)
        for name in live.names:
            live.start_client(name, None, "--set", "threads=1")
        live.start_client("nobody", None, "--key", str(unknown), "--set", "threads=1")
        live.wait_for_report(GONE)
        live.revoke(GONE)
        gone = live.clients[GONE]
        live.wait(lambda: ends(gone), "the end of the revoked client", 180)
        assert gone.returncode == RejectedError.exit_status
        said = live.said(GONE)
        assert said.splitlines()[-1] == f"samara: {why}"
        assert not FOREIGN.search(said.partition("trainer ready")[2])
        # Started again, it ends at once, with the same words.
        live.start_client(GONE, None, "--set", "threads=1")
        again = live.clients[GONE]
        live.wait(lambda: ends(again), "the end of the client's second start", 180)
        assert (again.returncode, live.said(GONE).count(why)) == (RejectedError.exit_status, 2)
        # A key may be registered later, so its holder tries again, and says why it has to.
        words = describe_rejection(RejectionCode.UNREGISTERED)
        live.wait(lambda: words in live.said("nobody"), "the words of the unknown client", 180)
        assert not ends(live.clients["nobody"])
        assert not FOREIGN.search(live.said("nobody").partition("trainer ready")[2])
        live.wait_for_round(live.last() + 1)
        log = (live.run / "log.jsonl").read_text()
        assert f"was rejected: the key {GONE} was revoked on 20" in log
        status = read_status(live.run).clients[live.devices[GONE]]
        assert (status.name, status.state) == (GONE, "revoked")
        live.end_server()
