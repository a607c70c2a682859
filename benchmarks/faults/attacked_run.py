"""A live run with honest and hostile devices, in which no hostile report may be aggregated."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address
from benchmarks.faults.toy_clients import Device, heartbeats_end_with_the_run
from benchmarks.faults.toy_run import settings_of
from samara.shared.protocol.ledger.reading import read_ledger

HONEST = 2
PROCESSES = ("samara.server.live.superlink", "flwr-serverapp")


class Footprint(NamedTuple):
    """Memory of a server's processes in MiB, and size of its files in KiB."""

    memory: dict[str, int]
    database: int
    logs: int
    events: int

    @classmethod
    def of(cls, live: LiveRun) -> "Footprint":
        """Measure a running server."""
        assert live.server is not None, "the server was started"
        found = {part: live.process(live.server, part) for part in PROCESSES}
        memory = {n: p.memory_full_info().uss // 2**20 for n, p in found.items() if p}
        files = {"database": "flower/superlink.db*", "logs": "*log*", "events": "metrics.jsonl"}
        paths = {name: [*live.run.glob(pattern)] for name, pattern in files.items()}
        paths["logs"] += live.run.glob("flower/superlink.log*")
        sizes = {
            name: sum(path.stat().st_size for path in of_one if path.is_file()) // 1024
            for name, of_one in paths.items()
        }
        return cls(memory, **sizes)


def attack(
    folder: Path, rounds: int, hostile: int, kind: Callable[[int, int, str, Path, Path], Device]
) -> list[Footprint]:
    """Serve a run over TLS, with device keys, to honest and hostile devices.

    Args:
        folder: empty folder of the run.
        rounds: number of rounds.
        hostile: number of hostile devices.
        kind: class or function that makes a hostile device, with the arguments of `Device`.

    Returns:
        The footprint of the server after each tenth of the rounds.

    Raises:
        AssertionError: if a report of a hostile device was aggregated, or a server process ended.
    """
    names = [f"device-{number}" for number in range(HONEST + hostile)]
    address = free_address()
    more = {"cohort.fraction": 1.0, "cohort.available": len(names), "data.clients": len(names)}
    settings = settings_of(folder / "run", rounds, 30.0) | more
    del settings["out"]
    footprints: list[Footprint] = []
    live_run = LiveRun(folder, settings, names, address)
    with heartbeats_end_with_the_run(), live_run as live, ExitStack() as devices:
        live.serve()
        assert live.server is not None, "the server was started above"
        for number, name in enumerate(names):
            ca = live.run / "certificates" / "ca.pem"
            make = Device if number < HONEST else kind
            device = make(number, len(names), address, ca, live.key(name))
            device.start()
            devices.callback(device.end)
        for number in range(1, rounds):
            live.wait_for_round(number)
            if number % max(1, rounds // 10) == 0:
                footprints.append(Footprint.of(live))
        live.wait(lambda: live.server and live.server.poll() is not None, "the end of the run")
        assert live.server.returncode == 0, live.said()[-2000:]
        assert "restarting" not in live.said(), live.said()[-2000:]
        live.check()
        honest = sorted(live.devices[name] for name in names[:HONEST])
        for record in read_ledger(live.run / "ledger"):
            contributors = [c.client for c in record.delta.contributors]
            assert contributors == honest, f"round {record.delta.round} aggregated {contributors}"
    return footprints
