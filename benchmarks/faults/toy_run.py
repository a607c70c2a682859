"""A run of toy clients: its settings, its processes, and what must hold of it at the end."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from flwr.app import UserConfig

from benchmarks.faults.ports import free_port
from benchmarks.faults.toy_client import app
from samara.client.limits.device_settings import CLIENT_INDEX
from samara.server.app import serve
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.rounds.recorded_cohorts import RecordedCohorts, read_cohorts
from samara.server.store import METRICS_FILE, read_layout, replay_run
from samara.shared.protocol.replay import digest
from samara.shared.results.result import read_result
from samara.shared.settings.config import RunConfig
from samara.shared.settings.setting import Scalar
from samara.shared.storage.events import EventFollower
from samara.simulations.engines.in_process import InProcessGrid

CLIENTS = 4
_ROUND_SECONDS = 20.0
_POLL_SECONDS = 0.05


def settings_of(out: Path, rounds: int, timeout: float) -> dict[str, Scalar]:
    return {
        "out": str(out),
        "rounds": rounds,
        "steps": 1,
        "queries": 2,
        "learning-rate": 0.001,
        "data.clients": CLIENTS,
        "personal.rounds": 0,
        "evaluate.every": 0,
        "cohort.fraction": 0.75,
        "cohort.available": CLIENTS,
        "cohort.timeout": timeout,
        "ledger.snapshot-every": 0,
    }


class ToyRun:
    """`samara server up` over TLS with client keys, and toy clients; a context manager.

    Args:
        folder: of everything; the run's own is `run`.
        rounds: rounds of the run.

    Attributes:
        server: the server's process.
    """

    server: "subprocess.Popen[bytes]"

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder, self.run, self._port = folder, folder / "run", free_port()
        self._settings = settings_of(self.run, rounds, _ROUND_SECONDS)
        self._keys = ClientKeys(self.run / KEYS_FOLDER)
        for number in range(CLIENTS):
            self._keys.create(f"device-{number}")
        self._acknowledged: dict[int, str] = {}
        self._metrics = EventFollower(self.run / METRICS_FILE)
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        """The run, once the server listens and the clients have been started."""
        self._ends.callback(self._end_server)
        self.start_server()
        self._wait(lambda: self.said().count("may join") == CLIENTS)
        command = [sys.executable, "-m", "benchmarks.faults.toy_clients"]
        command += ["--superlink", f"127.0.0.1:{self._port}", "--devices", str(CLIENTS)]
        command += ["--ca", str(self.run / "certificates" / "ca.pem")]
        command += ["--keys", str(self.run / KEYS_FOLDER)]
        clients = self._started(command, "fleet")
        self._ends.callback(clients.wait)
        self._ends.callback(clients.kill)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the clients and the server."""
        self._ends.close()

    def start_server(self) -> None:
        """Start the server, or start it again once it has ended."""
        if hasattr(self, "server"):
            self.server.wait()
        command = [sys.executable, "-m", "samara", "server", "up", "--run", str(self.run)]
        command += ["--host", "127.0.0.1", "--port", str(self._port)]
        for key, value in self._settings.items():
            command += ["--set", f"{key}={json.dumps(value)}"]
        self.server = self._started(command, "said")

    def said(self) -> str:
        """Return the output of the server so far."""
        return (self.folder / "said").read_text(errors="replace")

    def last(self) -> int:
        """Return the last round that was acknowledged."""
        events = [event for event in self._metrics.read_new() if event["event"] == "round"]
        self._acknowledged |= {event["round"]: event["digest"] for event in events}
        return max(self._acknowledged, default=0)

    def wait_for_round(self, number: int) -> None:
        """Wait until a round is acknowledged; what was said is shown if it does not come."""
        self._wait(lambda: self.last() >= number)

    def check(self, what: str) -> str:
        """Prove the run that has ended; see `check`."""
        self.last()
        rounds = max(step.round for step in replay_run(self.run))
        nodes: list[UserConfig] = [{CLIENT_INDEX: key.client} for key in self._keys.read_all()]
        settings = self._settings | {"rounds": rounds}
        return check(self.folder, settings, self._acknowledged, what, nodes)

    def _wait(self, ready: Callable[[], bool], seconds: float = 600) -> None:
        end = time.monotonic() + seconds
        while not ready():
            log = self.run / "flower" / "superlink.log"
            assert time.monotonic() < end, "\n".join(
                file.read_text(errors="replace")[-3000:] for file in (self.folder / "said", log)
            )
            time.sleep(_POLL_SECONDS)

    def _started(self, command: Sequence[str], output: str) -> "subprocess.Popen[bytes]":
        with (self.folder / output).open("ab") as said:
            return subprocess.Popen(command, stdout=said, stderr=said)

    def _end_server(self) -> None:
        if hasattr(self, "server"):
            self.server.terminate()
            self.server.wait()


def check(
    folder: Path,
    settings: Mapping[str, Scalar],
    acknowledged: Mapping[int, str],
    what: str,
    nodes: Sequence[UserConfig] = (),
) -> str:
    """Prove the ledger, compare it with what was acknowledged and with an undisturbed run.

    Args:
        folder: folder that has the run, finished or not, as `run`.
        settings: settings of the run.
        acknowledged: digest of every acknowledged round.
        what: what the run went through, for the returned text.
        nodes: node configuration of each client; by default of toy clients 0 to 3.

    Raises:
        AssertionError: if an acknowledged round is lost or another, or the ends differ.
    """
    run = folder / "run"
    layout_hash = read_layout(run).hash
    rounds = {step.round: digest(layout_hash, step.state).hex() for step in replay_run(run)}
    for number, said in acknowledged.items():
        assert rounds.get(number) == said, f"round {number} was acknowledged and is another"
    end = rounds[max(rounds)]
    config = RunConfig.of({**settings, "out": str(folder / "again")}, "again")
    grid = InProcessGrid(app, len(nodes) or CLIENTS, config.flat(), nodes=nodes)
    again = serve(config, grid, RecordedCohorts(read_cohorts(run)))
    assert read_result(again)["final_digest"] == end, "another end"
    return (
        f"{what}: {len(acknowledged)} rounds acknowledged, none lost; {len(rounds) - 1} rounds end "
        f"in {end[:16]}, as the undisturbed run with the same cohorts does"
    )
