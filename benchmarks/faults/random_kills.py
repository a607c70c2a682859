"""Kills of every process of a live run, each at a random time, and the digests afterwards.

    python -m benchmarks.faults.random_kills [--kills 20] [--seed 0]

`samara server up` over TLS, two clients by SuperNodes of their own and one by the stream of a
`samara gateway up`, all with the embedded model. `kill -9` comes up to ten seconds after a round;
every kind of process gets it once, the seed says in which order and which ones get it again. A
command that was killed is started again, as a service manager would; what belongs to one, it
starts itself. In the end every acknowledged round must be in the ledger with its digest, every
client in a state of it, and an undisturbed run with the same cohorts must end in the same digest.
"""

import argparse
import logging
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks.faults.client_kill import settings_of
from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address
from benchmarks.faults.runs_under_failures import again
from benchmarks.faults.server_kill import TARGETS
from benchmarks.scale.mixed_run import GATEWAY
from benchmarks.scale.wires import start_by_stream, start_gateway
from samara.server.live.keys import KEYS_FOLDER, ClientKeys

SERVER, CLIENTS, STREAM = "server", ("kitchen", "garden"), "stream"
TRAINER, SUPERNODE = "samara.devices.live.trainer_process", "samara.devices.live.supernode"
KINDS = (
    *((SERVER, part) for part in TARGETS),
    *((CLIENTS[0], part) for part in ("client up", SUPERNODE, TRAINER)),
    *((STREAM, part) for part in ("client up", TRAINER)),
    *((GATEWAY, part) for part in ("gateway up", SUPERNODE)),
)
"""The kinds of processes: whose command, and a part of the process's own."""
COMMANDS = "server up", "client up", "gateway up"
_THREADS = "--set", "threads=1"
_MOST_SECONDS = 10.0


class Killed:
    """A live run whose processes are killed.

    Args:
        live: the run.
        door: where clients find the gateway, host:port.
    """

    def __init__(self, live: LiveRun, door: str) -> None:
        self._live, self._door = live, door

    def start(self, who: str) -> None:
        """Start a command, or start it again."""
        if who == SERVER:
            self._live.start_server()
        elif who == GATEWAY:
            start_gateway(self._live, None, self._door)
        elif who == STREAM:
            start_by_stream(self._live, STREAM, [self._door], None, *_THREADS)
        else:
            self._live.start_client(who, None, *_THREADS)

    def kill(self, who: str, part: str) -> bool:
        """Kill a process; return whether there was one."""
        command = self._live.server if who == SERVER else self._live.clients[who]
        assert command is not None, "it was started before"
        assert command.poll() is None, f"{who} ended by itself: {self._live.said(who)[-2000:]}"
        if part in COMMANDS:
            command.kill()
            command.wait()
            self.start(who)
        elif victim := self._live.process(command, part):
            victim.kill()
        else:
            return False  # it is being started again
        return True


def kill_all(kills: int, seed: int, folder: Path) -> str:
    """Kill so many processes of one run; return what happened.

    Raises:
        AssertionError: if rounds end, a client does not come back, or a digest is another.
    """
    rng = np.random.default_rng(seed)
    names, door = [*CLIENTS, STREAM], free_address()
    settings = settings_of(len(names))
    ClientKeys(folder / "run" / KEYS_FOLDER).create(GATEWAY, gateway=True)
    counts: Counter[tuple[str, str]] = Counter()
    with LiveRun(folder, settings, names, free_address()) as live:
        killed = Killed(live, door)
        live.start_server()
        live.wait(lambda: live.said().count("may join") >= len(names), "the server")
        for who in (GATEWAY, *names):
            killed.start(who)
        live.wait_for_round(1, 1200)
        left = [KINDS[number] for number in rng.permutation(len(KINDS))]
        while (done := counts.total()) < kills:
            live.wait_for_round(live.last() + 1)
            time.sleep(float(rng.uniform(0, _MOST_SECONDS)))
            who, part = left[0] if left else KINDS[rng.integers(len(KINDS))]
            if killed.kill(who, part):
                left = left[1:]
                counts[who, part] += 1
                print(f"{done + 1}: {part} of {who} after round {live.last()}", flush=True)
        for name in names:
            live.wait_for_report(name)
        rounds = live.end_server()
        acknowledged = len(live.rounds)
    end = again(live, settings, rounds)
    return (
        f"{kills} kills of {len(counts)} kinds of processes, seed {seed}: {acknowledged} rounds "
        f"acknowledged, none lost, every client in a state of the ledger; {end}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="w") as name:
        begun = time.monotonic()
        print(kill_all(arguments.kills, arguments.seed, Path(name)))
        print(f"  in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
