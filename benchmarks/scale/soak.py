"""A month's rounds in an hour: does anything grow in a server that serves without an end?

    python -m benchmarks.scale.soak --folder DIR [--rounds 5000] [--minutes 60] [--supernodes 0]

Real processes over TLS with a key for each client, on loopback: `samara server up --dashboard`, a
gateway, 20 clients without a model (`benchmarks.scale.light_clients`), of which one in 2,000
requests makes one leave for half a minute on average, and two `samara client up` with the embedded
model, so many of them by a SuperNode, the others by the stream. Rounds follow each other as fast as
they can. After every hundred rounds a process is ended, in turn: the server (SIGTERM, which ends
all of its own), the gateway (SIGTERM in one turn, kill -9 in the next), and by kill -9 a real
client, the ServerApp, half of the light clients, and the SuperLink; the other real client and the
other light clients live from the first round to the last. Server and real clients begin with logs
that are nearly full. Every ten seconds memory (unique set size), descriptors and threads of every
process and the sizes of all files are appended to DIR/samples.jsonl, and the page's metrics are
fetched.

When so many rounds or minutes are over, the server is ended, every digest of the ledger is proven
by replay, and the sessions of the real clients are held to them. Printed is, for each kind of
process and of file, what it had early and late (`benchmarks.scale.growth`).
"""

import json
import logging
import re
import subprocess
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any

import httpx
import psutil
import typer
from rich.console import Console

from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address, free_port
from benchmarks.scale.growth import files_table, processes_table
from benchmarks.scale.light_clients import Plan, started
from benchmarks.scale.load import admit, register
from benchmarks.scale.mixed_run import GATEWAY, MODEL, TASK, write_messages
from benchmarks.scale.wires import start_by_stream, start_gateway
from samara.client.protocol.answer_log import ANSWERS_FILE, MOST_BYTES
from samara.client.protocol.logged_answers import LoggedAnswer
from samara.client.training.model_runtime import load_run
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.live.server_log import LOG_FILE
from samara.server.watch.dashboard import TOKEN_FILE
from samara.shared.config import RunConfig
from samara.shared.events import append_event, read_events
from samara.shared.settings import Scalar

LIGHTS, REAL = 20, ("real-0", "real-1")
SETTINGS: dict[str, Scalar] = {
    "steps": 1,
    "queries": 16,
    "batch": 8,
    "learning-rate": 0.0001,
    "adapter.layers": "top:2",
    "adapter.rank": 4,
    "adapter.alpha": 4.0,
    "personal.rounds": 0,
    "evaluate.every": 0,
    "ledger.snapshot-every": 100,
    "cohort.available": LIGHTS + len(REAL),
    "cohort.timeout": 30.0,
}
LEAVING, AWAY = 1 / 2000, 30.0
RESTART_ROUNDS, SAMPLE_SECONDS = 100, 10.0
TURNS = (
    "server",
    f"{GATEWAY} term",
    REAL[0],
    "flwr-serverapp",
    "lights",
    "samara.server.live.superlink",
    f"{GATEWAY} kill",
)
NEARLY_FULL = 2**16
"""Bytes that the logs lack to their limit when the run begins."""
_LOG_BYTES = 8 * 2**20
_MODULE = re.compile(r" -m ([\w.]+)")


