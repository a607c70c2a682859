"""Kills the server side of a run, again and again, and looks whether a round is lost.

    python -m benchmarks.faults.server_kill [--kills 100] [--live 15] [--seed 0]

First at strategy and store level: a process serves toy devices in process, some of which are absent
in some rounds, and gets `kill -9` at a random moment. Then with real processes: `samara server up`
over TLS with device keys, toy devices that connect to it, and `kill -9` of the command, of Flower's
SuperLink, of its SuperExec or of the ServerApp, whichever the seed says.

Every round that was acknowledged must be in the ledger with its digest, and the end must be that of
an undisturbed run with the same cohort history.
"""

import argparse
import json
import logging
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import psutil
from flwr.app import Message, UserConfig

from benchmarks.faults.ports import free_port
from benchmarks.faults.toy_client import app
from samara.client.protocol.device_settings import CLIENT_INDEX
from samara.server.app import serve
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.rounds.recorded_cohorts import RecordedCohorts, read_cohorts
from samara.server.store import METRICS_FILE, read_layout, replay_run
from samara.shared.config import RunConfig
from samara.shared.events import EventFollower
from samara.shared.replay import digest
from samara.shared.result import RESULT_FILE, read_result
from samara.shared.settings import Scalar
from samara.simulations.engine import InProcessGrid

ROOT = Path(__file__).parents[2]
CLIENTS = 4
TARGETS = ("server up", "samara.server.live.superlink", "flower-superexec", "flwr-serverapp")


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


class Absences(InProcessGrid):
    """Loses one reply in eight."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Hand out the replies that are not lost; which ones is chance."""
        replies = super().pull_messages(message_ids)
        return [r for r in replies if r.metadata.message_type != "train" or os.urandom(1)[0] >= 32]


class _Acknowledging(logging.Handler):
    """Tells of every round once it is in the ledger."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__(logging.INFO)
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", {})
        if event.get("event") == "round":
            self._pipe.send((event["round"], event["digest"]))


def serve_and_tell(settings: dict[str, Scalar], pipe: Connection) -> None:
    """Serve toy devices in this process."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logger = logging.getLogger("samara.server")
    logger.addHandler(_Acknowledging(pipe))
    logger.setLevel(logging.INFO)
    config = RunConfig.of(settings, "kill")
    serve(config, Absences(app, CLIENTS, config.flat()))


def kill_in_process(kills: int, seed: int, folder: Path) -> str:
    """Kill so many servers of one run; returns what happened.

    Raises:
        AssertionError: if an acknowledged round is lost or another.
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
                pass  # anywhere within the next round
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
    """Kill so many processes of a real server; returns what happened.

    Raises:
        AssertionError: if an acknowledged round is lost or another, or the run does not go on.
    """
    rng = np.random.default_rng(seed)
    run, port = folder / "run", free_port()
    settings = settings_of(run, 2 * kills + 3, 20.0)
    for number in range(CLIENTS):
        ClientKeys(run / KEYS_FOLDER).create(f"device-{number}")
    acknowledged: dict[int, str] = {}
    killed: Counter[str] = Counter()
    metrics = EventFollower(run / METRICS_FILE)
    command = server_command(run, port, settings)
    with (folder / "said").open("ab") as said, (folder / "fleet").open("ab") as of_fleet:
        server, fleet = subprocess.Popen(command, stdout=said, stderr=said), None
        try:
            wait_for(lambda: (folder / "said").read_bytes().count(b"may join") == CLIENTS, folder)
            fleet = subprocess.Popen(fleet_command(run, port), stdout=of_fleet, stderr=of_fleet)
            while sum(killed.values()) < kills:
                known = max(acknowledged, default=0)
                wait_for(lambda known=known: new_rounds(metrics, acknowledged) > known, folder)  # type: ignore[misc]
                assert server.poll() is None, (folder / "said").read_text()[-2000:]
                time.sleep(float(rng.uniform(0, 3)))
                target = TARGETS[rng.integers(len(TARGETS))]
                victim = _process(server, target)
                if victim is None:
                    continue
                victim.kill()
                killed[target] += 1
                if target == TARGETS[0]:
                    server.wait()
                    server = subprocess.Popen(command, stdout=said, stderr=said)
            server.wait(1200)
            assert server.returncode == 0, (folder / "said").read_text()[-2000:]
        finally:
            if fleet:
                fleet.kill()
                fleet.wait()
            server.terminate()
            server.wait()
    new_rounds(metrics, acknowledged)
    of_what = ", ".join(f"{count} of {name}" for name, count in sorted(killed.items()))
    nodes: list[UserConfig] = [
        {CLIENT_INDEX: key.client} for key in ClientKeys(run / KEYS_FOLDER).read_all()
    ]
    what = f"{kills} kills of real processes ({of_what}), seed {seed}"
    return check(folder, settings, acknowledged, what, nodes)


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


def server_command(run: Path, port: int, settings: dict[str, Scalar]) -> list[str]:
    """The command that serves a run to toy clients of this machine."""
    command = [sys.executable, "-m", "samara", "server", "up", "--run", str(run)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    for key, value in settings.items():
        command += ["--set", f"{key}={json.dumps(value)}"]
    return command


def fleet_command(run: Path, port: int) -> list[str]:
    """The command of the toy clients."""
    fleet = [sys.executable, "-m", "benchmarks.faults.toy_clients"]
    fleet += ["--superlink", f"127.0.0.1:{port}", "--devices", str(CLIENTS)]
    return [*fleet, "--ca", str(run / "certificates" / "ca.pem"), "--keys", str(run / KEYS_FOLDER)]


def new_rounds(metrics: EventFollower, acknowledged: dict[int, str]) -> int:
    """Take in what the run wrote; returns the last round."""
    events = [event for event in metrics.read_new() if event["event"] == "round"]
    acknowledged |= {event["round"]: event["digest"] for event in events}
    return max(acknowledged, default=0)


def _process(server: "subprocess.Popen[bytes]", target: str) -> psutil.Process | None:
    """A process of the server by a part of its command line."""
    if target == TARGETS[0]:
        return psutil.Process(server.pid)
    for process in psutil.Process(server.pid).children(recursive=True):
        try:
            if target in " ".join(process.cmdline()):
                return process
        except psutil.NoSuchProcess:
            continue
    return None


def wait_for(ready: Callable[[], bool], folder: Path, seconds: float = 600) -> None:
    """Wait for something; what was said is shown if it does not come."""
    end = time.monotonic() + seconds
    while not ready():
        log = folder / "run" / "flower" / "superlink.log"
        assert time.monotonic() < end, "\n".join(
            file.read_text(errors="replace")[-3000:] for file in (folder / "said", log)
        )
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--live", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for how, kills in ((kill_in_process, arguments.kills), (kill_live, arguments.live)):
        if kills:
            with tempfile.TemporaryDirectory() as name:
                begun = time.monotonic()
                print(how(kills, arguments.seed, Path(name)), flush=True)
                print(f"  in {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
