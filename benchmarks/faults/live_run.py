"""A live run in real processes (`samara server up`, `client up`), for programs that disturb it.

Every process may be started by another command, for example in a network namespace, and ends with
the run. The output of a process goes to a file with its name and the suffix ".said".
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from samara.client.personal.personalizations import PERSONALIZATIONS_FILE
from samara.client.protocol.session_store import decode_session
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.store import METRICS_FILE, read_layout, replay_run
from samara.shared.network.http.guard import is_loopback
from samara.shared.protocol.replay import digest
from samara.shared.settings.setting import Scalar
from samara.shared.storage.events import EventFollower

ROOT = Path(__file__).parents[2]
_POLL_SECONDS = 0.1
_END_SECONDS = 60.0


@dataclass
class Place:
    """The environment of a process: a command that starts it, and environment variables."""

    behind: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class LiveRun:
    """A context manager for a live run: a server, its clients, and their outputs.

    Args:
        folder: folder of all files; its path must be short, because it contains sockets.
        settings: settings of the run, by dotted key.
        names: names of the clients; each client gets a key.
        address: address at which clients reach the server, host:port.
        server: environment of the server's process.
        run: folder of the run; by default in `folder`.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Scalar],
        names: Sequence[str],
        address: str,
        server: Place | None = None,
        run: Path | None = None,
    ) -> None:
        self.folder, self.names = folder, list(names)
        self.run = run or folder / "run"
        self.settings, self.address = dict(settings), address
        self._place = server or Place()
        self._metrics, self.rounds = (
            EventFollower(self.run / METRICS_FILE),
            dict[int, dict[str, Any]](),
        )
        self.server: subprocess.Popen[bytes] | None = None
        self.clients: dict[str, subprocess.Popen[bytes]] = {}
        self.devices: dict[str, int] = {}
        keys = ClientKeys(self.run / KEYS_FOLDER)
        known = {key.name for key in keys.read_all()}
        for name in self.names:
            if name not in known:
                keys.create(name)
        self.devices = {key.name: key.client for key in keys.read_all()}

    def __enter__(self) -> Self:
        """Return the run, before any process is started."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End every process; after an error, first show the last output of each process."""
        if error:
            for file in sorted(self.folder.glob("*.said")):
                print(f"--- {file.stem}\n{file.read_text(errors='replace')[-1500:]}")
        for process in [*self.clients.values(), *filter(None, [self.server])]:
            if process.poll() is None:
                process.terminate()
        for process in [*self.clients.values(), *filter(None, [self.server])]:
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()

    def start_server(self, *options: str) -> None:
        """Start `samara server up`, or start it again."""
        host, port = self.address.rsplit(":", 1)
        # in a network namespace, clients and the server's child processes use different addresses
        listen = "127.0.0.1" if is_loopback(host) else "0.0.0.0"
        command = ["server", "up", "--run", str(self.run), "--host", listen, "--port", port]
        command += ["--name", host]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={json.dumps(value)}"]
        self.server = self._launched([*command, *options], self._place, "server")

    def serve(self, *options: str) -> None:
        """Start the server, and wait until every client with a key may join."""
        keys = len(ClientKeys(self.run / KEYS_FOLDER).read_all())
        earlier = (self.folder / "server.said").exists() and self.said().count("may join")
        self.start_server(*options)
        self.wait(lambda: self.said().count("may join") >= earlier + keys, "the server")

    def start_client(self, name: str, place: Place | None = None, *options: str) -> None:
        """Start `samara client up`, or start it again, with the client's folder `home`.

        The client uses the key of its name, unless the options name another key.
        """
        command = ["client", "up", "--name", name, "--home", str(self.home(name))]
        command += ["--superlink", self.address, *options]
        if not {"--key", "--insecure"} & set(options):
            command += ["--key", str(self.key(name))]
        if "--insecure" not in options:
            command += ["--certs", str(self.run / "certificates" / "ca.pem")]
        self.start(name, command, place)

    def start(self, name: str, command: Sequence[str], place: Place | None = None) -> None:
        """Start another long-running samara command for a client."""
        self.clients[name] = self._launched(command, place or Place(), name)

    def home(self, name: str) -> Path:
        """Return the folder of a client."""
        return self.folder / name

    def key(self, name: str) -> Path:
        """Return the private key file of a client."""
        return self.run / KEYS_FOLDER / f"{name}.key"

    def revoke(self, name: str) -> None:
        """Revoke the key of a client, as the operator's command does."""
        ClientKeys(self.run / KEYS_FOLDER).revoke(name)

    def said(self, who: str = "server") -> str:
        """Return the output of a process so far."""
        return (self.folder / f"{who}.said").read_text(errors="replace")

    def process(self, of: "subprocess.Popen[bytes]", part: str) -> psutil.Process | None:
        """Return a child process whose command line contains a text, or None."""
        try:
            family = psutil.Process(of.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return None
        for process in family:
            try:
                if part in " ".join(process.cmdline()):
                    return process
            except psutil.NoSuchProcess:
                continue
        return None

    def last(self) -> int:
        """Return the number of the last acknowledged round."""
        for event in self._metrics.read_new():
            if event["event"] == "round":
                self.rounds[event["round"]] = event
        return max(self.rounds, default=0)

    def reporters(self, number: int) -> set[str]:
        """Return the names of the clients that reported in a round."""
        names = {str(device): name for name, device in self.devices.items()}
        return {names[device] for device in self.rounds[number]["clients"]}

    def wait(self, ready: Callable[[], object], what: str, seconds: float = 600) -> float:
        """Wait until a condition is true, and return the seconds of the wait.

        Raises:
            AssertionError: if nothing happens in the run for the given number of seconds.
        """
        begun = since = time.monotonic()
        done = self._work_done()
        while not ready():
            if time.monotonic() - since >= seconds:
                before, done = done, self._work_done()
                assert done != before, f"{what}: nothing in {seconds:.0f} s:\n{self.said()[-3000:]}"
                since = time.monotonic()
            time.sleep(_POLL_SECONDS)
        return time.monotonic() - begun

    def _work_done(self) -> dict[Path, int]:
        """Return the modification times of sessions, ledgers and evaluations.

        Logs are left out, because they also grow without progress.
        """
        places = [self.run, *map(self.home, self.names)]
        names = "session", "*.seg", PERSONALIZATIONS_FILE, METRICS_FILE
        files = [file for place in places for name in names for file in place.rglob(name)]
        return {file: file.stat().st_mtime_ns for file in files if file.exists()}

    def wait_for_round(self, number: int, seconds: float = 600) -> float:
        """Wait for the end of a round."""
        return self.wait(lambda: self.last() >= number, f"round {number}", seconds)

    def wait_for_report(self, name: str, seconds: float = 600) -> float:
        """Wait until a round that ends from now on contains a client's report."""
        after = self.last()

        def reported() -> bool:
            news = range(after + 1, self.last() + 1)
            return any(n in self.rounds and name in self.reporters(n) for n in news)

        return self.wait(reported, f"a report of {name}", seconds)

    def end_server(self) -> int:
        """End the server by a signal, and return the result of `check`."""
        assert self.server is not None, "the server was started before"
        self.server.terminate()
        self.server.wait()
        return self.check()

    def digests(self) -> dict[int, str]:
        """Return the digest after every round of the ledger, as proven by replay."""
        layout = read_layout(self.run)
        return {s.round: digest(layout.hash, s.state).hex() for s in replay_run(self.run)}

    def positions(self) -> dict[str, tuple[int, str]]:
        """Return the round and the digest in every client's session on disk."""
        found = {}
        for name in self.names:
            for file in self.home(name).glob("runs/*/session"):
                session = decode_session(file.read_bytes())
                found[name] = session.position.round, session.digest.hex()
        return found

    def check(self) -> int:
        """Check that the ledger has all acknowledged rounds, and that clients agree with it.

        Rounds before the ledger's oldest snapshot cannot be checked.

        Returns:
            The number of rounds in the ledger.

        Raises:
            AssertionError: if a round is missing, or a client has another state.
        """
        self.last()
        digests = self.digests()
        first = min(digests)  # earlier rounds may be compacted
        for number, event in self.rounds.items():
            kept = number < first or digests.get(number) == event["digest"]
            assert kept, f"round {number} is lost or differs"
        for name, (number, reached) in self.positions().items():
            assert digests[number] == reached, f"{name} has another state after round {number}"
        return max(digests)

    def _launched(
        self, command: Sequence[str], place: Place, who: str
    ) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{who}.said").open("ab") as said:
            return subprocess.Popen(
                [*place.behind, sys.executable, "-m", "samara", *command],
                env={**os.environ, "PYTHONPATH": str(ROOT), **place.environment},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
