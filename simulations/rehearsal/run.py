"""A rehearsal from its settings to its report."""

import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from samara.devices.hardware.hold import check_dilation_is_number, held
from samara.devices.hardware.leftovers import Caretaker, caretaker
from samara.devices.hardware.link_shaping import check_shaping
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.store import METRICS_FILE
from samara.shared.errors import ConfigError, DeviceError
from samara.shared.settings.config import RunConfig
from samara.shared.storage.events import EventFollower
from samara.simulations.rehearsal.arguments import client_arguments, server_arguments
from samara.simulations.rehearsal.dealt_data import TASK_FILE
from samara.simulations.rehearsal.fault_means import check_means, fault_means
from samara.simulations.rehearsal.faults import (
    FaultReport,
    begin,
    check_faults,
    end,
    first_report,
    timeline,
)
from samara.simulations.rehearsal.plan import PlannedClient
from samara.simulations.rehearsal.preparation import Place, Plan, Say, new_place, prepare
from samara.simulations.rehearsal.processes import (
    RehearsedClient,
    end_process,
    samara_command,
    start_process,
)
from samara.simulations.rehearsal.report import RehearsalReport, make_report

_POLL_SECONDS = 0.5
_SILENCE_SECONDS = 30.0
"""Time without news, in seconds, after which a line names the awaited clients."""
_LOOPBACK = "127.0.0.1"


def rehearse(
    config: RunConfig, dilation: float, out: Path | None, say: Say
) -> tuple[RehearsalReport, Path]:
    """Run a server and its clients as processes within their devices' limits.

    Args:
        config: settings of the run, with `fleet.devices`.
        dilation: seconds on this machine per second of the devices.
        out: folder of the results; None for a folder in `runs`.
        say: function that is called with a line about each event.

    Returns:
        The report, and the folder of the results.

    Raises:
        SamaraError: if the rehearsal cannot begin, or the machine does not permit a fault.
    """
    check_dilation_is_number(dilation)
    if not config.fleet.devices:
        raise ConfigError(
            "fleet.devices: a rehearsal needs the devices of its clients; add [[fleet.devices]] to "
            "the scenario"
        )
    check_faults(config.rehearsal.faults, config.data.clients)
    check_means(config.rehearsal.faults)
    place = new_place(out)
    plan = prepare(config, dilation, _shapes_links(say), place, say)
    with ExitStack() as undo:
        keeper = undo.enter_context(caretaker())
        rehearsal = _Rehearsal(config, dilation, plan, place, say)
        undo.callback(rehearsal.end)
        rehearsal.start(keeper, undo)
        rehearsal.watch()
        rehearsal.end()
        faults = rehearsal.fault_reports()
        report = make_report(rehearsal.clients, place.run, place.home, dilation, faults)
        return report, place.folder


def _shapes_links(say: Say) -> bool:
    """Return whether this machine permits link shaping; if not, call `say` with the reason."""
    try:
        check_shaping()
    except DeviceError as error:
        say(f"links are not limited, and clients use the loopback interface: {error}")
        return False
    return True


