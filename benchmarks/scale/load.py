"""A real server under thousands of light clients: what a round costs, by part.

    python -m benchmarks.scale.load --clients 1000 --cohort 0.1 [--rounds 20] [--out FILE]
        [--folder DIR]

Takes root. `samara server up` is in one network namespace, the gateways and the clients in another;
all of them are real processes over TLS with a registered key for each client. The clients have no
model (`benchmarks.scale.light_clients`): they prove keys, read frames, check digests and sign, so
that the time that is measured is the server's. Appends one row of JSON to FILE for every number of
clients and cohort, and prints it as a table: seconds until everybody is known, median seconds of a
round by part (`benchmarks.scale.round_parts`), memory of the server's processes, bytes that a round
adds to the disk, and bytes on the wire. Every digest of the ledger is proven at the end.
"""

import json
import logging
import os
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.rows import Rows
from benchmarks.faults.live_run import ROOT, LiveRun, Place
from benchmarks.faults.network import SERVER_ADDRESS, Network, network
from benchmarks.scale.light_clients import Plan, started
from benchmarks.scale.round_parts import FILE_VARIABLE
from samara.server.live.key_pairs import encode_key, new_key
from samara.server.live.keys import KEYS_FOLDER, ClientKey, ClientKeys
from samara.shared.settings.setting import Scalar

OPEN = "phones attach at port"
"""The gateway's log line when clients can attach."""
PER_GATEWAY = 4000
"""Most clients of a gateway, which holds 4,096 streams."""
FIRST_PORT = 9100
DAY_ROUNDS = 1440
"""Rounds of a day with one a minute."""
_GATEWAY, _PARTS_FILE = "gateway", "parts.jsonl"
_SITE = "from benchmarks.scale.round_parts import install\n\ninstall()\n"


def settings_of(clients: int, cohort: float, rounds: int) -> dict[str, Scalar]:
    """Return the settings of a run."""
    return {
        "rounds": rounds,
        "steps": 1,
        "queries": 16,
        "learning-rate": 0.001,
        "data.clients": clients,
        "cohort.available": clients,
        "cohort.fraction": cohort,
        "cohort.timeout": 1800.0,
        "personal.rounds": 0,
        "evaluate.every": 0,
        "ledger.snapshot-every": 10,
    }


def register(folder: Path, count: int) -> None:
    """Register clients as `samara server keys create` does, but without a sync for every file."""
    used: set[int] = set()
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        private, public = new_key(used)
        key = ClientKey(f"light-{number}", public.decode(), "2026-01-01T00:00:00+00:00")
        used.add(key.client)
        (folder / f"{key.name}.key").write_bytes(encode_key(private))
        fields = {name: value for name, value in asdict(key).items() if value is not None}
        (folder / f"{key.name}.json").write_text(json.dumps(fields, indent=1))


def admit(keys: Path, phones: Path) -> None:
    """Write the folder of keys that gateways admit."""
    phones.mkdir()
    for key in ClientKeys(keys).read_all():
        if not key.gateway:
            (phones / f"{key.name}.pem").write_text(key.public_key)


