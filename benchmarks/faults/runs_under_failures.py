"""A live run under failures: a network that is cut, a SuperLink that dies, clocks, a full disk.

    python -m benchmarks.faults.runs_under_failures [--clients 3] [--cut 90] \\
        [--jump 3600] [--only cut,clock]

Takes root: the server and every client have a network namespace of their own, and the run's folder
is a small file system in memory. Clocks are set for the processes alone. The model is the
embedded one, so that rounds are short. After each disturbance the script waits until everybody's
report is in a round again and says how long that took; in the end every digest must be that of the
ledger, and the same as that of an undisturbed run with the same cohorts.
"""

import argparse
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from benchmarks.faults.live_run import LiveRun, Place
from benchmarks.faults.network import SERVER_ADDRESS, Network, network, small_disk
from benchmarks.faults.settable_clock import clock_library, clock_of, set_clock
from samara.shared.config import RunConfig
from samara.shared.result import read_result
from samara.shared.settings import Scalar
from samara.simulations.simulate import simulate

DISK = 32 * 2**20
SETTINGS: dict[str, Scalar] = {
    "steps": 1,
    "queries": 2,
    "batch": 8,
    "learning-rate": 0.01,
    "personal.rounds": 0,
    "evaluate.every": 0,
    "cohort.timeout": 20.0,
    "ledger.snapshot-every": 0,
}
ROUNDS = 100_000
"""More than there will be: the script ends the run when it has seen enough."""


class Failures:
    """The failures of a live run.

    Args:
        live: the run.
        net: its network.
        clocks: files that say how far the server's and the clients' clock is ahead, in seconds.
    """

    def __init__(self, live: LiveRun, net: Network, clocks: tuple[Path, Path]) -> None:
        self.live, self._net, self._clocks = live, net, clocks

    def everybody(self, after: int, seconds: float = 900) -> float:
        """Wait until everybody has reported in rounds after one; returns for how long."""

        def all_back() -> bool:
            news = [n for n in range(after + 1, self.live.last() + 1) if n in self.live.rounds]
            return set(self.live.names) <= set().union(*map(self.live.reporters, news))

        return self.live.wait(all_back, "everybody's report", seconds)

    def cut(self, seconds: float) -> str:
        """Unplug a client for so long."""
        name, before = self.live.names[0], self.live.last()
        self._net.cut(0)
        time.sleep(seconds)
        meanwhile = self.live.last()
        self._net.mend(0)
        back = self.live.wait_for_report(name)
        rounds = self.live.last() - meanwhile
        return (
            f"network of one client cut for {seconds:.0f} s: {meanwhile - before} rounds "
            f"meanwhile; its next report {back:.0f} s and {rounds} rounds after the cut"
        )

    def superlink(self) -> str:
        """Kill the SuperLink."""
        before, begun = self.live.last(), time.monotonic()
        assert self.live.server is not None, "the server is started first"
        link = self.live.process(self.live.server, "samara.server.live.superlink")
        assert link is not None, "a live server has a SuperLink"
        link.kill()
        self.live.wait_for_round(before + 1)
        first = time.monotonic() - begun
        self.everybody(before)
        whole = time.monotonic() - begun
        return f"SuperLink killed: next round after {first:.0f} s, everybody after {whole:.0f} s"

    def clock(self, seconds: float) -> str:
        """Set the server's clock, a minute later the clients', and both back in the same way."""
        told = []
        for jump in (seconds, 0.0):
            server, clients = self._clocks
            before = self.live.last()
            set_clock(server, jump)
            time.sleep(60)
            apart = self.live.last() - before
            set_clock(clients, jump)
            back = self.everybody(self.live.last())
            told.append(
                f"server's clock set to {jump:+.0f} s: {apart} rounds in the minute before the "
                f"clients' were set too, everybody {back:.0f} s after that"
            )
        return "; ".join(told)

    def disk(self, seconds: float) -> str:
        """Fill the server's disk, wait until it ends, make room, start it again."""
        live, before = self.live, self.live.last()
        assert live.server is not None, "the server is started first"
        filler, used = live.run / "filler", shutil.disk_usage(live.run).used
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        ended = live.wait(lambda: live.server and live.server.poll() is not None, "its end")
        status, words = live.server.returncode, live.said().strip().splitlines()[-1]
        assert status == 1, words
        assert "Traceback" not in words, words
        reached = live.last()
        filler.unlink()
        live.check()
        live.start_server()
        back = self.everybody(reached, seconds)
        return (
            f"disk full ({used // 2**20} MiB of it the run's own): {reached - before} more rounds, "
            f"after {ended:.0f} s the server ended with status {status} and {words!r}; with room, "
            f"the same command had everybody's report after {back:.0f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--cut", type=float, default=90.0)
    parser.add_argument("--jump", type=float, default=3600.0)
    parser.add_argument("--only", default="cut,superlink,clock,disk")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    wanted = arguments.only.split(",")
    with (
        tempfile.TemporaryDirectory(prefix="w") as name,
        network(arguments.clients) as net,
        small_disk(Path(name) / "run", DISK) as run,
    ):
        folder = Path(name)
        clocks = folder / "server-clock", folder / "clients-clock"
        for clock in clocks:
            set_clock(clock, 0)
        server, *clients = places(net, clock_library(folder), clocks)
        names = [f"client-{number}" for number in range(arguments.clients)]
        settings = SETTINGS | {"rounds": ROUNDS, "cohort.available": arguments.clients}
        with LiveRun(folder, settings, names, f"{SERVER_ADDRESS}:8000", server, run) as live:
            live.start_server()
            live.wait(lambda: "may join" in live.said(), "the server")
            for client, place in zip(names, clients, strict=True):
                live.start_client(client, place, "--set", "threads=1")
            live.wait_for_round(2)
            failures = Failures(live, net, clocks)
            disturbances: dict[str, Callable[[], str]] = {
                "cut": lambda: failures.cut(arguments.cut),
                "superlink": failures.superlink,
                "clock": lambda: failures.clock(arguments.jump),
                "disk": lambda: failures.disk(900),
            }
            for kind in wanted:
                print(disturbances[kind](), flush=True)
            rounds = live.end_server()
            print(f"{rounds} rounds; each acknowledged one is kept, each client in a state of it")
        print(again(live, settings, rounds), flush=True)


def places(net: Network, library: Path, clocks: tuple[Path, Path]) -> list[Place]:
    """Return the surroundings of the server and the clients, with their clocks."""
    server, clients = (clock_of(library, clock) for clock in clocks)
    return [
        Place(net.server, server),
        *(Place(net.client(number), clients) for number in range(net.clients)),
    ]


def again(live: LiveRun, settings: Mapping[str, Scalar], rounds: int) -> str:
    """Repeat the run in process, with the cohorts that it had; see that it ends in the same digest.

    Raises:
        AssertionError: if it does not.
    """
    out = live.folder / "again"
    config = RunConfig.of(dict(settings) | {"out": str(out)}, "again")
    homes = [live.home(name) for name in live.names]
    repeated = read_result(simulate(config, cohorts_from=live.run, homes=homes))
    expected = live.digests()[rounds]
    assert repeated["final_digest"] == expected, "another end"
    return f"an undisturbed run with the same cohorts ends in {expected[:16]} too"


if __name__ == "__main__":
    main()