class Soak:
    """A run, its clients, and what becomes of them.

    Args:
        folder: of everything; short, as sockets lie in it.
        rounds: most rounds.
        supernodes: number of the real clients that are attached by a SuperNode.
    """

    def __init__(self, folder: Path, rounds: int, supernodes: int) -> None:
        self.folder, self._supernodes = folder, supernodes
        self._door, self._dashboard_port = free_address(), free_port()
        self._keys = folder / "run" / KEYS_FOLDER
        register(self._keys, LIGHTS)
        ClientKeys(self._keys).create(GATEWAY, gateway=True)
        settings = SETTINGS | {"rounds": rounds}
        self.live = LiveRun(folder, settings, REAL, free_address())
        admit(self._keys, folder / "phones")
        self._data = list(write_messages(folder, 0).values())
        self._lights: dict[int, subprocess.Popen[bytes]] = {}
        self.samples = folder / "samples.jsonl"
        self.restarts: list[tuple[int, str]] = []

    def start(self) -> None:
        """Start everything; return after the first round."""
        fill(self.live.run / LOG_FILE, '{"level": "info", "message": "of an earlier day"}')
        fill(self.live.run / "flower" / "superlink.log", "of an earlier day")
        for name in REAL:
            line = LoggedAnswer("train", run="00" * 16, scalars=16, sent_bytes=100).to_json()
            fill(self.live.home(name) / ANSWERS_FILE, line, MOST_BYTES)
        self._start_server()
        self.live.wait(lambda: "waiting for" in self.live.said(), "the server")
        self._start_gateway()
        for first in (0, LIGHTS // 2):
            self._start_lights(first)
        for name in REAL:
            self._start_real(name)
        self.live.wait_for_round(1, 900)

    def end(self) -> None:
        """End the light clients; the run ends the other processes."""
        for process in self._lights.values():
            process.kill()

    def _start_server(self) -> None:
        self.live.start_server("--dashboard", "--dashboard-port", str(self._dashboard_port))

    def _start_gateway(self) -> None:
        door, phones = self._door, str(self.folder / "phones")
        start_gateway(self.live, None, door, "--phones", phones)

    def _start_lights(self, first: int) -> None:
        settings = RunConfig.of({**SETTINGS, **self._of_client(REAL[0])}, "soak")
        runtime, _ = load_run(settings)
        plan = Plan(
            folder=str(self.folder),
            keys=str(self._keys),
            first=first,
            count=LIGHTS // 2,
            clients=0,
            gateway=self._door,
            certificate=str(self.live.home(GATEWAY) / "certificates" / "ca.pem"),
            layout=runtime.layout.to_json(),
            model_id=runtime.model_id.hex(),
            leaving=LEAVING,
            away=AWAY,
        )
        with (self.folder / f"lights-{first}.said").open("ab") as said:
            self._lights[first] = started(plan.write(), said)

    def _of_client(self, name: str) -> dict[str, Scalar]:
        data = str(self._data[REAL.index(name)])
        return {"model.path": MODEL, "data.path": data, "task": TASK, "threads": 1}

    def _start_real(self, name: str) -> None:
        of_client = self._of_client(name)
        options = ["--model", MODEL, "--data", str(of_client["data.path"]), "--task", TASK]
        options += ["--set", "threads=1"]
        if REAL.index(name) < self._supernodes:
            self.live.start_client(name, None, *options)
        else:
            start_by_stream(self.live, name, [self._door], None, *options)

    def restart(self, what: str) -> None:
        """End a process, start it again unless the server does, and wait for the next rounds."""
        before = self.live.last()
        self.restarts.append((before, what))
        server = self.live.server
        assert server is not None, "it was started before"
        if what == "server":
            server.terminate()
            server.wait()
            self._start_server()
        elif what in ("flwr-serverapp", "samara.server.live.superlink"):
            if process := self.live.process(server, what):
                process.kill()
        elif what.startswith(GATEWAY):
            gateway = self.live.clients[GATEWAY]
            gateway.terminate() if "term" in what else gateway.kill()
            gateway.wait()
            self._start_gateway()
        elif what == "lights":
            self._lights[0].kill()
            self._lights[0].wait()
            self._start_lights(0)
        else:
            self.live.clients[what].kill()
            self.live.clients[what].wait()
            self._start_real(what)
        seconds = self.live.wait_for_round(before + 2, 900)
        print(f"round {before}: {what} was ended; two rounds {seconds:.0f} s later", flush=True)

    def sample(self) -> None:
        """Append what every process and every file has now."""
        roots = {"server": self.live.server} | self.live.clients
        roots |= {f"lights-{first}": process for first, process in self._lights.items()}
        processes: list[dict[str, Any]] = []
        for who, root in roots.items():
            processes += family(who, root.pid) if root else []
        row: dict[str, Any] = {"round": self.live.last(), "seconds": time.monotonic()}
        row |= {"processes": processes, "bytes": self._file_sizes()}
        append_event(self.samples, row)
        self._fetch_metrics()

    def _file_sizes(self) -> dict[str, int]:
        places = {"run": self.live.run, GATEWAY: self.live.home(GATEWAY)}
        places |= {name: self.live.home(name) for name in REAL}
        sizes: dict[str, int] = {}
        for who, place in places.items():
            for file in place.rglob("*"):
                try:
                    size = file.stat().st_size if file.is_file() else 0
                except FileNotFoundError:  # replaced in this moment
                    continue
                name = f"{who}/{kind_of(file.relative_to(place))}"
                sizes[name] = sizes.get(name, 0) + size
        return {name: size for name, size in sizes.items() if size}

    def _fetch_metrics(self) -> None:
        token = (self.live.run / TOKEN_FILE).read_text().strip()
        try:
            httpx.get(
                f"http://127.0.0.1:{self._dashboard_port}/metrics",
                headers={"Authorization": f"Bearer {token}"},
                timeout=60,
            ).raise_for_status()
        except httpx.TransportError as error:  # the server is being started
            print(f"metrics: {error}", flush=True)


def fill(file: Path, line: str, limit: int = _LOG_BYTES) -> None:
    """Write a log that is nearly full."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file.write_text((line + "\n") * ((limit - NEARLY_FULL) // (len(line) + 1)))


def family(who: str, root: int) -> list[dict[str, Any]]:
    """Return what a process and those that it has started have."""
    found = []
    try:
        process = psutil.Process(root)
        for one in [process, *process.children(recursive=True)]:
            with one.oneshot():
                found.append(
                    {
                        "name": f"{who}: {program(one.cmdline())}",
                        "pid": one.pid,
                        "bytes": one.memory_full_info().uss,
                        "descriptors": one.num_fds(),
                        "threads": one.num_threads(),
                    }
                )
    except psutil.NoSuchProcess:
        pass
    return found


def program(command: list[str]) -> str:
    """Return what runs in a process, by its command line."""
    line = " ".join(command)
    if "-m samara " in line:
        return " ".join(command[command.index("samara") + 1 :][:2])
    if found := _MODULE.search(line):
        return found[1]
    return next((Path(word).name for word in command[1:] if not word.startswith("-")), line)


def kind_of(file: Path) -> str:
    """Return what kind of file it is: its folder, and its name where numbers do not matter."""
    return re.sub(r"\d+", "*", "/".join([*file.parts[:-1][:1], *file.parts[-1:]][:2]))


def soak(run: Soak, rounds: int, minutes: float, say: Callable[[str], object]) -> None:
    """Serve until so many rounds or minutes are over."""
    begun, sampled = time.monotonic(), 0.0
    turns = cycle(TURNS)
    restart_after = RESTART_ROUNDS
    while run.live.last() < rounds and time.monotonic() - begun < 60 * minutes:
        if time.monotonic() - sampled >= SAMPLE_SECONDS:
            sampled = time.monotonic()
            run.sample()
        if run.live.last() >= restart_after and rounds - run.live.last() > RESTART_ROUNDS / 2:
            restart_after += RESTART_ROUNDS
            run.restart(next(turns))
        time.sleep(0.2)
    run.sample()
    say(f"{run.live.last()} rounds in {(time.monotonic() - begun) / 60:.1f} minutes")


def main(
    folder: Annotated[Path, typer.Option(help="Folder of everything; a short path.")],
    rounds: Annotated[int, typer.Option(min=10)] = 5000,
    minutes: Annotated[float, typer.Option(help="Most minutes of it.")] = 60.0,
    supernodes: Annotated[int, typer.Option(min=0, max=len(REAL))] = 0,
) -> None:
    """Serve for a long time, and say what grows."""
    logging.getLogger().setLevel(logging.ERROR)
    console = Console()
    folder.mkdir(parents=True, exist_ok=True)
    run = Soak(folder.resolve(), rounds, supernodes)
    with run.live:
        try:
            run.start()
            soak(run, rounds, minutes, console.print)
            server = run.live.server
            assert server is not None, "it was started before"
            if server.poll() is None:
                server.terminate()
                server.wait(300)
            proven = run.live.check()
        finally:
            run.end()
    left = sum(json.loads(file.read_text())["left"] for file in folder.glob("lights-*.json"))
    console.print(f"digests proven to round {proven}; {len(run.restarts)} restarts, {left} left")
    reports = [event["reports"] for event in run.live.rounds.values()]
    console.print(f"reports of a round: {sum(reports) / len(reports):.2f}, least {min(reports)}")
    samples = read_events(run.samples)
    console.print(processes_table(samples))
    console.print(files_table(samples))


if __name__ == "__main__":
    typer.run(main)