class _Rehearsal:
    """The processes of a rehearsal, and the actions on them."""

    def __init__(
        self, config: RunConfig, dilation: float, plan: Plan, place: Place, say: Say
    ) -> None:
        self._config = config
        self._dilation = dilation
        self._place = place
        self._say = say
        self._plan = plan
        self._metrics = EventFollower(place.run / METRICS_FILE)
        self._server: subprocess.Popen[str] | None = None
        self.clients: list[RehearsedClient] = []
        self._names: dict[int, str] = {}
        self._reporters: dict[int, list[str]] = {}
        self._faults = config.rehearsal.faults
        self._moments = timeline(self._faults, dilation)
        self._first_round = 0.0
        self._acted: dict[tuple[int, bool], int] = {}
        self._answers = 0
        self._news = self._said = time.monotonic()

    def start(self, keeper: Caretaker, undo: ExitStack) -> None:
        """Set up the limits, and start the server and the clients."""
        keys = ClientKeys(self._place.run / KEYS_FOLDER)
        port = _free_port()
        secrets = {client.number: keys.create(client.name) for client in self._plan.clients}
        self._names = {key.client: key.name for key in keys.read_all()}
        addresses = {
            client.number: self._hold(client, keeper, undo) for client in self._plan.clients
        }
        self._server = start_process(
            samara_command(
                server_arguments(
                    self._config, self._place.run, port, set(addresses.values()), self._dilation
                )
            ),
            self._place.said("server"),
        )
        keeper.watch(self._server.pid)
        self._await("listening on")
        for client in self.clients:
            number = client.plan.number
            home = self._place.home(client.plan)
            client.arguments = [
                *client_arguments(
                    self._config,
                    client.plan,
                    f"{addresses[number]}:{port}",
                    secrets[number],
                    self._place.run,
                    home,
                ),
                *("--data", str(self._place.data / str(number))),
                *("--task", str(self._place.folder / TASK_FILE)),
            ]
            client.start()

    def _hold(self, client: PlannedClient, keeper: Caretaker, undo: ExitStack) -> str:
        """Set up a client's limits, and return the server's address on the client's link."""
        self._say(f"client {client.name}:")
        limits = undo.enter_context(held(client.hold, lambda line: self._say(f"  {line}")))
        kinds = {fault.kind for fault in self._faults if fault.client == client.number}
        means = undo.enter_context(
            fault_means(kinds, limits.memory, self._place.home(client), self._dilation)
        )
        said = self._place.said(client.name)
        self.clients.append(RehearsedClient(client, limits, means, said, keeper))
        return limits.link.address if limits.link else _LOOPBACK

    def watch(self) -> None:
        """Watch the run until its server ends, or until the planned patience is exceeded."""
        assert self._server is not None, "it was started"
        self._news = self._said = time.monotonic()
        while self._server.poll() is None:
            self._tend()
            if time.monotonic() > self._news + self._plan.patience:
                self._say(f"abandoned: {self._silence()}; see the .log files in the folder")
                return
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
        """Read new events, begin or end the faults that are due, and check on the clients."""
        events = self._metrics.read_new()
        for event in events:
            if event["event"] == "round":
                self._note_round(event)
        has_acted = self._act()
        for client in self.clients:
            client.tend()
            if client.has_power and not client.died and client.check():
                self._say(f"client {client.plan.name} {client.died}")
        answers = sum(client.answers + client.was_ready for client in self.clients)
        if events or has_acted or answers > self._answers:
            self._answers = answers
            self._news = time.monotonic()
            self._said = self._news
        elif time.monotonic() > self._said + _SILENCE_SECONDS:
            self._said = time.monotonic()
            self._say(f"  {self._silence()}")

    def _silence(self) -> str:
        """Return a text about the clients for which the rehearsal waits, with their last output."""
        alive = [client for client in self.clients if not client.died]
        fewest = min((client.answers for client in alive), default=0)
        awaited = "; ".join(
            f"client {client.plan.name} ({client.received / 1e6:.1f} MB received, last line: "
            f"{client.last_words})"
            for client in alive
            if client.answers == fewest
        )
        seconds = time.monotonic() - self._news
        return f"{seconds:.0f} s without news; waiting for {awaited or 'no client'}"

    def _note_round(self, event: Mapping[str, Any]) -> None:
        """Record the clients that reported in a round.

        The first round is the origin of the faults' times.
        """
        names = sorted(self._names.get(int(client), client) for client in event["clients"])
        self._reporters[event["round"]] = names
        if not self._first_round:
            self._first_round = time.monotonic()
        self._say(f"round {event['round']}: {len(names)} reports")

    def _act(self) -> bool:
        """Start and end the faults that are due; return whether any was due."""
        has_acted = False
        while self._moments and self._first_round:
            moment = self._moments[0]
            if time.monotonic() < self._first_round + moment.at:
                break
            self._moments.pop(0)
            fault = self._faults[moment.number]
            client = self.clients[fault.client]
            if client.died:
                continue
            (begin if moment.begins else end)(fault, client)
            has_acted = True
            self._acted[moment.number, moment.begins] = max(self._reporters)
            verb = "begins" if moment.begins else "ends"
            self._say(f"{fault.kind} of client {client.plan.name} {verb}")
        return has_acted

    def fault_reports(self) -> list[FaultReport]:
        """Return the outcomes of the faults."""
        reports = []
        last = max(self._reporters, default=0)
        for number, fault in enumerate(self._faults):
            name = self.clients[fault.client].plan.name
            began, ended = (self._acted.get((number, begins)) for begins in (True, False))
            back = None if ended is None else first_report(name, ended, self._reporters)
            if ended == last:  # no later round followed for a report
                ended = None
            reports.append(FaultReport(fault.kind, name, fault.seconds, began, ended, back))
        return reports

    def _await(self, words: str) -> None:
        said = self._place.said("server")
        assert self._server is not None, "it was started"
        while words not in said.read_text(errors="replace"):
            if self._server.poll() is not None:
                raise ConfigError(f"the server did not start; see {said}")
            time.sleep(_POLL_SECONDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))
        port: int = probe.getsockname()[1]
        return port
