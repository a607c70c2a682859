"""A rehearsal from its settings to its report."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from client.training.model_runtime import load_run
from devices.hardware.hold import held
from devices.hardware.leftovers import Caretaker, caretaker
from devices.hardware.link_shaping import check_shaping
from server.live.keys import KEYS_FOLDER, ClientKeys
from server.store import METRICS_FILE
from shared.certificates import CERTIFICATES_FOLDER
from shared.config import RunConfig
from shared.errors import ConfigError
from shared.events import EventFollower
from shared.files import make_private_folder
from shared.machine import cores
from shared.model.model_folder import find_embedded_model
from shared.runs import RUNS_FOLDER
from shared.sections import EMBEDDED_MODEL
from shared.settings import Scalar, describe
from simulations.fleet.device import fleet_of
from simulations.rehearsal.dealt_data import TASK_FILE, write_shares, write_task
from simulations.rehearsal.faults import (
    FaultReport,
    begin,
    check_faults,
    end,
    first_report,
    timeline,
)
from simulations.rehearsal.own_work import round_seconds
from simulations.rehearsal.plan import PlannedClient, plan_clients
from simulations.rehearsal.processes import (
    RehearsedClient,
    end_process,
    samara_command,
    start_process,
)
from simulations.rehearsal.report import RehearsalReport, make_report

_POLL_SECONDS = 0.5
_MOST_PATH = 60
"""Most characters of the results' folder: Unix sockets lie in it, whose paths are short."""
_OF_FLEET = ("fleet.", "rehearsal.")
_PLACED = ("out", "threads", "task", "model.path", "model.torch-device", "model.quantization")
"""Settings that a rehearsal decides for each client."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class _Place:
    """The folder of a rehearsal, and where things lie in it."""

    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def home(self, client: PlannedClient) -> Path:
        return self.folder / "clients" / str(client.number)

    def said(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def rehearse(
    config: RunConfig, dilation: float, out: Path | None, say: Say
) -> tuple[RehearsalReport, Path]:
    """Run a server and its clients as processes that are held to their devices.

    Args:
        config: settings of the run, with `fleet.devices`.
        dilation: seconds on this machine that stand for a second of the devices.
        out: folder of the results; None is one in `runs`.
        say: called with a line for each thing that happens.

    Returns:
        The report, and the folder of the results.

    Raises:
        SamaraError: if the rehearsal cannot begin, or the machine does not permit it.
    """
    if not config.fleet.devices:
        raise ConfigError("a rehearsal needs the devices of its clients: [[fleet.devices]]")
    check_faults(config.rehearsal.faults, config.data.clients)
    check_shaping()
    place = _Place(_folder(config, out))
    say("loading the model and reading the data")
    clients = _prepare(config, dilation, place, say)
    with _stopped_by_signals(), ExitStack() as undo:
        keeper = undo.enter_context(caretaker())
        rehearsal = _Rehearsal(config, dilation, place, say)
        undo.callback(rehearsal.end)
        rehearsal.start(clients, keeper, undo)
        rehearsal.watch()
        rehearsal.end()
        faults = rehearsal.fault_reports()
        report = make_report(rehearsal.clients, place.run, place.home, dilation, faults)
        return report, place.folder


def _folder(config: RunConfig, out: Path | None) -> Path:
    """Return the folder of the results, which must be new.

    Raises:
        ConfigError: if it exists with something in it, or its path is too long.
    """
    name = f"{RUNS_FOLDER}/rehearsal-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = (out or Path(name)).resolve()
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: has files already; give another folder, --out")
    if len(str(folder)) > _MOST_PATH:
        raise ConfigError(
            f"{folder}: sockets lie in it, whose paths are short; give a folder with a path of at "
            f"most {_MOST_PATH} characters, --out"
        )
    return folder


def _prepare(config: RunConfig, dilation: float, place: _Place, say: Say) -> list[PlannedClient]:
    """Plan the clients, and write their data.

    Raises:
        SamaraError: if model or data cannot be used, or the dilation is too small.
    """
    of_client = config.model_copy(update={"threads": 1})
    run = load_run(of_client)
    devices = fleet_of(of_client, run.runtime, run.data)
    shares = [run.data.share_of(number, len(devices)) for number in range(len(devices))]
    kinds = sorted({device.group.quantization for device in devices})
    own: dict[str, float] = {}
    for kind in kinds:
        runtime = (
            run.runtime
            if _stored(kind) == "none"
            else load_run(_quantized(of_client, kind)).runtime
        )
        own[kind] = round_seconds(of_client, runtime, shares[0])
        say(f"a round's steps take {own[kind]:.2f} s of one core of this machine ({kind})")
    clients = plan_clients(devices, own, config.steps, dilation, cores())
    make_private_folder(place.folder)
    write_task(run.runtime.task, place.folder / TASK_FILE)
    write_shares(shares, place.data)
    return clients


def _stored(kind: str) -> str:
    return kind if kind in ("int8", "nf4") else "none"


def _quantized(config: RunConfig, kind: str) -> RunConfig:
    model = config.model.model_copy(update={"quantization": _stored(kind)})
    return config.model_copy(update={"model": model})


class _Rehearsal:
    """The processes of a rehearsal, and what is done with them."""

    def __init__(self, config: RunConfig, dilation: float, place: _Place, say: Say) -> None:
        self._config, self._dilation, self._place, self._say = config, dilation, place, say
        self._metrics = EventFollower(place.run / METRICS_FILE)
        self._server: subprocess.Popen[str] | None = None
        self.clients: list[RehearsedClient] = []
        self._names: dict[int, str] = {}
        self._reporters: dict[int, list[str]] = {}
        self._faults = config.rehearsal.faults
        self._moments = timeline(self._faults, dilation)
        self._first_round = 0.0
        self._acted: dict[tuple[int, bool], int] = {}

    def start(self, planned: Sequence[PlannedClient], keeper: Caretaker, undo: ExitStack) -> None:
        """Set up the limits, and start the server and the clients."""
        keys, port = ClientKeys(self._place.run / KEYS_FOLDER), _free_port()
        limits = []
        for client in planned:
            self._say(f"client {client.name}:")
            limits.append(
                undo.enter_context(held(client.hold, lambda line: self._say(f"  {line}")))
            )
        names = [one.link.address for one in limits if one.link]
        secrets = [keys.create(client.name) for client in planned]
        self._names = {key.client: key.name for key in keys.read_all()}
        self._server = start_process(
            samara_command(
                server_arguments(self._config, self._place.run, port, names, self._dilation)
            ),
            self._place.said("server"),
        )
        keeper.watch(self._server.pid)
        self._await("listening on")
        for client, limit, name, key in zip(planned, limits, names, secrets, strict=True):
            arguments = client_arguments(
                self._config,
                client,
                f"{name}:{port}",
                key,
                self._place.run,
                self._place.home(client),
            )
            arguments += ["--data", str(self._place.data / str(client.number))]
            arguments += ["--task", str(self._place.folder / TASK_FILE)]
            self.clients.append(
                RehearsedClient(client, limit, arguments, self._place.said(client.name), keeper)
            )
            self.clients[-1].start()

    def watch(self) -> None:
        """Watch the run until its server ends, and its clients have heard of the end."""
        assert self._server is not None, "it was started"
        while self._server.poll() is None:
            self._tend()
            time.sleep(_POLL_SECONDS)
        self._tend()
        if self._server.returncode:
            self._say(f"the server ended with status {self._server.returncode}")

    def end(self) -> None:
        """End all processes."""
        for client in self.clients:
            client.end()
        if self._server is not None:
            end_process(self._server)

    def _tend(self) -> None:
        for event in self._metrics.read_new():
            if event["event"] == "round":
                self._note_round(event)
        self._act()
        for client in self.clients:
            client.tend()
            if client.has_power and not client.died and client.check():
                self._say(f"client {client.plan.name} {client.died}")

    def _note_round(self, event: Mapping[str, Any]) -> None:
        """Note who has reported in a round; the first one begins the time of the faults."""
        names = sorted(self._names.get(int(client), client) for client in event["clients"])
        self._reporters[event["round"]] = names
        if not self._first_round:
            self._first_round = time.monotonic()
        self._say(f"round {event['round']}: {len(names)} reports")

    def _act(self) -> None:
        """Have those faults begin and end whose time has come."""
        while self._moments and self._first_round:
            moment = self._moments[0]
            if time.monotonic() < self._first_round + moment.at:
                return
            self._moments.pop(0)
            fault = self._faults[moment.number]
            client = self.clients[fault.client]
            if client.died:
                continue
            (begin if moment.begins else end)(fault, client)
            self._acted[moment.number, moment.begins] = max(self._reporters)
            verb = "begins" if moment.begins else "ends"
            self._say(f"{fault.kind} of client {client.plan.name} {verb}")

    def fault_reports(self) -> list[FaultReport]:
        """Return what became of the faults."""
        reports = []
        for number, fault in enumerate(self._faults):
            name = self.clients[fault.client].plan.name
            began, ended = (self._acted.get((number, begins)) for begins in (True, False))
            back = None if ended is None else first_report(name, ended, self._reporters)
            reports.append(FaultReport(fault.kind, name, fault.seconds, began, ended, back))
        return reports

    def _await(self, words: str) -> None:
        said = self._place.said("server")
        assert self._server is not None, "it was started"
        while words not in said.read_text(errors="replace"):
            if self._server.poll() is not None:
                raise ConfigError(f"the server did not start; see {said}")
            time.sleep(_POLL_SECONDS)


def server_arguments(
    config: RunConfig, run: Path, port: int, names: Sequence[str], dilation: float
) -> list[str]:
    """Return the arguments of the server's command."""
    arguments = ["server", "up", "--run", str(run), "--port", str(port)]
    for name in names:
        arguments += ["--name", name]
    for key, value in served_settings(config.flat(), dilation).items():
        arguments += ["--set", f"{key}={value}"]
    return arguments


