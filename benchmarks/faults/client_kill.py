"""Kills clients of a live run in the middle of its rounds, again and again.

    python -m benchmarks.faults.client_kill [--kills 50] [--clients 8] [--seed 0]

`samara server up` over TLS with device keys, and real clients with the embedded model on loopback.
The seed says when `kill -9` comes, to which client, and whether to its trainer, its SuperNode or
`samara client up` itself, which is started again as a service manager would. Rounds must go on
meanwhile; in the end every client must have come back, and every digest be that of the ledger, and
that of an undisturbed run with the same cohorts.
"""

import argparse
import logging
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address
from benchmarks.faults.runs_under_failures import again
from samara.shared.settings import Scalar

PARTS = ("samara.devices.live.trainer_process", "samara.devices.live.supernode", "client up")
ROUNDS = 100_000
"""More than there will be."""


def settings_of(clients: int) -> dict[str, Scalar]:
    return {
        "rounds": ROUNDS,
        "steps": 2,
        "queries": 4,
        "batch": 16,
        "learning-rate": 0.01,
        "personal.rounds": 0,
        "evaluate.every": 0,
        "cohort.available": clients,
        "cohort.timeout": 30.0,
        "ledger.snapshot-every": 0,
    }


def kill_clients(kills: int, clients: int, seed: int, folder: Path) -> str:
    """Kill so many clients of one run; returns what happened.

    Raises:
        AssertionError: if rounds end, a client does not come back, or a digest is another.
    """
    rng = np.random.default_rng(seed)
    names = [f"client-{number}" for number in range(clients)]
    killed: Counter[str] = Counter()
    settings, options = settings_of(clients), ("--set", "threads=1")
    address = free_address()
    with LiveRun(folder, settings, names, address) as live:
        live.start_server()
        live.wait(lambda: live.said().count("may join") == clients, "the server")
        for name in names:
            live.start_client(name, None, *options)
        live.wait_for_round(1, 1200)
        first = live.last()
        while sum(killed.values()) < kills:
            live.wait_for_round(live.last() + 1)
            time.sleep(float(rng.uniform(0, 4)))
            name, part = names[rng.integers(clients)], PARTS[rng.integers(len(PARTS))]
            client = live.clients[name]
            if part == PARTS[2]:
                client.kill()
                client.wait()
                live.start_client(name, None, *options)
            elif victim := live.process(client, part):
                victim.kill()
            else:
                continue  # it is being started again
            killed[part] += 1
        last = live.last()
        for name in names:
            live.wait_for_report(name)
        back = live.last() - last
        rounds = live.end_server()
    reports = [len(event["clients"]) for event in live.rounds.values()]
    end = again(live, settings, rounds)
    parts = ", ".join(f"{count} of {part}" for part, count in sorted(killed.items()))
    return (
        f"{kills} kills of {clients} clients ({parts}), seed {seed}: rounds {first} to {last} went "
        f"on meanwhile with {np.mean(reports[first:last]):.1f} reports on the average "
        f"({reports[first:last].count(0)} rounds had none); everybody had reported again {back} "
        f"rounds later. {rounds} rounds, every client in a state of the ledger; {end}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="w") as name:
        begun = time.monotonic()
        print(kill_clients(arguments.kills, arguments.clients, arguments.seed, Path(name)))
        print(f"  in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
