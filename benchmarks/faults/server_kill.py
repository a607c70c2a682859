"""Repeated kills of a run's server processes, and a check that no round is lost.

    python -m benchmarks.faults.server_kill [--kills 100] [--live 15] [--seed 0]

The first part tests strategy and store. A process serves toy devices in process, some of which are
absent in some rounds, and gets `kill -9` at random moments. The second part uses real processes:
`samara server up` over TLS with device keys, and toy devices that connect to it. The seed decides
which process gets `kill -9`: the command, Flower's SuperLink, its SuperExec or the ServerApp.

Every acknowledged round must be in the ledger with its digest. The run must end like an undisturbed
run with the same cohorts.
"""

import logging
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from flwr.app import Message, UserConfig

from benchmarks.arguments import arguments
from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address
from benchmarks.faults.toy_client import app
from benchmarks.faults.toy_run import CLIENTS, check, settings_of
from samara.client.limits.device_settings import CLIENT_INDEX
from samara.server.app import serve
from samara.server.live.keys import KEYS_FOLDER
from samara.shared.results.result import RESULT_FILE
from samara.shared.settings.config import RunConfig
from samara.shared.settings.setting import Scalar
from samara.simulations.engines.in_process import InProcessGrid

TARGETS = ("server up", "samara.server.live.superlink", "flower-superexec", "flwr-serverapp")
_ROUND_SECONDS = 20.0


class Absences(InProcessGrid):
    """A grid that loses one reply in eight."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies without one in eight, which is lost at random."""
        replies = super().pull_messages(message_ids)
        return [r for r in replies if r.metadata.message_type != "train" or os.urandom(1)[0] >= 32]


class _Acknowledging(logging.Handler):
    """A log handler that sends number and digest of every stored round through a pipe."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__(logging.INFO)
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", {})
        if event.get("event") == "round":
            self._pipe.send((event["round"], event["digest"]))


def serve_and_tell(settings: dict[str, Scalar], pipe: Connection) -> None:
    """Serve toy devices in this process, and report every stored round through a pipe."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logger = logging.getLogger("samara.server")
    logger.addHandler(_Acknowledging(pipe))
    logger.setLevel(logging.INFO)
    config = RunConfig.of(settings, "kill")
    serve(config, Absences(app, CLIENTS, config.flat()))


def kill_in_process(kills: int, seed: int, folder: Path) -> str:
    """Kill the server of one run repeatedly, and return a description of the outcome.

    Raises:
        AssertionError: if an acknowledged round is lost or differs.
    """
    rng = np.random.default_rng(seed)
    settings = settings_of(folder / "run", 3 * kills + 5, 0.02)
    acknowledged: dict[int, str] = {}
    context = multiprocessing.get_context("fork")
    done = 0
    while not (folder / "run" / RESULT_FILE).exists():
        ours, theirs = context.Pipe()
        server = context.Process(target=serve_and_tell, args=(settings, theirs), daemon=True)
        server.start()
        theirs.close()
        wanted = int(rng.integers(1, 5)) if done < kills else sys.maxsize
        _collect(ours, acknowledged, wanted)
        if done < kills and server.is_alive():
            for _ in range(int(rng.integers(200_000))):
                pass  # at any moment of the next round
            server.kill()
            done += 1
        server.join()
        _collect(ours, acknowledged, sys.maxsize)
    return check(folder, settings, acknowledged, f"{done} kills in process, seed {seed}")


def _collect(pipe: Connection, acknowledged: dict[int, str], wanted: int) -> None:
    try:
        for _ in range(wanted):
            number, digest = pipe.recv()
            acknowledged[number] = digest
    except (EOFError, ConnectionError):
        return


def kill_live(kills: int, seed: int, folder: Path) -> str:
    """Kill processes of a real server repeatedly, and return a description of the outcome.

    Raises:
        AssertionError: if an acknowledged round is lost or differs, or the run does not continue.
    """
    rng = np.random.default_rng(seed)
    killed: Counter[str] = Counter()
    names, address = [f"device-{number}" for number in range(CLIENTS)], free_address()
    settings = settings_of(folder / "run", 2 * kills + 3, _ROUND_SECONDS)
    del settings["out"]
    with LiveRun(folder, settings, names, address) as live:
        live.serve()
        live.clients["fleet"] = _toy_clients(live)
        while sum(killed.values()) < kills:
            live.wait_for_round(live.last() + 1)
            assert live.server is not None
            assert live.server.poll() is None, live.said()
            time.sleep(float(rng.uniform(0, 3)))
            target = TARGETS[rng.integers(len(TARGETS))]
            is_command = target == TARGETS[0]
            victim = live.server if is_command else live.process(live.server, target)
            if victim is None:
                continue
            victim.kill()
            killed[target] += 1
            if is_command:
                live.server.wait()
                live.start_server()
        assert live.server is not None
        live.server.wait(1200)
        assert live.server.returncode == 0, live.said()
        live.last()
    of_what = ", ".join(f"{count} of {name}" for name, count in sorted(killed.items()))
    what = f"{kills} kills of real processes ({of_what}), seed {seed}"
    acknowledged = {number: event["digest"] for number, event in live.rounds.items()}
    nodes: list[UserConfig] = [{CLIENT_INDEX: client} for client in live.devices.values()]
    return check(folder, settings | {"rounds": max(live.digests())}, acknowledged, what, nodes)


def _toy_clients(live: LiveRun) -> "subprocess.Popen[bytes]":
    """Start a process with all clients of a run."""
    command = [sys.executable, "-m", "benchmarks.faults.toy_clients"]
    command += ["--superlink", live.address, "--devices", str(CLIENTS)]
    command += ["--ca", str(live.run / "certificates" / "ca.pem")]
    command += ["--keys", str(live.run / KEYS_FOLDER)]
    with (live.folder / "fleet.said").open("ab") as said:
        return subprocess.Popen(command, stdout=said, stderr=said)


def main() -> None:
    given = arguments(__doc__, kills=100, live=15, seed=0)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for how, kills in ((kill_in_process, given.kills), (kill_live, given.live)):
        if kills:
            with tempfile.TemporaryDirectory() as name:
                begun = time.monotonic()
                print(how(kills, given.seed, Path(name)), flush=True)
                print(f"  in {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