def served_settings(settings: Mapping[str, Scalar], dilation: float) -> dict[str, str]:
    """Return the settings that a rehearsal's server gets, as `--set` takes them.

    They are those that the server decides, with time-outs as long as the dilation makes them.
    """
    described = describe(RunConfig)
    served: dict[str, Scalar] = {
        key: value
        for key, value in settings.items()
        if described[key].owner != "device"
        and not key.startswith(_OF_FLEET)
        and key not in _PLACED
        and value != described[key].default
    }
    served["cohort.timeout"] = float(settings["cohort.timeout"]) * dilation
    served["data.clients"] = settings["data.clients"]
    return {key: as_toml(value) for key, value in served.items()}


def client_arguments(
    config: RunConfig, client: PlannedClient, server: str, key: Path, run: Path, home: Path
) -> list[str]:
    """Return the arguments of a client's command, without its data."""
    model = config.model.path
    path = str(find_embedded_model()) if model == EMBEDDED_MODEL else model
    arguments = ["client", "up", "--name", client.name, "--home", str(home)]
    arguments += ["--superlink", server, "--key", str(key)]
    arguments += ["--certs", str(run / CERTIFICATES_FOLDER / "ca.pem"), "--model", path]
    described = describe(RunConfig)
    own: dict[str, Scalar] = {
        name: value
        for name, value in config.flat().items()
        if described[name].owner == "device"
        and not name.startswith((*_OF_FLEET, "data."))
        and name not in _PLACED
        and value != described[name].default
    }
    own |= {"threads": 1, "model.quantization": _stored(client.quantization)}
    for name, value in own.items():
        arguments += ["--set", f"{name}={as_toml(value)}"]
    return arguments


def as_toml(value: Scalar) -> str:
    """Return a value as `--set` reads it."""
    return json.dumps(value)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM, too, for the duration of a block."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