class Load:
    """A run with its gateways and light clients.

    Args:
        folder: of everything.
        clients: number of clients.
        cohort: share of them that a round asks.
        rounds: number of rounds.
        net: namespaces of the server, and of gateways and clients.
    """

    def __init__(
        self, folder: Path, clients: int, cohort: float, rounds: int, net: Network
    ) -> None:
        self.folder, self.clients, self._net = folder, clients, net
        self._gateways = [f"{_GATEWAY}-{n}" for n in range(-(-clients // PER_GATEWAY))]
        self._keys, self._phones = folder / "run" / KEYS_FOLDER, folder / "phones"
        register(self._keys, clients)
        for name in self._gateways:
            ClientKeys(self._keys).create(name, gateway=True)
        admit(self._keys, self._phones)
        site = folder / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(_SITE)
        place = Place(
            net.server,
            {
                "PYTHONPATH": f"{site}{os.pathsep}{ROOT}",
                FILE_VARIABLE: str(folder / _PARTS_FILE),
            },
        )
        settings = settings_of(clients, cohort, rounds)
        self.live = LiveRun(folder, settings, [], f"{SERVER_ADDRESS}:8000", place)
        self._lights: list[subprocess.Popen[bytes]] = []
        self.seconds: dict[str, float] = {}

    def start(self) -> None:
        """Start everything; return when the first round has ended."""
        began = time.monotonic()
        self.live.start_server()
        self.live.wait(lambda: "waiting for" in self.live.said(), "the server", 1200)
        self.note("server waits for clients", began)
        began = time.monotonic()
        for number, name in enumerate(self._gateways):
            self._start_gateway(number, name)
        self.note("gateways open", began)
        began = time.monotonic()
        for number, _ in enumerate(self._gateways):
            first = number * PER_GATEWAY
            self._start_lights(number, first, min(PER_GATEWAY, self.clients - first))
        self.live.wait(lambda: self.lights()["attached"] == self.clients, "the clients", 1200)
        self.note("clients attached", began)
        began = time.monotonic()
        self.live.wait_for_round(1, 1800)
        self.note("first round over", began)

    def note(self, what: str, began: float) -> None:
        """Note and print how long something took."""
        self.seconds[what] = round(time.monotonic() - began, 1)
        print(f"{what}: {self.seconds[what]} s", flush=True)

    def _start_gateway(self, number: int, name: str) -> None:
        ca = str(self.live.run / "certificates" / "ca.pem")
        command = ["gateway", "up", "--superlink", self.live.address, "--certs", ca]
        command += ["--key", str(self.live.key(name)), "--home", str(self.live.home(name))]
        command += ["--phones", str(self._phones), "--name", "127.0.0.1"]
        command += ["--listen", f"127.0.0.1:{FIRST_PORT + number}"]
        self.live.start(name, command, Place(self._net.client(0)))
        self.live.wait(lambda: OPEN in self.live.said(name), name)

    def _start_lights(self, gateway: int, first: int, count: int) -> None:
        door = f"127.0.0.1:{FIRST_PORT + gateway}"
        authority = self.live.home(self._gateways[gateway]) / "certificates" / "ca.pem"
        own, where = (first, count, self.clients), (str(self.folder), str(self._keys))
        plan = Plan(*where, *own, door, str(authority)).write()
        with (self.folder / f"lights-{gateway}.said").open("wb") as said:
            self._lights.append(started(plan, said, self._net.client(0)))

    def lights(self) -> Counter[str]:
        """Return what the light clients did so far, added up."""
        files = self.folder.glob("lights-*.json")
        return sum((Counter(json.loads(file.read_text())) for file in files), Counter())

    def end(self) -> None:
        """End the light clients; the run ends the other processes."""
        for process in self._lights:
            process.terminate()
        for process in self._lights:
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()

    def memory(self) -> dict[str, float]:
        """Return the unique memory of the server's processes and of all gateways, MiB."""
        found: dict[str, float] = {}
        for root in filter(None, [self.live.server, *self.live.clients.values()]):
            process = psutil.Process(root.pid)
            for one in [process, *process.children(recursive=True)]:
                name = name_of(" ".join(one.cmdline()))
                if name:
                    uss = one.memory_full_info().uss / 2**20
                    found[name] = round(found.get(name, 0.0) + uss, 1)
        return found

    def wire(self) -> dict[str, int]:
        """Return the bytes so far between gateways and server, and of the clients' messages."""
        traffic, lights = self._net.traffic(0), self.lights()
        return {
            "gateways to server": traffic.up,
            "server to gateways": traffic.down,
            "clients to gateways": lights["up"],
            "gateways to clients": lights["down"],
        }

    def disk(self) -> dict[str, int]:
        """Return the bytes of what a run adds to its folder."""
        run = self.live.run
        places = {"ledger": "ledger/*", "metrics": "metrics.jsonl", "log": "log*.jsonl*"}
        places |= {"flower": "flower/*"}
        return {
            what: sum(file.stat().st_size for file in run.glob(pattern) if file.is_file())
            for what, pattern in places.items()
        }


def name_of(command: str) -> str:
    """Return what a process of a live run is, by its command line; empty for others."""
    names = {
        "flwr-serverapp": "ServerApp",
        "samara.server.live.superlink": "SuperLink",
        "flower-superexec": "SuperExec",
        "server up": "server up",
        "samara.devices.live.connection.supernode": "SuperNodes of gateways",
        "gateway up": "gateways",
    }
    if command.startswith("ip "):
        return ""
    return next((name for part, name in names.items() if part in command), "")


def measured(load: Load, rounds: int, cohort: float) -> dict[str, Any]:
    """Start a run, and return the row of its rounds after the second."""
    live = load.live
    load.start()
    live.wait_for_round(2, 1800)
    begun, before, disk = time.monotonic(), load.wire(), load.disk()
    live.wait_for_round(rounds - 1, 1800)
    seconds, counted = time.monotonic() - begun, rounds - 3
    wire = {what: (n - before[what]) / counted for what, n in load.wire().items()}
    grown = {what: (n - disk[what]) / counted for what, n in load.disk().items()}
    memory = load.memory()
    live.wait(lambda: live.server and live.server.poll() is not None, "the end of the run", 1800)
    rows = [json.loads(line) for line in (load.folder / _PARTS_FILE).read_text().splitlines()]
    taken = [row["seconds"] for row in rows if 2 < row["round"] < rounds]
    parts = {part: statistics.median(row.get(part, 0.0) for row in taken) for part in taken[0]}
    reports = [live.rounds[n]["reports"] for n in range(3, rounds)]
    return {
        "clients": load.clients,
        "cohort": cohort,
        "rounds, all digests agree": live.check(),
        "reports of a round, median": statistics.median(reports),
        "seconds of the beginning": load.seconds,
        "seconds of a round, mean": round(seconds / counted, 3),
        "seconds by part, median": {part: round(s, 4) for part, s in parts.items()},
        "unique MiB": memory,
        "bytes of a round on the wire": {what: round(n) for what, n in wire.items()},
        "bytes of a round on the disk": {what: round(n) for what, n in grown.items()},
        "MB a day with a round a minute": round(sum(grown.values()) * DAY_ROUNDS / 1e6, 1),
    }


def table(row: dict[str, Any]) -> Table:
    """Return a row as a table."""
    shown = Table("what", "", title=f"{row['clients']} clients, cohorts of {row['cohort']:.0%}")
    for what, value in row.items():
        if not isinstance(value, dict):
            shown.add_row(what, f"{value:,}")
            continue
        shown.add_section()
        for name, figure in value.items():
            shown.add_row(f"{what}: {name}", f"{figure:,}")
    return shown


def main(
    clients: Annotated[int, typer.Option(min=2)] = 1000,
    cohort: Annotated[float, typer.Option(min=0, max=1)] = 0.1,
    rounds: Annotated[int, typer.Option(min=5)] = 20,
    out: Annotated[Path | None, typer.Option(help="File that the row is appended to.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder of the run, which stays.")] = None,
) -> None:
    """Measure one number of clients and one cohort."""
    logging.getLogger().setLevel(logging.ERROR)
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="w")))
        folder.mkdir(parents=True, exist_ok=True)
        net = stack.enter_context(network(1))
        load = Load(folder, clients, cohort, rounds, net)
        stack.enter_context(load.live)
        stack.callback(load.end)
        row = measured(load, rounds, cohort)
    if out:
        Rows(out).add(row)
    Console().print(table(row))


if __name__ == "__main__":
    typer.run(main)
